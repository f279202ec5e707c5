"""How hard are the nine tasks of the suite `mini`?

Varied: the task; the model, which is a logistic regression on the pixels (1,000 and 4,000 images)
or a ViT of the bundled ancestry model's shape from scratch (1,000 images, all of them, and 40,000
new images of the same classes that are in no split, each seen once).

Measured: the accuracy on validation images in per cent, and the images that are drawn per second.

Command: about an hour on one core, resumable.

    python benchmarks/mini_suite.py
    python benchmarks/mini_suite.py --workers 2     this many tasks at once
    python benchmarks/mini_suite.py wings petals    these tasks only
    python benchmarks/mini_suite.py --quick         a few hundred images and one epoch, to test the
                                                    program; nothing is written
    python benchmarks/mini_suite.py --device cuda   the ViTs on a GPU
    python benchmarks/mini_suite.py --table         write the table from the results

Results: benchmarks/results/mini_suite.json.
Page: docs/tasks.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from filelock import FileLock

import machine
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed, draw_balanced
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import find_suite, open_task
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.fit import fit
from lgzoo_mini.suite import generator
from pages import DOCS, ROOT, replace_between

NAME = "mini_suite"
SPEC = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8)
RECIPE = Recipe(epochs=10, batch_size=64, lr=1e-3, warmup=1.0, clip=1.0)
FEW, MANY, PLENTY = 1_000, 4_000, 40_000


@dataclass(frozen=True)
class Setting:
    """Where the ViTs compute, and whether the numbers of images and steps are small."""

    device: str = "cpu"
    quick: bool = False

    def make_run(self) -> Run:
        """Return the run of a measurement."""
        return Run(seed=0, threads=1, device=self.device)


def measure_images_per_second(task: Task, setting: Setting) -> float:
    """Return the speed of reading the training split in batches of 128 in any order, the best of
    three rounds.
    """
    split = task.split("train")
    order = np.random.default_rng(0).permutation(len(split))[:1_024].tolist()
    batches = [order[start : start + 128] for start in range(0, len(order), 128)]
    rounds = []
    for _ in range(1 + 3):  # the first fills the caches, such as those of masks of glyphs
        started = time.perf_counter()
        for batch in batches:
            split.__getitems__(batch)
        rounds.append(len(order) / (time.perf_counter() - started))
    return round(max(rounds[1:]))


def measure_linear(task: Task, setting: Setting, images: int) -> float:
    """Return the accuracy of a logistic regression on the 3,072 pixels, the best of three
    penalties.
    """
    split, validation = task.split("train"), task.split("validation")
    chosen = draw_balanced(split.labels, 200 if setting.quick else images, 0)
    training, held_out = (
        load_pixels(split, chosen),
        load_pixels(validation, np.arange(len(validation))),
    )
    mean, std = training.mean(0), training.std(0, correction=0)
    training, held_out = (
        (part - mean) / torch.where(std > 0, std, 1.0) for part in (training, held_out)
    )
    labels, targets = torch.from_numpy(split.labels[chosen]), torch.from_numpy(validation.labels)
    accuracies = []
    for strength in (1e-4, 1e-3, 1e-2):
        weight, bias = fit_regression(
            training, labels, task.classes, strength, 50 if setting.quick else 300
        )
        accuracies.append(float(((held_out @ weight + bias).argmax(1) == targets).float().mean()))
    return round(100 * max(accuracies), 1)


def fit_regression(
    inputs: torch.Tensor, labels: torch.Tensor, classes: int, strength: float, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight and bias of a logistic regression.

    They minimise `strength` times the summed cross-entropy plus half the squared weights.
    """
    weight = torch.zeros(inputs.shape[1], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=steps, tolerance_grad=1e-4, line_search_fn="strong_wolfe"
    )

    def compute_loss() -> torch.Tensor:
        optimizer.zero_grad()
        entropy = torch.nn.functional.cross_entropy(inputs @ weight + bias, labels, reduction="sum")
        total = strength * entropy + weight.square().sum() / 2
        total.backward()
        return total

    optimizer.step(compute_loss)
    return weight.detach(), bias.detach()


def load_pixels(split: Any, rows: np.ndarray) -> torch.Tensor:
    """Return pixels from 0 to 1, float32 (rows, 3 * 32 * 32)."""
    return split.__getitems__(rows.tolist()).flatten(1).float() / 255


