"""How good are the descendants of a real DINOv2-S by every method?

Varied: the method and the size. Learngenes are extracted with the preset `mini`, those that need
images from training images of the task. Methods that train a learngene have 4 epochs of 500 images;
those with a teacher share that of the task, DINOv2-S fine-tuned for 4 epochs. Trainings are in
bfloat16 where the processor or GPU has instructions for it.
Beside them are the ancestry model itself and the controls of the bench: closed_form's descendant
shuffled, with its stem alone, and random weights by two initialisations, each with the better of
two rates on validation images (the defaults of inherited and of random weights). `finetune` has a
few methods (`TUNED`); with `--all-methods` every method that builds a size, which needs a GPU.

Measured: with `probe` a ridge regression and the nearest neighbours before any training
(training/probes.py); with `finetune` the test accuracy after `lgzoo finetune` with its defaults, of
the epoch that validates best (rows without a `precision`: in float32). Everything is at 112 pixels,
with at most 500 training, 1,000 validation and 600 test images of a task (rows of fashion_mnist
without `validation_images`: 5,000); with `--large` some models at 224 pixels with at most 2,000
training images, on two tasks, one seed.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes; the tasks are those of the suite `pictures` and fashion_mnist, which must be
installed (`lgzoo show stamps` prints how).

    python benchmarks/real_models.py --ancestry DINOV2 probe [--workers 2] [--only WORD ...]
    python benchmarks/real_models.py --ancestry DINOV2 finetune [--workers 2] [--only WORD ...]
    python benchmarks/real_models.py --ancestry DINOV2 finetune --all-methods
    python benchmarks/real_models.py --ancestry DINOV2 probe --large
    python benchmarks/real_models.py --ancestry DINOV2 finetune --large
    python benchmarks/real_models.py table    write the page from the results

On a GPU: BENCHMARK_DEVICE=cuda.

Results: benchmarks/results/real_models.jsonl; the last digits of a row depend on the machine.
Page: docs/real.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from statistics import mean
from typing import Any, Literal

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import Control
from learngene_zoo.errors import ZooError
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import list_settings
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.splits.cutting import ensure_validation
from learngene_zoo.training.probes import compute_features, run_probe
from pages import DOCS, replace_between
from probes import evaluate_on_test
from rows import append_row, read_rows

ROWS = machine.RESULTS / "real_models.jsonl"
SHARED = machine.RESULTS.parent.parent / "build" / "real_models"  # teachers of the tasks
PIXELS, IMAGES, TEST_IMAGES, SEEDS = 112, 500, 600, 3
VALIDATION_IMAGES = 1_000  # by which the epoch, and a control's rate, are chosen
LARGE_PIXELS, LARGE_IMAGES, LARGE_TASKS = 224, 2_000, ("clipart", "fashion_mnist")
TASKS = ("stamps", "clipart", "emoji-transfer", "fashion_mnist")
SIZES = ((12, 256), (6, 384), (6, 256), (6, 192))
# pruning and elastic are left out: they keep width and depth, and build none of these sizes.
FREE = (
    "closed_form",
    "first_k",
    "evenly_spaced",
    "middle_k",
    "last_k",
    "cluster_lg",
    "growth",
    "stacked",
    "vanilla_lg",
    "weight_selection",
    "weight_subcloning",
    "mimetic",
    "peg",
    "front",
)
TRAINED = (
    "auto_lg",
    "distillation",
    "fine",
    "ghn3",
    "heur_lg",
    "lets",
    "logah",
    "lsamd",
    "nested",
    "pith",
    "pool",
    "snnet",
    "sweet",
    "sws",
    "tal",
    "tleg",
    "wave",
)
TRAINED_BUDGET = {
    "epochs": 4,
    "images": IMAGES,
    "tuning_epochs": 4,
    "tuning_images": IMAGES,
    "teaching_epochs": 4,
    "teaching_images": IMAGES,
}
# distillation trains a model of each of these sizes.
TRAINED_SIZES = {"depths": (6, 12), "widths": (192, 256, 384)}
ALL = (*FREE, *TRAINED)
TUNED = ("closed_form", "first_k", "evenly_spaced", "weight_selection")
CONTROLS: tuple[Control, ...] = ("shuffled", "stem", "stem_fan_in")
# Method, size and text of the rows on the front page.
FRONT = (
    ("ancestry", 12, 384, "DINOv2-S itself, 12 x 384"),
    ("first_k", 6, 384, "`first_k`, 6 x 384"),
    ("closed_form", 6, 384, "`closed_form`, 6 x 384"),
    ("closed_form", 12, 256, "`closed_form`, 12 x 256"),
    ("closed_form", 6, 256, "`closed_form`, 6 x 256"),
    ("weight_selection", 6, 256, "`weight_selection`, 6 x 256"),
    ("distillation", 6, 256, "distilled for 4 epochs, 6 x 256"),
    ("scratch", 6, 256, "random weights, 6 x 256"),
)
# Method, size and control of the models at `LARGE_PIXELS`.
LARGE: tuple[tuple[str, int, int, str], ...] = (
    ("ancestry", 12, 384, ""),
    ("closed_form", 12, 256, ""),
    ("weight_selection", 12, 256, ""),
    ("closed_form", 6, 384, ""),
    ("first_k", 6, 384, ""),
    ("closed_form", 6, 256, ""),
    ("weight_selection", 6, 256, ""),
    ("closed_form", 6, 256, "shuffled"),
    ("closed_form", 6, 256, "stem_fan_in"),
    ("scratch", 6, 256, "timm"),
    ("scratch", 6, 256, "fan_in"),
)
Stage = Literal["probe", "finetune"]


@dataclass(frozen=True)
class Cell:
    """One model on one task."""

    stage: Stage
    method: str  # `ancestry` is the model itself
    layers: int
    width: int
    task: str
    seed: int = 0
    control: str = ""  # of closed_form's descendant, or an initialisation of random weights
    pixels: int = PIXELS
    max_images: int = IMAGES  # of the training

    @property
    def name(self) -> str:
        """Its words, which `--only` looks for."""
        return f"{self.arm} {self.layers} x {self.width} {self.task} seed {self.seed}"

    @property
    def arm(self) -> str:
        """Its method, and its control."""
        return f"{self.method} {self.control}".strip()


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=["probe", "finetune", "table"])
    parser.add_argument("--ancestry", help="the folder of DINOv2-S")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--large", action="store_true", help=f"{LARGE_PIXELS} pixels, {LARGE_IMAGES:,} images"
    )
    parser.add_argument(
        "--all-methods", action="store_true", help="fine-tune models of every method"
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="cells whose name contains all of these words"
    )
    given = parser.parse_args()
    if given.stage != "table":
        if not given.ancestry:
            parser.error("name the folder of DINOv2-S: --ancestry DINOV2")
        if given.large and given.all_methods:
            parser.error("--large and --all-methods exclude each other; choose one")
        cells = list_large_cells(given.stage) if given.large else list_cells(given.stage)
        if given.all_methods:
            cells = list_cells(given.stage, ALL)
        measure(list_missing(cells, given.only), given.ancestry, given.workers)
    rows = read_rows(ROWS)
    tables = {
        "real-models-probe": make_table("probe", rows),
        "real-models-finetune": make_table("finetune", rows),
        "real-models-large": make_large_table(rows),
    }
    for name, table in tables.items():
        replace_between(DOCS / "real.md", name, table)
        print(f"{table}\n")
    front = make_front_table(rows)
    replace_between(DOCS.parent / "README.md", "real-models", front)
    print(f"{front}\n")


def list_missing(cells: Iterable[Cell], words: Sequence[str]) -> list[Cell]:
    """Return the cells that have these words in their name and no row yet."""
    done = {key_of(row) for row in read_rows(ROWS)}
    return [
        cell
        for cell in cells
        if all(word in f" {cell.name} " for word in words)
        and key_of({"arm": cell.arm, **asdict(cell)}) not in done
    ]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a row; the first rows do not say their pixels."""
    names = ("stage", "arm", "layers", "width", "task", "seed")
    return *(row[name] for name in names), row.get("pixels", PIXELS)


