"""Judge the bundled ancestry model by fine-tuning, against shuffled and random weights.

    python tools/gate.py            about 25 minutes on two cores; resumable
    python tools/gate.py --table    print the table from the results

On `fashion_mnist` and on each target of the suite `mini`, at 1,000 training images: the ancestry
model with all its blocks, the same weights shuffled, and random weights of standard deviation
1/sqrt(fan_in). Each arm has its best learning rate on validation images of three tasks, with a
separate seed. Intervals are over the validation images, for the mean of three seeds; no test image
is read. The gate is passed if `fashion_mnist` and at least six of the nine targets have both
intervals above 0. Results: benchmarks/results/gate.json. Page: the card of the ancestry model.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from learngene_zoo.bench.claims.contrasts import gains_over_images
from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.grid.grid import SCRATCH, cells
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import suite

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import machine
from grids import best_rates, finished, gain_text

BUILD = Path(__file__).resolve().parent.parent / "build" / "gate"
LAYERS = 12
WHOLE = Arm(name="whole", method="lsamd", settings={"keep": tuple(range(1, LAYERS + 1))})
SHUFFLED = replace(WHOLE, name="shuffled", control="shuffled")
FAN_IN = replace(SCRATCH[1], name="scratch")
ARMS = (WHOLE, SHUFFLED, FAN_IN)
REAL = "fashion_mnist"
TASKS = (REAL, *suite("mini").tasks)
WANTED = 6  # of the nine
RECIPE = Recipe(images=1_000, batch_size=50, augment="none")
EPOCHS, SEEDS = 8, (0, 1, 2)
RATES, TUNING_TASKS, TUNING_SEED = (
    (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3),
    (REAL, "textures", "numbers"),
    1_000,
)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, print, and write."""
    if "--table" not in arguments:
        rates = chosen_rates()
        rows = finished(grid(TASKS, SEEDS, rates), BUILD)
        found = [line_of(task, [row for row in rows if row.task == task]) for task in TASKS]
        machine.write(
            "gate",
            {
                "split": "validation",
                "recipe": summary(),
                "lr": rates,
                "rows": found,
                **passed(found),
            },
        )
    kept = read()
    print(markdown(kept))
    print(sentence(kept))


def read() -> dict[str, Any]:
    """The results as they were written."""
    return machine.read("gate")


def summary() -> dict[str, Any]:
    """What all arms have in common."""
    return {
        "images": RECIPE.images,
        "batch_size": RECIPE.batch_size,
        "epochs": EPOCHS,
        "seeds": len(SEEDS),
    }


def grid(tasks: Sequence[str], seeds: Sequence[int], rates: Mapping[str, float]) -> list[Cell]:
    """All arms on these tasks, evaluated on validation images."""
    return cells(
        tasks,
        ARMS,
        layers=[LAYERS],
        epochs=[EPOCHS],
        seeds=seeds,
        recipe=RECIPE,
        rates=rates,
        split="validation",
        head="random",  # the recipe of the committed results
    )


def chosen_rates() -> dict[str, float]:
    """For each arm the rate with the best mean over the tuning tasks."""
    return best_rates(
        ARMS,
        RATES,
        lambda rate: finished(
            grid(TUNING_TASKS, [TUNING_SEED], {arm.name: rate for arm in ARMS}), BUILD
        ),
    )


def line_of(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """One line of the table: accuracies, and the whole's two gains with their intervals."""
    rivals = {rival.name: [rival.name] for rival in (SHUFFLED, FAN_IN)}
    found = gains_over_images(rows, WHOLE.name, rivals)
    return {
        "task": task,
        **found,
        "passed": found["over_shuffled_low"] > 0 and found["over_scratch_low"] > 0,
    }


def passed(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the gate is passed, and on how many of the nine."""
    targets = sum(line["passed"] for line in found if line["task"] != REAL)
    real = next(line["passed"] for line in found if line["task"] == REAL)
    return {"passed": bool(real and targets >= WANTED), "targets": targets}


def markdown(kept: Mapping[str, Any]) -> str:
    """The table as the card shows it, in per cent and points."""
    head = "| task | whole | shuffled | scratch | gain over shuffled | gain over scratch | passed |"
    lines = [head, "|---|---:|---:|---:|---:|---:|---|"]
    for row in kept["rows"]:
        accuracies = " | ".join(f"{100 * row[arm.name]:.1f}" for arm in ARMS)
        gains = " | ".join(gain_text(row, rival) for rival in (SHUFFLED.name, FAN_IN.name))
        lines.append(
            f"| `{row['task']}` | {accuracies} | {gains} | {'yes' if row['passed'] else 'no'} |"
        )
    return "\n".join(lines)


def sentence(kept: Mapping[str, Any]) -> str:
    """What was measured and what it says, in words."""
    how, rates = kept["recipe"], ", ".join(f"{name} {rate:g}" for name, rate in kept["lr"].items())
    verdict = "passed" if kept["passed"] else "not passed"
    return (
        f"Validation accuracy in per cent after {how['epochs']} epochs on {how['images']:,}"
        f" training images, mean of {how['seeds']} seeds; gains in points with 95 % intervals over"
        f" the images. Learning rates ({rates}) were chosen on validation images with another seed."
        f" The gate is {verdict}: both gains are certain on {kept['targets']} of the nine targets"
        f" (six are wanted) and {'also' if kept['rows'][0]['passed'] else 'not'} on `{REAL}`. Made"
        " by `python tools/gate.py`."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
