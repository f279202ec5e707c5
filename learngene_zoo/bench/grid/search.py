"""The learning rate and the augmentation of every arm, chosen on validation images.

    1. Every arm is trained at every rate of one grid, which all arms share, on the opening tasks.
    2. An arm that is not better there than a constant answer, or hardly ever wrong, has no best
       rate yet: the next task joins, for every arm.
    3. While the best rate of any arm is the lowest or the highest, the grid gets the next rate
       beyond it, for every arm.
    4. Every arm is trained once more with each further augmentation, at its best rate, and takes
       the best of these if it is better than the first by more than a standard error of their
       difference: a few hundred images often cannot distinguish two augmentations, and one that
       looks half a point better on them can be five worse elsewhere.

So all arms are trained equally often, on equal tasks, and in steps 1 to 3 at equal rates: a rate
that one arm needs is tried by all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.bench.results.rows import Row, compute_chance_limit, compute_variance
from learngene_zoo.errors import TrainingFailed

Augment = Literal["none", "light", "rand", "deit"]  # a recipe's
MIN_RATE, MAX_RATE = 1e-6, 0.1  # rates between which a grid widens
MAX_ADDED = 4  # rates that a grid gets beyond its first ones
# per cent; above it the best rates lie within their noise, and are far apart on harder tasks
CEILING = 95.0
# standard errors above a constant answer that count as knowing something: several rates are tried
SIGMAS = 3.0


class Trial(NamedTuple):
    """One training, evaluated on validation images."""

    arm: str
    task: str
    lr: float
    augment: Augment


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a trial."""

    value: float = 0.0
    error: str | None = None  # why there is no value
    # the value must be above this to say that the model has learnt anything
    least: float = -math.inf
    variance: float = 0.0  # of the value, over other images


@dataclass(frozen=True, kw_only=True)
class Space:
    """The settings to try, in the order in which they are tried."""

    arms: tuple[str, ...]
    rates: tuple[float, ...]
    augments: tuple[Augment, ...]
    tasks: tuple[str, ...]
    # tasks that join, one by one, where those before them do not tell an arm's rates apart
    further: tuple[str, ...] = ()
    widen: bool = True

    @property
    def size(self) -> int:
        """Return the number of settings of one arm before the grid widens.

        If it is 1, nothing is chosen.
        """
        return len(self.rates) * len(self.augments)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An arm's learning rate and augmentation, with the results that they were chosen by."""

    arm: str
    lr: float
    # by candidate: the mean on validation images of the tuning tasks, in per cent
    means: Mapping[str, float]
    failed: tuple[str, ...] = ()  # candidates that could not be trained
    # the smallest or largest of three or more was chosen: rates beyond might be better
    edge: bool = False
    # other rates that are worse by at most a standard error of the difference
    alike: tuple[str, ...] = ()
    augment: Augment | None = None  # None: the recipe's
    # the means at this rate, by augmentation
    augments: Mapping[Augment, float] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()  # on which the arm leaves chance; its means are over these
    at_chance: tuple[str, ...] = ()  # on which it does not, at any rate
    at_ceiling: tuple[str, ...] = ()  # on which its best rate is hardly ever wrong

    @property
    def is_telling(self) -> bool:
        """Return whether the arm's rates can be distinguished.

        They can if it leaves chance on some task, and is not at the ceiling of every one.
        """
        return bool(self.tasks) and (bool(self.at_chance) or self.tasks != self.at_ceiling)


ResultLookup = Callable[[Trial], Result | None]  # None: not measured yet


def search(space: Space, look_up: ResultLookup) -> tuple[dict[str, Choice], list[Trial]]:
    """Return the choice of every arm, or, while anything is missing, the trials to measure next.

    An arm of which every rate failed has a choice without `means`, and one that leaves chance on no
    task the middle rate.
    """
    rates, num_tasks = sorted(set(space.rates)), len(space.tasks)
    tasks = (*space.tasks, *space.further)
    while True:
        missing = [
            trial
            for arm in space.arms
            for rate in rates
            for task in tasks[:num_tasks]
            if look_up(trial := Trial(arm, task, rate, space.augments[0])) is None
        ]
        if missing:
            return {}, missing
        boards = {
            arm: _choose_rate(space, arm, rates, tasks[:num_tasks], look_up) for arm in space.arms
        }
        if num_tasks < len(tasks) and any(
            board.means and not board.is_telling for board in boards.values()
        ):
            num_tasks += 1
            continue
        added = _widen_grid(space, rates, {board.lr for board in boards.values() if board.tasks})
        if not added:
            return _try_augmentations(space, boards, tasks[:num_tasks], look_up)
        rates = sorted({*rates, *added})


def _widen_grid(space: Space, rates: Sequence[float], chosen: Iterable[float]) -> list[float]:
    """Return the next rate beyond each end of the grid that is the best one of an arm."""
    allowed = len(set(space.rates)) + MAX_ADDED - len(rates)
    if not space.widen or len(rates) < 2 or allowed <= 0:
        return []
    ends = ((rates[0], rates[1]), (rates[-1], rates[-2]))
    new = [float(f"{end * end / inside:.3g}") for end, inside in ends if end in set(chosen)]
    return [rate for rate in new if MIN_RATE <= rate <= MAX_RATE][:allowed]


