"""The cost of N descendants of a learngene, against training each of them separately.

    total(N) = once + N (each size + fine-tuning)

A learngene is extracted once. Scratch costs nothing before fine-tuning. Pretraining and
distillation are repeated for every size, and each descendant is assumed to have another size.
Everything is measured, in seconds and in training images. `draw_costs` in pictures.py draws the
curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.report import text_table
from learngene_zoo.bench.report.text_table import TextTable
from learngene_zoo.bench.results.condition import SCRATCH
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.errors import WrongCall, ZooError
from learngene_zoo.settings import Json
from learngene_zoo.tasks.catalogue import find_entry, open_task
from learngene_zoo.text import format_count

# methods whose work before fine-tuning is for one size only
PER_SIZE = (
    "pretrain_finetune",
    "distillation",
)
CostUnit = Literal["seconds", "images"]
UNITS: tuple[CostUnit, ...] = ("seconds", "images")
TOTALS = (1, 4, 16)  # descendants whose totals the table shows
ASSUMPTIONS = (
    "Each descendant has another size and is trained for one task. The cost of an extraction is "
    "counted once, the cost of pretraining and distillation for each descendant. Scratch has only "
    "the cost of fine-tuning.",
    "The ancestry model exists already: its cost is counted neither for the learngenes nor for "
    "distillation.",
    "Costs are means over the measured tasks, sizes and seeds; N descendants are assumed to cost N "
    "times the mean. The seconds of "
    "fine-tuning are also averaged over the arms whose models are equal.",
    "The seconds of a fine-tuning are those of the training alone; the seconds of an extraction "
    "are its total. Images are those seen in training. A teacher that must first be fine-tuned is "
    "fine-tuned for each size.",
    "Equal quality is the best mean that both reach. The cost of each is that of the smallest "
    "measured budget that reaches it, without interpolation between budgets.",
)


@dataclass(frozen=True)
class Effort:
    """Seconds, and images seen in training."""

    seconds: float = 0.0
    images: float = 0.0

    def __add__(self, other: Effort) -> Effort:
        return Effort(self.seconds + other.seconds, self.images + other.images)

    def __mul__(self, count: float) -> Effort:
        return Effort(self.seconds * count, self.images * count)


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The cost of an arm, means over tasks, sizes and seeds. Values are fractions."""

    arm: str
    method: str
    once: Effort  # once, for any number of descendants
    size: Effort  # for every descendant, before fine-tuning
    tuning: Mapping[int, Effort]  # of one fine-tuning, by epochs
    values: Mapping[int, float]  # the metric, by epochs

    @property
    def is_rival(self) -> bool:
        """Return whether this arm is a rival: scratch, pretraining or distillation."""
        return self.method == SCRATCH or self.method in PER_SIZE

    @property
    def longest(self) -> int:
        """Return the largest measured budget."""
        return max(self.values)

    def each(self, epochs: int) -> Effort:
        """Return the cost of one more descendant."""
        return self.size + self.tuning[epochs]

    def total(self, count: int, epochs: int) -> Effort:
        """Return the cost of `count` descendants."""
        return self.once + self.each(epochs) * count

    def reaches(self, value: float) -> int | None:
        """Return the smallest measured number of epochs whose mean is at least `value`, or None."""
        return min((epochs for epochs, mean in self.values.items() if mean >= value), default=None)


@dataclass(frozen=True)
class Match:
    """A method against one rival, each with a budget."""

    ours: Bill
    theirs: Bill
    kind: Literal["equal budget", "equal quality"]
    epochs: int
    their_epochs: int

    def pays_from(self, unit: CostUnit) -> int | None:
        """Return the smallest number of descendants for which the method is cheaper, or None."""
        each, their_each = self.ours.each(self.epochs), self.theirs.each(self.their_epochs)
        return find_crossing(
            *(getattr(part, unit) for part in (self.ours.once, each, self.theirs.once, their_each))
        )


def find_crossing(once: float, each: float, their_once: float, their_each: float) -> int | None:
    """Return the smallest N >= 1 from which on once + N each < their_once + N their_each.

    The result is None if there is no such N.
    """
    ahead, gain = their_once - once, their_each - each
    if gain < 0 or (gain == 0 and ahead <= 0):
        return None
    return 1 if ahead + gain > 0 else math.floor(-ahead / gain) + 1


