"""Which blocks stand for the others: the best cut of an ancestry model's blocks into runs, for every number of runs at once.

The first block of a run stands for all of it. What that costs is measured on the ancestry model's own streams: with the first
block's fc2 alone solved anew, the error C[i, j] of making the output of block j from what block i has after its attention,
as a share of that output's variance. A run counts as at least as hard as any part of it, so that the
programme's objective never rises with the number of runs.

    cost of k runs over blocks 0..j = min over i of (cost of k - 1 runs over 0..i-1) + C[i, j]

Needs plain numbers only. Blocks are counted from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Costs = Sequence[Sequence[float]]  # C[i][j - i] for j >= i


def monotone(costs: Costs) -> list[list[float]]:
    """The costs where every run is at least as hard as each of its parts."""
    layers = len(costs)
    made = [list(row) for row in costs]
    for length in range(1, layers):
        for first in range(layers - length):
            made[first][length] = max(made[first][length], made[first][length - 1], made[first + 1][length - 1])
    return made


def cuts(costs: Costs) -> list[tuple[tuple[int, ...], float]]:
    """For 1, 2, ... runs: the first block of each run, and the objective."""
    layers, hard = len(costs), monotone(costs)
    best: list[list[tuple[float, tuple[int, ...]]]] = [[(hard[0][last], (0,)) for last in range(layers)]]
    for runs in range(2, layers + 1):
        before = best[-1]
        best.append(
            [
                min(
                    (before[first - 1][0] + hard[first][last - first], (*before[first - 1][1], first))
                    for first in range(runs - 1, last + 1)
                )
                if last >= runs - 1
                else (math.inf, ())
                for last in range(layers)
            ]
        )
    return [(row[-1][1], row[-1][0]) for row in best]
