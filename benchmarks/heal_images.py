"""How many images without labels does a student need to reach the features of closed_form?

Claim, filed before its first cell: on DINOv2-S at 112 pixels a student of 6 x 256 that starts from
closed_form needs at most a quarter of the images without labels that the same student needs from
random weights, and from weight_selection, until a ridge regression on its frozen features reaches
the accuracy of the smaller of the two. `first_k` builds only 6 x 384 and is compared with
closed_form and random weights of that size; no gain is claimed there.

Varied: the start of the student, and the number of different images. The images are training images
of fashion_mnist; small sets are repeated, so that every healing sees 16,000 or more (4 epochs of
at least 4,000, with other shifts and flips in each). Every start has two learning rates, the better
one is chosen on validation images. closed_form is calibrated with as many training images, at most
500, without labels; those may include images of the probes.

Measured: the accuracy of a ridge regression on the frozen features, fitted to 500 other training
images with labels and judged on 1,000 others; the rate is chosen on 600 further ones. No test image
is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes. On a GPU: BENCHMARK_DEVICE=cuda.

    python benchmarks/heal_images.py [--ancestry DINOV2] [--workers 2] [--only WORD ...]
    python benchmarks/heal_images.py --table    write the table from the results

Results: benchmarks/results/heal_images.jsonl.
Page: docs/results/heal.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import machine
from command_line import read_arguments
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.splits.samples import PartOfSplit
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.healing.recovery import recover
from learngene_zoo.training.healing.settings import HEAL, HealConfig
from learngene_zoo.training.probes import compute_features, run_probe
from pages import DOCS, replace_between
from probes import hold_out_images
from rows import find_missing, measure_cells, read_rows

ROWS = machine.RESULTS / "heal_images.jsonl"
TASK, PIXELS = "fashion_mnist", 112
LABELLED, CHOOSING, JUDGED = 500, 600, 1000  # images of the probes
COUNTS = (250, 1_000, 4_000, 16_000)
SEEN, EPOCHS = 4_000, 4  # images of an epoch, at least
# Start, layers, width and learning rates, by ancestry model.
STARTS = {
    "dinov2": (
        ("closed_form", 6, 256, (5e-5, 2e-4)),
        ("weight_selection", 6, 256, (5e-5, 2e-4)),
        ("scratch", 6, 256, (3e-4, 1e-3)),
        ("closed_form", 6, 384, (5e-5, 2e-4)),
        ("first_k", 6, 384, (5e-5, 2e-4)),
        ("scratch", 6, 384, (3e-4, 1e-3)),
    ),
    "bundled": (
        ("closed_form", 6, 64, (3e-4, 1e-3)),
        ("weight_selection", 6, 64, (3e-4, 1e-3)),
        ("scratch", 6, 64, (1e-3, 3e-3)),
        ("closed_form", 6, 96, (3e-4, 1e-3)),
        ("first_k", 6, 96, (3e-4, 1e-3)),
        ("scratch", 6, 96, (1e-3, 3e-3)),
    ),
}


class Cell(NamedTuple):
    """A healing; with 0 images the student before it."""

    ancestry: str
    method: str
    layers: int
    width: int
    images: int
    lr: float

    @property
    def name(self) -> str:
        """The words that `--only` searches."""
        return " ".join(map(str, self))


def main() -> None:
    """Measure the missing cells, print the table and write it."""
    args = read_arguments(__doc__, default="default: the bundled model")
    if not args.table:
        cells = find_missing(ROWS, list_cells("dinov2" if args.ancestry else "bundled"), args.only)
        measure_cells(ROWS, cells, measure_cell, args.workers, args.ancestry)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "heal.md", "heal-images", table)
    print(table)


def list_cells(ancestry: str) -> Iterator[Cell]:
    """Yield every cell, those with few images first."""
    for images in (0, *COUNTS):
        for method, layers, width, rates in STARTS[ancestry]:
            for lr in rates if images else (0.0,):
                yield Cell(ancestry, method, layers, width, images, lr)


def measure_cell(cell: Cell, source: str | None) -> dict[str, Any]:
    """Heal a student, measure its features, and return the row."""
    import torch

    torch.set_num_threads(1)
    source = source or "bundled"
    run = Run(seed=0, threads=1, device=machine.DEVICE, ancestry=source)
    task = open_task(TASK)
    probed = LABELLED + CHOOSING + JUDGED
    unlabelled = repeat_images(
        hold_out_images(task, slice(probed, probed + max(cell.images, LABELLED)), slice(CHOOSING)),
        max(1, SEEN // max(cell.images, 1)),
    )
    model = build_student(cell, source, run)
    if cell.images:
        healed = recover(
            model,
            open_ancestry(source, image_size=model.spec.image_size),
            unlabelled,
            replace(HEAL, lr=cell.lr, epochs=EPOCHS),
            HealConfig(),
            run,
            records={key: model.provenance.get(key) for key in ("runs", "teacher_depth")},
        )
        model = healed
    accuracies = {}
    for name, held_out in (
        ("validation", slice(LABELLED, LABELLED + CHOOSING)),
        ("test", slice(LABELLED + CHOOSING, probed)),
    ):
        labelled = hold_out_images(task, slice(LABELLED), held_out)
        train, judged = (
            compute_features(model.model(), labelled, split, model.input_format, run)
            for split in ("train", "validation")
        )
        probe = run_probe(train, judged, labelled, "validation", "ridge", seed=0)
        accuracies[name] = probe.value
        if name == "test":
            accuracies["low"], accuracies["high"] = probe.interval
    record: Any = model.provenance.get("healed", {})
    row = {
        **cell._asdict(),
        **accuracies,
        "loss": record.get("metrics", {}).get("held_out_loss"),
        "kept_epoch": record.get("metrics", {}).get("kept_epoch"),
        **machine.describe_device(),
    }
    return row


def repeat_images(task: Task, times: int) -> Task:
    """Return a task that has each of its training images several times."""

    def open_split(name: str) -> Any:
        split = task.split(name)  # type: ignore[arg-type]
        if name != "train":
            return split
        return PartOfSplit(split, np.tile(np.arange(len(split)), times))

    sizes = {**task.sizes, "train": times * task.sizes["train"]}
    return replace(task, sizes=sizes, open_split=open_split, stamp=None)


def build_student(cell: Cell, source: str, run: Run) -> Descendant:
    """Return the student before it is healed."""
    extractor, tasks = METHODS.load(cell.method).preset("mini"), ()
    if cell.method == "closed_form":
        images = min(cell.images or LABELLED, LABELLED)
        extractor, tasks = with_settings(extractor, {"images": images}), (TASK,)
    learngene = lifecycle.extract(
        cell.method,
        ancestries=(source,),
        tasks=tasks,
        extractor=extractor,
        image_size=PIXELS if cell.ancestry == "dinov2" else None,
        run=run,
    )
    settings: dict[str, Any] = {}
    if cell.method == "scratch":
        heads = cell.width // (64 if cell.ancestry == "dinov2" else 32)
        settings = {"init": "fan_in", "heads": heads}
    return lifecycle.expand(
        learngene, layers=cell.layers, width=cell.width, task=TASK, run=run, **settings
    )


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracies in Markdown, per cent: a start a row, a number of images a column."""
    lines = [
        f"| start | none | {' | '.join(f'{count:,} images' for count in COUNTS)} |",
        f"|---|{'---:|' * (1 + len(COUNTS))}",
    ]
    for ancestry, starts in STARTS.items():
        for method, layers, width, _ in starts:
            rows_of_start = [
                row
                for row in rows
                if (row["ancestry"], row["method"], row["layers"], row["width"])
                == (ancestry, method, layers, width)
            ]
            cells = []
            for images in (0, *COUNTS):
                candidates = [row for row in rows_of_start if row["images"] == images]
                best = max(candidates, key=lambda row: row["validation"], default=None)
                cells.append(f"{100 * best['test']:.1f}" if best else "")
            if any(cells):
                lines.append(f"| {ancestry}, {method} {layers} x {width} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