def list_cost_cells(cells: Sequence[Cell], tasks: Sequence[str] = ()) -> list[Cell]:
    """Return the cells of a cost curve, from those of a grid.

    They are the cells of its methods and scratch, without controls, and of the methods in
    `PER_SIZE`. If the grid has pretraining or distillation as methods, their settings are used; if
    `tasks` names one task, they train on it. Their models are pretrained, so they have the recipe
    of a method.

    Raises:
        WrongCall: the grid has one size, from which costs per extraction and per descendant cannot
            be separated; or it has sizes by settings, tasks of different metrics, or no method that
            is extracted.
    """
    if any(cell.size for cell in cells):
        raise WrongCall(
            "a cost curve compares sizes that any method can build: give --layers, and leave "
            "--size out"
        )
    if len({cell.layers for cell in cells}) < 2:
        raise WrongCall("a cost curve needs at least two depths, e.g. --layers 6,12")
    if len(set(_list_metrics(dict.fromkeys(cell.task for cell in cells)))) > 1:
        raise WrongCall(
            "a cost curve averages over its tasks, which must have one metric; give tasks of one "
            "metric with --task"
        )
    extracted = [
        cell for cell in cells if cell.arm.control is None and cell.arm.method not in PER_SIZE
    ]
    models = [cell for cell in extracted if cell.arm.method != SCRATCH]
    if not models:
        raise WrongCall("a cost curve needs a method with an extraction, e.g. --method lsamd")
    recipes = {_name_unit_of_cell(cell): cell.recipe for cell in reversed(models)}
    settings = {cell.arm.method: cell.arm.settings for cell in cells if cell.arm.control is None}
    model = replace(models[0].arm, tasks=tuple(tasks) if len(tasks) == 1 else ())
    curve = []
    for cell in extracted:
        curve.append(cell)
        # After the last arm of each task, size and seed come the rivals.
        if cell.arm == extracted[-1].arm:
            recipe = recipes.get(_name_unit_of_cell(cell), cell.recipe)
            curve += [
                replace(cell, arm=_make_rival(method, model, settings, cell), recipe=recipe)
                for method in PER_SIZE
            ]
    return curve


def _name_unit_of_cell(cell: Cell) -> tuple[object, ...]:
    """Return what arms share that are compared: task, size, seed and budget."""
    return cell.task, cell.layers, cell.width, cell.seed, cell.recipe.epochs


def _list_metrics(tasks: Iterable[str]) -> Iterator[tuple[bool, str]]:
    """Yield the metric of each task whose metric is known without a download."""
    for name in tasks:
        with suppress(ZooError):
            task = find_entry(name) or open_task(name, offline=True)
            yield task.kind == "segmentation", task.metric


def _make_rival(
    method: str, model: Arm, settings: Mapping[str, Mapping[str, Json]], cell: Cell
) -> Arm:
    """Return an arm that trains the one size of a cell before fine-tuning."""
    widths = {} if cell.width is None else {"widths": (cell.width,)}
    arm_settings = {**settings.get(method, {}), "depths": (cell.layers,), **widths}
    return Arm(
        name=method,
        method=method,
        preset=model.preset,
        settings=arm_settings,
        ancestries=model.ancestries[:1],
        tasks=model.tasks,
        image_size=model.image_size,
    )


def list_bills(rows: Sequence[Row]) -> list[Bill]:
    """Return the bill of every arm, in the order of the arms.

    It is over the tasks, sizes and seeds on which every arm has every budget.

    Raises:
        WrongCall: there are no such tasks, sizes and seeds.
    """
    measured = [row for row in rows if row.value is not None and row.control is None]
    arms = list(dict.fromkeys(row.arm for row in measured))
    budgets = sorted({row.epochs for row in measured})
    by_cell = {(row.arm, row.epochs, *_name_unit(row)): row for row in measured}
    units = list(dict.fromkeys(map(_name_unit, measured)))
    shared = [
        unit for unit in units if all((arm, n, *unit) in by_cell for arm in arms for n in budgets)
    ]
    if not shared:
        raise WrongCall(
            "a cost curve needs a task, size and seed on which every arm was measured with every "
            "budget"
        )
    runs = [{n: [by_cell[arm, n, *unit] for unit in shared] for n in budgets} for arm in arms]
    return [
        _bill(arm_runs, [other for other in runs if _count_work(other) == _count_work(arm_runs)])
        for arm_runs in runs
    ]


def _name_unit(row: Row) -> tuple[str, int, int, int]:
    """Return task, size and seed."""
    return row.task, row.layers, row.width, row.seed


_Runs = Mapping[int, Sequence[Row]]  # of one arm: a list per budget, all over the same places


def _count_work(runs: _Runs) -> list[tuple[int, int]]:
    """Return the amount of computing of each fine-tuning."""
    return [(row.flops, row.images * row.epochs) for rows in runs.values() for row in rows]


