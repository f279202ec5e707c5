"""Which blocks stand for the others: the best cut of an ancestry model's blocks into runs.

The first block of a run stands for all of it. The cost is measured on the ancestry model's own
streams: with only the fc2 of block i solved again, C[i, j] is the error of making the output of
block j from the stream after the attention of block i, as a share of that output's variance. A run
counts as at least as hard as any part of it, so the objective never rises with the number of runs.
Dynamic programming finds the best cuts for every number of runs at once:

    cost of k runs over blocks 0..j = min over i of (cost of k - 1 runs over 0..i-1) + C[i, j]

Everything here is in plain numbers. Blocks are counted from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Costs = Sequence[Sequence[float]]  # C[i][j - i] for j >= i


def make_monotone(costs: Costs) -> list[list[float]]:
    """Return the costs with every run at least as hard as each of its parts."""
    layers = len(costs)
    monotone = [list(row) for row in costs]
    for length in range(1, layers):
        for first in range(layers - length):
            shorter = monotone[first][length - 1], monotone[first + 1][length - 1]
            monotone[first][length] = max(monotone[first][length], *shorter)
    return monotone


def find_best_cuts(costs: Costs) -> list[tuple[tuple[int, ...], float]]:
    """Return for 1, 2, ... runs the first block of each run, and the objective."""
    layers, hard = len(costs), make_monotone(costs)
    best: list[list[tuple[float, tuple[int, ...]]]] = [
        [(hard[0][last], (0,)) for last in range(layers)]
    ]
    for runs in range(2, layers + 1):
        before = best[-1]
        best.append(
            [
                min(
                    (
                        before[first - 1][0] + hard[first][last - first],
                        (*before[first - 1][1], first),
                    )
                    for first in range(runs - 1, last + 1)
                )
                if last >= runs - 1
                else (math.inf, ())
                for last in range(layers)
            ]
        )
    return [(row[-1][1], row[-1][0]) for row in best]
