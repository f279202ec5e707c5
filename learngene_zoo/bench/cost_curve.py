"""How many descendants make a learngene pay: the cost of N descendants, against training each of them separately.

    total(N) = once + N (each size + fine-tuning)

A learngene is extracted once. Scratch costs nothing before fine-tuning. Pretraining and distillation are repeated for every size,
and here each descendant has another one. Everything is measured, in seconds and in training images. The curve is drawn by `cost_picture` in pictures.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from learngene_zoo.bench import tables
from learngene_zoo.bench.cell import Arm, Cell
from learngene_zoo.bench.condition import SCRATCH
from learngene_zoo.bench.results import Row
from learngene_zoo.bench.tables import Table
from learngene_zoo.errors import WrongCall
from learngene_zoo.settings import Json
from learngene_zoo.text import human_count

PER_SIZE = ("pretrain_finetune", "distillation")  # methods whose work before fine-tuning serves one size only
CostUnit = Literal["seconds", "images"]
UNITS: tuple[CostUnit, ...] = ("seconds", "images")
TOTALS = (1, 4, 16)  # descendants whose totals the table shows
ASSUMPTIONS = (
    "Each descendant has another size and is trained for one task: an extraction is paid once, pretraining and distillation for "
    "each descendant, and scratch pays for fine-tuning only.",
    "The ancestry model exists already; its cost is not counted, neither for the learngenes nor for distillation.",
    "Costs are means over the measured tasks, sizes and seeds; N descendants are assumed to cost N times the mean. The seconds of "
    "fine-tuning are also averaged over the arms whose models are equal.",
    "Seconds of fine-tuning are those of its training alone, seconds of an extraction are its total; images are those seen in "
    "training, whatever the cost of a step. A teacher that must first be fine-tuned is fine-tuned for each size.",
    "Equal quality is the best mean that both reach, and each is charged for the smallest measured budget that reaches it; "
    "nothing is interpolated between budgets.",
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
    once: Effort  # however many descendants follow
    size: Effort  # for every descendant, before fine-tuning
    tuning: Mapping[int, Effort]  # of one fine-tuning, by epochs
    values: Mapping[int, float]  # the metric, by epochs

    @property
    def is_rival(self) -> bool:
        """Whether this is what learngenes are meant to replace."""
        return self.method == SCRATCH or self.method in PER_SIZE

    @property
    def longest(self) -> int:
        """The largest measured budget."""
        return max(self.values)

    def each(self, epochs: int) -> Effort:
        """The cost of one more descendant."""
        return self.size + self.tuning[epochs]

    def total(self, count: int, epochs: int) -> Effort:
        """The cost of `count` descendants."""
        return self.once + self.each(epochs) * count

    def reaches(self, value: float) -> int | None:
        """The smallest measured number of epochs whose mean is at least `value`; None if there is none."""
        return min((epochs for epochs, found in self.values.items() if found >= value), default=None)


@dataclass(frozen=True)
class Match:
    """A method against one rival, each with a budget."""

    ours: Bill
    theirs: Bill
    kind: Literal["equal budget", "equal quality"]
    epochs: int
    their_epochs: int

    def pays_from(self, unit: CostUnit) -> int | None:
        """The smallest number of descendants from which on ours is cheaper; None if there is none."""
        each, their_each = self.ours.each(self.epochs), self.theirs.each(self.their_epochs)
        return crossing(*(getattr(part, unit) for part in (self.ours.once, each, self.theirs.once, their_each)))


def crossing(once: float, each: float, their_once: float, their_each: float) -> int | None:
    """The smallest N >= 1 from which on once + N each < their_once + N their_each; None if it never stays so."""
    ahead, gain = their_once - once, their_each - each
    if gain < 0 or (gain == 0 and ahead <= 0):
        return None
    return 1 if ahead + gain > 0 else math.floor(-ahead / gain) + 1


def cost_cells(cells: Sequence[Cell], tasks: Sequence[str] = ()) -> list[Cell]:
    """The cells of a cost curve, from those of a grid: its methods and scratch, without controls, and the methods per size.

    If the grid has pretraining or distillation as methods, their settings are used; if `tasks` names one, they train on it. Raises `WrongCall` for a grid of one size,
    from which costs per extraction and per descendant cannot be told apart.
    """
    if any(cell.size for cell in cells):
        raise WrongCall("a cost curve compares sizes that any method can build: give --layers, and leave --size out")
    if len({cell.layers for cell in cells}) < 2:
        raise WrongCall("a cost curve needs at least two depths, as --layers 6,12")
    kept = [cell for cell in cells if cell.arm.control is None and cell.arm.method not in PER_SIZE]
    models = [cell.arm for cell in kept if cell.arm.method != SCRATCH]
    if not models:
        raise WrongCall("a cost curve needs a method that is extracted once, as --method lsamd")
    settings = {cell.arm.method: cell.arm.settings for cell in cells if cell.arm.control is None}
    model = replace(models[0], tasks=tuple(tasks) if len(tasks) == 1 else ())
    found = []
    for cell in kept:
        found.append(cell)
        if cell.arm == kept[-1].arm:  # the last arm of each place in the grid: the rivals come after it
            found += [replace(cell, arm=_rival(method, model, settings, cell.layers)) for method in PER_SIZE]
    return found


def _rival(method: str, model: Arm, settings: Mapping[str, Mapping[str, Json]], layers: int) -> Arm:
    """An arm that trains this one size before fine-tuning."""
    own = {**settings.get(method, {}), "depths": (layers,)}
    return Arm(
        name=method,
        method=method,
        preset=model.preset,
        settings=own,
        ancestries=model.ancestries[:1],
        tasks=model.tasks,
    )


def bills(rows: Sequence[Row]) -> list[Bill]:
    """The bill of every arm, over the tasks, sizes and seeds on which every arm has every budget; in the order of the arms.

    Raises `WrongCall` if there are none.
    """
    good = [row for row in rows if row.value is not None and row.control is None]
    arms = list(dict.fromkeys(row.arm for row in good))
    budgets = sorted({row.epochs for row in good})
    found = {(row.arm, row.epochs, row.task, row.layers, row.seed): row for row in good}
    places = list(dict.fromkeys((row.task, row.layers, row.seed) for row in good))
    shared = [place for place in places if all((arm, n, *place) in found for arm in arms for n in budgets)]
    if not shared:
        raise WrongCall("a cost curve needs a task, size and seed on which every arm was measured with every budget")
    runs = [{n: [found[arm, n, *place] for place in shared] for n in budgets} for arm in arms]
    return [_bill(own, [other for other in runs if _work(other) == _work(own)]) for own in runs]


_Runs = Mapping[int, Sequence[Row]]  # of one arm: a list per budget, all over the same places


def _work(runs: _Runs) -> list[tuple[int, int]]:
    """The amount of computing of each fine-tuning."""
    return [(row.flops, row.images * row.epochs) for rows in runs.values() for row in rows]


def _bill(runs: _Runs, alike: Sequence[_Runs]) -> Bill:
    """The bill of one arm. The seconds of fine-tuning are means over all arms `alike`, whose models do the same work.

    These seconds vary with what else the machine does; otherwise it would be chance whether an arm pays.
    """
    shortest = next(iter(runs.values()))
    arm, method = shortest[0].arm, shortest[0].method
    before = _mean([Effort(row.extraction_seconds, row.extraction_images) for row in shortest])
    each = {n: [Effort(row.seconds, row.images * row.epochs) for one in alike for row in one[n]] for n in runs}
    return Bill(
        arm=arm,
        method=method,
        once=Effort() if method in (*PER_SIZE, SCRATCH) else before,
        size=before if method in PER_SIZE else Effort(),
        tuning={n: _mean(efforts) for n, efforts in each.items()},
        values={n: sum(row.value or 0.0 for row in rows) / len(rows) for n, rows in runs.items()},
    )


def _mean(efforts: Sequence[Effort]) -> Effort:
    return sum(efforts, Effort()) * (1 / len(efforts))


def matches(found: Sequence[Bill]) -> list[Match]:
    """Every method against scratch, pretraining and distillation: with equal budgets, and to equal quality.

    Equal quality is the best that both reach: the lower of their two best means.
    """
    made = []
    rivals = [bill for bill in found if bill.is_rival]
    for ours, theirs in product([bill for bill in found if not bill.is_rival], rivals):
        level = min(max(ours.values.values()), max(theirs.values.values()))
        epochs, others = ours.reaches(level), theirs.reaches(level)
        assert epochs is not None, "both reach the lower of their best means"
        assert others is not None, "both reach the lower of their best means"
        made.append(Match(ours, theirs, "equal budget", ours.longest, ours.longest))
        made.append(Match(ours, theirs, "equal quality", epochs, others))
    return made


def cost_tables(found: Sequence[Bill]) -> list[Table]:
    """From how many descendants on each method pays, what every arm costs, and its metric with every budget."""
    pays = ("method", "against", "comparison", "epochs", "theirs", "metric, %", "theirs", "by time", "by images")
    costs = ("arm", "epochs", "metric, %", "once", "each descendant", *(f"{count} in all" for count in TOTALS))
    budgets = tuple((bill.arm, *map(tables.percent, bill.values.values())) for bill in found)
    return [
        Table("from how many descendants a learngene pays", pays, tuple(map(_pays, matches(found))), texts=3),
        Table("time, and training images, with the largest budget", costs, tuple(map(_costs, found))),
        Table("metric by epochs, %", ("arm", *map(str, found[0].values)), budgets),
    ]


def _pays(one: Match) -> tuple[str, ...]:
    values = list(_flat_match(one).values())[1:]
    return tuple(
        "never" if value is None else tables.percent(value) if isinstance(value, float) else str(value)
        for value in values
    )


def _costs(bill: Bill) -> tuple[str, ...]:
    """With the largest budget."""
    epochs = bill.longest
    costs = (bill.once, bill.each(epochs), *(bill.total(count, epochs) for count in TOTALS))
    return (bill.arm, str(epochs), tables.percent(bill.values[epochs]), *map(_effort, costs))


def _effort(one: Effort) -> str:
    none = one == Effort()
    return tables.NONE if none else f"{tables.duration(one.seconds)}, {human_count(round(one.images))}"


def flat_costs(found: Sequence[Bill]) -> list[dict[str, Json]]:
    """Bills and readings as flat objects of raw numbers, told apart by `kind`; docs/bench.md explains the keys."""
    return [*(_flat_bill(bill, epochs) for bill in found for epochs in bill.values), *map(_flat_match, matches(found))]


def _flat_bill(bill: Bill, epochs: int) -> dict[str, Json]:
    parts = {"once": bill.once, "size": bill.size, "tuning": bill.tuning[epochs]}
    costs = {f"{name}_{unit}": getattr(effort, unit) for name, effort in parts.items() for unit in UNITS}
    return {"kind": "bill", "arm": bill.arm, "epochs": epochs, "value": bill.values[epochs], **costs}


def _flat_match(one: Match) -> dict[str, Json]:
    return {
        "kind": "reading",
        "arm": one.ours.arm,
        "rival": one.theirs.arm,
        "reading": one.kind,
        "epochs": one.epochs,
        "rival_epochs": one.their_epochs,
        "value": one.ours.values[one.epochs],
        "rival_value": one.theirs.values[one.their_epochs],
        **{f"pays_from_{unit}": one.pays_from(unit) for unit in UNITS},
    }
