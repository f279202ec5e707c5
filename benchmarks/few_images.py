"""Which learning rate, warm-up and batch size does fine-tuning need with few images or texts?

Varied: the number of training images, the learning rate as a multiple of the rate of a training
with 500 images (of texts a multiple of 1e-4), the epochs of warm-up of 20, and the size of the
batches (`VARIANTS`), on models built from a real DINOv2-S at 56 pixels, from the bundled ancestry
model, and with texts from a MiniLM. The grid `dinov2-stamps` has the models of DINOv2-S at 112
pixels on a task that was not used to choose the defaults.

Measured: the accuracy before training, with the head of a ridge regression, and after the last
epoch, on at most 400 other images of the task's training split (176 of stamps); all other settings
are those of `lgzoo finetune`. No validation or test image is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes, MINILM one of all-MiniLM-L6-v2; the tasks must be installed (`lgzoo show clipart`
prints how). On a GPU: BENCHMARK_DEVICE=cuda.

    python benchmarks/few_images.py --ancestry DINOV2 --texts MINILM [--workers 2]
            [--only WORD ...]
    python benchmarks/few_images.py --table        write the table from the results

Results: benchmarks/results/few_images.jsonl.
Page: docs/results/finetuning.md.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import mean
from typing import Any, NamedTuple

import finetune_rates
import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import TrainingFailed
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.fit import fit
from learngene_zoo.training.heads import initialise_head
from pages import DOCS, replace_between
from probes import hold_out_images
from rows import find_missing, measure_cells, read_rows

ROWS = machine.RESULTS / "few_images.jsonl"


class Variant(NamedTuple):
    """A recipe."""

    factor: float  # the learning rate as a multiple of that of 500 images
    warmup: float  # epochs
    batch_size: int = 64


# By the number of images. The last one of each is the default of `lgzoo finetune`
# (`lifecycle.rates.adapt_to_steps`).
VARIANTS = {
    64: (
        Variant(1.0, 1.0),
        Variant(0.3, 1.0),
        Variant(0.1, 1.0),
        Variant(1.0, 5.0),
        Variant(0.3, 5.0),
        Variant(0.1, 5.0),
        Variant(0.2, 5.0),
        Variant(1.0, 1.25, 16),
        Variant(0.5, 1.25, 16),
        Variant(1.0, 1.0, 8),
        Variant(0.5, 1.0, 8),
        Variant(0.25, 1.0, 8),
        Variant(0.354, 1.0, 8),
    ),
    128: (Variant(1.0, 1.0), Variant(0.4, 2.5), Variant(0.5, 1.0, 16)),
    250: (Variant(1.0, 1.0), Variant(0.8, 1.25), Variant(0.707, 1.0, 32)),
}
# Batches of 64: a rate in proportion to the steps of an epoch, and a warm-up of five steps.
LARGE_BATCHES = {64: Variant(0.2, 5.0), 128: Variant(0.4, 2.5), 250: Variant(0.8, 1.25)}
FIRST_HELD_OUT, HELD_OUT, HELD_OUT_TEXTS = 500, 400, 200
PIXELS, LARGE_PIXELS = 56, 112
REAL_MODELS = (("first_k", 6, 384), ("closed_form", 6, 256), ("weight_selection", 6, 256))
REAL_TASKS = ("clipart", "emoji", "fashion_mnist")
BUNDLED_MODELS = (
    ("first_k", 12, 96),  # the ancestry model itself
    ("closed_form", 6, 64),
    ("weight_selection", 6, 64),
    ("lsamd", 7, 96),
)
BUNDLED_TASKS = ("digits", "fashion_mnist", "petals", "signs")
TEXT_MODELS = (("first_k", 3, 384), ("first_k", 6, 384), ("weight_selection", 6, 256))
TEXT_LR = 1e-4  # the default when the first of these trainings were measured
TEXT_TASKS = ("wordnet", "debian_sections", "sentiment")
TEXT_VARIANTS = {64: (Variant(1.0, 1.0), Variant(0.2, 5.0), Variant(1.0, 5.0), Variant(3.0, 5.0))}


class Grid(NamedTuple):
    """The trainings of models of an ancestry model."""

    models: tuple[tuple[str, int, int], ...]  # method, layers and width
    tasks: tuple[str, ...]
    variants: Mapping[int, tuple[Variant, ...]] = VARIANTS
    pixels: int | None = None  # None: those of the ancestry model
    first_held_out: int = FIRST_HELD_OUT  # in the random order of the training images


GRIDS = {
    "bundled": Grid(BUNDLED_MODELS, BUNDLED_TASKS),
    "dinov2": Grid(REAL_MODELS, REAL_TASKS, pixels=PIXELS),
    "minilm": Grid(TEXT_MODELS, TEXT_TASKS, TEXT_VARIANTS),
    "dinov2-stamps": Grid(REAL_MODELS, ("stamps",), pixels=LARGE_PIXELS, first_held_out=250),
}
# Of every grid: the ancestry model as `build_model` names it.
ANCESTRIES = {name: name if name in ("bundled", "minilm") else "dinov2" for name in GRIDS}


class Cell(NamedTuple):
    """A training."""

    ancestry: str  # the name of its grid
    method: str
    layers: int
    width: int
    task: str
    images: int
    factor: float
    warmup: float
    batch_size: int

    @property
    def name(self) -> str:
        """All fields as text."""
        size = f"{self.ancestry} {self.method} {self.layers} x {self.width}"
        recipe = f"{self.factor:g} {self.warmup:g} batches of {self.batch_size}"
        return f" {size} {self.task} {self.images} images {recipe} "


def main() -> None:
    """Measure the missing trainings, print the table and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ancestry", help="the folder of DINOv2-S; without it none is measured")
    parser.add_argument("--texts", help="the folder of MiniLM; without it none is measured")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--only", nargs="*", default=[], help="cells whose description contains all of these words"
    )
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.table:
        sources = {"bundled": None, "dinov2": args.ancestry, "minilm": args.texts}
        for grid, ancestry in ANCESTRIES.items():
            source = sources[ancestry]
            if source or ancestry == "bundled":
                missing = find_missing(ROWS, list_cells(grid), args.only)
                measure_cells(ROWS, missing, measure_cell, args.workers, source)
    rows = read_rows(ROWS)
    for name, table in (
        ("few-images", make_table(rows)),
        ("few-images-variants", make_variant_table(rows)),
    ):
        replace_between(DOCS / "results" / "finetuning.md", name, table)
        print(f"{table}\n")


