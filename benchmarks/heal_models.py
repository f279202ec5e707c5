"""How good are the descendants of a real DINOv2-S after healing, and then after fine-tuning?

Varied: the method and the size. Every descendant is healed with the defaults of `lgzoo heal` on
5,000 images without labels: training images of clipart, emoji and fashion_mnist, but not of stamps.
closed_form is calibrated with training images of the task, the others need none. The healed models
are fine-tuned with the defaults of `lgzoo finetune` on at most 500 training images.

Measured: a ridge regression on the frozen features before and after healing, fitted to at most 500
training images, and the accuracy after fine-tuning; all on at most 600 test images, those of
benchmarks/real_models.py.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes; the tasks must be installed (`lgzoo show stamps` prints how). On a GPU:
BENCHMARK_DEVICE=cuda.

    python benchmarks/heal_models.py --ancestry DINOV2 [--workers 2] [--only WORD ...]
    python benchmarks/heal_models.py --table    write the table from the results

Results: benchmarks/results/heal_models.jsonl.
Page: docs/results/heal.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

import machine
from command_line import read_arguments
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.lifecycle.rates import choose_heal_rate
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.splits.cutting import ensure_validation
from learngene_zoo.tasks.splits.samples import PixelSplit
from learngene_zoo.tasks.task import Task
from learngene_zoo.tasks.transforms import fit_images
from learngene_zoo.training.healing.recovery import recover
from learngene_zoo.training.healing.settings import HEAL, HEALING
from learngene_zoo.training.probes import compute_features, run_probe
from pages import DOCS, replace_between
from probes import evaluate_on_test
from rows import find_missing, measure_cells, read_rows

ROWS = machine.RESULTS / "heal_models.jsonl"
PIXELS, IMAGES, TEST_IMAGES = 112, 500, 600
UNLABELLED = {"clipart": 1_900, "emoji": 1_260, "fashion_mnist": 1_840}  # 5,000 training images
HELD_OUT = 200  # of each task's validation images, at most
TASKS = ("stamps", "fashion_mnist")
MODELS = (
    ("closed_form", 12, 256),
    ("weight_selection", 12, 256),
    ("closed_form", 6, 384),
    ("first_k", 6, 384),
    ("closed_form", 6, 256),
    ("weight_selection", 6, 256),
    ("closed_form", 6, 192),
    ("weight_selection", 6, 192),
)


class Cell(NamedTuple):
    """A descendant on a task."""

    method: str
    layers: int
    width: int
    task: str

    @property
    def name(self) -> str:
        """The words that `--only` searches."""
        return " ".join(map(str, self))


def main() -> None:
    """Measure the missing cells, print the table and write it."""
    args = read_arguments(__doc__)
    if not args.table:
        cells = find_missing(ROWS, list_cells(), args.only)
        measure_cells(ROWS, cells, measure_cell, args.workers, args.ancestry)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "heal.md", "heal-models", table)
    print(table)


def list_cells() -> Iterator[Cell]:
    """Yield every cell."""
    for task in TASKS:
        for model in MODELS:
            yield Cell(*model, task)


def measure_cell(cell: Cell, source: str) -> dict[str, Any]:
    """Build, heal and fine-tune a descendant; return the row of the three measurements."""
    torch.set_num_threads(1)
    run = Run(seed=0, threads=1, device=machine.DEVICE, ancestry=source)
    task = ensure_validation(open_task(cell.task))
    tasks = (cell.task,) if cell.method == "closed_form" else ()
    learngene = lifecycle.extract(
        cell.method, ancestries=(source,), tasks=tasks, image_size=PIXELS, run=run
    )
    start = lifecycle.expand(
        learngene, layers=cell.layers, width=cell.width, task=cell.task, run=run
    )
    started = time.monotonic()
    healed = recover(
        start,
        open_ancestry(source, image_size=PIXELS),
        mix_images(start),
        replace(HEAL, lr=choose_heal_rate(start)),
        HEALING,
        run,
        records={key: start.provenance.get(key) for key in ("runs", "teacher_depth")},
    )
    record: Any = healed.provenance["healed"]
    row = {
        **cell._asdict(),
        "before": measure_probe(start, task, run),
        "healed": measure_probe(healed, task, run),
        "lr": record["recipe"]["lr"],
        "kept_epoch": record["metrics"]["kept_epoch"],
        "seconds": round(time.monotonic() - started),
        **measure_finetuned(healed, task, run),
        **machine.describe_device(),
    }
    return row


def mix_images(model: Descendant) -> Task:
    """Return the images without labels, resized to the model's input size, and held-out ones."""
    parts: dict[str, list[torch.Tensor]] = {"train": [], "validation": []}
    opened = [ensure_validation(open_task(name)) for name in UNLABELLED]
    for task, count in zip(opened, UNLABELLED.values(), strict=True):
        for name, images in (("train", count), ("validation", HELD_OUT)):
            split = task.split(name)  # type: ignore[arg-type]
            order = np.random.default_rng(0).permutation(len(split))[:images]
            view = model.with_fit("stretch").view
            for index in np.sort(order):
                parts[name].append(fit_images(split.__getitems__([int(index)]), PIXELS, view))
    pixels = {name: torch.cat(images) for name, images in parts.items()}
    pixels["test"] = pixels["validation"]

    def open_split(name: str) -> PixelSplit:
        return PixelSplit(pixels[name], np.zeros(len(pixels[name]), dtype=np.int64))

    sizes = {name: len(images) for name, images in pixels.items()}
    return replace(opened[0], name="mixed", sizes=sizes, open_split=open_split, stamp=None)


def measure_probe(model: Descendant, task: Task, run: Run) -> float:
    """Return the accuracy on test images of a ridge regression on the features."""
    input_format = model.with_fit(lifecycle.choose_fit(model, task)).input_format
    train, test = (
        compute_features(
            model.model(), task, split, input_format, run, images=min(images, task.sizes[split])
        )
        for split, images in (("train", IMAGES), ("test", TEST_IMAGES))
    )
    return run_probe(train, test, task, "test", "ridge", seed=0).value


def measure_finetuned(model: Descendant, task: Task, run: Run) -> dict[str, float]:
    """Return the accuracy on test images after fine-tuning with the defaults."""
    tuned = lifecycle.finetune(
        model, task=task.name, run=run, images=min(IMAGES, task.sizes["train"])
    )
    evaluation = evaluate_on_test(tuned, task, run, TEST_IMAGES)
    return {"finetuned": evaluation.pop("value"), **evaluation}


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracies in Markdown, per cent: a model a row, three columns for every task."""
    steps = ("before", "healed", "finetuned")
    heads = [
        f"{task}: {step}" for task in TASKS for step in ("ridge", "ridge, healed", "fine-tuned")
    ]
    lines = [f"| model | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for method, layers, width in MODELS:
        row_of_task = {
            row["task"]: row
            for row in rows
            if (row["method"], row["layers"], row["width"]) == (method, layers, width)
        }
        cells = [
            f"{100 * row_of_task[task][step]:.1f}" if task in row_of_task else ""
            for task in TASKS
            for step in steps
        ]
        if row_of_task:
            lines.append(f"| {method} {layers} x {width} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
