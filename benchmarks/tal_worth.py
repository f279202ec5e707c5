"""How good are the descendants of the bundled TAL learngene, before training and after a short one?

Varied: the size of the predicted models (three); and for 7 layers of width 96 the weights:
predicted, the same shuffled, their stem alone and random (both with two initialisations).

Measured: the test accuracy on each task that the extraction has seen: of the three sizes as they
are predicted, and of all weights after three epochs of 1,000 images. Then the latter on two real
tasks and on the two families that no source task shows, none of which the extraction has seen. Each
arm has its best learning rate on validation images of tasks of each group, with a separate seed.
Intervals are over the test images, for the mean of three seeds.

Command: about an hour on one core, resumable; `python tools/shelf.py tal-worth` also writes the
tables.

    python benchmarks/tal_worth.py
    python benchmarks/tal_worth.py --table    print the tables from the results

Results: benchmarks/results/tal_worth.json.
Page: docs/results/tal.md, and the card of the learngene.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine
from grids import choose_rates, describe_gain, place_learngene, run_cells
from learngene_zoo.bench.claims.contrasts import compute_gains_over_images
from learngene_zoo.bench.grid.cell import Arm, Cell, Extraction
from learngene_zoo.bench.grid.grid import SCRATCH, list_cells
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import find_entry, find_suite

ROOT = Path(__file__).resolve().parent.parent
BUILD, CARD = ROOT / "build" / "tal_worth", ROOT / "cards" / "tal-mini"
UNSEEN = ("digits", "fashion_mnist", *find_suite("mini").left_out)
TASKS = tuple(name for name in find_suite("mini").tasks if name not in UNSEEN)
TAL = Arm(name="tal", method="tal")  # its extraction is replaced by the bundled learngene
SHUFFLED = replace(TAL, name="shuffled", control="shuffled")
STEM = tuple(replace(TAL, name=control, control=control) for control in ("stem", "stem_fan_in"))
ARMS = (TAL, SHUFFLED, *STEM, *SCRATCH)
RIVALS = ("shuffled", "stem", "scratch")  # of stem and scratch the stronger initialisation
SIZES = ((3, 64), (7, 96), (12, 96))
LAYERS, WIDTH = 7, 96
RECIPE = Recipe(images=1_000, batch_size=32, clip=1.0, augment="none")
EPOCHS, SEEDS = 3, (0, 1, 2)
RATES, TUNING_TASKS, TUNING_SEED = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3), ("signs", "numbers"), 1_000


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, print the tables and write them."""
    if "--table" not in arguments:
        for seed in (*SEEDS, TUNING_SEED):
            place_learngene(Extraction(arm=replace(TAL, name=""), seed=seed), CARD, BUILD)
        before = run_cells([cell for size in SIZES for cell in list_untrained_cells(*size)], BUILD)
        rates = tune_rates(TUNING_TASKS)
        after = run_cells(list_trained_cells(TASKS, SEEDS, rates, "test"), BUILD)
        numbers = {
            "recipe": describe_recipe(),
            "lr": rates,
            "rows": [make_row(task, before, after) for task in TASKS],
        }
        machine.write("tal_worth", {**numbers, "unseen": measure_unseen()})
    results = read_results()
    for text in (
        make_table(results),
        describe_measurement(results),
        make_unseen_table(results),
        describe_unseen(results),
    ):
        print(text)


def measure_unseen() -> dict[str, Any]:
    """Return the rates and rows of the tasks that the extraction has not seen."""
    rates = tune_rates(UNSEEN)
    after = run_cells(list_trained_cells(UNSEEN, SEEDS, rates, "test"), BUILD)
    return {"lr": rates, "rows": [make_row(task, [], after) for task in UNSEEN]}


def read_results() -> dict[str, Any]:
    """Return the content of the results file."""
    return machine.read("tal_worth")


def describe_recipe() -> dict[str, Any]:
    """Return the settings that all arms share."""
    return {
        "images": RECIPE.images,
        "batch_size": RECIPE.batch_size,
        "epochs": EPOCHS,
        "seeds": len(SEEDS),
    }


def list_untrained_cells(layers: int, width: int) -> list[Cell]:
    """Return the cells of untrained descendants. Nothing in them is random: one seed is enough."""
    untrained_cells = list_cells(
        TASKS,
        [TAL],
        layers=[layers],
        widths=[width],
        epochs=[0],
        seeds=SEEDS[:1],
        recipe=RECIPE,
        head="random",  # the recipe of the committed results
    )
    return [replace(cell, look=False) for cell in untrained_cells]


