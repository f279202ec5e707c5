"""From how many descendants on a learngene pays: what extraction and N descendants take, against training each by itself. Cold.

    total(N) = once + N (each size + fine-tuning)

A learngene is extracted once. Scratch pays nothing before fine-tuning. Pretraining and distillation are repeated for every
size, and here each descendant has another one. All of it is measured, in seconds and in training images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from learngene_zoo.bench.cell import Arm, Cell, Row
from learngene_zoo.bench.summary import SCRATCH
from learngene_zoo.errors import WrongCall
from learngene_zoo.settings import Json

PER_SIZE = ("pretrain_finetune", "distillation")  # methods whose work before fine-tuning serves one size only
Unit = Literal["seconds", "images"]
UNITS: tuple[Unit, ...] = ("seconds", "images")


@dataclass(frozen=True)
class Spent:
    """Seconds, and images that training saw."""

    seconds: float = 0.0
    images: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.seconds + other.seconds, self.images + other.images)

    def times(self, count: float) -> Spent:
        """So many of it."""
        return Spent(self.seconds * count, self.images * count)


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What an arm takes, means over tasks, sizes and seeds. Values are fractions."""

    arm: str
    method: str
    once: Spent  # however many descendants follow
    size: Spent  # for every descendant, before fine-tuning
    tuning: Mapping[int, Spent]  # of one fine-tuning, by epochs
    values: Mapping[int, float]  # the metric, by epochs

    def each(self, epochs: int) -> Spent:
        """What one more descendant takes."""
        return self.size + self.tuning[epochs]

    def total(self, count: int, epochs: int) -> Spent:
        """What `count` descendants take."""
        return self.once + self.each(epochs).times(count)

    def reaches(self, value: float) -> int | None:
        """The least measured number of epochs whose mean is at least `value`; None if no measured one is enough."""
        return min((epochs for epochs, found in self.values.items() if found >= value), default=None)

    @property
    def longest(self) -> int:
        """The largest measured budget."""
        return max(self.values)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One method against one rival, each with a budget."""

    ours: Bill
    theirs: Bill
    kind: Literal["equal budget", "equal quality"]
    epochs: int
    their_epochs: int

    def pays_from(self, unit: Unit) -> int | None:
        """The least number of descendants that are cheaper our way; None if there is none."""
        each, their_each = self.ours.each(self.epochs), self.theirs.each(self.their_epochs)
        parts = (self.ours.once, each, self.theirs.once, their_each)
        return crossing(*(getattr(part, unit) for part in parts))


def crossing(once: float, each: float, their_once: float, their_each: float) -> int | None:
    """The least N >= 1 from which on once + N each < their_once + N their_each; None if it never stays so."""
    ahead, gain = their_once - once, their_each - each
    if gain < 0 or (gain == 0 and ahead <= 0):
        return None
    return 1 if ahead + gain > 0 else math.floor(-ahead / gain) + 1


def cost_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of a cost curve out of those of a grid: its methods and scratch without controls, and what is repeated per size.

    Where the grid has pretraining or distillation as methods, their settings count. Raises `WrongCall` for a grid of one size: then nothing tells what is paid once from what is paid for each.
    """
    if any(cell.size for cell in cells):
        raise WrongCall(
            "a cost curve compares what any method can build: name depths with --layers, and leave --size out"
        )
    if len({cell.layers for cell in cells}) < 2:
        raise WrongCall("a cost curve needs at least two depths, as --layers 6,12")
    kept = [cell for cell in cells if cell.arm.control is None and cell.arm.method not in PER_SIZE]
    models = [cell.arm for cell in kept if cell.arm.method != SCRATCH]
    if not models:
        raise WrongCall("a cost curve needs a method that is extracted once, as --method lsamd")
    told = {cell.arm.method: cell.arm.settings for cell in cells if cell.arm.control is None}
    found = []
    for cell in kept:
        found.append(cell)
        if cell.arm == kept[-1].arm:  # the last arm of each place of the grid: rivals come after it
            found += [replace(cell, arm=_rival(method, models[0], told, cell.layers)) for method in PER_SIZE]
    return found


