"""Rows of results in JSON lines: read them, append one, and compute those that are missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the results so far; none if there is no such file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Append a row to the results."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def find_missing(path: Path, cells: Iterable[Any], words: Sequence[str]) -> list[Any]:
    """Return the cells without a row whose names contain all `words`, in their order.

    A cell is a named tuple whose fields are those of its row, with a property `name`.
    """
    selected = [cell for cell in cells if all(word in cell.name for word in words)]
    measured = {
        tuple(row[name] for name in selected[0]._fields) for row in read_rows(path) if selected
    }
    return [cell for cell in selected if tuple(cell) not in measured]


def measure_cells(
    path: Path,
    cells: Sequence[Any],
    measure: Callable[[Any, str | None], dict[str, Any]],
    workers: int,
    source: str | None,
) -> None:
    """Append the row of every cell, `measure(cell, source)`, when a process has computed it."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = [pool.submit(measure, cell, source) for cell in cells]
        for number, finished in enumerate(as_completed(waiting), start=1):
            append_row(path, finished.result())
            print(f"{number} of {len(cells)}: {finished.result()}", file=sys.stderr, flush=True)