def list_cells(ancestry: str) -> Iterator[Cell]:
    """Yield all trainings; those of a model on a task follow each other."""
    grid = GRIDS[ancestry]
    for task in grid.tasks:
        for model in grid.models:
            for images, variants in grid.variants.items():
                for variant in variants:
                    yield Cell(ancestry, *model, task, images, *variant)


def measure_cell(cell: Cell, ancestry: str | None) -> dict[str, Any]:
    """Fine-tune a model, and return the row."""
    import torch

    torch.set_num_threads(1)
    run = Run(seed=0, threads=1, device=machine.DEVICE)
    opened = open_task(cell.task)
    count = HELD_OUT_TEXTS if opened.is_text else HELD_OUT
    first = GRIDS[cell.ancestry].first_held_out
    held_out = slice(first, first + count)
    task = hold_out_images(opened, slice(cell.images), held_out)
    built = build_model(cell.ancestry, cell.method, cell.layers, cell.width, cell.task, ancestry)
    model = built.for_task(
        task.name, task.class_names, seed=derive_seed(run.seed, "head"), dense=False
    )
    model = model.with_fit(lifecycle.choose_fit(model, task))
    rate, decay = (TEXT_LR, 1.0) if opened.is_text else lifecycle.choose_rates(model)
    recipe = replace(
        lifecycle.FINETUNE,
        lr=cell.factor * rate,
        warmup=cell.warmup,
        batch_size=cell.batch_size,
    )
    if opened.is_text:
        recipe = replace(recipe, augment="none")
    else:
        recipe = replace(recipe, layer_decay=decay)
    return {
        **cell._asdict(),
        "lr": recipe.lr,
        **measure_training(model, task, recipe, run),
        **machine.describe_device(),
    }


def measure_training(model: Descendant, task: Task, recipe: Recipe, run: Run) -> dict[str, Any]:
    """Return the accuracies on held-out samples, with the head of a ridge regression and after the
    last epoch.

    Args:
        model: with a random head for the task.
        task: its validation samples are the held-out ones.
        recipe: of the training.
        run: how to compute.
    """
    start, head = initialise_head(model, task, recipe, run)
    before = evaluate(start.model(), task, "validation", start.input_format, run).value
    try:
        trained = fit(start, task, recipe, run, judge=False)
        after = evaluate(trained.model(), task, "validation", start.input_format, run).value
    except TrainingFailed:
        after = 0.0
    return {
        "left_out": head["left_out_accuracy"],
        "before": round(before, 4),
        "after": round(after, 4),
        "held_out": task.sizes["validation"],
    }


