"""Shared by benchmarks that run grids: finished rows and where they are kept, the best learning
rate of each arm, the text of a gain.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.results.rows import Row, read_rows
from learngene_zoo.bench.running.executors import Executor, Workers
from learngene_zoo.bench.running.runner import run_grid
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import to_json


def finished(
    cells: Sequence[Cell], out: Path, run: Run | None = None, executor: Executor | None = None
) -> list[Row]:
    """The rows of the cells, computed unless they exist, by default by two workers. Exits with the
    error of a cell that failed.
    """
    rows = run_grid(
        cells,
        out,
        run or Run(threads=1),
        executor or Workers(2),
        say=lambda text: print(text, file=sys.stderr),
    )
    failed = [row for row in rows if row.error]
    if failed:
        raise SystemExit(f"{failed[0].arm} on {failed[0].task}: {failed[0].error}")
    return rows


def keep_rows(measured: Path, kept: Path) -> None:
    """Append to `kept` the finished rows that it lacks: rows of earlier protocols stay, and what
    they decided can be judged again.
    """
    known = {row.key for row in read_rows(kept) if row.error is None}
    new = [row for row in read_rows(measured) if row.key not in known and row.error is None]
    if new:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with kept.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(to_json(row), ensure_ascii=False) + "\n" for row in new)


def best_rates(
    arms: Iterable[Arm], rates: Sequence[float], rows_at: Callable[[float], list[Row]]
) -> dict[str, float]:
    """For each arm the rate with the best mean over the rows that `rows_at` gives for it."""
    by_rate = {rate: rows_at(rate) for rate in rates}
    means = {
        arm.name: {
            rate: sum(row.value or 0 for row in rows if row.arm == arm.name)
            for rate, rows in by_rate.items()
        }
        for arm in arms
    }
    return {name: max(found, key=lambda rate: found[rate]) for name, found in means.items()}


def gain_text(row: Mapping[str, Any], rival: str) -> str:
    """The gain over a rival in points, with its interval."""
    value, low, high = (100 * row[f"over_{rival}{end}"] for end in ("", "_low", "_high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
