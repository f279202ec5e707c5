"""A mean with its interval, from numbers of which some may be missing: cells that failed, or are not computed yet. Cold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from learngene_zoo.bench.statistics import Scope, estimate, leave_one_out

Key = tuple[str, int]  # task, seed


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A mean over tasks and seeds, and how sure it is. Units are those of what was averaged."""

    value: float
    low: float | None  # of the 95 % interval; None where one number has no spread
    high: float | None
    tasks: tuple[str, ...]
    seeds: int
    without: Mapping[str, float] = field(default_factory=dict)  # the mean without each task; {} where there is one task

    @property
    def least(self) -> float | None:
        """The lowest of the means that leave one task out."""
        return min(self.without.values(), default=None)

    @property
    def most(self) -> float | None:
        """The highest of the means that leave one task out."""
        return max(self.without.values(), default=None)


def spread(
    values: Mapping[Key, float], scope: Scope = "tasks", bounds: tuple[float, float] = (-math.inf, math.inf)
) -> Spread | None:
    """The mean of `values` and its interval, cut at `bounds`; None where there is nothing.

    The interval speaks of other tasks and seeds, and with one task, or with the scope "seeds", of other seeds on these tasks.
    It needs every seed of every task: where one is missing, the task or the seed that lacks most is left out.
    """
    table = complete(values)
    if not table:
        return None
    found = estimate(list(table.values()), scope=scope)
    known = found.error is not None
    return Spread(
        value=found.value,
        low=max(bounds[0], found.low) if known else None,
        high=min(bounds[1], found.high) if known else None,
        tasks=tuple(table),
        seeds=len(next(iter(table.values()))),
        without=leave_one_out(list(table.values()), list(table)),
    )


def complete(values: Mapping[Key, float]) -> dict[str, list[float]]:
    """Per task a list over seeds, none missing: tasks and seeds are left out until that is so, the emptiest first."""
    tasks, seeds = list(dict.fromkeys(task for task, _ in values)), sorted({seed for _, seed in values})
    while True:
        lacks = {task: sum((task, seed) not in values for seed in seeds) / max(1, len(seeds)) for task in tasks}
        fails = {seed: sum((task, seed) not in values for task in tasks) / max(1, len(tasks)) for seed in seeds}
        task, seed = max(lacks, key=lambda name: lacks[name], default=""), max(fails, key=lambda n: fails[n], default=0)
        if not lacks or not lacks[task]:
            return {name: [values[name, number] for number in seeds] for name in tasks}
        if lacks[task] >= fails[seed]:
            tasks.remove(task)
        else:
            seeds.remove(seed)
