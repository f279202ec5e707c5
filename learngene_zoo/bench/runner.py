"""From a grid to its results file: what is finished is skipped, what fails is written down, the rest goes on. Cold at its top."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from learngene_zoo.bench.cell import Cell, Row
from learngene_zoo.bench.executors import Executor, InProcess
from learngene_zoo.bench.extraction import LEARNGENES, PARTS, Extraction
from learngene_zoo.bench.identity import ANCESTRIES, check_same_ancestries
from learngene_zoo.bench.jobs import Failure, Job, Outcome
from learngene_zoo.bench.progress import Estimate, line
from learngene_zoo.bench.results import RESULTS, Results, select
from learngene_zoo.bench.schedule import Schedule
from learngene_zoo.bench.trial import UNTRAINED, failed, run_cell
from learngene_zoo.errors import WrongCall
from learngene_zoo.folder import claim
from learngene_zoo.processes import world
from learngene_zoo.run import Run

__all__ = ["run_cell", "run_grid"]

Say = Callable[[str], None]
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
