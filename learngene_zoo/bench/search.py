"""The learning rate and the augmentation of every arm, chosen on validation images with equal budgets.

1. Every arm is trained at every rate of one grid, which all arms share, on the opening tasks.
2. An arm that is no better there than a constant answer, or hardly ever wrong, has no best rate yet: the next task joins, for every arm.
3. While the best rate of any arm is the lowest or the highest, the grid gets the next rate beyond it, for every arm.
4. Every arm is trained once more with each further augmentation, at its best rate, and takes the best of these if it is better than the
   first by more than a standard error of their difference: a few hundred images often cannot tell two augmentations apart, and
   what looks half a point better on them can be five worse elsewhere.

So all arms are trained equally often, on equal tasks, and in steps 1 to 3 at equal rates: a rate that one arm needs is tried by all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from learngene_zoo.bench.cell import Cell
from learngene_zoo.bench.results import Row
from learngene_zoo.errors import TrainingFailed

Augment = Literal["none", "light", "rand", "deit"]  # a recipe's
LOWEST, HIGHEST = 1e-6, 0.1  # rates between which a grid widens
MOST_ADDED = 4  # rates that a grid gets beyond its first ones
CEILING = 95.0  # per cent; above it the best rates lie within their noise, and are far apart on harder tasks
SIGMAS = 3.0  # standard errors above a constant answer that count as knowing something: several rates are tried


class Trial(NamedTuple):
    """One training, evaluated on validation images."""

    arm: str
    task: str
    lr: float
    augment: Augment


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a trial gave."""

    value: float = 0.0
    error: str | None = None  # why there is no value
    least: float = -math.inf  # the value must be above this to say that the model has learnt anything
    variance: float = 0.0  # of the value, over other images


@dataclass(frozen=True, kw_only=True)
class Space:
    """What is tried, in the order in which it is tried."""

    arms: tuple[str, ...]
    rates: tuple[float, ...]
    augments: tuple[Augment, ...]
    tasks: tuple[str, ...]
    further: tuple[
        str, ...
    ] = ()  # tasks that join, one by one, where those before them do not tell an arm's rates apart
    widen: bool = True

    @property
    def size(self) -> int:
        """The number of settings of one arm before the grid widens; of 1 nothing is chosen."""
        return len(self.rates) * len(self.augments)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Why an arm has its learning rate and its augmentation."""

    arm: str
    lr: float
    means: Mapping[str, float]  # by candidate: the mean on validation images of the tuning tasks, in per cent
    failed: tuple[str, ...] = ()  # candidates that could not be trained
    edge: bool = False  # the smallest or largest of three or more was chosen: rates beyond might be better
    augment: Augment | None = None  # None: the recipe's
    augments: Mapping[Augment, float] = field(default_factory=dict)  # the means at this rate, by augmentation
    tasks: tuple[str, ...] = ()  # on which the arm leaves chance; its means are over these
    at_chance: tuple[str, ...] = ()  # on which it does not, at any rate
    at_ceiling: tuple[str, ...] = ()  # on which its best rate is hardly ever wrong

    @property
    def telling(self) -> bool:
        """Whether its rates can be told apart: it leaves chance on some task, and is not at the ceiling of every one."""
        return bool(self.tasks) and (bool(self.at_chance) or self.tasks != self.at_ceiling)


Found = Callable[[Trial], Result | None]  # None: not measured yet


def search(space: Space, found: Found) -> tuple[dict[str, Choice], list[Trial]]:
    """The choice of every arm, or, while anything is missing, the trials that are to be measured next.

    An arm of which every rate failed has a choice without `means`, and one that leaves chance on no task the middle rate.
    """
    rates, opened = sorted(set(space.rates)), len(space.tasks)
    tasks = (*space.tasks, *space.further)
    while True:
        wanted = [
            trial
            for arm in space.arms
            for rate in rates
            for task in tasks[:opened]
            if found(trial := Trial(arm, task, rate, space.augments[0])) is None
        ]
        if wanted:
            return {}, wanted
        boards = {arm: _board(space, arm, rates, tasks[:opened], found) for arm in space.arms}
        if opened < len(tasks) and any(board.means and not board.telling for board in boards.values()):
            opened += 1
            continue
        beyond = _beyond(space, rates, {board.lr for board in boards.values() if board.tasks})
        if not beyond:
            return _with_augmentations(space, boards, tasks[:opened], found)
        rates = sorted({*rates, *beyond})


def _beyond(space: Space, rates: Sequence[float], chosen: Iterable[float]) -> list[float]:
    """The next rate at each end of the grid that is somebody's best one."""
    if not space.widen or len(rates) < 2 or len(rates) >= len(set(space.rates)) + MOST_ADDED:
        return []
    ends = ((rates[0], rates[1]), (rates[-1], rates[-2]))
    new = [float(f"{end * end / inside:.3g}") for end, inside in ends if end in set(chosen)]
    return [rate for rate in new if LOWEST <= rate <= HIGHEST]


