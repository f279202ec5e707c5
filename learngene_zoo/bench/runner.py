"""From a grid to its results file: what is finished is skipped, what fails is written down, the rest goes on. Cold at its top.

Which job is next: a cell waits for its extraction, and shares its fate. Cold.

How far a grid is, and how long it will still take, judged by what is finished. Cold.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from learngene_zoo.bench.cell import Cell, Row
from learngene_zoo.bench.executors import Executor, Failure, InProcess, Job, Outcome, extraction_of
from learngene_zoo.bench.extraction import ANCESTRIES, LEARNGENES, PARTS, Extraction, check_same_ancestries
from learngene_zoo.bench.results import RESULTS, Results, select
from learngene_zoo.bench.trial import UNTRAINED, failed
from learngene_zoo.errors import WrongCall
from learngene_zoo.runs.distributed import world
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import claim
from learngene_zoo.units import human_seconds

Say = Callable[[str], None]


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


Watch = Callable[[Estimate], None]


def run_grid(
    cells: Sequence[Cell],
    out: Path,
    run: Run,
    executor: Executor | None = None,
    say: Say = lambda text: None,
    watch: Watch = lambda estimate: None,
    *,
    anew: bool = False,
    begin: Callable[[], None] = lambda: None,
) -> list[Row]:
    """The row of every cell, in the order of the cells. Those that `out` holds already are not computed again.

    A cell that fails leaves a row with its error, and is tried again by the next call; `anew` forgets all that `out` holds.
    `run` says how to compute; its seed and folder are not used. `say` hears one line per cell, `watch` how far it is; `begin`
    is called once nothing else writes there. Raises `Refused` while another process writes into `out`, or if it holds
    results of another ancestry model.
    """
    if world() > 1:
        raise WrongCall("lgzoo bench shares its work by --workers or --ray; start it without torchrun")
    claim(out, force=True)
    run = replace(run, folder=None, progress=False, threads=run.threads or 1)
    with Results(out / RESULTS, anew) as results:
        if anew:
            _forget(out)
        if results.repaired:
            say(results.repaired)
        check_same_ancestries(cells, out, run)
        begin()
        wanted = {cell.key: cell for cell in cells}
        waiting = [cell for key, cell in wanted.items() if key not in results.finished]
        if len(waiting) < len(wanted):
            say(f"{len(wanted) - len(waiting)} of {len(wanted)} cells are finished already")
        if waiting:
            with executor or InProcess() as executor:
                executor.open(out, run)
                _Conductor(waiting, out, run, executor, results, say, watch).conduct()
        return select(results.rows(), wanted)


def _forget(out: Path) -> None:
    """Remove what a bench keeps beside its results."""
    for folder in (LEARNGENES, PARTS, UNTRAINED):
        shutil.rmtree(out / folder, ignore_errors=True)
    (out / ANCESTRIES).unlink(missing_ok=True)


class _Conductor:
    """Hands jobs to the executor and their rows to the results file until none is left."""

    def __init__(
        self, cells: Sequence[Cell], out: Path, run: Run, executor: Executor, results: Results, say: Say, watch: Watch
    ) -> None:
        self.schedule = Schedule(cells, lambda extraction: extraction.is_finished(out))
        self.estimate = Estimate(cells, self.schedule.extractions, executor.slots)
        self.run, self.executor, self.results, self.say, self.watch = run, executor, results, say, watch
        self.begun: dict[str, float] = {}  # by the key of the job

    def conduct(self) -> None:
        """Keep every slot busy."""
        while True:
            self._fill()
            if not self.begun:
                return
            job, outcome = self.executor.wait()
            seconds = time.monotonic() - self.begun.pop(job.key)
            if isinstance(job, Extraction):
                self._extracted(job, outcome, seconds)
            else:
                self._finished(job, outcome, seconds)

    def _fill(self) -> None:
        while len(self.begun) < self.executor.slots:
            job: Job | None = self.schedule.next(many=self.executor.slots > 1)
            if job is None:
                return
            if isinstance(job, Extraction):
                self.say(f"extracting {job.arm.method}, seed {job.seed}")
            self.begun[job.key] = time.monotonic()
            self.executor.start(job)

    def _extracted(self, extraction: Extraction, outcome: Outcome, seconds: float) -> None:
        self.estimate.extraction(seconds)
        for cell in self.schedule.done(extraction, outcome):
            assert isinstance(outcome, Failure)
            self._finished(cell, failed(cell, outcome.error, self.run), None)
        self.watch(self.estimate)

    def _finished(self, cell: Cell, outcome: Outcome, seconds: float | None) -> None:
        row = failed(cell, outcome.error, self.run) if isinstance(outcome, Failure) else outcome
        assert isinstance(row, Row)
        self.results.append(row)
        self.estimate.cell(cell, None if row.error else seconds)
        self.say(line(row, self.estimate))
        self.watch(self.estimate)


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
