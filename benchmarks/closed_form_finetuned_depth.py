"""Does the depth that a descendant of closed_form stands for matter after fine-tuning?

Varied: the number of blocks of a real DINOv2-S, `teacher_depth`, that descendants of six layers
replace: as many as layers, the default, or all, at two widths and 112 pixels. As many blocks as
layers at full width are the first blocks as they are (`first_k`).

Measured: the accuracy before the first step, with the head of a ridge regression, after half of the
epochs and after the last one of `lgzoo finetune` with its defaults, in bfloat16. The models are
calibrated and fine-tuned with 500 images of a task's training split and judged on at most 600 other
images of it. No validation or test image is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes; the tasks must be installed (`lgzoo show clipart` prints how).

    python benchmarks/closed_form_finetuned_depth.py --ancestry DINOV2 [--only TASK ...]
    python benchmarks/closed_form_finetuned_depth.py --table         write the table

Results: benchmarks/results/closed_form_finetuned_depth.jsonl.
Page: docs/results/closed_form.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any, NamedTuple

import torch

import machine
from closed_form_truncation import JUDGED, PIXELS, Cell, build_variant
from command_line import read_arguments
from finetune_rates import choose_images
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.plugin import remove_head
from learngene_zoo.pretrained.ancestry import Ancestry, open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.fit import fit
from learngene_zoo.training.heads import initialise_head
from lgzoo_closed_form.calibration import Calibration, record_teacher
from lgzoo_closed_form.descendant_size import find_best_cuts
from lgzoo_closed_form.modules.solve import measure_costs
from lgzoo_closed_form.modules.streams import StreamTeacher
from pages import DOCS, replace_between
from rows import append_row, read_rows

ROWS = machine.RESULTS / "closed_form_finetuned_depth.jsonl"
TASKS = ("clipart", "emoji", "fashion_mnist")
LAYERS, WIDTHS, DEPTHS = 6, (256, 384), (9, 12, 6)
RECIPE = replace(
    lifecycle.FINETUNE, lr=lifecycle.INHERITED_LR, layer_decay=lifecycle.INHERITED_DECAY
)


def main() -> None:
    """Measure the missing models, print the table and write it."""
    args = read_arguments(__doc__, workers=False, tasks=TASKS)
    if not args.table:
        for task in args.only:
            measure_task(args.ancestry, task)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "closed_form.md", "finetuned-depth", table)
    print(table)


def measure_task(ancestry: str, task_name: str) -> None:
    """Measure all models on a task. The streams are recorded once."""
    measured = {(row["task"], row["width"], row["depth"]) for row in read_rows(ROWS)}
    cells = [
        Cell("dinov2", task_name, LAYERS, width, depth)
        for depth in DEPTHS
        for width in WIDTHS
        if (task_name, width, depth) not in measured
    ]
    if not cells:
        return
    run = Run(seed=0, threads=1, device=machine.DEVICE, precision="bf16")
    task = choose_images(open_task(task_name), run.seed)
    recorded = record(ancestry, task, run)
    for cell in cells:
        model, objective = build_descendant(recorded, cell)
        row = {
            **cell._asdict(),
            "objective": objective,
            **finetune(model, task, RECIPE, run),
            **machine.describe_device(),
        }
        append_row(ROWS, row)
        print(row, flush=True)


class Recorded(NamedTuple):
    """An ancestry model with its streams on a task."""

    ancestry: Ancestry
    teacher: StreamTeacher
    costs: list[list[float]]
    settings: Calibration


def record(ancestry: str, task: Task, run: Run) -> Recorded:
    """Record the streams of an ancestry model on training images of a task."""
    torch.set_num_threads(1)
    opened, settings = open_ancestry(ancestry, image_size=PIXELS), Calibration()
    state, exact = remove_head(opened.state, opened.spec), replace(run, precision="fp32")
    teacher = record_teacher(state, opened.spec, settings, task, opened.input_format, exact)
    return Recorded(opened, teacher, measure_costs(teacher, settings.ridge), settings)


def build_descendant(recorded: Recorded, cell: Cell) -> tuple[Descendant, float]:
    """Return a descendant, and the objective of its cut."""
    opened, teacher, costs, settings = recorded
    cut = find_best_cuts(costs, cell.depth)[cell.layers - 1]
    module = build_variant(teacher, cell, cut.runs, settings)
    body = opened.spec.with_(
        layers=cell.layers, width=cell.width, heads=cell.width // opened.spec.head_width, classes=0
    )
    shown = opened.input_format
    model = Descendant(spec=body, state=module.state_dict(), mean=shown.mean, std=shown.std)
    return model, round(cut.objective, 4)


def finetune(model: Descendant, task: Task, recipe: Recipe, run: Run) -> dict[str, Any]:
    """Return the accuracies on the held-out images: before, halfway, and after the last epoch."""
    start = time.monotonic()
    headed = model.for_task(
        task.name, task.class_names, seed=derive_seed(run.seed, "head"), dense=False
    )
    headed = headed.with_fit(lifecycle.choose_fit(headed, task))
    headed, _ = initialise_head(headed, task, recipe, run)

    def judge(module: Any) -> float:
        return evaluate(module, task, "validation", headed.input_format, run, images=JUDGED).value

    values, epochs = [judge(headed.model())], 0

    def watch(module: Any) -> None:
        nonlocal epochs
        epochs += 1
        if epochs in (recipe.epochs // 2, recipe.epochs):
            values.append(judge(module))

    fit(headed, task, recipe, run, watch=watch, judge=False)
    return {
        "accuracy": [round(value, 4) for value in values],
        "images": JUDGED,
        "training_images": task.sizes["train"],
        "seconds": round(time.monotonic() - start),
    }


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracies in Markdown, per cent: a model a row, a task a column."""
    tasks = [task for task in TASKS if any(row["task"] == task for row in rows)]
    lines = [
        f"| size | blocks | {' | '.join(tasks)} | mean |",
        f"|---|---:|{'---:|' * (len(tasks) + 1)}",
    ]
    for width in WIDTHS:
        for depth in sorted(DEPTHS):
            same = {
                row["task"]: row["accuracy"]
                for row in rows
                if (row["width"], row["depth"]) == (width, depth)
            }
            if not same:
                continue
            cells = [describe([same[task]]) if task in same else "" for task in tasks]
            whole = describe(list(same.values())) if len(same) == len(tasks) else ""
            lines.append(f"| {LAYERS} x {width} | {depth} | {' | '.join([*cells, whole])} |")
    return "\n".join(lines)


def describe(accuracies: Sequence[Sequence[float]]) -> str:
    """Return the means before and after the training."""
    return " / ".join(f"{100 * mean(values[i] for values in accuracies):.1f}" for i in (0, -1))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
