"""From a grid to its results file: finished cells are skipped, failed ones recorded, and the others go on.

A cell waits for its extraction, and fails with it. The time left is estimated from the jobs that are finished.
"""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from learngene_zoo.atomic import check_folder, remove_drafts_in
from learngene_zoo.bench.cell import LEARNGENES, Cell, Extraction, Size
from learngene_zoo.bench.executors import Executor, Failure, InProcess, Job, Outcome
from learngene_zoo.bench.extraction import ANCESTRIES, PARTS, check_same_ancestries, is_finished, planned
from learngene_zoo.bench.results import RESULTS, Results, Row, read_rows, select
from learngene_zoo.bench.trial import CHECKPOINTS, TRAINED, UNTRAINED, failed
from learngene_zoo.errors import Refused, WrongCall
from learngene_zoo.ownership import MARKER, find_foreign_below, is_workspace, mark_workspace, remove_below
from learngene_zoo.runs.run import Run, world
from learngene_zoo.text import counted, human_count, human_seconds

Say = Callable[[str], None]


class Pace:
    """The seconds that the rest of some work takes at the speed so far; `left` is in any unit."""

    def __init__(self, left: float) -> None:
        self.left, self.measured, self.spent = left, 0.0, 0.0

    def did(self, work: float, seconds: float | None) -> None:
        """Some work has ended; `seconds` is None if it failed or never started: then it says nothing about the rest."""
        self.left -= work
        if seconds is not None:
            self.measured += work
            self.spent += seconds

    @property
    def seconds(self) -> float:
        """Seconds; 0 before anything is measured."""
        return self.left * self.spent / self.measured if self.measured else 0.0


