"""Is half of the ancestry model better with solved layers or with its blocks as they are?

Varied: the blocks of six layers of width 96: `first_k`, `evenly_spaced`, closed_form, closed_form
not solved (the first block of each run of its cut), and with a hundred times stronger ridge (the
results also have one of the first blocks instead of the cut's, which is no longer built); and the
learning rate, because the claim `closed_form-shallower` gives all arms one rate, which two easy
tasks choose.

Measured: the accuracy on validation images of four tasks of that claim after its training (3 epochs
of 500 images in batches of 32, no augmentation), with two seeds that the claim does not use.

Command: about twelve minutes on one core, resumable.

    python benchmarks/archive/closed_form_rates.py
    python benchmarks/archive/closed_form_rates.py --table    write the table from the results

Results: benchmarks/results/closed_form_rates.json.
Page: docs/results/closed_form.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.grid.grid import list_cells
from learngene_zoo.bench.running.executors import InProcess
from learngene_zoo.settings import Recipe

sys.path.append(str(Path(__file__).resolve().parents[1]))
import machine
from grids import run_cells
from pages import DOCS, ROOT, replace_between

NAME = "closed_form_rates"
ALL = {"teacher_depth": 12}
ARMS = (
    Arm(name="first_k", method="first_k"),
    Arm(name="evenly_spaced", method="evenly_spaced"),
    # The descendants of that day stood for all blocks of the ancestry model.
    Arm(name="closed_form", method="closed_form", expand=ALL),
    Arm(name="closed_form, not solved", method="closed_form", expand={**ALL, "solve": False}),
    Arm(name="closed_form, ridge 0.1", method="closed_form", expand=ALL, settings={"ridge": 0.1}),
)
LAYERS, EPOCHS, SEEDS, RATES = 6, 3, (100, 101), (1e-3, 2e-3, 4e-3)
TASKS = ("textures", "motion", "signs", "digits")
RECIPE = Recipe(images=500, batch_size=32, clip=1.0, augment="none")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write."""
    if "--table" not in arguments:
        rows = run_cells(grid(), ROOT / "build" / NAME, executor=InProcess())
        values = [
            {
                "arm": row.arm,
                "lr": row.lr,
                "task": row.task,
                "seed": row.seed,
                "accuracy": row.value,
            }
            for row in rows
        ]
        machine.write(
            NAME, {"split": "validation", "layers": LAYERS, "images": RECIPE.images, "rows": values}
        )
    text = markdown(machine.read(NAME)["rows"])
    print(text)
    replace_between(DOCS / "results" / "closed_form.md", "rates", text)


def grid() -> list[Cell]:
    """Every arm at every rate on every task."""
    at = {"layers": [LAYERS], "epochs": [EPOCHS], "seeds": SEEDS}
    found = [
        list_cells(
            TASKS, ARMS, recipe=replace(RECIPE, lr=rate), split="validation", head="random", **at
        )
        for rate in RATES
    ]
    return [replace(cell, look=False) for some in found for cell in some]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line per arm: at every rate the mean of all tasks and seeds, in per cent, then each task's
    at the lowest rate.
    """
    head = [f"rate {rate:g}" for rate in RATES] + [f"`{task}`" for task in TASKS]
    lines = [f"| | {' | '.join(head)} |", f"|---|{'---:|' * len(head)}"]
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm.name]
        by_rate = [fmean(row["accuracy"] for row in own if row["lr"] == rate) for rate in RATES]
        lowest = [row for row in own if row["lr"] == RATES[0]]
        by_task = [
            fmean(row["accuracy"] for row in lowest if row["task"] == task) for task in TASKS
        ]
        lines.append(
            f"| {arm.name} | {' | '.join(f'{100 * value:.1f}' for value in (*by_rate, *by_task))} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
