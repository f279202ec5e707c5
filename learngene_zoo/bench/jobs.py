"""Jobs: what an executor is given to do, and what comes back. Cold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from learngene_zoo.bench.cell import Cell, Row
from learngene_zoo.bench.extraction import Extraction, Spent, extract_once
from learngene_zoo.bench.trial import reason, run_cell
from learngene_zoo.run import Run

Job = Extraction | Cell


@dataclass(frozen=True)
class Failure:
    """A job that ended without a result, and why."""

    error: str


Outcome = Row | Spent | Failure


def perform(job: Job, out: Path, run: Run) -> Outcome:
    """Do a job. Only an interruption is raised."""
    if isinstance(job, Cell):
        return run_cell(job, out, run)
    try:
        return extract_once(job, out, run)[1]
    except Exception as error:  # a failed extraction is the error of all its cells, and nothing else's
        return Failure(f"extraction: {reason(error)}")


def extraction_of(cell: Cell) -> Extraction:
    """The extraction that a cell's descendant comes from."""
    return Extraction(arm=cell.extraction, seed=cell.seed)
