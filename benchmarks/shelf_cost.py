"""What the learngenes on the shelf cost: seconds and images of the extraction, and the numbers that must be kept.

    python benchmarks/shelf.py cost          for every learngene whose card does not say it; resumable

An extraction that is repeated for its cost alone must give the learngene that is on the shelf, number for number.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from learngene_zoo.artifacts.records import Cost
from learngene_zoo.artifacts.shelf import Learngene
from learngene_zoo.bench.cell import Arm, Extraction
from learngene_zoo.bench.extraction import Spent, extract_once
from learngene_zoo.families.family import cost
from learngene_zoo.runs.run import Run


def extracted(arm: Arm, out: Path, run: Run) -> tuple[Learngene, Cost]:
    """The learngene of an arm, and what it cost; each is extracted once in `out`, and goes on after a stop."""
    made, spent = extract_once(Extraction(arm=replace(arm, name=""), seed=run.seed), out, run)
    return made, cost_of(made, spent)


def cost_of(made: Learngene, spent: Spent) -> Cost:
    """What an extraction cost. A learngene that names its ancestry models, and does not hold them, needs them at every expansion."""
    own = sum(tensor.numel() for tensor in made.state.values())
    named = made.config.settings.get("store") is False
    needed = sum(cost(record.spec).params for record in made.config.ancestries) if named else 0
    return Cost(seconds=round(spent.seconds, 1), images=spent.images, params=own + needed)


def difference(one: Learngene, other: Learngene) -> float | None:
    """The largest difference between two learngenes' numbers; None if they do not have the same tensors."""
    if {name: tensor.shape for name, tensor in one.state.items()} != {
        name: tensor.shape for name, tensor in other.state.items()
    }:
        return None
    gaps = ((one.state[name].double() - other.state[name].double()).abs() for name in one.state)
    return max((float(gap.max()) for gap in gaps if gap.numel()), default=0.0)
