"""How many epochs, which augmentation and which precision does fine-tuning with a few hundred
images need?

Varied: `--epochs`, `--augment` and `--precision` of `lgzoo finetune`, on the descendant of 6 x 256
that closed_form builds of a real DINOv2-S at 112 pixels.

Measured: the accuracy before the first step, with the head of a ridge regression, after half of the
epochs and after the last one, and the seconds with one thread. The model is calibrated and
fine-tuned with 500 images of a task's training split and judged on at most 600 other images of it.
No validation or test image is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes; the tasks must be installed (`lgzoo show clipart` prints how).

    python benchmarks/finetune_epochs.py --ancestry DINOV2 [--only TASK ...]
    python benchmarks/finetune_epochs.py --table                     write the table

Results: benchmarks/results/finetune_epochs.jsonl.
Page: docs/results/finetuning.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import machine
from closed_form_finetuned_depth import RECIPE, build_descendant, finetune, record
from closed_form_truncation import Cell
from command_line import read_arguments
from finetune_rates import choose_images
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from pages import DOCS, replace_between
from rows import append_row, read_rows

ROWS = machine.RESULTS / "finetune_epochs.jsonl"
TASKS = ("clipart", "emoji", "fashion_mnist")
LAYERS, WIDTH, DEPTH = 6, 256, 9
VARIANTS = (
    (40, "light", "bf16"),
    (20, "light", "bf16"),
    (80, "light", "bf16"),
    (20, "light", "fp32"),
    (40, "rand", "bf16"),
    (20, "none", "bf16"),
)


def main() -> None:
    """Measure the missing trainings, print the table and write it."""
    args = read_arguments(__doc__, workers=False, tasks=TASKS)
    if not args.table:
        for task in args.only:
            measure_task(args.ancestry, task)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "finetuning.md", "finetune-epochs", table)
    print(table)


def measure_task(ancestry: str, task_name: str) -> None:
    """Measure all trainings on a task. The model is built once."""
    measured = {
        (row["task"], row["epochs"], row["augment"], row["precision"]) for row in read_rows(ROWS)
    }
    missing = [variant for variant in VARIANTS if (task_name, *variant) not in measured]
    if not missing:
        return
    run = Run(seed=0, threads=1, device=machine.DEVICE)
    task = choose_images(open_task(task_name), run.seed)
    cell = Cell("dinov2", task_name, LAYERS, WIDTH, DEPTH)
    model, _ = build_descendant(record(ancestry, task, run), cell)
    for epochs, augment, precision in missing:
        recipe = replace(RECIPE, epochs=epochs, augment=augment)
        row = {
            **{"task": task_name, "epochs": epochs, "augment": augment, "precision": precision},
            **finetune(model, task, recipe, replace(run, precision=precision)),
            **machine.describe_device(),
        }
        append_row(ROWS, row)
        print(row, flush=True)


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracies before and after training in Markdown, per cent."""
    tasks = [task for task in TASKS if any(row["task"] == task for row in rows)]
    lines = [
        f"| epochs | augmentation | precision | {' | '.join(tasks)} | mean |",
        f"|---:|---|---|{'---:|' * (len(tasks) + 1)}",
    ]
    for variant in sorted(VARIANTS, key=lambda variant: (variant[1:], variant[0])):
        same = {
            row["task"]: row["accuracy"]
            for row in rows
            if (row["epochs"], row["augment"], row["precision"]) == variant
        }
        if not same:
            continue
        cells = [describe([same[task]]) if task in same else "" for task in tasks]
        mean_cell = describe(list(same.values())) if len(same) == len(tasks) else ""
        lines.append(f"| {' | '.join([*map(str, variant), *cells, mean_cell])} |")
    return "\n".join(lines)


def describe(accuracies: Sequence[Sequence[float]]) -> str:
    """Return the means before and after the training."""
    return " / ".join(f"{100 * mean(values[i] for values in accuracies):.1f}" for i in (0, -1))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
