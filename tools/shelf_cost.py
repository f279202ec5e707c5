"""Measure the cost of the learngenes on the shelf: seconds and images of the extraction, and the
numbers that must be stored.

    python tools/shelf.py cost      for every learngene whose card does not have it; resumable

An extraction that is repeated for its cost alone must give the learngene that is on the shelf,
number for number. Seconds are those of the processor, of one thread: on a busy machine they are
nearly the same as on an idle one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.records import CardCost
from learngene_zoo.bench.grid.cell import Arm
from learngene_zoo.bench.running.extraction import count_images
from learngene_zoo.families.family import count_cost
from learngene_zoo.runs.cache import measure_cost_alone
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import fingerprint, to_json
from learngene_zoo.storage import read_json, write_json


def extract_learngene(arm: Arm, out: Path, run: Run) -> tuple[Learngene, CardCost]:
    """Return the learngene of an arm, and its cost.

    Each is extracted once in `out`, and an interrupted extraction continues.
    """
    key = fingerprint([to_json(arm.extractor), arm.ancestries, arm.tasks, run.seed])
    folder = out / f"{arm.method}-{key}"
    clock = folder.with_name(f"{folder.name}.seconds.json")
    if not folder.exists():
        with count_seconds(clock):
            lifecycle.extract(
                arm.method,
                ancestries=arm.ancestries,
                tasks=arm.tasks,
                extractor=arm.extractor,
                out=folder,
                run=run,
            )
    learngene = load_learngene(folder)
    images = count_images(
        arm, measure_cost_alone(folder.with_name(f"{folder.name}.run"), None).images
    )
    return learngene, compute_cost(learngene, read_json(clock)["seconds"], images)


@contextmanager
def count_seconds(clock: Path) -> Iterator[None]:
    """Add the processor's seconds to those in the file, also after an error."""
    before, started = read_json(clock)["seconds"] if clock.is_file() else 0.0, time.process_time()
    try:
        yield
    finally:
        clock.parent.mkdir(parents=True, exist_ok=True)
        write_json(clock, {"seconds": before + time.process_time() - started})


def compute_cost(learngene: Learngene, seconds: float, images: int) -> CardCost:
    """Return the cost of an extraction.

    A learngene that names its ancestry models, and does not store them, needs them at every
    expansion.
    """
    stored = sum(tensor.numel() for tensor in learngene.state.values())
    is_named = learngene.config.settings.get("store") is False
    needed = (
        sum(count_cost(record.spec).params for record in learngene.config.ancestries)
        if is_named
        else 0
    )
    return CardCost(seconds=round(seconds, 3), images=images, params=stored + needed)


def compute_difference(first: Learngene, second: Learngene) -> float | None:
    """Return the largest difference between two learngenes' numbers; None if their tensors differ
    in names or shapes.
    """
    if {name: tensor.shape for name, tensor in first.state.items()} != {
        name: tensor.shape for name, tensor in second.state.items()
    }:
        return None
    gaps = (
        (first.state[name].double() - second.state[name].double()).abs() for name in first.state
    )
    return max((float(gap.max()) for gap in gaps if gap.numel()), default=0.0)