@lru_cache(maxsize=1)
def build_model(
    ancestry: str, method: str, layers: int, width: int, task: str, folder: str | None
) -> Descendant:
    """Return a model before it is fine-tuned; closed_form is calibrated on the task."""
    if ancestry == "minilm":
        run = Run(threads=1, device=machine.DEVICE, ancestry=folder)
        learngene = lifecycle.extract(method, ancestries=[str(folder)], run=run)
        target = Target(layers=layers, width=width, task=task)
        return lifecycle.expand(learngene, target=target, run=run)
    finetune_rates.PIXELS = GRIDS[ancestry].pixels or finetune_rates.PIXELS
    start = finetune_rates.Start(ANCESTRIES[ancestry], method, layers, width, task)
    return finetune_rates.build_start(start, folder)


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean accuracies over the tasks in Markdown, per cent: a number of images or texts
    and a model a row. Only complete means are shown.
    """
    lines = [
        "| images | model | ridge head | as with 500 | batches of 64, adapted | the default |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for ancestry, images, model, variants in list_starts():
        own = [row for row in rows if get_start(row) == (ancestry, *model, images)]
        large = variants[-1] if ancestry == "minilm" else LARGE_BATCHES[images]
        shown = [variants[0], large, variants[-1]]
        ends = [[row for row in own if get_variant(row) == variant] for variant in shown]
        if all(len(part) == len(GRIDS[ancestry].tasks) for part in ends):
            method, layers, width = model
            before = describe_mean(ends[0], "before")
            after = " | ".join(describe_mean(part, "after") for part in ends)
            name = f"{ancestry} {method} {layers} x {width}"
            lines.append(f"| {images} | {name} | {before} | {after} |")
    return "\n".join(lines)


def list_starts() -> Iterator[tuple[str, int, tuple[str, int, int], Sequence[Variant]]]:
    """Yield the grid, the number of images, the model and the variants of each row."""
    for images in sorted({images for grid in GRIDS.values() for images in grid.variants}):
        for name, grid in GRIDS.items():
            for model in grid.models if images in grid.variants else ():
                yield name, images, model, grid.variants[images]


def make_variant_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean gains over the ridge head with the fewest images in Markdown, in points: a
    recipe a row, the models of a grid a column. Only starts of which all variants are measured
    count.
    """
    images = min(VARIANTS)
    gains = {name: list_gains(rows, name, images) for name in GRIDS}
    shown = [name for name in GRIDS if gains[name]]
    every = {one for name in shown for one in GRIDS[name].variants[images]}
    lines = [
        f"| batch | warm-up | rate | {' | '.join(f'{n} ({len(gains[n])})' for n in shown)} |",
        "|---:|---:|---:|" + "---:|" * len(shown),
    ]
    for one in sorted(every, key=lambda one: (-one.batch_size, one.warmup, -one.factor)):
        steps = one.warmup * math.ceil(images / one.batch_size)
        cells = [describe_gain([start.get(one) for start in gains[name]]) for name in shown]
        lines.append(f"| {one.batch_size} | {steps:g} | {one.factor:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def list_gains(
    rows: Sequence[dict[str, Any]], grid: str, images: int
) -> list[dict[Variant, float]]:
    """Return the gains of each start of a grid by variant; only starts with all variants count."""
    starts: dict[tuple[Any, ...], dict[Variant, float]] = {}
    for row in rows:
        if (row["ancestry"], row["images"]) == (grid, images):
            start = (*get_start(row), row["task"])
            starts.setdefault(start, {})[get_variant(row)] = row["after"] - row["before"]
    variants = set(GRIDS[grid].variants.get(images, ()))
    return [gains for gains in starts.values() if variants and variants <= set(gains)]


def describe_gain(gains: Sequence[float | None]) -> str:
    """Return the mean gain in points; "" for a variant that was not measured."""
    known = [gain for gain in gains if gain is not None]
    return f"{round(100 * mean(known), 1) + 0.0:+.1f}" if known else ""


def get_start(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the model and the number of images of a row."""
    return tuple(row[name] for name in ("ancestry", "method", "layers", "width", "images"))


def get_variant(row: dict[str, Any]) -> Variant:
    """Return the recipe of a row."""
    return Variant(row["factor"], row["warmup"], row["batch_size"])


def describe_mean(rows: Sequence[dict[str, Any]], field: str) -> str:
    """Return the mean of a share in per cent."""
    return f"{100 * mean(row[field] for row in rows):.1f}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
