"""Averages over tasks and seeds, and their confidence intervals.

The unit is one number per task and seed: mostly a paired difference of two arms, averaged over
sizes. Tasks and seeds are crossed (a seed's extraction serves every task), so both are resampled,
independently of each other:

    d[t, s] = mean + T[t] + S[s] + rest

The standard error comes from the mean squares of tasks, seeds and rest, its degrees of freedom from
Satterthwaite's formula. Student's interval with these covers normal effects, and skewed ones too
seldom: a sample of few tasks that lacks a long tail has a mean too near to its mode, and too small
an error besides. So the interval is as wide on either side as the larger of two: Student's, and
that of the studentised bootstrap (Hall 1988), whose draws are (mean of a resampled table - mean) /
its own standard error. With few values the bootstrap finds too short tails, so its quantiles are
taken at half the tail, but it adds never more than 1.5 times Student's width, since a table that
repeats one task has no error. benchmarks/interval_coverage.py measures the coverage.

A quantile of a limited number of draws has an error of its own (Monte Carlo).
`Estimate.outer_interval` has each end so far out among the draws that the exact one lies beyond it
once in 40 times: a verdict must hold for it, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from learngene_zoo.intervals import Z95, compute_t_quantile
from learngene_zoo.seeds import derive_seed

if TYPE_CHECKING:
    import numpy as np


# To what the interval generalises: other tasks and seeds, or other seeds on these tasks.
Scope = Literal["tasks", "seeds"]

DRAWS = 4000  # resamplings
MANY_DRAWS = 100_000  # for verdicts
CHUNK = 20_000  # resamplings at once: more would need much memory
FAR = 1e9  # standard errors: a draw without an error
PLANNED = 200  # simulated experiments of a plan
WIDEST = 1.5  # times Student's width: the most that skewness adds on a side
POWER = 0.8  # of the smallest effect that is called detectable


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error, in the units of the averaged numbers."""

    value: float
    error: float | None  # standard error; None for a single number
    freedom: float | None  # degrees of freedom of the error
    shape: np.ndarray = field(repr=False, compare=False)  # studentised draws, sorted

    def interval(self, level: float = 0.95, *, margin: float = 0.0) -> tuple[float, float]:
        """Return the confidence interval of this level; infinite if the error is unknown.

        `margin` moves the draws' quantiles out, in standard deviations of the number of draws in a
        tail.
        """
        if self.error is None or self.freedom is None:
            return -math.inf, math.inf
        tail, last = (1 - level) / 2, len(self.shape) - 1
        student = compute_t_quantile(1 - tail, self.freedom)
        out = margin * math.sqrt(tail / 2 * (1 - tail / 2) * len(self.shape))
        places = (
            q * len(self.shape) + away for q, away in zip((tail / 2, 1 - tail / 2), (-out, out))
        )
        lowest, highest = (
            float(self.shape[min(last, max(0, int(n)))]) if last >= 0 else 0.0 for n in places
        )
        # What the draws exceed their mean by, the mean may exceed the truth by.
        below = max(student, min(highest, WIDEST * student))
        above = max(student, min(-lowest, WIDEST * student))
        return self.value - self.error * below, self.value + self.error * above

    @property
    def outer_interval(self) -> tuple[float, float]:
        """Return the 95 % interval, with each end moved out by the Monte Carlo error of the draws.

        The error is taken at 1.96 standard deviations.
        """
        return self.interval(margin=Z95)

    @property
    def ends(self) -> tuple[float, float] | tuple[None, None]:
        """Return the 95 % interval; None for a single number."""
        return (None, None) if self.error is None else self.interval()

    def p_value(self, boundary: float) -> float:
        """Return the smallest `1 - level` whose interval excludes `boundary`."""
        if self.error is None or (self.error == 0 and self.value == boundary):
            return 1.0
        lo, hi = 0.0, 1.0
        for _ in range(40):
            middle = (lo + hi) / 2
            low, high = self.interval(1 - middle)
            lo, hi = (middle, hi) if low <= boundary <= high else (lo, middle)
        return hi

    @property
    def detectable(self) -> float | None:
        """Return the distance from a boundary at which experiments exclude it with power 0.8."""
        if self.error is None or self.freedom is None:
            return None
        return (
            self.value - self.interval()[0] + compute_t_quantile(POWER, self.freedom) * self.error
        )


def estimate(
    table: Sequence[Sequence[float]],
    *,
    scope: Scope = "tasks",
    step: float = 0.0,
    draws: int = DRAWS,
) -> Estimate:
    """Return the mean of a table with its error; the table has no gaps.

    With one task, or with the scope "seeds", the tasks are fixed and the interval generalises over
    seeds only; with one seed, over tasks only.

    Args:
        table: a row per task and a column per seed.
        scope: to which tasks and seeds the interval generalises.
        step: the step of a coarse grid of values, which may be equal by chance; the error is kept
            above that of rounding to such steps.
        draws: the number of resamplings.
    """
    import numpy as np

    d = np.asarray(table, dtype=np.float64)
    assert d.ndim == 2, "expected a table of tasks and seeds"
    if scope == "seeds":
        d = d.mean(axis=0, keepdims=True)
    mean = float(d.mean())
    effects = [line - mean for line in (d.mean(axis=1), d.mean(axis=0)) if len(line) > 1]
    if not effects:
        return Estimate(mean, None, None, np.empty(0))
    rest = d - d.mean(axis=1, keepdims=True) - d.mean(axis=0, keepdims=True) + mean
    sums = [(float((line**2).sum()), len(line)) for line in effects]
    # variances of the means
    squares = sorted((total / ((count - 1) * count), count - 1) for total, count in sums)
    noise = (
        float((rest**2).sum()) / (math.prod(n - 1 for n in d.shape) * d.size)
        if len(effects) == 2
        else 0.0
    )
    variance, freedom = _combine_variances(squares, noise)
    variance = max(variance, step**2 / 12 / len(table) / len(table[0]))
    return Estimate(mean, math.sqrt(variance), freedom, _studentise(d, draws))


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The standard deviations of an effect that determine an experiment's interval."""

    tasks: float  # of the true effect, from task to task
    seeds: float  # common to all tasks of a seed
    rest: float  # of a task and a seed


