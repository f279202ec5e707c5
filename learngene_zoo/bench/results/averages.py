"""Means over tasks and seeds, each with the interval that fits the averaged numbers.

| averaged numbers | interval |
|---|---|
| accuracies, or gains, on one task | `images`: 95 %, over its test images, seeds pooled |
| the same of mIoU, which has no flag per image | `seeds`: 95 %, over seeds, from three on |
| gains on three or more tasks, with three or more seeds | `tasks_seeds`: 95 %, over both |
| metrics on several tasks, with three or more seeds | `seeds`: tasks differ more than arms |
| anything else | `range`: lowest to highest value of a task and seed (of a metric: of a seed) |
| a single number, and numbers that are all equal | `none` |

`images` is computed by `intervals.py`, `tasks_seeds` by `statistics.py`. Two numbers have a
standard error with one degree of freedom, whose interval is 13 standard errors wide on either side;
so fewer than three numbers have no interval. Shapes of tables: a row per task, a column per seed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from learngene_zoo.bench.results.rows import Row, unpack_flags
from learngene_zoo.bench.results.statistics import Scope, estimate, leave_one_out
from learngene_zoo.intervals import Gain, compute_paired_gain, compute_pooled_interval

Key = tuple[str, int]  # task, seed
Interval = Literal["images", "tasks_seeds", "seeds", "range", "none"]
MIN_COUNT = 3  # tasks, and seeds, of an interval over them
DRAWS = 20_000  # of a bootstrap: enough for a tenth of a point


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mean over tasks and seeds with its interval, in the units of the averaged numbers."""

    value: float
    low: float | None  # None for the interval "none"
    high: float | None
    interval: Interval = "none"
    tasks: tuple[str, ...]
    seeds: int
    # mean without each task; {} if there is only one
    without: Mapping[str, float] = field(default_factory=dict)

    @property
    def least(self) -> float | None:
        """Return the lowest of the means that leave one task out."""
        return min(self.without.values(), default=None)

    @property
    def most(self) -> float | None:
        """Return the highest of the means that leave one task out."""
        return max(self.without.values(), default=None)


def average(
    values: Mapping[Key, float],
    scope: Scope = "tasks",
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Average | None:
    """Return the mean of `values` with its interval, or None if there are no values.

    The interval needs every seed of every task: where one is missing, the task or seed with the
    most gaps is dropped.

    Args:
        values: a number for each task and seed.
        scope: "tasks" generalises over tasks and seeds (with one task over seeds), "seeds" over
            seeds only.
        bounds: limits to which the interval is clipped.
    """
    tasks, seeds = complete_keys(values)
    if not tasks:
        return None
    table = [[values[task, seed] for seed in seeds] for task in tasks]
    value = sum(map(sum, table)) / len(tasks) / len(seeds)
    interval, low, high = _compute_interval(table, scope)
    clipped = interval != "none"
    return Average(
        value=value,
        low=max(bounds[0], low) if clipped else None,
        high=min(bounds[1], high) if clipped else None,
        interval=interval,
        tasks=tasks,
        seeds=len(seeds),
        without=leave_one_out(dict(zip(tasks, table))),
    )


def _compute_interval(table: list[list[float]], scope: Scope) -> tuple[Interval, float, float]:
    """Return the kind of the interval of a table's mean, and its ends."""
    seeds = [sum(column) / len(column) for column in zip(*table)]
    over_seeds = scope == "seeds" or len(table) == 1
    cells = seeds if over_seeds else [value for row in table for value in row]
    if math.isclose(min(cells), max(cells), abs_tol=1e-12):
        return "none", min(cells), max(cells)
    if len(seeds) >= MIN_COUNT and (over_seeds or len(table) >= MIN_COUNT):
        low, high = estimate(table, scope=scope, draws=DRAWS).interval()
        return "seeds" if over_seeds else "tasks_seeds", low, high
    return "range", min(cells), max(cells)


def average_metric(rows: Iterable[Row]) -> Average | None:
    """Return the mean of the metric of these rows; on one task with an interval over its images."""
    by_key = {(row.task, row.seed): row for row in rows if row.value is not None}
    values = {key: row.value or 0.0 for key, row in by_key.items()}
    runs = _list_flags(by_key)
    if not runs:
        return average(values, "seeds", find_bounds(row.metric for row in by_key.values()))
    share = sum(sum(run) / len(run) for run in runs) / len(runs)
    return average_over_images(values, Gain(share, *compute_pooled_interval(runs)))


def average_gain(ours: Mapping[Key, Row], theirs: Mapping[Key, Row]) -> Average | None:
    """Return the mean of paired differences, over the keys that both have.

    On one task, the interval is over its images.
    """
    shared = [key for key in ours if key in theirs]
    values = {key: (ours[key].value or 0.0) - (theirs[key].value or 0.0) for key in shared}
    runs, other_runs = (_list_flags({key: rows[key] for key in shared}) for rows in (ours, theirs))
    if not runs or not other_runs or len(runs[0]) != len(other_runs[0]):
        low, high = find_bounds(ours[key].metric for key in shared)
        return average(values, bounds=(low - high, high - low))
    return average_over_images(values, compute_paired_gain(runs, other_runs))


def find_bounds(metrics: Iterable[str]) -> tuple[float, float]:
    """Return the lowest and the highest value of these metrics."""
    return -1.0 if "matthews" in metrics else 0.0, 1.0


def average_over_images(keys: Collection[Key], gain: Gain) -> Average:
    """Return the mean over these seeds of one task, with its interval over the images."""
    tasks = tuple(dict.fromkeys(task for task, _ in keys))
    return Average(**gain._asdict(), interval="images", tasks=tasks, seeds=len(keys))


def _list_flags(rows: Mapping[Key, Row]) -> list[tuple[bool, ...]]:
    """Return for each seed a flag per image: whether it was classified correctly.

    The list is empty for several tasks, and if a row has no flags or has them for other images.
    """
    ordered = [row for _, row in sorted(rows.items())]
    if len({row.task for row in ordered}) != 1:
        return []
    if any(
        row.correct is None or not row.evaluated or row.evaluated != ordered[0].evaluated
        for row in ordered
    ):
        return []
    return [unpack_flags(row.correct or "", row.evaluated) for row in ordered]


def drop_incomplete(values: Mapping[Key, float]) -> dict[str, list[float]]:
    """Return for each task a list over seeds without gaps (`complete_keys`)."""
    tasks, seeds = complete_keys(values)
    return {task: [values[task, seed] for seed in seeds] for task in tasks}


def complete_keys(values: Collection[Key]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return tasks and seeds of which every pair exists; those with most gaps are dropped first."""
    keys = set(values)
    tasks = list(dict.fromkeys(task for task, _ in values))
    seeds = sorted({seed for _, seed in keys})
    while True:
        lacks = {
            task: sum((task, seed) not in keys for seed in seeds) / max(1, len(seeds))
            for task in tasks
        }
        fails = {
            seed: sum((task, seed) not in keys for task in tasks) / max(1, len(tasks))
            for seed in seeds
        }
        task, seed = (
            max(lacks, key=lambda name: lacks[name], default=""),
            max(fails, key=lambda n: fails[n], default=0),
        )
        if not lacks or not lacks[task]:
            return tuple(tasks), tuple(seeds)
        if lacks[task] >= fails[seed]:
            tasks.remove(task)
        else:
            seeds.remove(seed)
