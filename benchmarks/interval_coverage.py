"""How often does the interval of claims and reports cover the truth, also where effects are skewed?

Varied: the numbers of tasks and seeds; the distribution of a task's share of the effect (normal,
exponential in either direction, log-normal, each with a standard deviation of 1); the standard
deviation of the seeds' share, which has the same distribution (0.2 or 0.7). The rest is normal with
0.3, and the true effect is 0.

Measured: the coverage of Student's interval with Satterthwaite's degrees of freedom, and of ours,
which is never narrower, over 1,000 simulated tables each; `width` is the median width of ours over
that of Student's.

Command: about three minutes on one core.

    python benchmarks/interval_coverage.py

Results: benchmarks/results/interval_coverage.json.
Page: docs/claims.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

import machine
from learngene_zoo.bench.results.statistics import estimate
from learngene_zoo.intervals import compute_t_quantile
from pages import DOCS, replace_between

TABLES = 1000
SHAPES = ((4, 3), (6, 3), (6, 5), (8, 5), (10, 8))  # tasks, seeds
SEED_SPREADS, REST = (0.2, 0.7), 0.3
Draw = Callable[[np.random.Generator, tuple[int, int]], Any]
EFFECTS: dict[str, Draw] = {
    "normal": lambda generator, size: generator.normal(size=size),
    "exponential": lambda generator, size: generator.exponential(size=size) - 1,
    "exponential, to the left": lambda generator, size: 1 - generator.exponential(size=size),
    "log-normal": lambda generator, size: (
        (generator.lognormal(size=size) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)
    ),
}


def main() -> None:
    """Simulate, print the coverages and write them."""
    rows = [
        measure_coverage(effects, tasks, seeds, spread)
        for tasks, seeds in SHAPES
        for effects in EFFECTS
        for spread in SEED_SPREADS
    ]
    machine.write("interval_coverage", {"tables": TABLES, "level": 0.95, "rows": rows})
    replace_between(DOCS / "claims.md", "coverage", make_table(rows))


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table: a row for each shape, with Student's coverage, ours, and the width by kind
    of effects.
    """
    shapes = dict.fromkeys((row["tasks"], row["seeds"], row["seed_spread"]) for row in rows)
    lines = [
        f"| tasks × seeds | of seeds | {' | '.join(EFFECTS)} |",
        f"|---|---:|{'---|' * len(EFFECTS)}",
    ]
    for shape in shapes:
        rows_of_shape = [
            row for row in rows if (row["tasks"], row["seeds"], row["seed_spread"]) == shape
        ]
        cells = [
            f"{row['student']:.1f}, **{row['ours']:.1f}** ({row['width']:.2f} ×)"
            for row in rows_of_shape
        ]
        lines.append(f"| {shape[0]} × {shape[1]} | {shape[2]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measure_coverage(effects: str, tasks: int, seeds: int, spread: float) -> dict[str, Any]:
    """Return the coverage for one kind of table, in per cent."""
    generator = np.random.default_rng(
        [tasks, seeds, round(10 * spread), list(EFFECTS).index(effects)]
    )
    draw_effects, students, ours = EFFECTS[effects], 0, 0
    widths: tuple[list[float], list[float]] = ([], [])
    for _ in range(TABLES):
        table = draw_effects(generator, (tasks, 1)) + spread * draw_effects(generator, (1, seeds))
        estimated = estimate((table + REST * generator.normal(size=(tasks, seeds))).tolist())
        assert estimated.error is not None
        assert estimated.freedom is not None
        half = compute_t_quantile(0.975, estimated.freedom) * estimated.error
        low, high = estimated.interval()
        students += abs(estimated.value) <= half
        ours += low <= 0.0 <= high
        widths[0].append(2 * half)
        widths[1].append(high - low)
    row = {"effects": effects, "tasks": tasks, "seeds": seeds, "seed_spread": spread}
    row |= {"student": round(100 * students / TABLES, 1), "ours": round(100 * ours / TABLES, 1)}
    row |= {"width": round(median(widths[1]) / median(widths[0]), 2)}
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


if __name__ == "__main__":
    main()