def _rival(method: str, model: Arm, told: Mapping[str, Mapping[str, Json]], layers: int) -> Arm:
    """What trains this one size by itself before fine-tuning."""
    settings = {**told.get(method, {}), "depths": (layers,)}
    return Arm(name=method, method=method, preset=model.preset, settings=settings, ancestries=model.ancestries[:1])


def bills(rows: Sequence[Row]) -> list[Bill]:
    """The bill of every arm, over the tasks, sizes and seeds on which every arm has every budget; in the order of the arms.

    Raises `WrongCall` if there is none.
    """
    good = [row for row in rows if row.value is not None and row.control is None]
    arms = list(dict.fromkeys(row.arm for row in good))
    budgets = sorted({row.epochs for row in good})
    found = {(row.arm, row.epochs, row.task, row.layers, row.seed): row for row in good}
    places = list(dict.fromkeys((row.task, row.layers, row.seed) for row in good))
    shared = [place for place in places if all((arm, n, *place) in found for arm in arms for n in budgets)]
    if not shared:
        raise WrongCall("a cost curve needs a task, size and seed on which every arm was measured with every budget")
    tables = [[[found[arm, n, *place] for place in shared] for n in budgets] for arm in arms]
    return [_bill(table, [other for other in tables if _work(other) == _work(table)]) for table in tables]


Table = Sequence[Sequence[Row]]  # of one arm: a list per budget, all over the same places


def _work(table: Table) -> list[tuple[int, int]]:
    """What fine-tuning does in these cells."""
    return [(row.flops, row.images * row.epochs) for rows in table for row in rows]


def _bill(table: Table, alike: Sequence[Table]) -> Bill:
    """The bill of one arm. Fine-tuning takes what it takes in all arms `alike`, whose models do the same work.

    Their seconds differ by what else the machine did: without this an arm could pay, or not, by chance.
    """
    first = table[0][0]
    before = _mean([Spent(row.extraction_seconds, row.extraction_images) for row in table[0]])
    repeated, free = first.method in PER_SIZE, first.method == SCRATCH
    return Bill(
        arm=first.arm,
        method=first.method,
        once=Spent() if repeated or free else before,
        size=before if repeated else Spent(),
        tuning={
            rows[0].epochs: _mean([Spent(row.seconds, row.images * row.epochs) for one in alike for row in one[index]])
            for index, rows in enumerate(table)
        },
        values={rows[0].epochs: sum(row.value or 0.0 for row in rows) / len(rows) for rows in table},
    )


def _mean(spent: Sequence[Spent]) -> Spent:
    return sum(spent, Spent()).times(1 / len(spent))


def readings(found: Sequence[Bill]) -> list[Reading]:
    """Every method against scratch, pretraining and distillation: with equal budgets, and to equal quality.

    Equal quality is the most that both reach: the lower of their two best means.
    """
    told = []
    for ours in (bill for bill in found if not is_rival(bill)):
        for theirs in (bill for bill in found if is_rival(bill)):
            longest = ours.longest
            told.append(Reading(ours=ours, theirs=theirs, kind="equal budget", epochs=longest, their_epochs=longest))
            level = min(max(ours.values.values()), max(theirs.values.values()))
            epochs, others = ours.reaches(level), theirs.reaches(level)
            assert epochs is not None, "a mean that is its best, or below, is reached"
            assert others is not None, "a mean that is its best, or below, is reached"
            told.append(Reading(ours=ours, theirs=theirs, kind="equal quality", epochs=epochs, their_epochs=others))
    return told


def is_rival(bill: Bill) -> bool:
    """Whether it is what learngenes are to replace."""
    return bill.method == SCRATCH or bill.method in PER_SIZE