def list_cells(stage: Stage, methods: Sequence[str] | None = None) -> Iterator[Cell]:
    """Yield every cell of a stage at `PIXELS`, the first seed first.

    Args:
        stage: the stage.
        methods: the methods. None: those in the stage's table.
    """
    seeds = range(SEEDS) if stage == "finetune" else range(1)
    methods = methods or (TUNED if stage == "finetune" else ALL)
    for seed in seeds:
        for task in TASKS:
            yield Cell(stage, "ancestry", 12, 384, task, seed)
            for method in methods:
                for layers, width in SIZES:
                    yield Cell(stage, method, layers, width, task, seed)
            for layers, width in SIZES:
                for control in CONTROLS:
                    yield Cell(stage, "closed_form", layers, width, task, seed, control)
                for scheme in ("timm", "fan_in"):
                    yield Cell(stage, "scratch", layers, width, task, seed, scheme)


def list_large_cells(stage: Stage) -> Iterator[Cell]:
    """Yield every cell of a stage at `LARGE_PIXELS`."""
    for task in LARGE_TASKS:
        for method, layers, width, control in LARGE:
            yield Cell(stage, method, layers, width, task, 0, control, LARGE_PIXELS, LARGE_IMAGES)


def measure(cells: Sequence[Cell], ancestry: str, workers: int) -> None:
    """Measure cells, the sizes of one method in one process after the other, and keep each row as
    it is there.
    """
    groups: dict[tuple[str, str, int, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.method, cell.task, cell.seed, cell.pixels), []).append(cell)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = {
            pool.submit(measure_cells, group, ancestry): name for name, group in groups.items()
        }
        for number, done in enumerate(as_completed(waiting), start=1):
            done.result()
            print(
                f"{number} of {len(groups)}: {', '.join(map(str, waiting[done]))}",
                file=sys.stderr,
                flush=True,
            )


