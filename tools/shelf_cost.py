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
from learngene_zoo.families.family import cost
from learngene_zoo.runs.cache import measure_cost_alone
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import fingerprint, to_json
from learngene_zoo.storage import read_json, write_json


def extracted(arm: Arm, out: Path, run: Run) -> tuple[Learngene, CardCost]:
    """The learngene of an arm, and what it cost; each is extracted once in `out`, by itself, and
    goes on after a stop.
    """
    key = fingerprint([to_json(arm.extractor), arm.ancestries, arm.tasks, run.seed])
    place = out / f"{arm.method}-{key}"
    clock = place.with_name(f"{place.name}.seconds.json")
    if not place.exists():
        with timed(clock):
            lifecycle.extract(
                arm.method,
                ancestries=arm.ancestries,
                tasks=arm.tasks,
                extractor=arm.extractor,
                out=place,
                run=run,
            )
    made = load_learngene(place)
    images = count_images(
        arm, measure_cost_alone(place.with_name(f"{place.name}.run"), None).images
    )
    return made, cost_of(made, read_json(clock)["seconds"], images)


@contextmanager
def timed(clock: Path) -> Iterator[None]:
    """Add the processor's seconds to what the file says, even if it is interrupted."""
    before, began = read_json(clock)["seconds"] if clock.is_file() else 0.0, time.process_time()
    try:
        yield
    finally:
        clock.parent.mkdir(parents=True, exist_ok=True)
        write_json(clock, {"seconds": before + time.process_time() - began})


def cost_of(made: Learngene, seconds: float, images: int) -> CardCost:
    """What an extraction cost. A learngene that names its ancestry models, and does not hold them,
    needs them at every expansion.
    """
    own = sum(tensor.numel() for tensor in made.state.values())
    named = made.config.settings.get("store") is False
    needed = sum(cost(record.spec).params for record in made.config.ancestries) if named else 0
    return CardCost(seconds=round(seconds, 3), images=images, params=own + needed)


def difference(one: Learngene, other: Learngene) -> float | None:
    """The largest difference between two learngenes' numbers; None if they do not have the same
    tensors.
    """
    if {name: tensor.shape for name, tensor in one.state.items()} != {
        name: tensor.shape for name, tensor in other.state.items()
    }:
        return None
    gaps = ((one.state[name].double() - other.state[name].double()).abs() for name in one.state)
    return max((float(gap.max()) for gap in gaps if gap.numel()), default=0.0)