def _bill(runs: _Runs, alike: Sequence[_Runs]) -> Bill:
    """Return the bill of one arm.

    The seconds of fine-tuning are means over all arms `alike`, whose models do the same work. These
    seconds vary with other work on the machine; without the mean, the comparison would depend on
    chance.
    """
    shortest = next(iter(runs.values()))
    arm, method = shortest[0].arm, shortest[0].method
    before = _average_efforts(
        [Effort(row.extraction_seconds, row.extraction_images) for row in shortest]
    )
    each = {
        n: [Effort(row.seconds, row.images * row.epochs) for other in alike for row in other[n]]
        for n in runs
    }
    return Bill(
        arm=arm,
        method=method,
        once=Effort() if method in (*PER_SIZE, SCRATCH) else before,
        size=before if method in PER_SIZE else Effort(),
        tuning={n: _average_efforts(efforts) for n, efforts in each.items()},
        values={n: sum(row.value or 0.0 for row in rows) / len(rows) for n, rows in runs.items()},
    )


def _average_efforts(efforts: Sequence[Effort]) -> Effort:
    return sum(efforts, Effort()) * (1 / len(efforts))


def matches(costs: Sequence[Bill]) -> list[Match]:
    """Return every method against scratch, pretraining and distillation.

    They are compared with equal budgets, and to equal quality: the best mean that both reach, which
    is the lower of their two best means.
    """
    pairs = []
    rivals = [bill for bill in costs if bill.is_rival]
    for ours, theirs in product([bill for bill in costs if not bill.is_rival], rivals):
        level = min(max(ours.values.values()), max(theirs.values.values()))
        epochs, their_epochs = ours.reaches(level), theirs.reaches(level)
        assert epochs is not None, "both reach the lower of their best means"
        assert their_epochs is not None, "both reach the lower of their best means"
        pairs.append(Match(ours, theirs, "equal budget", ours.longest, ours.longest))
        pairs.append(Match(ours, theirs, "equal quality", epochs, their_epochs))
    return pairs


def build_cost_tables(arms: Sequence[Bill]) -> list[TextTable]:
    """Return the tables of a cost curve.

    They show from how many descendants on each method pays, the cost of every arm, and its metric
    with every budget.
    """
    pays = (
        "method",
        "against",
        "comparison",
        "epochs",
        "theirs",
        "metric, %",
        "theirs",
        "by time",
        "by images",
    )
    costs = (
        "arm",
        "epochs",
        "metric, %",
        "once",
        "each descendant",
        *(f"{count} in all" for count in TOTALS),
    )
    budgets = tuple(
        (bill.arm, *map(text_table.format_percent, bill.values.values())) for bill in arms
    )
    return [
        TextTable(
            "from how many descendants a learngene pays",
            pays,
            tuple(map(_pays, matches(arms))),
            texts=3,
        ),
        TextTable(
            "time, and training images, with the largest budget",
            costs,
            tuple(map(_list_costs, arms)),
        ),
        TextTable("metric by epochs, %", ("arm", *map(str, arms[0].values)), budgets),
    ]


def _pays(match: Match) -> tuple[str, ...]:
    values = list(_flatten_match(match).values())[1:]
    return tuple(
        "never"
        if value is None
        else text_table.format_percent(value)
        if isinstance(value, float)
        else str(value)
        for value in values
    )


def _list_costs(bill: Bill) -> tuple[str, ...]:
    """Return the row of an arm's costs with the largest budget."""
    epochs = bill.longest
    costs = (bill.once, bill.each(epochs), *(bill.total(count, epochs) for count in TOTALS))
    return (
        bill.arm,
        str(epochs),
        text_table.format_percent(bill.values[epochs]),
        *map(_format_effort, costs),
    )


def _format_effort(effort: Effort) -> str:
    is_empty = effort == Effort()
    return (
        text_table.NONE
        if is_empty
        else f"{text_table.format_duration(effort.seconds)}, {format_count(round(effort.images))}"
    )


def flatten_costs(arms: Sequence[Bill]) -> list[dict[str, Json]]:
    """Return bills and matches as flat objects of raw numbers, distinguished by `kind`.

    docs/bench.md explains the keys.
    """
    return [
        *(_flatten_bill(bill, epochs) for bill in arms for epochs in bill.values),
        *map(_flatten_match, matches(arms)),
    ]


def _flatten_bill(bill: Bill, epochs: int) -> dict[str, Json]:
    parts = {"once": bill.once, "size": bill.size, "tuning": bill.tuning[epochs]}
    costs = {
        f"{name}_{unit}": getattr(effort, unit) for name, effort in parts.items() for unit in UNITS
    }
    return {
        "kind": "bill",
        "arm": bill.arm,
        "epochs": epochs,
        "value": bill.values[epochs],
        **costs,
    }


def _flatten_match(match: Match) -> dict[str, Json]:
    return {
        "kind": "reading",
        "arm": match.ours.arm,
        "rival": match.theirs.arm,
        "reading": match.kind,
        "epochs": match.epochs,
        "rival_epochs": match.their_epochs,
        "value": match.ours.values[match.epochs],
        "rival_value": match.theirs.values[match.their_epochs],
        **{f"pays_from_{unit}": match.pays_from(unit) for unit in UNITS},
    }