def measure_cells(cells: Sequence[Cell], ancestry: str) -> None:
    """Measure cells one after the other; a size that a method does not build has its reason as the
    row.
    """
    import torch

    torch.set_num_threads(1)
    for cell in cells:
        start = time.monotonic()
        try:
            found = {"probe": probe_cell, "finetune": finetune_cell}[cell.stage](cell, ancestry)
        except ZooError as error:
            found = {"error": str(error).replace(ancestry, "DINOV2")}
        row = {
            "arm": cell.arm,
            **asdict(cell),
            **found,
            "seconds": round(time.monotonic() - start, 1),
            **machine.describe_device(),
        }
        append_row(ROWS, row)


def probe_cell(cell: Cell, ancestry: str) -> dict[str, Any]:
    """Return the accuracy of both probes on test images."""
    model, run = build(cell, ancestry), Run(seed=cell.seed, threads=1, device=machine.DEVICE)
    task = open_task(cell.task)
    shown = model.with_fit(lifecycle.choose_fit(model, task)).input_format
    train = compute_features(
        model.model(), task, "train", shown, run, images=min(cell.max_images, task.sizes["train"])
    )
    test = compute_features(
        model.model(), task, "test", shown, run, images=min(TEST_IMAGES, task.sizes["test"])
    )
    ridge, knn = (
        run_probe(train, test, task, "test", kind, seed=cell.seed) for kind in ("ridge", "knn")
    )
    low, high = ridge.interval
    return {
        "ridge": ridge.value,
        "low": low,
        "high": high,
        "knn": knn.value,
        "images": ridge.images,
        "training_images": ridge.training_images,
        "params": model.cost().params,
    }


def finetune_cell(cell: Cell, ancestry: str) -> dict[str, Any]:
    """Return the accuracy after fine-tuning: on validation images, by which a control's rate is
    chosen, and on test images.
    """
    model, task = build(cell, ancestry), ensure_validation(open_task(cell.task))
    images = min(cell.max_images, task.sizes["train"])
    rates = [lifecycle.choose_rates(model)]
    if cell.control:
        rates = [
            (lifecycle.INHERITED_LR, lifecycle.INHERITED_DECAY),
            (lifecycle.choose_rate(model.width), 1.0),
        ]
    best: dict[str, Any] = {}
    for lr, layer_decay in rates:
        precision = machine.choose_precision()
        run = Run(seed=cell.seed, threads=1, device=machine.DEVICE, precision=precision)
        tuned = lifecycle.finetune(
            model,
            task=cell.task,
            run=run,
            lr=lr,
            layer_decay=layer_decay,
            images=images,
            validation_images=VALIDATION_IMAGES,
        )
        metrics: Any = tuned.provenance["metrics"]
        if best and best["validation"] >= metrics["validation_accuracy"]:
            continue
        best = {
            "validation": metrics["validation_accuracy"],
            "start": metrics["history"][0]["validation_accuracy"],
            "kept_epoch": metrics["kept_epoch"],
            # The same test images as the probe's, where a task has more than that.
            **evaluate_on_test(tuned, task, run, TEST_IMAGES),
            "training_images": metrics["training_images"],
            "validation_images": metrics["validation_images"],
            "lr": lr,
            "layer_decay": layer_decay,
            "precision": run.precision,
        }
    return best