class TimeLeft:
    """The time left, from the wall seconds of the finished jobs; `slots` jobs run at once."""

    def __init__(self, cells: Sequence[Cell], extractions: int, slots: int) -> None:
        self.total, self.done, self.slots = len(cells), 0, slots
        self.cells, self.extractions = Pace(sum(map(_work, cells))), Pace(extractions)

    def cell(self, cell: Cell, seconds: float | None) -> None:
        """A cell has ended."""
        self.done += 1
        self.cells.did(_work(cell), seconds)

    @property
    def seconds(self) -> float | None:
        """Seconds; None before any cell is finished."""
        if not self.cells.measured and self.done < self.total:
            return None
        return max(0.0, self.cells.seconds + self.extractions.seconds) / self.slots


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
    `run` says how to compute; its seed and folder are not used; with `run.resume` a training that was interrupted goes on from
    its last checkpoint, else it starts again. `say` receives one line per cell, with an
    estimate of the time left; `begin` is called once `out` is locked. Raises `Refused` while another process writes into `out`, or if its
    results come from another ancestry model.
    """
    if world() > 1:
        raise WrongCall("lgzoo bench runs in parallel with --workers or --ray; start it without torchrun")
    check_folder(out)
    claim_workspace(out, anew)
    run = replace(run, folder=None, progress=False, lines=False, threads=run.threads or 1)
    with Results(out / RESULTS, anew) as results:
        if anew:
            _forget(out)
        for folder in (out, *(out / name for name in (LEARNGENES, UNTRAINED, TRAINED))):
            remove_drafts_in(folder)
        if results.repaired:
            say(results.repaired)
        check_same_ancestries(cells, out, run)
        begin()
        by_key = {cell.key: cell for cell in cells}
        waiting = [cell for key, cell in by_key.items() if key not in results.finished]
        if len(waiting) < len(by_key):
            say(f"{len(by_key) - len(waiting)} of {len(by_key)} cells are finished already")
        if waiting:
            with closing(executor or InProcess()) as executor:
                executor.open(out, run)
                _Conductor(waiting, out, run, executor, results, say).conduct()
        return select(results.rows(), by_key)


def claim_workspace(out: Path, anew: bool) -> None:
    """Mark a new or empty folder as that of a bench. Raises `Refused` for any other that is not marked as one.

    What an earlier version left, without a mark, may be continued if all of its rows can be read, and is never removed.
    """
    if not is_workspace(out, _KIND):
        rows = out / RESULTS
        empty = {RESULTS} if rows.is_file() and not rows.stat().st_size else set()
        found = [entry.name for entry in sorted(out.iterdir())] if out.is_dir() else []
        strange = [name for name in found if name not in empty and not _is_lock(name)]
        if strange and (anew or not rows.is_file() or not read_rows(rows)):
            raise Refused(
                f"{out} holds {strange[0]}, and no valid {MARKER} file that says that it is the folder of a bench; "
                "move it, or choose another folder with -o"
            )
        if not strange:
            out.mkdir(parents=True, exist_ok=True)
            mark_workspace(out, _KIND)
    for folder in _KEPT if anew else ():
        foreign = find_foreign_below(out / folder, _is_name_of_bench)
        if foreign:
            raise Refused(f"{out} holds {folder}/{foreign}, which lgzoo did not write; move it, then start over")


def _forget(out: Path) -> None:
    """Remove everything that a bench keeps beside its results, but lock files, on which others may wait."""
    for folder in _KEPT:
        remove_below(out / folder, lambda name: _is_name_of_bench(name) and not _is_lock(name))
    (out / ANCESTRIES).unlink(missing_ok=True)


_KIND = "bench"
_KEPT = (LEARNGENES, PARTS, UNTRAINED, TRAINED, CHECKPOINTS)
_NAMES = re.compile(r"([\w.-]+-)?[0-9a-f]{16}(\.cost)?\.json|(cost|kept|shared|run|holder)\.json|metrics\.jsonl")


def _is_name_of_bench(name: str) -> bool:
    """Whether a bench gives files this name, in a folder that is marked as its own."""
    return _NAMES.fullmatch(name) is not None or _is_lock(name)


def _is_lock(name: str) -> bool:
    return name.endswith(".lock")


class _Conductor:
    """Passes jobs to the executor and their rows to the results file until none is left."""

    def __init__(
        self, cells: Sequence[Cell], out: Path, run: Run, executor: Executor, results: Results, say: Say
    ) -> None:
        self.schedule = Schedule(cells, lambda extraction: is_finished(extraction, out), many=executor.slots > 1)
        self.estimate = TimeLeft(cells, len(self.schedule.waiting), executor.slots)
        self.run, self.executor, self.results, self.say = run, executor, results, say
        self.begun: dict[str, float] = {}  # when, by the key of the job
        todo = self.schedule.waiting
        work = sum(map(_work, cells)) + sum(planned(extraction, run.offline) for extraction in todo)
        jobs = f"{counted(len(cells), 'cell')}, {counted(len(todo), 'extraction')}"
        say(f"to compute: {jobs} ({human_count(round(work))} training images x layers)")

    def conduct(self) -> None:
        """Keep every slot busy."""
        while self._fill():
            job, outcome = self.executor.wait()
            seconds = time.monotonic() - self.begun.pop(job.key)
            if isinstance(job, Extraction):
                self._extracted(job, outcome, seconds)
            else:
                self._finished(job, outcome, seconds)

    def _fill(self) -> bool:
        """Start jobs while there is a slot for one; whether any is running."""
        while len(self.begun) < self.executor.slots and (job := self.schedule.next()):
            if isinstance(job, Extraction):
                self.say(f"extracting {job.arm.method}, seed {job.seed}")
            self.begun[job.key] = time.monotonic()
            self.executor.start(job)
        return bool(self.begun)

    def _extracted(self, extraction: Extraction, outcome: Outcome, seconds: float) -> None:
        self.estimate.extractions.did(1, seconds)
        lost = self.schedule.done(extraction, outcome)
        if isinstance(outcome, Failure):
            for cell in lost:
                self._finished(cell, Failure(f"extraction: {outcome.error}"), None)

    def _finished(self, cell: Cell, outcome: Outcome, seconds: float | None) -> None:
        row = failed(cell, outcome.error, self.run) if isinstance(outcome, Failure) else outcome
        assert isinstance(row, Row)
        self.results.append(row)
        self.estimate.cell(cell, None if row.error else seconds)
        self.say(line(row, self.estimate))


class Schedule:
    """The jobs of a grid, handed out one by one. `is_ready` tells which extractions are finished already.

    If `many` jobs run at once, the extractions, which are longest, come first; otherwise each just before its first cell.
    """

    def __init__(self, cells: Sequence[Cell], is_ready: Callable[[Extraction], bool], many: bool) -> None:
        needed = [cell.extraction for cell in cells]
        todo = {extraction.key: extraction for extraction in needed}
        todo = {key: extraction for key, extraction in todo.items() if not is_ready(extraction)}
        self._awaited = set(todo)
        self._jobs: list[tuple[Job, str]] = []  # each with the extraction that it needs
        for cell, needs in zip(cells, (extraction.key for extraction in needed)):
            first = [*todo] if many else [needs] if needs in todo else []
            self._jobs += [*((todo.pop(key), "") for key in first), (cell, needs)]

    @property
    def waiting(self) -> list[Extraction]:
        """The extractions that have not started."""
        return [job for job, _ in self._jobs if isinstance(job, Extraction)]

    def next(self) -> Job | None:
        """The next job, or None while every remaining cell waits for an extraction."""
        for index, (job, needs) in enumerate(self._jobs):
            if needs not in self._awaited:
                del self._jobs[index]
                return job
        return None

    def done(self, extraction: Extraction, outcome: Outcome) -> list[Cell]:
        """Note that an extraction has ended. If it failed, returns the cells that can never start."""
        self._awaited.discard(extraction.key)
        if not isinstance(outcome, Failure):
            return []
        lost = [job for job, needs in self._jobs if isinstance(job, Cell) and needs == extraction.key]
        self._jobs = [(job, needs) for job, needs in self._jobs if needs != extraction.key]
        return lost


def _work(cell: Cell) -> float:
    """Training images times layers over all epochs; the evaluation counts as one more."""
    return cell.layers * (cell.recipe.epochs + 1) * (cell.recipe.images or 1)


def line(row: Row, time: TimeLeft) -> str:
    """One line for a finished cell."""
    result = f"{row.metric} {100 * row.value:.1f} %" if row.value is not None else f"failed: {row.error}"
    named = f" ({row.size})" if row.size else ""
    size = f"{Size(row.layers, row.width)}{named}, {counted(row.epochs, 'epoch')}, seed {row.seed}"
    left = f"  (about {human_seconds(time.seconds)} left)" if time.seconds and time.done < time.total else ""
    return f"[{time.done}/{time.total}] {row.task}, {size}, {row.arm}: {result}{left}"