def _choose_rate(
    space: Space, arm: str, rates: Sequence[float], tasks: Sequence[str], look_up: ResultLookup
) -> Choice:
    """Return the choice among these rates with the first augmentation.

    Every trial must have been measured.
    """
    results: dict[float, list[Result]] = {}
    failed = []
    for rate in rates:
        row = _select_results(
            look_up, [Trial(arm, task, rate, space.augments[0]) for task in tasks]
        )
        errors = [result.error for result in row if result.error]
        if errors:
            failed.append(f"{rate:g}: {errors[0]}")
        else:
            results[rate] = row
    learnt = [
        n for n in range(len(tasks)) if any(row[n].value > row[n].least for row in results.values())
    ]
    perfect = [n for n in learnt if max(row[n].value for row in results.values()) > CEILING]
    means = {rate: _average(row, learnt) for rate, row in results.items()}
    lr = choose_best_rate(means) if learnt else sorted(space.rates)[(len(space.rates) - 1) // 2]
    alike = [
        f"{rate:g}"
        for rate in results
        if learnt
        and rate != lr
        and means[lr] - means[rate] <= _estimate_error(results[lr], results[rate], learnt)
    ]
    return Choice(
        arm=arm,
        lr=lr,
        alike=tuple(alike),
        means={f"{rate:g}": mean for rate, mean in means.items()},
        failed=tuple(failed),
        edge=len(rates) > 2 and bool(learnt) and lr in (rates[0], rates[-1]),
        tasks=tuple(tasks[n] for n in learnt),
        at_chance=tuple(task for n, task in enumerate(tasks) if n not in learnt),
        at_ceiling=tuple(tasks[n] for n in perfect),
    )


def _try_augmentations(
    space: Space, boards: Mapping[str, Choice], tasks: Sequence[str], look_up: ResultLookup
) -> tuple[dict[str, Choice], list[Trial]]:
    """Return the choices with the augmentation of each arm, or the missing trials.

    Augmentations are tried at the arm's rate.
    """
    further = space.augments[1:]
    tried = [
        trial
        for board in boards.values()
        for augment in further
        for trial in _list_trials(board, augment, tasks)
    ]
    missing = [trial for trial in tried if look_up(trial) is None]
    if missing or not further:
        return ({}, missing) if missing else (dict(boards), [])
    return {
        arm: _choose_augmentation(
            board,
            {
                name: _select_results(look_up, _list_trials(board, name, tasks))
                for name in space.augments
            },
            tasks,
        )
        for arm, board in boards.items()
    }, []


def _list_trials(board: Choice, augment: Augment, tasks: Sequence[str]) -> list[Trial]:
    """Return the trials of an arm at its rate with an augmentation."""
    return [Trial(board.arm, task, board.lr, augment) for task in tasks]


def _choose_augmentation(
    board: Choice, rows: Mapping[Augment, Sequence[Result]], tasks: Sequence[str]
) -> Choice:
    """Return the choice with the first augmentation, or with one that is clearly better.

    `rows` are the results by task.
    """
    learnt = [n for n, task in enumerate(tasks) if task in board.tasks]
    good = {name: row for name, row in rows.items() if not any(result.error for result in row)}
    means = {name: _average(row, learnt) for name, row in good.items()}
    first, leader = next(iter(rows)), max(means, key=lambda name: means[name], default=None)
    chosen = first
    if leader is not None and learnt:
        clear = first not in means or means[leader] > means[first] + _estimate_error(
            good[first], good[leader], learnt
        )
        chosen = leader if clear else first
    return replace(board, augment=chosen, augments=means)


def _estimate_error(
    ours: Sequence[Result], theirs: Sequence[Result], learnt: Sequence[int]
) -> float:
    """Return the standard error of the difference of two means over tasks.

    The means are treated as those of different images, which gives rather too large an error.
    """
    return math.sqrt(sum(ours[n].variance + theirs[n].variance for n in learnt)) / len(learnt)


def _select_results(look_up: ResultLookup, trials: Iterable[Trial]) -> list[Result]:
    results = [look_up(trial) for trial in trials]
    return [result for result in results if result is not None]


def _average(row: Sequence[Result], learnt: Sequence[int]) -> float:
    """Return the mean over the tasks that were learnt; over all where none was."""
    values = [row[n].value for n in learnt or range(len(row))]
    return sum(values) / len(values)


def choose_best_rate(means: Mapping[float, float]) -> float:
    """Return the rate with the highest mean; of equal ones the lowest."""
    return max(means, key=lambda rate: (means[rate], -rate))


def read_result(row: Row) -> Result:
    """Return the result of a trial from its row, in per cent.

    A row of an earlier version does not record the chance level.
    """
    if row.error is not None:
        return Result(error=row.error)
    value, least, variance = row.value or 0.0, compute_chance_limit(row, SIGMAS), 0.0
    if least > -math.inf:
        variance = compute_variance(row, value)
    return Result(value=100 * value, least=100 * least, variance=100**2 * variance)


def choose(
    space: Space, cell_of: Callable[[Trial], Cell], measure: Callable[[list[Cell]], Iterable[Row]]
) -> dict[str, Choice]:
    """Return the choice of every arm; trains the trials of `search` until none is missing.

    Args:
        space: the settings to try.
        cell_of: returns the cell of a trial.
        measure: returns the rows of cells.

    Raises:
        TrainingFailed: all rates of an arm fail.
    """
    results: dict[Trial, Result] = {}
    while True:
        choices, missing = search(space, results.get)
        if not missing:
            break
        rows = {row.key: row for row in measure([cell_of(trial) for trial in missing])}
        results |= {trial: read_result(rows[cell_of(trial).key]) for trial in missing}
    for choice in choices.values():
        if not choice.means:
            raise TrainingFailed(
                f"every learning rate failed for {choice.arm}: "
                f"{choice.failed[0].partition(': ')[2]}"
            )
    return choices
