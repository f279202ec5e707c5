"""One learning rate per arm, chosen on validation images with a seed of its own, so that no arm wins by its rate alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from learngene_zoo.bench.cell import Cell
from learngene_zoo.bench.results import Row
from learngene_zoo.errors import TrainingFailed, WrongCall

SEED = 1000  # far from those of the grid itself


def tuning_cells(cells: Sequence[Cell], rates: Sequence[float]) -> list[Cell]:
    """The cells to measure before `cells`: every arm with every rate on every task, at one size and with one budget.

    The size is the middle one, the budget the longest. Raises `WrongCall` if the grid itself uses the tuning seed.
    """
    if any(cell.seed == SEED for cell in cells):
        raise WrongCall(f"the seed {SEED} is kept for choosing learning rates; choose other seeds")
    if any(not rate > 0 for rate in rates):
        raise WrongCall(f"learning rates must be above 0, got {', '.join(f'{rate:g}' for rate in rates)}")
    first = min(cell.seed for cell in cells)
    found = []
    for name in dict.fromkeys(cell.arm.name for cell in cells):
        own = [cell for cell in cells if cell.arm.name == name and cell.seed == first]
        sizes = sorted({(cell.layers, cell.width or 0, str(cell.at)) for cell in own})
        size, longest = sizes[len(sizes) // 2][-1], max(cell.recipe.epochs for cell in own)
        for cell in own:
            if str(cell.at) == size and cell.recipe.epochs == longest:
                bare = replace(cell, seed=SEED, split="validation")
                found += [replace(bare, recipe=replace(cell.recipe, lr=rate)) for rate in dict.fromkeys(rates)]
    return found


def chosen_rates(rows: Iterable[Row]) -> dict[str, float]:
    """By arm, the rate with the best mean over tasks; of equal ones the lowest. A rate that failed on any task is excluded.

    Raises `TrainingFailed` for an arm of which every rate failed.
    """
    of: dict[str, dict[float, list[Row]]] = {}
    for row in rows:
        of.setdefault(row.arm, {}).setdefault(row.lr, []).append(row)
    chosen = {}
    for arm, by_rate in of.items():
        means = {
            rate: sum(row.value or 0.0 for row in found) / len(found)
            for rate, found in by_rate.items()
            if all(row.error is None for row in found)
        }
        if not means:
            reason = next(row.error for found in by_rate.values() for row in found if row.error)
            raise TrainingFailed(f"every learning rate failed for {arm}: {reason}")
        chosen[arm] = best(means)
    return chosen


def best(means: Mapping[float, float]) -> float:
    """The rate with the highest mean; of equal ones the lowest."""
    return max(means, key=lambda rate: (means[rate], -rate))


def with_rates(cells: Iterable[Cell], rates: dict[str, float]) -> list[Cell]:
    """The cells with the chosen rate of each arm."""
    return [replace(cell, recipe=replace(cell.recipe, lr=rates[cell.arm.name])) for cell in cells]
