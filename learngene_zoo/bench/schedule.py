"""Which job is next: a cell waits for its extraction, and shares its fate. Cold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from learngene_zoo.bench.cell import Cell
from learngene_zoo.bench.extraction import Extraction
from learngene_zoo.bench.jobs import Failure, Job, Outcome, extraction_of

State = Literal["waiting", "running", "ready"]


class Schedule:
    """The jobs of a grid, handed out one by one. `is_ready` says which extractions were finished before."""

    def __init__(self, cells: Sequence[Cell], is_ready: Callable[[Extraction], bool]) -> None:
        self.cells = list(cells)  # not begun
        self._source = {cell.key: extraction_of(cell).key for cell in cells}
        self._extractions = {extraction_of(cell).key: extraction_of(cell) for cell in cells}
        self._states: dict[str, State] = {
            key: "ready" if is_ready(extraction) else "waiting" for key, extraction in self._extractions.items()
        }

    @property
    def extractions(self) -> int:
        """How many are not finished."""
        return sum(state != "ready" for state in self._states.values())

    def next(self, many: bool) -> Job | None:
        """The next job, or None while every cell that is left waits for an extraction.

        Where `many` jobs run at once the extractions, which are longest, come first; else each comes with its first cell.
        """
        if many:
            waiting = [key for key, state in self._states.items() if state == "waiting"]
            if waiting:
                return self._begin(waiting[0])
        for index, cell in enumerate(self.cells):
            state = self._states[self._source[cell.key]]
            if state == "ready":
                return self.cells.pop(index)
            if state == "waiting":
                return self._begin(self._source[cell.key])
        return None

    def _begin(self, key: str) -> Extraction:
        self._states[key] = "running"
        return self._extractions[key]

    def done(self, extraction: Extraction, outcome: Outcome) -> list[Cell]:
        """Note that an extraction has ended. Returns the cells that will never be begun, because it failed."""
        self._states[extraction.key] = "ready"
        if not isinstance(outcome, Failure):
            return []
        lost = [cell for cell in self.cells if self._source[cell.key] == extraction.key]
        self.cells = [cell for cell in self.cells if self._source[cell.key] != extraction.key]
        return lost
