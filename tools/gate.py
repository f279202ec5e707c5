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

from learngene_zoo.bench.claims.contrasts import compute_gains_over_images
from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.grid.grid import SCRATCH, list_cells
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import find_suite

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import machine
from grids import choose_rates, describe_gain, run_cells

BUILD = Path(__file__).resolve().parent.parent / "build" / "gate"
LAYERS = 12
PRETRAINED = Arm(name="whole", method="lsamd", settings={"keep": tuple(range(1, LAYERS + 1))})
SHUFFLED = replace(PRETRAINED, name="shuffled", control="shuffled")
FAN_IN = replace(SCRATCH[1], name="scratch")
ARMS = (PRETRAINED, SHUFFLED, FAN_IN)
REAL = "fashion_mnist"
TASKS = (REAL, *find_suite("mini").tasks)
MIN_TARGETS = 6  # of the nine
RECIPE = Recipe(images=1_000, batch_size=50, augment="none")
EPOCHS, SEEDS = 8, (0, 1, 2)
RATES, TUNING_TASKS, TUNING_SEED = (
    (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3),
    (REAL, "textures", "numbers"),
    1_000,
)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, print the table and write it."""
    if "--table" not in arguments:
        rates = tune_rates()
        rows = run_cells(make_cells(TASKS, SEEDS, rates), BUILD)
        table_rows = [make_row(task, [row for row in rows if row.task == task]) for task in TASKS]
        machine.write(
            "gate",
            {
                "split": "validation",
                "recipe": describe_recipe(),
                "lr": rates,
                "rows": table_rows,
                **judge_rows(table_rows),
            },
        )
    results = read_results()
    print(make_table(results))
    print(describe_result(results))


def read_results() -> dict[str, Any]:
    """Return the content of the results file."""
    return machine.read("gate")


def describe_recipe() -> dict[str, Any]:
    """Return the settings that all arms share."""
    return {
        "images": RECIPE.images,
        "batch_size": RECIPE.batch_size,
        "epochs": EPOCHS,
        "seeds": len(SEEDS),
    }


def make_cells(
    tasks: Sequence[str], seeds: Sequence[int], rates: Mapping[str, float]
) -> list[Cell]:
    """Return the cells of all arms on these tasks, evaluated on validation images."""
    return list_cells(
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


def tune_rates() -> dict[str, float]:
    """Return, for each arm, the rate with the best mean over the tuning tasks."""
    return choose_rates(
        ARMS,
        RATES,
        lambda rate: run_cells(
            make_cells(TUNING_TASKS, [TUNING_SEED], {arm.name: rate for arm in ARMS}), BUILD
        ),
    )


def make_row(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a row of the table: accuracies, and the two gains with their intervals."""
    rivals = {rival.name: [rival.name] for rival in (SHUFFLED, FAN_IN)}
    gains = compute_gains_over_images(rows, PRETRAINED.name, rivals)
    return {
        "task": task,
        **gains,
        "passed": gains["over_shuffled_low"] > 0 and gains["over_scratch_low"] > 0,
    }


def judge_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return whether the gate is passed, and on how many of the nine targets."""
    targets = sum(row["passed"] for row in rows if row["task"] != REAL)
    real = next(row["passed"] for row in rows if row["task"] == REAL)
    return {"passed": bool(real and targets >= MIN_TARGETS), "targets": targets}


def make_table(results: Mapping[str, Any]) -> str:
    """Return the table, in per cent and points."""
    lines = [
        "| task | whole | shuffled | scratch | gain over shuffled | gain over scratch | passed |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in results["rows"]:
        accuracies = " | ".join(f"{100 * row[arm.name]:.1f}" for arm in ARMS)
        gains = " | ".join(describe_gain(row, rival) for rival in (SHUFFLED.name, FAN_IN.name))
        lines.append(
            f"| `{row['task']}` | {accuracies} | {gains} | {'yes' if row['passed'] else 'no'} |"
        )
    return "\n".join(lines)


def describe_result(results: Mapping[str, Any]) -> str:
    """Return the sentences below the table."""
    recipe = results["recipe"]
    rates = ", ".join(f"{name} {rate:g}" for name, rate in results["lr"].items())
    verdict = "passed" if results["passed"] else "not passed"
    also = "also" if results["rows"][0]["passed"] else "not"
    return (
        f"Validation accuracy in per cent after {recipe['epochs']} epochs on {recipe['images']:,}"
        f" training images, mean of {recipe['seeds']} seeds; gains in points with 95 % intervals"
        f" over the images. Learning rates ({rates}) were chosen on validation images with another"
        f" seed. The gate is {verdict}: both gains are certain on {results['targets']} of the nine"
        f" targets (six are wanted) and {also} on `{REAL}`. Made by `python tools/gate.py`."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