@cache
def plan_effect(tasks: int, seeds: int, spread: Spread, scope: Scope = "tasks") -> float:
    """Return the effect whose interval lies above 0 in four of five simulated experiments.

    The effects are normal; the result is in the units of `spread`.
    """
    import numpy as np

    generator = np.random.default_rng(derive_seed(0, "planned", tasks, seeds))
    needed = []
    for _ in range(PLANNED):
        effects = [generator.normal(size=size) for size in ((tasks, 1), (1, seeds), (tasks, seeds))]
        table = sum(
            part * effect
            for part, effect in zip((spread.tasks, spread.seeds, spread.rest), effects)
        )
        if scope == "seeds":  # these very tasks are meant
            table = table - spread.tasks * effects[0]
        needed.append(-estimate(np.asarray(table).tolist(), scope=scope).interval()[0])
    return float(np.quantile(needed, POWER))


def _combine_variances(squares: list[tuple[float, int]], noise: float) -> tuple[float, float]:
    """Return variance and degrees of freedom from one or two (variance, freedom), ascending.

    Each of two contains the share of the rest once, so the smaller one adds only its excess over
    that.
    """
    (largest, freedom), smaller = squares[-1], squares[:-1]
    if largest == 0:
        return 0.0, float(freedom)
    added = [(max(0.0, square - noise), n) for square, n in smaller]
    variance = largest + sum(square for square, _ in added)
    return variance, variance**2 / (
        largest**2 / freedom + sum(square**2 / n for square, n in added)
    )


def _studentise(d: np.ndarray, draws: int) -> np.ndarray:
    """Return (mean of a resampled table - mean) / its standard error, sorted.

    The result is empty if all values are equal.
    """
    import numpy as np

    if d.max() == d.min():
        return np.empty(0)
    chunks = [min(CHUNK, draws - start) for start in range(0, draws, CHUNK)]
    return np.sort(
        np.concatenate([_draw_chunk(d, size, number) for number, size in enumerate(chunks)])
    )


def _draw_chunk(d: np.ndarray, draws: int, number: int) -> np.ndarray:
    """Return some of the draws.

    Sums over a resampled table are sums over `d` with weights: how often its rows and columns are
    drawn.
    """
    import numpy as np

    tasks, seeds = d.shape
    rows_BT = _draw_counts(tasks, 0, draws, number) if tasks > 1 else np.ones((draws, 1))
    columns_BS = _draw_counts(seeds, 1, draws, number) if seeds > 1 else np.ones((draws, 1))
    of_rows_BT, of_columns_BS = columns_BS @ d.T / seeds, rows_BT @ d / tasks
    mean_B = (rows_BT * of_rows_BT).sum(axis=1) / tasks
    between_rows_B = (rows_BT * (of_rows_BT - mean_B[:, None]) ** 2).sum(axis=1)
    between_columns_B = (columns_BS * (of_columns_BS - mean_B[:, None]) ** 2).sum(axis=1)
    all_B = (rows_BT * (columns_BS @ (d.T - d.mean()) ** 2)).sum(axis=1) - d.size * (
        mean_B - d.mean()
    ) ** 2
    rest_B = np.maximum(0.0, all_B - seeds * between_rows_B - tasks * between_columns_B)
    squares = [
        total / ((n - 1) * n)
        for total, n in ((between_rows_B, tasks), (between_columns_B, seeds))
        if n > 1
    ]
    noise_B = rest_B / (math.prod(n - 1 for n in d.shape) * d.size) if len(squares) == 2 else 0.0
    variance_B = np.maximum.reduce(squares) + (
        np.maximum(0.0, np.minimum(*squares) - noise_B) if len(squares) == 2 else 0
    )
    away_B = mean_B - d.mean()
    # below this a table has no error: it repeats one value
    tiny = 1e-12 * float(np.abs(d - d.mean()).max()) ** 2
    return np.where(
        variance_B > tiny, away_B / np.sqrt(np.maximum(variance_B, tiny)), np.sign(away_B) * FAR
    )


@cache
def _draw_counts(n: int, which: int, draws: int = DRAWS, chunk: int = 0) -> np.ndarray:
    """Return how often each of `n` is drawn, in each of `draws` resamplings.

    The draws are equal in every call.
    """
    import numpy as np

    generator = np.random.default_rng(
        derive_seed(0, "resampling", which, n, *([chunk] if chunk else []))
    )
    return generator.multinomial(n, np.full(n, 1 / n), size=draws).astype(np.float64)


def leave_one_out(table: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean without each task in turn, from a list over seeds per task.

    The result is empty if there is only one task.
    """
    means = {task: sum(row) / len(row) for task, row in table.items()}
    if len(means) < 2:
        return {}
    return {task: (sum(means.values()) - mean) / (len(means) - 1) for task, mean in means.items()}


def find_extremes(means: Mapping[str, float]) -> tuple[tuple[str, float], tuple[str, float]]:
    """Return the task of the lowest mean and the task of the highest, each with its mean."""
    return min(means.items(), key=lambda item: item[1]), max(
        means.items(), key=lambda item: item[1]
    )


def adjust_by_holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return Holm's adjusted p-values.

    Rejecting those below alpha keeps the family-wise error rate at alpha.
    """
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}
