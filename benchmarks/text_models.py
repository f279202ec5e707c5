"""How good are the features of descendants of a real model of texts, MiniLM-L6?

Varied: the ancestry model itself (6 layers), its first 3 layers (`first_k`), and 3 layers of random
weights (`scratch`). Features are the mean over the tokens, as in the ancestry model.

Measured: a ridge regression before any training (training/probes.py), of 500 training texts, on at
most 1,000 test texts of a task.

Command: resumable. MINILM is a folder of transformers with all-MiniLM-L6-v2; `debian_sections` must
be installed (`lgzoo show debian_sections` prints how).

    python benchmarks/text_models.py --ancestry MINILM probe
    python benchmarks/text_models.py table    write the page from the results

Results: benchmarks/results/text_models.jsonl; the last digits of a row depend on the machine.
Page: docs/text.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.probes import compute_features, run_probe
from pages import DOCS, replace_between

ROWS = machine.RESULTS / "text_models.jsonl"
TEXTS, TEST_TEXTS = 500, 1000
TASKS = ("acceptability", "sentiment", "debian_sections")
# Method, layers and text of the rows.
MODELS = (
    ("first_k", 6, "MiniLM-L6 itself, 6 layers"),
    ("first_k", 3, "`first_k`, 3 layers"),
    ("scratch", 3, "random weights, 3 layers"),
)


@dataclass(frozen=True)
class Cell:
    """One model on one task."""

    method: str
    layers: int
    task: str


def main() -> None:
    """Measure the missing cells, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=["probe", "table"])
    parser.add_argument("--ancestry", help="the folder of MiniLM-L6")
    given = parser.parse_args()
    if given.stage == "probe":
        if not given.ancestry:
            parser.error("name the folder of MiniLM-L6: --ancestry MINILM")
        for cell in list_missing():
            measure(cell, given.ancestry)
    table = make_table(read_rows())
    replace_between(DOCS / "text.md", "text-models", table)
    print(table)


def list_missing() -> Iterator[Cell]:
    """Yield the cells that have no row yet, in the order in which they are measured."""
    done = {(row["method"], row["layers"], row["task"]) for row in read_rows()}
    for task in TASKS:
        for method, layers, _ in MODELS:
            if (method, layers, task) not in done:
                yield Cell(method, layers, task)


def read_rows() -> list[dict[str, Any]]:
    """Return the results so far."""
    if not ROWS.is_file():
        return []
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def measure(cell: Cell, ancestry: str) -> None:
    """Measure the accuracy of the regression on test texts, and append the row."""
    import torch

    torch.set_num_threads(1)
    start, run = time.monotonic(), Run(threads=1, device=machine.DEVICE, ancestry=ancestry)
    learngene = extract_learngene(cell.method, ancestry)
    model = lifecycle.expand(learngene, layers=cell.layers, run=run)
    module, task, form = model.model(), open_task(cell.task), model.input_format
    train = compute_features(module, task, "train", form, run, images=TEXTS)
    test = compute_features(module, task, "test", form, run, images=TEST_TEXTS)
    ridge = run_probe(train, test, task, "test", "ridge")
    low, high = ridge.interval
    row = {
        **asdict(cell),
        "ridge": ridge.value,
        "low": low,
        "high": high,
        "texts": ridge.images,
        "training_texts": ridge.training_images,
        "params": model.cost().params,
        "seconds": round(time.monotonic() - start, 1),
    }
    with ROWS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(row, file=sys.stderr, flush=True)


@lru_cache(maxsize=1)
def extract_learngene(method: str, ancestry: str) -> Learngene:
    """Return a method's learngene of the ancestry model."""
    run = Run(threads=1, device=machine.DEVICE, ancestry=ancestry)
    return lifecycle.extract(method, ancestries=(ancestry,), run=run)


def make_table(rows: list[dict[str, Any]]) -> str:
    """Return the accuracies in Markdown, per cent, with their intervals."""
    lines = [f"| model | parameters | {' | '.join(TASKS)} |", "|---|---:|" + "---:|" * len(TASKS)]
    for method, layers, text in MODELS:
        own = {
            row["task"]: row for row in rows if (row["method"], row["layers"]) == (method, layers)
        }
        if own:
            params = f"{next(iter(own.values()))['params'] / 1e6:.1f}M"
            cells = [describe(own[task]) if task in own else "" for task in TASKS]
            lines.append(f"| {text} | {params} | {' | '.join(cells)} |")
    return "\n".join(lines)


def describe(row: dict[str, Any]) -> str:
    """Return an accuracy and its interval, per cent."""
    return f"{100 * row['ridge']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})"


if __name__ == "__main__":
    main()
