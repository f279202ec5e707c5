"""Which learning rate and which maps does healing without labels need?

Varied: the learning rate, and whether the maps from the student's tokens to the teacher's are
learnt or fitted again after every epoch; on descendants of a real DINOv2-S at 112 pixels and of the
bundled ancestry model, which are built from images of the same task.

Measured: after every epoch the loss on held-out images, and the accuracies of k-NN and of a ridge
regression on the frozen features. The images without labels are at most 1,000 of a task's training
split; both probes are fitted to at most 500 of them with their labels and judged on 600 other
images of that split. No validation or test image is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes; the tasks must be installed (`lgzoo show emoji` prints how).

    python benchmarks/heal_rates.py [--ancestry DINOV2] [--only WORD ...]
    python benchmarks/heal_rates.py --table    write the table from the results

Results: benchmarks/results/heal_rates.jsonl.
Page: docs/results/heal.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import machine
from command_line import read_arguments
from learngene_zoo import lifecycle
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.healing.recovery import recover
from learngene_zoo.training.healing.settings import HEAL, HealConfig
from pages import DOCS, replace_between
from probes import hold_out_images
from rows import append_row, find_missing, read_rows

ROWS = machine.RESULTS / "heal_rates.jsonl"
PIXELS, UNLABELLED, LABELLED, JUDGED, EPOCHS = 112, 1000, 500, 600, 4
STARTS = (
    ("dinov2", "closed_form", 6, 256),
    ("dinov2", "first_k", 6, 384),
    ("dinov2", "weight_selection", 6, 256),
    ("bundled", "closed_form", 6, 64),
    ("bundled", "weight_selection", 6, 64),
)
TASKS = {"dinov2": ("emoji", "fashion_mnist"), "bundled": ("fashion_mnist", "textures")}
RATES = {"dinov2": (1e-5, 5e-5, 2e-4), "bundled": (5e-5, 3e-4, 1e-3)}
MAPS = ("learnt", "refit")


class Cell(NamedTuple):
    """A healing of a descendant."""

    ancestry: str
    method: str
    layers: int
    width: int
    task: str
    lr: float
    maps: str

    @property
    def name(self) -> str:
        """The words that `--only` searches."""
        return " ".join(map(str, self))


def main() -> None:
    """Measure the missing cells, print the table and write it."""
    args = read_arguments(__doc__, default="without it it is left out", workers=False)
    for cell in () if args.table else find_missing(ROWS, list_cells(), args.only):
        if cell.ancestry == "bundled" or args.ancestry:
            measure_cell(cell, args.ancestry if cell.ancestry == "dinov2" else "bundled")
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "heal.md", "heal", table)
    print(table)


def list_cells() -> Iterator[Cell]:
    """Yield every cell; those with learnt maps first."""
    for maps in MAPS:
        for start in STARTS:
            for task in TASKS[start[0]]:
                for lr in RATES[start[0]]:
                    yield Cell(*start, task, lr, maps)


def measure_cell(cell: Cell, source: str) -> None:
    """Heal a descendant, and append the row with the results of every epoch."""
    import torch

    torch.set_num_threads(1)
    run = Run(seed=0, threads=1, device=machine.DEVICE, ancestry=source)
    size = PIXELS if cell.ancestry == "dinov2" else None
    tasks = (cell.task,) if cell.method == "closed_form" and size else ()
    learngene = lifecycle.extract(
        cell.method, ancestries=(source,), tasks=tasks, image_size=size, run=run
    )
    start = lifecycle.expand(
        learngene, layers=cell.layers, width=cell.width, task=cell.task, run=run
    )
    task = open_task(cell.task)
    judged = min(JUDGED, task.sizes["train"] // 5)
    unlabelled, labelled = (
        hold_out_images(task, slice(judged, judged + images), slice(judged))
        for images in (UNLABELLED, LABELLED)
    )
    start = start.with_fit(lifecycle.choose_fit(start, labelled))
    records = {key: start.provenance.get(key) for key in ("runs", "teacher_depth")}
    healed = recover(
        start,
        open_ancestry(source, image_size=start.spec.image_size),
        unlabelled,
        replace(HEAL, lr=cell.lr, epochs=EPOCHS),
        HealConfig(maps=cell.maps),  # type: ignore[arg-type]
        run,
        records=records,
        task=labelled,
        task_format=start.input_format,
    )
    record: Any = healed.provenance["healed"]
    row = {**cell._asdict(), "history": record["metrics"]["history"], "images": judged}
    row |= machine.describe_device()
    append_row(ROWS, row)
    print(row, flush=True)


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the results in Markdown: a healing a row, an epoch a column."""
    epochs = [f"epoch {number}" if number else "before" for number in range(EPOCHS + 1)]
    lines = [
        f"| model | images | rate | maps | {' | '.join(epochs)} |",
        f"|---|---|---:|---|{'---:|' * len(epochs)}",
    ]
    for row in rows:
        cells = [describe_epoch(epoch) for epoch in row["history"]]
        model = f"{row['ancestry']}, {row['method']} {row['layers']} x {row['width']}"
        lines.append(
            f"| {model} | {row['task']} | {row['lr']:g} | {row['maps']} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def describe_epoch(epoch: dict[str, float]) -> str:
    """Return the loss, and the accuracies of both probes in per cent."""
    accuracies = [100 * epoch[f"{name}_accuracy"] for name in ("ridge", "knn")]
    return f"{epoch['held_out_loss']:.3f}: " + " / ".join(f"{value:.1f}" for value in accuracies)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
