"""How good are pruned text models, before any training?

Varied: the size of MiniLM-L6, three quarters or half of its hidden neurons, or three of its six
blocks, and how it is cut: `pruning` with and without compensation, `elastic`, `weight_selection`
and `first_k`. Importances and compensation see 600 training texts of the task without labels.

Measured: test accuracy of a ridge regression of the features (the mean of the tokens) of 500
training texts, on at most 1,000 test texts; and the correlation of the cosine similarities of all
pairs of 500 test texts with those by MiniLM-L6.

Command: resumable. MINILM is a folder of transformers with all-MiniLM-L6-v2; `wordnet` must be
installed (`lgzoo show wordnet` prints how).

    python benchmarks/pruned_texts.py --ancestry MINILM
    python benchmarks/pruned_texts.py --ancestry MINILM wordnet elastic
    python benchmarks/pruned_texts.py          write the page from the results

Results: benchmarks/results/pruned_texts.jsonl; the last digits of a row depend on the machine.
Page: docs/results/pruning.md.
"""

from __future__ import annotations

import argparse
import sys
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.probes import compute_features, run_probe
from pages import DOCS, replace_between
from rows import append_row, find_missing, read_rows

ROWS = machine.RESULTS / "pruned_texts.jsonl"
TASKS = ("sentiment", "wordnet")
TRAINING_TEXTS, TEST_TEXTS, SIMILAR_TEXTS = 500, 1000, 500
# Options of the size, and the models of that size: method, and whether it compensates.
SIZES: dict[str, dict[str, Any]] = {
    "full": {},
    "--mlp-ratio 2": {"mlp_ratio": 2.0},
    "--mlp-ratio 3": {"mlp_ratio": 3.0},
    "--layers 3": {"layers": 3},
}
ARMS: dict[str, tuple[str, bool | None]] = {
    "MiniLM-L6 itself": ("first_k", None),
    "`pruning`": ("pruning", True),
    "`pruning --no-compensate`": ("pruning", False),
    "`weight_selection`": ("weight_selection", None),
    "`elastic`": ("elastic", True),
    "`first_k`": ("first_k", None),
}
_PRUNED = ("`pruning`", "`pruning --no-compensate`", "`weight_selection`")
ARMS_OF = {
    "full": ("MiniLM-L6 itself",),
    "--mlp-ratio 2": (*_PRUNED, "`elastic`"),
    "--mlp-ratio 3": _PRUNED,
    "--layers 3": ("`pruning`", "`first_k`"),
}


class Cell(NamedTuple):
    """A model on a task."""

    task: str
    size: str
    arm: str

    @property
    def name(self) -> str:
        """The values as words."""
        return " ".join(self)


def main() -> None:
    """Measure the missing cells, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ancestry", help="the folder of MiniLM-L6; without it only the page")
    parser.add_argument("words", nargs="*", help="only cells with all of these words")
    args = parser.parse_args()
    if args.ancestry:
        for cell in find_missing(ROWS, list_cells(), args.words):
            row = measure_cell(cell, args.ancestry)
            append_row(ROWS, row)
            print(row, file=sys.stderr, flush=True)
    replace_between(DOCS / "results" / "pruning.md", "pruned-texts", make_table())
    print(make_table())


def list_cells() -> list[Cell]:
    """Return all cells in the order in which they are measured."""
    return [Cell(task, size, arm) for size in SIZES for task in TASKS for arm in ARMS_OF[size]]


def measure_cell(cell: Cell, ancestry: str) -> dict[str, Any]:
    """Return the row of a cell."""
    method, compensate = ARMS[cell.arm]
    run, task = Run(threads=1, device=machine.DEVICE, ancestry=ancestry), open_task(cell.task)
    # Without a head, whose features are the pooler's.
    learngene = extract_learngene(method, cell.task, ancestry).with_config(purpose=None)
    setting = {} if compensate is None else {"compensate": compensate}
    model = lifecycle.expand(learngene, run=run, **SIZES[cell.size], **setting)
    module, input_format = model.model(), model.input_format
    train = compute_features(module, task, "train", input_format, run, images=TRAINING_TEXTS)
    test = compute_features(module, task, "test", input_format, run, images=TEST_TEXTS)
    ridge = run_probe(train, test, task, "test", "ridge")
    low, high = ridge.interval
    similarities = compute_similarities(test.values)
    return {
        **cell._asdict(),
        "ridge": ridge.value,
        "low": low,
        "high": high,
        "agreement": float(
            np.corrcoef(compute_ancestry_similarities(cell.task, ancestry), similarities)[0, 1]
        ),
        "texts": ridge.images,
        "training_texts": ridge.training_images,
        "params": model.cost().params,
        **machine.describe_device(),
    }


@lru_cache
def compute_ancestry_similarities(task: str, ancestry: str) -> np.ndarray:
    """Return the cosine similarities by the ancestry model."""
    run = Run(threads=1, device=machine.DEVICE, ancestry=ancestry)
    model = lifecycle.expand(extract_learngene("first_k", task, ancestry), run=run)
    features = compute_features(
        model.model(), open_task(task), "test", model.input_format, run, images=TEST_TEXTS
    )
    return compute_similarities(features.values)


def compute_similarities(features_BD: np.ndarray) -> np.ndarray:
    """Return the cosine similarities of all pairs of the first texts."""
    features_BD = features_BD[:SIMILAR_TEXTS]
    unit_BD = features_BD / np.linalg.norm(features_BD, axis=1, keepdims=True)
    similarities: np.ndarray = (unit_BD @ unit_BD.T)[np.triu_indices(len(unit_BD), 1)]
    return similarities


@lru_cache
def extract_learngene(method: str, task: str, ancestry: str) -> Learngene:
    """Return a method's learngene of the ancestry model."""
    tasks = () if METHODS.load(method).tasks == "none" else (task,)
    run = Run(threads=1, device=machine.DEVICE, ancestry=ancestry)
    return lifecycle.extract(method, ancestries=(ancestry,), tasks=tasks, run=run)


def make_table() -> str:
    """Return accuracies, per cent, and agreements in Markdown."""
    rows = {(row["task"], row["size"], row["arm"]): row for row in read_rows(ROWS)}
    heads = [f"{task}: {number}" for task in TASKS for number in ("ridge", "agreement")]
    lines = [f"| size | model | parameters | {' | '.join(heads)} |", "|---|---|" + "---:|" * 5]
    for size, arm in product(SIZES, ARMS):
        rows_of_arm = [rows.get((task, size, arm)) for task in TASKS]
        if not any(rows_of_arm):
            continue
        params = next(row["params"] for row in rows_of_arm if row)
        cells = [text for row in rows_of_arm for text in describe(row)]
        option = size if size == "full" else f"`{size}`"
        lines.append(f"| {option} | {arm} | {params / 1e6:.1f} M | {' | '.join(cells)} |")
    return "\n".join(lines)


def describe(row: dict[str, Any] | None) -> tuple[str, str]:
    """Return accuracy with its interval, and agreement; empty without a row."""
    if row is None:
        return "", ""
    accuracy = f"{100 * row['ridge']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})"
    return accuracy, f"{row['agreement']:.3f}"


if __name__ == "__main__":
    main()