def measure_scratch(task: Task, setting: Setting, recipe: Recipe) -> float:
    """Return the accuracy of a ViT of the bundled ancestry model's shape, initialised by fan-in."""
    if setting.quick:
        recipe = replace(recipe, epochs=1, images=200)
    start = assemble(
        SPEC.with_(classes=task.classes),
        {},
        seed=derive_seed(0, "init"),
        scheme="fan_in",
        mean=task.mean,
        std=task.std,
        provenance={"method": "train"},
    )
    trained = fit(start, task, recipe, setting.make_run())
    return round(100 * trained.provenance["metrics"]["validation_accuracy"], 1)


def measure_plenty(task: Task, setting: Setting) -> float:
    """Return the accuracy of the same ViT on `PLENTY` pictures of the task's classes, each seen
    once.
    """
    more = replace(task, open_split=lambda name: generator(task.name).split("plenty", PLENTY))
    extended = replace(
        task, open_split=lambda name: (more if name == "train" else task).split(name)
    )
    return measure_scratch(extended, setting, replace(RECIPE, epochs=1, warmup=0.1))


MEASURES: dict[str, Callable[[Task, Setting], float]] = {
    "images_per_second": measure_images_per_second,
    "linear_1000": lambda task, setting: measure_linear(task, setting, FEW),
    "linear_4000": lambda task, setting: measure_linear(task, setting, MANY),
    "scratch_1000": lambda task, setting: measure_scratch(
        task, setting, replace(RECIPE, images=FEW)
    ),
    "scratch_all": lambda task, setting: measure_scratch(task, setting, RECIPE),
    "scratch_plenty": measure_plenty,
}
HEADS = (
    "task",
    "classes",
    "training images",
    "chance",
    "linear, 1,000",
    "linear, 4,000",
    "ViT, 1,000",
    "ViT, all",
)


def read_results() -> dict[str, dict[str, float]]:
    """Return the results so far, by task."""
    path = machine.RESULTS / f"{NAME}.json"
    return json.loads(path.read_text(encoding="utf-8"))["tasks"] if path.is_file() else {}


def make_table(rows: dict[str, dict[str, float]]) -> str:
    """Return accuracies in per cent in Markdown."""
    heads = (*HEADS, f"ViT, {PLENTY:,}")
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for name in (name for name in find_suite("mini").tasks if name in rows):
        task, row = open_task(name), rows[name]
        numbers = [row.get(measure, "") for measure in list(MEASURES)[1:]]
        facts = [f"`{name}`", task.classes, f"{task.sizes['train']:,}", f"{100 / task.classes:.1f}"]
        lines.append(f"| {' | '.join(map(str, [*facts, *numbers]))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing; print and write each number when it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=find_suite("mini").tasks)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        replace_between(DOCS / "tasks.md", NAME, make_table(read_results()))
        return
    setting = Setting(args.device, args.quick)
    with ProcessPoolExecutor(
        args.workers, mp_context=multiprocessing.get_context("spawn")
    ) as workers:
        list(workers.map(partial(measure_task, setting=setting), args.tasks))


def measure_task(name: str, setting: Setting) -> None:
    """Measure the missing numbers of one task."""
    torch.set_num_threads(1)
    task = open_task(name)
    with make_lock():
        values = {} if setting.quick else read_results().get(name, {})
    for kind, compute in MEASURES.items():
        if kind in values:
            continue
        started = time.perf_counter()
        value = compute(task, setting)
        print(
            f"{name} {kind} {value} ({time.perf_counter() - started:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
        if not setting.quick:
            write_number(name, kind, value, setting)


def make_lock() -> FileLock:
    """Return the lock that is held while the results are read or written."""
    lock = ROOT / "build" / f"{NAME}.lock"
    lock.parent.mkdir(exist_ok=True)
    return FileLock(lock)


def write_number(name: str, kind: str, value: float, setting: Setting) -> None:
    """Add a number to the results file, which other processes write, too."""
    with make_lock():
        rows = read_results()
        rows.setdefault(name, {})[kind] = value
        machine.write(NAME, {"split": "validation", "device": setting.device, "tasks": rows})


if __name__ == "__main__":
    main()
