"""From a grid to its results file: finished cells are skipped, failed ones recorded, and the others go on.

A cell waits for its extraction, and fails with it. The time left is estimated from the jobs that are finished.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from learngene_zoo.atomic import check_folder
from learngene_zoo.bench.cell import LEARNGENES, Cell, Extraction
from learngene_zoo.bench.executors import Executor, Failure, InProcess, Job, Outcome
from learngene_zoo.bench.extraction import ANCESTRIES, PARTS, check_same_ancestries, is_finished, planned
from learngene_zoo.bench.results import RESULTS, Results, Row, select
from learngene_zoo.bench.trial import UNTRAINED, failed
from learngene_zoo.errors import WrongCall
from learngene_zoo.runs.run import Run, world
from learngene_zoo.text import human_count, human_seconds

Say = Callable[[str], None]


class TimeLeft:
    """The time left, from the wall seconds of the finished jobs; `slots` jobs run at once."""

    def __init__(self, cells: Sequence[Cell], extractions: int, slots: int) -> None:
        self.total, self.done = len(cells), 0
        self._slots = slots
        self._work_left = sum(map(_work, cells))
        self._extractions_left = extractions
        self._work_done = self._cell_seconds = 0.0
        self._extracted, self._extraction_seconds = 0, 0.0

    def cell(self, cell: Cell, seconds: float | None) -> None:
        """A cell has ended; `seconds` is None if it failed or never started: then it says nothing about the others."""
        self.done += 1
        self._work_left -= _work(cell)
        if seconds is not None:
            self._work_done += _work(cell)
            self._cell_seconds += seconds

    def extraction(self, seconds: float) -> None:
        """An extraction has ended."""
        self._extractions_left -= 1
        self._extracted += 1
        self._extraction_seconds += seconds

    @property
    def seconds(self) -> float | None:
        """Seconds; None before any cell is finished."""
        if not self._work_done and self.done < self.total:
            return None
        cells = self._work_left * self._cell_seconds / self._work_done if self._work_done else 0.0
        each = self._extraction_seconds / self._extracted if self._extracted else 0.0
        return max(0.0, cells + each * self._extractions_left) / self._slots


def run_grid(
    cells: Sequence[Cell],
    out: Path,
    run: Run,
    executor: Executor | None = None,
    say: Say = lambda text: None,
    *,
    anew: bool = False,
    begin: Callable[[], None] = lambda: None,
) -> list[Row]:
    """The row of every cell, in the order of the cells. Cells that are finished in `out` are not computed again.

    A cell that fails leaves a row with its error and is retried by the next call; `anew` deletes all results in `out` first.
    `run` says how to compute; its seed and folder are not used. `say` receives one line per cell, with an
    estimate of the time left; `begin` is called once `out` is locked. Raises `Refused` while another process writes into `out`, or if its
    results come from another ancestry model.
    """
    if world() > 1:
        raise WrongCall("lgzoo bench runs in parallel with --workers or --ray; start it without torchrun")
    check_folder(out)
    run = replace(run, folder=None, progress=False, threads=run.threads or 1)
    with Results(out / RESULTS, anew) as results:
        if anew:
            _forget(out)
        if results.repaired:
            say(results.repaired)
        check_same_ancestries(cells, out, run)
        begin()
        by_key = {cell.key: cell for cell in cells}
        waiting = [cell for key, cell in by_key.items() if key not in results.finished]
        if len(waiting) < len(by_key):
            say(f"{len(by_key) - len(waiting)} of {len(by_key)} cells are finished already")
        if waiting:
            with executor or InProcess() as executor:
                executor.open(out, run)
                _Conductor(waiting, out, run, executor, results, say).conduct()
        return select(results.rows(), by_key)


def _forget(out: Path) -> None:
    """Remove everything that a bench keeps beside its results."""
    for folder in (LEARNGENES, PARTS, UNTRAINED):
        shutil.rmtree(out / folder, ignore_errors=True)
    (out / ANCESTRIES).unlink(missing_ok=True)


class _Conductor:
    """Passes jobs to the executor and their rows to the results file until none is left."""

    def __init__(
        self, cells: Sequence[Cell], out: Path, run: Run, executor: Executor, results: Results, say: Say
    ) -> None:
        self.schedule = Schedule(cells, lambda extraction: is_finished(extraction, out))
        self.estimate = TimeLeft(cells, len(self.schedule.waiting), executor.slots)
        self.run, self.executor, self.results, self.say = run, executor, results, say
        self.begun: dict[str, float] = {}  # when, by the key of the job
        todo = self.schedule.waiting
        work = sum(map(_work, cells)) + sum(planned(extraction, run.offline) for extraction in todo)
        say(
            f"to compute: {len(cells)} cells, {len(todo)} extractions ({human_count(round(work))} training images x layers)"
        )

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

    def _finished(self, cell: Cell, outcome: Outcome, seconds: float | None) -> None:
        row = failed(cell, outcome.error, self.run) if isinstance(outcome, Failure) else outcome
        assert isinstance(row, Row)
        self.results.append(row)
        self.estimate.cell(cell, None if row.error else seconds)
        self.say(line(row, self.estimate))


JobState = Literal["waiting", "running", "ready"]


class Schedule:
    """The jobs of a grid, handed out one by one. `is_ready` tells which extractions are finished already."""

    def __init__(self, cells: Sequence[Cell], is_ready: Callable[[Extraction], bool]) -> None:
        self.cells = list(cells)  # not started
        self._source = {cell.key: cell.extraction.key for cell in cells}
        self._extractions = {cell.extraction.key: cell.extraction for cell in cells}
        self._states: dict[str, JobState] = {
            key: "ready" if is_ready(extraction) else "waiting" for key, extraction in self._extractions.items()
        }

    @property
    def waiting(self) -> list[Extraction]:
        """The extractions that have not started."""
        return [self._extractions[key] for key, state in self._states.items() if state == "waiting"]

    def next(self, many: bool) -> Job | None:
        """The next job, or None while every remaining cell waits for an extraction.

        If `many` jobs run at once, the extractions, which are longest, come first; otherwise each just before its first cell.
        """
        if many and self.waiting:
            return self._begin(self.waiting[0].key)
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
        """Note that an extraction has ended. If it failed, returns the cells that can never start."""
        self._states[extraction.key] = "ready"
        if not isinstance(outcome, Failure):
            return []
        lost = [cell for cell in self.cells if self._source[cell.key] == extraction.key]
        self.cells = [cell for cell in self.cells if self._source[cell.key] != extraction.key]
        return lost


def _work(cell: Cell) -> float:
    """Training images times layers over all epochs; the evaluation counts as one more."""
    return cell.layers * (cell.recipe.epochs + 1) * (cell.recipe.images or 1)


def line(row: Row, time: TimeLeft) -> str:
    """One line for a finished cell."""
    result = f"{row.metric} {100 * row.value:.1f} %" if row.value is not None else f"failed: {row.error}"
    width = f" of width {row.width}" if row.width else ""
    named = f" ({row.size})" if row.size else ""
    size = f"{row.layers} layers{width}{named}, {row.epochs} epochs, seed {row.seed}"
    left = f"  (about {human_seconds(time.seconds)} left)" if time.seconds and time.done < time.total else ""
    return f"[{time.done}/{time.total}] {row.task}, {size}, {row.arm}: {result}{left}"