def _board(space: Space, arm: str, rates: Sequence[float], tasks: Sequence[str], found: Found) -> Choice:
    """The choice among these rates with the first augmentation; every trial has been measured."""
    good: dict[float, list[Result]] = {}
    failed = []
    for rate in rates:
        row = _measured(found, [Trial(arm, task, rate, space.augments[0]) for task in tasks])
        errors = [result.error for result in row if result.error]
        if errors:
            failed.append(f"{rate:g}: {errors[0]}")
        else:
            good[rate] = row
    learnt = [n for n in range(len(tasks)) if any(row[n].value > row[n].least for row in good.values())]
    perfect = [n for n in learnt if max(row[n].value for row in good.values()) > CEILING]
    means = {rate: _mean(row, learnt) for rate, row in good.items()}
    lr = best(means) if learnt else sorted(space.rates)[(len(space.rates) - 1) // 2]
    return Choice(
        arm=arm,
        lr=lr,
        means={f"{rate:g}": mean for rate, mean in means.items()},
        failed=tuple(failed),
        edge=len(rates) > 2 and bool(learnt) and lr in (rates[0], rates[-1]),
        tasks=tuple(tasks[n] for n in learnt),
        at_chance=tuple(task for n, task in enumerate(tasks) if n not in learnt),
        at_ceiling=tuple(tasks[n] for n in perfect),
    )


def _with_augmentations(
    space: Space, boards: Mapping[str, Choice], tasks: Sequence[str], found: Found
) -> tuple[dict[str, Choice], list[Trial]]:
    """The choices with the augmentation of each arm, tried at its rate."""
    others = space.augments[1:]
    tried = [trial for board in boards.values() for other in others for trial in _trials(board, other, tasks)]
    wanted = [trial for trial in tried if found(trial) is None]
    if wanted or not others:
        return ({}, wanted) if wanted else (dict(boards), [])
    return {
        arm: _augmented(board, {name: _measured(found, _trials(board, name, tasks)) for name in space.augments}, tasks)
        for arm, board in boards.items()
    }, []


def _trials(board: Choice, augment: Augment, tasks: Sequence[str]) -> list[Trial]:
    """An arm at its rate with an augmentation."""
    return [Trial(board.arm, task, board.lr, augment) for task in tasks]


def _augmented(board: Choice, rows: Mapping[Augment, Sequence[Result]], tasks: Sequence[str]) -> Choice:
    """The choice with the first augmentation, or with another one that is clearly better; `rows` are the results by task."""
    learnt = [n for n, task in enumerate(tasks) if task in board.tasks]
    good = {name: row for name, row in rows.items() if not any(result.error for result in row)}
    means = {name: _mean(row, learnt) for name, row in good.items()}
    first, leader = next(iter(rows)), max(means, key=lambda name: means[name], default=None)
    chosen = first
    if leader is not None and learnt:
        clear = first not in means or means[leader] > means[first] + _error(good[first], good[leader], learnt)
        chosen = leader if clear else first
    return replace(board, augment=chosen, augments=means)


def _error(one: Sequence[Result], other: Sequence[Result], learnt: Sequence[int]) -> float:
    """The standard error of the difference of two means over tasks, as if they were of different images (too large rather than too small)."""
    return math.sqrt(sum(one[n].variance + other[n].variance for n in learnt)) / len(learnt)


def _measured(found: Found, trials: Iterable[Trial]) -> list[Result]:
    results = [found(trial) for trial in trials]
    return [result for result in results if result is not None]


def _mean(row: Sequence[Result], learnt: Sequence[int]) -> float:
    """Over the tasks that were learnt; over all where none was."""
    values = [row[n].value for n in learnt or range(len(row))]
    return sum(values) / len(values)


def best(means: Mapping[float, float]) -> float:
    """The rate with the highest mean; of equal ones the lowest."""
    return max(means, key=lambda rate: (means[rate], -rate))


def result_of(row: Row) -> Result:
    """What a row says of its trial, in per cent. A row of an earlier version does not say what a constant answer gives."""
    if row.error is not None:
        return Result(error=row.error)
    value, least, variance = row.value or 0.0, -math.inf, 0.0
    if row.chance is not None and row.evaluated:
        least = row.chance + SIGMAS * math.sqrt(row.chance * (1 - row.chance) / row.evaluated)
        variance = value * (1 - value) / row.evaluated
    return Result(value=100 * value, least=100 * least, variance=100**2 * variance)


def choose(
    space: Space, cell_of: Callable[[Trial], Cell], measure: Callable[[list[Cell]], Iterable[Row]]
) -> dict[str, Choice]:
    """The choice of every arm: trains what `search` wants, until it wants nothing. Raises `TrainingFailed` if all rates of an arm fail."""
    results: dict[Trial, Result] = {}
    while True:
        choices, wanted = search(space, results.get)
        if not wanted:
            break
        rows = {row.key: row for row in measure([cell_of(trial) for trial in wanted])}
        results |= {trial: result_of(rows[cell_of(trial).key]) for trial in wanted}
    for choice in choices.values():
        if not choice.means:
            raise TrainingFailed(f"every learning rate failed for {choice.arm}: {choice.failed[0].partition(': ')[2]}")
    return choices
