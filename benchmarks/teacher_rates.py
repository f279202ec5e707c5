"""How does a teacher have to be fine-tuned before it teaches?

Varied: the head that the fine-tuning starts from, the learning rate and the layer decay, for a real
DINOv2-S at 112 pixels and for the bundled ancestry model. Random heads at 1e-3 are those of version
1.0.0; the default of extractions depends on the width (learngene_zoo/method/rates.py).

Measured: the accuracy before the first and after the last of 4 epochs of at most 500 images, in
bfloat16, with the other settings of the preset `mini`. It is that of at most 1,000 other images of
the task's training split. No validation or test image is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes; the tasks must be installed (`lgzoo show emoji` prints how).

    python benchmarks/teacher_rates.py --ancestry DINOV2 [--only WORD ...]
    python benchmarks/teacher_rates.py --table      write the table

Results: benchmarks/results/teacher_rates.jsonl.
Page: docs/results/finetuning.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

import machine
from command_line import read_arguments
from finetune_rates import choose_images
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.artifacts.shelf import BUNDLED
from learngene_zoo.method.rates import INHERITED_DECAY, INHERITED_LR
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.fit import fit
from learngene_zoo.training.heads import initialise_head
from lgzoo_baselines.trained.pretrain_finetune import TRAINING
from pages import DOCS, replace_between
from rows import append_row, read_rows

ROWS = machine.RESULTS / "teacher_rates.jsonl"
PIXELS, EPOCHS = 112, 4
TASKS = {"dinov2": ("emoji", "clipart"), "bundled": ("emoji", "fashion_mnist")}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """How a teacher is fine-tuned."""

    head: Literal["random", "ridge"]
    lr: float
    layer_decay: float = 1.0

    def describe(self) -> str:
        """Return its words in the table."""
        decay = f", decay {self.layer_decay:g}" if self.layer_decay != 1 else ""
        return f"{self.head} head, {self.lr:g}{decay}"


VARIANTS = (
    Variant(head="random", lr=TRAINING.lr),
    Variant(head="ridge", lr=TRAINING.lr),
    Variant(head="ridge", lr=INHERITED_LR, layer_decay=INHERITED_DECAY),
)


def main() -> None:
    """Measure the missing trainings, print the table and write it."""
    args = read_arguments(__doc__, workers=False)
    if not args.table:
        for name, tasks in TASKS.items():
            for task in tasks:
                if set(args.only) <= {name, task}:
                    measure_task(name, args.ancestry if name == "dinov2" else BUNDLED, task)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "finetuning.md", "teacher-rates", table)
    print(table)


def measure_task(name: str, source: str, task_name: str) -> None:
    """Measure the missing trainings of a model on a task."""
    measured = {
        (row["model"], row["task"], row["head"], row["lr"], row["layer_decay"])
        for row in read_rows(ROWS)
    }
    run = Run(seed=0, threads=1, device=machine.DEVICE, precision="bf16")
    for variant in VARIANTS:
        if (name, task_name, *asdict(variant).values()) in measured:
            continue
        torch.set_num_threads(1)
        task = choose_images(open_task(task_name), run.seed)
        row = {
            **{"model": name, "task": task_name, **asdict(variant)},
            **finetune(open_model(name, source, run), task, variant, run),
            **machine.describe_device(),
        }
        append_row(ROWS, row)
        print(row, flush=True)


def open_model(name: str, source: str, run: Run) -> Descendant:
    """Return an ancestry model as it is before it gets a head."""
    ancestry = open_ancestry(source, image_size=PIXELS if name == "dinov2" else None)
    record = ancestry.record
    return assemble(
        ancestry.spec,
        ancestry.state,
        seed=run.seed,
        mean=record.mean,
        std=record.std,
        view=record.view,
    )


def finetune(model: Descendant, task: Task, variant: Variant, run: Run) -> dict[str, Any]:
    """Return the accuracies on other images: before, and after the last epoch."""
    start = time.monotonic()
    recipe = replace(TRAINING, epochs=EPOCHS, lr=variant.lr, layer_decay=variant.layer_decay)
    seed = derive_seed(run.seed, "head")
    headed = replace(model, task="none").for_task(task.name, task.class_names, seed=seed)
    if variant.head == "ridge":
        headed, _ = initialise_head(headed, task, recipe, run)
    before = evaluate(headed.model(), task, "validation", headed.input_format, run)
    tuned = fit(headed, task, recipe, run, judge=False)
    after = evaluate(tuned.model(), task, "validation", headed.input_format, run)
    return {
        "before": round(before.value, 4),
        "after": round(after.value, 4),
        "images": after.images,
        "training_images": task.sizes["train"],
        "seconds": round(time.monotonic() - start),
    }


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracies in Markdown, per cent: a model and a task a row."""
    lines = [
        f"| model | task (images) | {' | '.join(variant.describe() for variant in VARIANTS)} |",
        f"|---|---|{'---:|' * len(VARIANTS)}",
    ]
    for name, tasks in TASKS.items():
        for task in tasks:
            same = [row for row in rows if (row["model"], row["task"]) == (name, task)]
            if same:
                cells = [describe(same, variant) for variant in VARIANTS]
                lines.append(f"| {name} | {task} ({same[0]['images']}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def describe(rows: Sequence[dict[str, Any]], variant: Variant) -> str:
    """Return the accuracies before and after a training; "" if it has not been measured."""
    fields = asdict(variant)
    found = [row for row in rows if all(row[key] == value for key, value in fields.items())]
    return "".join(f"{100 * row['before']:.1f} / {100 * row['after']:.1f}" for row in found)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
