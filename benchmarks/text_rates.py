"""Which learning rate does fine-tuning on a few hundred texts need?

Varied: the learning rate, of models built from a real text model, MiniLM-L6, and from the
bundled GPT-2, `ancestry-words`.

Measured: the accuracy with the head of a ridge regression, and after the last of 20 epochs on 500
training texts, on 600 other texts of the task's training split; all other settings are those of
`lgzoo finetune`. No validation or test text is read.

Command: resumable. MINILM is a folder of transformers with all-MiniLM-L6-v2; `debian_sections` and
`wordnet` must be installed (`lgzoo show debian_sections` prints how). On a GPU:
BENCHMARK_DEVICE=cuda.

    python benchmarks/text_rates.py --ancestry MINILM [--workers 2] [--only WORD ...]
    python benchmarks/text_rates.py --ancestry ancestry-words
    python benchmarks/text_rates.py --table    write the table from the results

Results: benchmarks/results/text_rates.jsonl.
Page: docs/results/finetuning.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import machine
import text_models
from command_line import read_arguments
from few_images import measure_training
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.catalogue import open_task
from pages import DOCS, replace_between
from probes import hold_out_images
from rows import find_missing, measure_cells, read_rows

ROWS = machine.RESULTS / "text_rates.jsonl"
TEXTS, HELD_OUT = 500, 600
WORDS = text_models.WORDS
TASKS = {
    "minilm": ("sentiment", "wordnet"),
    WORDS: ("sentiment", "debian_sections", "wordnet"),
}
# By the name of the ancestry model: method, layers and width of its descendants, and the rates.
MODELS = {
    "minilm": (("first_k", 3, 384), ("weight_selection", 3, 256), ("weight_subcloning", 6, 256)),
    WORDS: (("first_k", 6, 96), ("first_k", 3, 96), ("weight_subcloning", 3, 64)),
}
RATES = {"minilm": (1e-4, 3e-4, 1e-3), WORDS: (3e-4, 1e-3, 3e-3)}


class Cell(NamedTuple):
    """A training."""

    ancestry: str
    method: str
    layers: int
    width: int
    task: str
    lr: float

    @property
    def name(self) -> str:
        """All fields as text."""
        size = f"{self.method} {self.layers} x {self.width}"
        return f" {self.ancestry} {size} {self.task} {self.lr:g} "


def main() -> None:
    """Measure the missing trainings, print the table and write it."""
    args = read_arguments(__doc__, ancestry=f"the folder of MiniLM-L6, or {WORDS}")
    if not args.table:
        name = WORDS if args.ancestry == WORDS else "minilm"
        missing = find_missing(ROWS, list_cells(name), args.only)
        measure_cells(ROWS, missing, measure_cell, args.workers, args.ancestry)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "finetuning.md", "text-rates", table)
    print(table)


def list_cells(ancestry: str) -> Iterator[Cell]:
    """Yield all trainings; those of a model on a task follow each other."""
    for task, model, lr in product(TASKS[ancestry], MODELS[ancestry], RATES[ancestry]):
        yield Cell(ancestry, *model, task, lr)


def measure_cell(cell: Cell, ancestry: str) -> dict[str, Any]:
    """Fine-tune a model, and return the row."""
    import torch

    torch.set_num_threads(1)
    started = time.monotonic()
    run = Run(seed=0, threads=1, device=machine.DEVICE)
    opened = open_task(cell.task)
    task = hold_out_images(opened, slice(TEXTS), slice(TEXTS, TEXTS + HELD_OUT))
    model = build_model(cell.method, cell.layers, cell.width, cell.task, cell.ancestry, ancestry)
    model = model.for_task(
        task.name, task.class_names, seed=derive_seed(run.seed, "head"), dense=False
    )
    recipe = replace(lifecycle.FINETUNE, lr=cell.lr, augment="none")
    return {
        **cell._asdict(),
        **measure_training(model, task, recipe, run),
        "seconds": round(time.monotonic() - started, 1),
        **machine.describe_device(),
    }


@lru_cache(maxsize=1)
def build_model(
    method: str, layers: int, width: int, task: str, ancestry: str, folder: str
) -> Descendant:
    """Return a model without a head."""
    cell = text_models.Cell(method, layers, task, width, ancestry=ancestry)
    run = Run(threads=1, device=machine.DEVICE, ancestry=folder)
    return text_models.build_model(cell, folder, run)


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracies in Markdown, per cent: a model and a task a row."""
    every = sorted({lr for rates in RATES.values() for lr in rates})
    lines = [
        f"| model | task | ridge head | {' | '.join(f'{lr:g}' for lr in every)} |",
        "|---|---|---:|" + "---:|" * len(every),
    ]
    for ancestry, models in MODELS.items():
        for model, task in product(models, TASKS[ancestry]):
            wanted = (ancestry, *model, task)
            own = [row for row in rows if tuple(row[name] for name in Cell._fields[:5]) == wanted]
            after = {row["lr"]: f"{100 * row['after']:.1f}" for row in own}
            if own:
                method, layers, width = model
                name = f"{ancestry} `{method}` {layers} x {width}"
                cells = " | ".join(after.get(lr, "") for lr in every)
                lines.append(f"| {name} | {task} | {100 * own[0]['before']:.1f} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
