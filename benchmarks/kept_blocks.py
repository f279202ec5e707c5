"""How many blocks should LSAMD keep? Descendants of several kept sets, on validation images of `digits`.

    python benchmarks/kept_blocks.py           about five minutes on one core; resumable

For each set: descendants of 9 and 12 layers fine-tuned like those of the demo, over three seeds, beside the same weights shuffled.
Results in benchmarks/results/kept_blocks.json.
"""

from __future__ import annotations

from dataclasses import replace

import machine
from grids import finished
from pages import ROOT

from learngene_zoo.artifacts.shelf import find, load_learngene
from learngene_zoo.bench.cell import Arm, Cell
from learngene_zoo.bench.demo import RECIPE
from learngene_zoo.bench.grid import cells
from learngene_zoo.tasks.catalogue import DEFAULT_TARGET

BUILD = ROOT / "build" / "kept_blocks"
LAYERS, SEEDS = (9, 12), (0, 1, 2)


def main() -> None:
    """Measure, print, and write."""
    found = finished(grid(), BUILD)
    rows = []
    for rule, kept in kept_sets().items():
        for layers in LAYERS:
            line = {"rule": rule, "kept": kept, "layers": layers}
            for name, arm in (("lsamd", rule), ("shuffled", f"{rule} shuffled")):
                values = [row.value or 0.0 for row in found if (row.arm, row.layers) == (arm, layers)]
                line[name] = round(100 * sum(values) / len(values), 1)
            rows.append(line)
            print("  ".join(f"{name} {value}" for name, value in line.items()))
    machine.write("kept_blocks", {"task": DEFAULT_TARGET, "split": "validation", "seeds": len(SEEDS), "rows": rows})


def kept_sets() -> dict[str, list[int]]:
    """The blocks that each rule keeps in the bundled search: used by most tasks, the five most used, the last five."""
    details = load_learngene(find("lsamd")).config.details
    half = len(details["datasets"]) / 2
    above = [block for block, used in enumerate(details["usage"], start=1) if used > half]
    return {"above M/2": above, "top 5": list(details["kept"]), "last 5": [8, 9, 10, 11, 12]}


def grid() -> list[Cell]:
    """Every kept set and its shuffled control."""
    own = [Arm(name=rule, method="lsamd", settings={"keep": tuple(kept)}) for rule, kept in kept_sets().items()]
    arms = [*own, *(replace(arm, name=f"{arm.name} shuffled", control="shuffled") for arm in own)]
    made = cells(
        [DEFAULT_TARGET], arms, layers=LAYERS, epochs=[RECIPE.epochs], seeds=SEEDS, recipe=RECIPE, split="validation"
    )
    return [replace(cell, look=False, training_seed=cell.seed) for cell in made]


if __name__ == "__main__":
    main()
