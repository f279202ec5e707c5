"""How far a grid is, and how long it will still take, judged by what is finished. Cold."""

from __future__ import annotations

from collections.abc import Sequence

from learngene_zoo.bench.cell import Cell, Row
from learngene_zoo.units import human_seconds


class Estimate:
    """The time left, from the wall seconds that finished jobs took; `slots` jobs run at once."""

    def __init__(self, cells: Sequence[Cell], extractions: int, slots: int) -> None:
        self.total, self.done = len(cells), 0
        self._slots = slots
        self._work_left = sum(map(_work, cells))
        self._extractions_left = extractions
        self._work_done = self._cell_seconds = 0.0
        self._extracted, self._extraction_seconds = 0, 0.0

    def cell(self, cell: Cell, seconds: float | None) -> None:
        """A cell is over; `seconds` is None if it was never begun, or failed: then it tells nothing of the others."""
        self.done += 1
        self._work_left -= _work(cell)
        if seconds is not None:
            self._work_done += _work(cell)
            self._cell_seconds += seconds

    def extraction(self, seconds: float) -> None:
        """An extraction is over."""
        self._extractions_left -= 1
        self._extracted += 1
        self._extraction_seconds += seconds

    @property
    def left(self) -> float | None:
        """Seconds; None before anything can be said."""
        if not self._work_done and self.done < self.total:
            return None
        cells = self._work_left * self._cell_seconds / self._work_done if self._work_done else 0.0
        each = self._extraction_seconds / self._extracted if self._extracted else 0.0
        return max(0.0, cells + each * self._extractions_left) / self._slots


def _work(cell: Cell) -> float:
    """What a cell takes, in units that only cells share: its layers times its epochs, judging counted as one more."""
    return cell.layers * (cell.recipe.epochs + 1) * (cell.recipe.images or 1)


def line(row: Row, estimate: Estimate) -> str:
    """One line for a finished cell."""
    told = f"{row.metric} {100 * row.value:.1f} %" if row.value is not None else f"failed: {row.error}"
    width = f" of width {row.width}" if row.width else ""
    named = f" ({row.size})" if row.size else ""
    size = f"{row.layers} layers{width}{named}, {row.epochs} epochs, seed {row.seed}"
    left = estimate.left
    rest = f"  (about {human_seconds(left)} left)" if left and estimate.done < estimate.total else ""
    return f"[{estimate.done}/{estimate.total}] {row.task}, {size}, {row.arm}: {told}{rest}"