def build(cell: Cell, ancestry: str) -> Descendant:
    """Return the model before it is fine-tuned."""
    run = Run(seed=cell.seed, threads=1, device=machine.DEVICE, ancestry=ancestry)
    method = "first_k" if cell.method == "ancestry" else cell.method
    learngene = extract_learngene(method, cell.task, ancestry, cell.seed, cell.pixels)
    scheme = {"init": cell.control, "heads": cell.width // 64} if cell.method == "scratch" else {}
    control = cell.control if cell.control in CONTROLS else None
    return lifecycle.expand(
        learngene,
        layers=cell.layers,
        width=cell.width,
        task=cell.task,
        run=run,
        control=control,
        **scheme,
    )


@lru_cache(maxsize=1)
def extract_learngene(
    method: str, task: str, ancestry: str, seed: int, pixels: int = PIXELS
) -> Learngene:
    """Return a method's learngene; one that needs images has training images of the task."""
    loaded, settings = METHODS.load(method), {}
    run = Run(seed=seed, threads=1, device=machine.DEVICE, ancestry=ancestry)
    if method in TRAINED:
        run = replace(run, precision=machine.choose_precision(), shared=SHARED)
        known = {setting.name for setting in list_settings(loaded.extractor)}
        sizes = TRAINED_SIZES if method == "distillation" else {}
        settings = {
            name: value for name, value in (TRAINED_BUDGET | sizes).items() if name in known
        }
    tasks = (task,) if loaded.tasks != "none" else ()
    return lifecycle.extract(
        method, ancestries=(ancestry,), tasks=tasks, image_size=pixels, run=run, **settings
    )


def make_table(stage: Stage, rows: Sequence[dict[str, Any]]) -> str:
    """Return a stage's accuracies in Markdown, per cent.

    A row is an arm at one size, a column is a task.
    """
    rows = [row for row in select_rows(rows, PIXELS) if row["stage"] == stage]
    what = "ridge / nearest neighbours" if stage == "probe" else "test images"
    lines = [
        f"| size | weights ({what}) | {' | '.join(TASKS)} |",
        "|---|---|" + "---:|" * len(TASKS),
    ]
    order = list(dict.fromkeys(cell.arm for cell in list_cells(stage, ALL)))
    for layers, width in ((12, 384), *SIZES):
        size = [row for row in rows if (row["layers"], row["width"]) == (layers, width)]
        for arm in sorted({row["arm"] for row in size}, key=order.index):
            cells = [
                describe(stage, [row for row in size if (row["arm"], row["task"]) == (arm, task)])
                for task in TASKS
            ]
            lines.append(f"| {layers} x {width} | {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def select_rows(rows: Sequence[dict[str, Any]], pixels: int) -> list[dict[str, Any]]:
    """Return the rows of models that were built, for images of this size."""
    return [row for row in rows if "error" not in row and row.get("pixels", PIXELS) == pixels]


def make_large_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracies at `LARGE_PIXELS` in Markdown, per cent: both probes, then fine-tuned.

    A row is an arm at one size.
    """
    stages: tuple[tuple[Stage, str], ...] = (
        ("probe", "ridge / nearest neighbours"),
        ("finetune", "fine-tuned"),
    )
    heads = [f"{task}: {text}" for task in LARGE_TASKS for _, text in stages]
    lines = [f"| size | weights | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads)]
    rows = select_rows(rows, LARGE_PIXELS)
    for method, layers, width, control in LARGE:
        arm = f"{method} {control}".strip()
        key = (arm, layers, width)
        own = [row for row in rows if (row["arm"], row["layers"], row["width"]) == key]
        cells = [
            describe(stage, [row for row in own if (row["stage"], row["task"]) == (stage, task)])
            for task in LARGE_TASKS
            for stage, _ in stages
        ]
        if own:
            lines.append(f"| {layers} x {width} | {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_front_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table on the front page: the probes of some models on every task, and the accuracy
    after fine-tuning where it is measured.

    Of random weights, each number is that of the better initialisation.
    """
    rows = [row for row in select_rows(rows, PIXELS) if row["control"] not in CONTROLS]
    lines = [f"| model | parameters | {' | '.join(TASKS)} |", "|---|---:|" + "---:|" * len(TASKS)]
    for method, layers, width, text in FRONT:
        size = [
            row
            for row in rows
            if (row["method"], row["layers"], row["width"]) == (method, layers, width)
        ]
        probes = [row for row in size if row["stage"] == "probe"]
        if not probes:
            continue
        cells = [
            text,
            f"{probes[0]['params'] / 1e6:.1f} M",
            *(describe_both([row for row in size if row["task"] == task]) for task in TASKS),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def describe_both(rows: Sequence[dict[str, Any]]) -> str:
    """Return the probe and the mean accuracy after fine-tuning on one task, of the better arms."""
    tuned: dict[str, list[float]] = {}
    for row in rows:
        if row["stage"] == "finetune":
            tuned.setdefault(row["arm"], []).append(row["value"])
    best = [
        max((row["ridge"] for row in rows if row["stage"] == "probe"), default=None),
        max(map(mean, tuned.values()), default=None),
    ]
    return " → ".join(f"{100 * value:.1f}" for value in best if value is not None)


def describe(stage: Stage, rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracy of one arm at one size, a mean over its seeds; "" if there is none."""
    if not rows:
        return ""
    if stage == "probe":
        return " / ".join(
            f"{100 * mean(row[name] for row in rows):.1f}" for name in ("ridge", "knn")
        )
    seeds = f" ({len(rows)} seeds)" if len(rows) > 1 else ""
    return f"{100 * mean(row['value'] for row in rows):.1f}{seeds}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