def list_trained_cells(
    tasks: Sequence[str], seeds: Sequence[int], rates: Mapping[str, float], split: Any
) -> list[Cell]:
    """Return the cells of all arms after their epochs."""
    trained_cells = list_cells(
        tasks,
        ARMS,
        layers=[LAYERS],
        epochs=[EPOCHS],
        seeds=seeds,
        recipe=RECIPE,
        rates=rates,
        split=split,
        head="random",  # the recipe of the committed results
    )
    return [replace(cell, look=False) for cell in trained_cells]


def tune_rates(tasks: Sequence[str]) -> dict[str, float]:
    """Return, for each arm, the rate with the best mean over the tuning tasks."""
    return choose_rates(
        ARMS,
        RATES,
        lambda rate: run_cells(
            list_trained_cells(
                tasks, [TUNING_SEED], {arm.name: rate for arm in ARMS}, "validation"
            ),
            BUILD,
        ),
    )


def make_row(task: str, before: Sequence[Row], after: Sequence[Row]) -> dict[str, Any]:
    """Return a row of the table."""
    entry = find_entry(task)
    assert entry is not None
    line: dict[str, Any] = {"task": task, "chance": 1 / entry.classes}
    for row in before:
        if row.task == task:
            line[f"{row.layers}x{row.width}"] = row.value
    rivals = {
        "shuffled": [SHUFFLED.name],
        "stem": [arm.name for arm in STEM],
        "scratch": [arm.name for arm in SCRATCH],
    }
    line |= compute_gains_over_images([row for row in after if row.task == task], TAL.name, rivals)
    return {**line, **{rival: max(line[name] for name in names) for rival, names in rivals.items()}}


def make_table(results: Mapping[str, Any]) -> str:
    """Return the first table, in per cent and points."""
    return _format_table(
        results["rows"], ["chance", *(f"{layers}x{width}" for layers, width in SIZES)]
    )


def make_unseen_table(results: Mapping[str, Any]) -> str:
    """Return the second table: the tasks that the extraction has not seen."""
    return _format_table(results["unseen"]["rows"], [])


def _format_table(rows: Sequence[Mapping[str, Any]], more: Sequence[str]) -> str:
    """Return a table, a task a row: further accuracies, those of TAL and its rivals, and its gains
    over them.
    """
    shares, gains = [*more, TAL.name, *RIVALS], [f"gain over {rival}" for rival in RIVALS]
    lines = [
        f"| task | {' | '.join([*shares, *gains])} |",
        f"|---|{'---:|' * len([*shares, *gains])}",
    ]
    for row in rows:
        values = [
            *(f"{100 * row[name]:.1f}" for name in shares),
            *(describe_gain(row, rival) for rival in RIVALS),
        ]
        lines.append(f"| `{row['task']}` | {' | '.join(values)} |")
    return "\n".join(lines)


def describe_unseen(results: Mapping[str, Any]) -> str:
    """Return the sentences below the second table."""
    return (
        "The same on four tasks that the extraction has not seen."
        f" {_describe_rates(results['unseen']['lr'], RATES)}"
    )


def _describe_rates(chosen: Mapping[str, float], candidates: Sequence[float]) -> str:
    """Return the sentence with each arm's rate, and the arms whose rate is at the edge of the
    candidates.
    """
    rates = ", ".join(f"{name} {rate:g}" for name, rate in chosen.items())
    edge = " and ".join(
        name for name, rate in chosen.items() if rate in (min(candidates), max(candidates))
    )
    at_edge = f"; at the edge of the candidates for {edge}" if edge else ""
    return f"Learning rates, chosen on validation images with another seed: {rates}{at_edge}."


def describe_measurement(results: Mapping[str, Any]) -> str:
    """Return the sentences below the first table."""
    recipe = results["recipe"]
    return (
        "Test accuracy in per cent. First, untrained, three sizes (layers x width) as they are"
        f" predicted; then {LAYERS} layers, {WIDTH} wide, after {recipe['epochs']} epochs of"
        f" {recipe['images']:,} training images: the predicted weights, the same ones shuffled,"
        " their stem alone and a model from scratch (the stronger of two each), mean of"
        f" {recipe['seeds']} seeds; gains in points with 95 % intervals over the images."
        f" {_describe_rates(results['lr'], RATES)} The extraction has seen the training images of"
        " all of them. Made by `python benchmarks/tal_worth.py`."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
