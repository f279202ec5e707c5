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
from learngene_zoo.tasks.catalogue import open_task, suite
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
    """Where the ViTs compute, and whether everything is cut short."""

    device: str = "cpu"
    quick: bool = False

    def run(self) -> Run:
        return Run(seed=0, threads=1, device=self.device)


def images_per_second(task: Task, setting: Setting) -> float:
    """Of the training split, in batches of 128 pictures in any order; the best of three rounds."""
    split = task.split("train")
    order = np.random.default_rng(0).permutation(len(split))[:1_024].tolist()
    batches = [order[start : start + 128] for start in range(0, len(order), 128)]
    rounds = []
    for _ in range(1 + 3):  # the first makes what is made once, such as masks of glyphs
        started = time.perf_counter()
        for batch in batches:
            split.__getitems__(batch)
        rounds.append(len(order) / (time.perf_counter() - started))
    return round(max(rounds[1:]))


def linear(task: Task, setting: Setting, images: int) -> float:
    """A logistic regression on the 3,072 pixels, the best of three strengths of its penalty."""
    split, validation = task.split("train"), task.split("validation")
    chosen = draw_balanced(split.labels, 200 if setting.quick else images, 0)
    seen, held_out = pixels(split, chosen), pixels(validation, np.arange(len(validation)))
    mean, std = seen.mean(0), seen.std(0, correction=0)
    seen, held_out = ((part - mean) / torch.where(std > 0, std, 1.0) for part in (seen, held_out))
    labels, wanted = torch.from_numpy(split.labels[chosen]), torch.from_numpy(validation.labels)
    found = []
    for strength in (1e-4, 1e-3, 1e-2):
        weight, bias = regression(
            seen, labels, task.classes, strength, 50 if setting.quick else 300
        )
        found.append(float(((held_out @ weight + bias).argmax(1) == wanted).float().mean()))
    return round(100 * max(found), 1)


def regression(
    inputs: torch.Tensor, labels: torch.Tensor, classes: int, strength: float, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias that minimise `strength` times the summed cross-entropy plus half the squared
    weights.
    """
    weight = torch.zeros(inputs.shape[1], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=steps, tolerance_grad=1e-4, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        entropy = torch.nn.functional.cross_entropy(inputs @ weight + bias, labels, reduction="sum")
        total = strength * entropy + weight.square().sum() / 2
        total.backward()
        return total

    optimizer.step(loss)
    return weight.detach(), bias.detach()


def pixels(split: Any, places: np.ndarray) -> torch.Tensor:
    """float32 (N, 3 * 32 * 32) from 0 to 1."""
    return split.__getitems__(places.tolist()).flatten(1).float() / 255


def scratch(task: Task, setting: Setting, recipe: Recipe) -> float:
    """A ViT of the bundled ancestry model's shape, initialised by fan-in."""
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
    trained = fit(start, task, recipe, setting.run())
    return round(100 * trained.provenance["metrics"]["validation_accuracy"], 1)


def plenty(task: Task, setting: Setting) -> float:
    """The same ViT on `PLENTY` pictures of the task's classes, each seen once."""
    more = replace(task, open_split=lambda name: generator(task.name).split("plenty", PLENTY))
    both = replace(task, open_split=lambda name: (more if name == "train" else task).split(name))
    return scratch(both, setting, replace(RECIPE, epochs=1, warmup=0.1))


MEASURES: dict[str, Callable[[Task, Setting], float]] = {
    "images_per_second": images_per_second,
    "linear_1000": lambda task, setting: linear(task, setting, FEW),
    "linear_4000": lambda task, setting: linear(task, setting, MANY),
    "scratch_1000": lambda task, setting: scratch(task, setting, replace(RECIPE, images=FEW)),
    "scratch_all": lambda task, setting: scratch(task, setting, RECIPE),
    "scratch_plenty": plenty,
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


def measured() -> dict[str, dict[str, float]]:
    """What an earlier run left, by task."""
    path = machine.RESULTS / f"{NAME}.json"
    return json.loads(path.read_text(encoding="utf-8"))["tasks"] if path.is_file() else {}


def table(rows: dict[str, dict[str, float]]) -> str:
    """Markdown: accuracies in per cent."""
    heads = (*HEADS, f"ViT, {PLENTY:,}")
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for name in (name for name in suite("mini").tasks if name in rows):
        task, row = open_task(name), rows[name]
        numbers = [row.get(measure, "") for measure in list(MEASURES)[1:]]
        facts = [f"`{name}`", task.classes, f"{task.sizes['train']:,}", f"{100 / task.classes:.1f}"]
        lines.append(f"| {' | '.join(map(str, [*facts, *numbers]))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is not there yet, print and write each number when it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=suite("mini").tasks)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        replace_between(DOCS / "tasks.md", NAME, table(measured()))
        return
    setting = Setting(given.device, given.quick)
    with ProcessPoolExecutor(
        given.workers, mp_context=multiprocessing.get_context("spawn")
    ) as workers:
        list(workers.map(partial(measure, setting=setting), given.tasks))


def measure(name: str, setting: Setting) -> None:
    """All measures of one task that are not there yet."""
    torch.set_num_threads(1)
    task = open_task(name)
    with locked():
        there = {} if setting.quick else measured().get(name, {})
    for kind, compute in MEASURES.items():
        if kind in there:
            continue
        started = time.perf_counter()
        value = compute(task, setting)
        print(
            f"{name} {kind} {value} ({time.perf_counter() - started:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
        if not setting.quick:
            write(name, kind, value, setting)


def locked() -> FileLock:
    """Held while the results are read or written."""
    lock = ROOT / "build" / f"{NAME}.lock"
    lock.parent.mkdir(exist_ok=True)
    return FileLock(lock)


def write(name: str, kind: str, value: float, setting: Setting) -> None:
    """Add one number to the results, which other processes add to as well."""
    with locked():
        rows = measured()
        rows.setdefault(name, {})[kind] = value
        machine.write(NAME, {"split": "validation", "device": setting.device, "tasks": rows})


if __name__ == "__main__":
    main()
