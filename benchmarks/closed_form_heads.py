"""Is a narrow descendant of closed_form better with fewer heads, or with as many narrower ones?

Varied: the number of heads at a width. The first number of each size has heads as wide as the
ancestry model's. The descendants are those of closed_form_truncation.py at the default depth; 63
channels are compared with 64, because three heads do not divide 64.

Measured: a ridge regression on the frozen features and the nearest neighbours, as in
closed_form_truncation.py. No validation or test image is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes.

    python benchmarks/closed_form_heads.py --ancestry DINOV2 [--only TASK ...]
    python benchmarks/closed_form_heads.py [--only TASK ...]    of the bundled model
    python benchmarks/closed_form_heads.py --table

Results: benchmarks/results/closed_form_heads.jsonl.
Page: docs/results/closed_form.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

import closed_form_truncation as truncation
import machine
from finetune_rates import choose_images
from learngene_zoo.plugin import remove_head
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from learngene_zoo.training.probes import compute_features, run_probe
from lgzoo_closed_form.calibration import Calibration, record_teacher
from lgzoo_closed_form.descendant_size import choose_cut
from lgzoo_closed_form.modules.solve import measure_costs
from pages import DOCS, replace_between
from rows import append_row, read_rows

ROWS = machine.RESULTS / "closed_form_heads.jsonl"
TASKS = {"dinov2": ("emoji", "fashion_mnist", "clipart"), "bundled": truncation.TASKS["bundled"]}
# Layers, and pairs of width and number of heads that are compared
SIZES = {
    "dinov2": (
        (6, ((192, 3), (192, 6), (192, 4))),
        (3, ((192, 3), (192, 6))),
        (6, ((128, 2), (128, 4))),
    ),
    "bundled": tuple(
        (layers, pairs)
        for layers in (3, 6, 9)
        for pairs in (((64, 2), (63, 3)), ((32, 1), (32, 2)))
    ),
}
IMAGES = {"dinov2": 300, "bundled": 600}  # of the calibration


class Cell(NamedTuple):
    """A descendant on a task."""

    ancestry: str
    task: str
    layers: int
    width: int
    heads: int


def main() -> None:
    """Measure the missing cells, print the table and write it."""
    truncation.measure_named_tasks(__doc__, TASKS, measure_task)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "closed_form.md", "heads", table)
    print(table)


def measure_task(name: str, ancestry: str, task_name: str) -> None:
    """Measure all sizes on a task; the streams are recorded once."""
    torch.set_num_threads(1)
    run = Run(seed=0, threads=1, device="cpu")
    opened = open_ancestry(ancestry, image_size=truncation.PIXELS if name == "dinov2" else None)
    measured_cells = {tuple(row[field] for field in Cell._fields) for row in read_rows(ROWS)}
    cells = [
        Cell(name, task_name, layers, width, heads)
        for layers, pairs in SIZES[name]
        for width, heads in pairs
    ]
    cells = [cell for cell in cells if tuple(cell) not in measured_cells]
    if not cells:
        return
    task = choose_images(open_task(task_name), run.seed)
    calibration_task = task if name == "dinov2" else open_task(SOURCE_TASK)
    settings = replace(Calibration(), images=IMAGES[name])
    state = remove_head(opened.state, opened.spec)
    teacher = record_teacher(
        state, opened.spec, settings, calibration_task, opened.input_format, run
    )
    costs = measure_costs(teacher, settings.ridge)
    for cell in cells:
        cut = choose_cut(costs, cell.layers)
        size = truncation.Cell(name, task_name, cell.layers, cell.width, cut.depth)
        model = truncation.build_variant(teacher, size, cut.runs, settings, cell.heads)
        train, held_out = (
            compute_features(model, task, split, opened.input_format, run, images=truncation.JUDGED)
            for split in ("train", "validation")
        )
        ridge, knn = (
            run_probe(train, held_out, task, "validation", kind, seed=0)
            for kind in ("ridge", "knn")
        )
        row = {
            **cell._asdict(),
            "depth": cut.depth,
            "ridge": ridge.value,
            "knn": knn.value,
            "images": ridge.images,
        }
        append_row(ROWS, row)
        print(row, flush=True)


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean accuracies of the tasks in Markdown: a line for each comparison."""
    lines = ["| model | tasks | heads as wide as the ancestry model's | narrower heads |"]
    lines.append("|---|---:|---:|---:|")
    for name, sizes in SIZES.items():
        for layers, pairs in sizes:
            row_of = {
                (pair, row["task"]): row
                for pair in pairs
                for row in rows
                if (row["ancestry"], row["layers"], row["width"], row["heads"])
                == (name, layers, *pair)
            }
            tasks = [t for t in TASKS[name] if all((pair, t) in row_of for pair in pairs)]
            if not tasks:
                continue
            cells = [
                f"{heads} x {width // heads}: "
                + truncation.describe([row_of[(width, heads), task] for task in tasks])
                for width, heads in pairs
            ]
            label = f"{name} {layers} x {pairs[0][0]}"
            lines.append(f"| {label} | {len(tasks)} | {cells[0]} | {', '.join(cells[1:])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
