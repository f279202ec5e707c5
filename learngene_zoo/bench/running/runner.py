"""From a grid to its results file: skip finished cells, record failed ones, run the others.

A cell waits for its extraction, and fails with it. The time left is estimated from the jobs that
are finished.
"""

import multiprocessing
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from learngene_zoo.atomic import check_folder, remove_drafts_in
from learngene_zoo.bench.grid.cell import LEARNGENES, Cell, Extraction, Size
from learngene_zoo.bench.results.rows import RESULTS, Results, Row, read_rows, select
from learngene_zoo.bench.running.computation import COMPUTATION, check_same_computation
from learngene_zoo.bench.running.executors import Executor, Failure, InProcess, Job, Outcome
from learngene_zoo.bench.running.extraction import (
    ANCESTRIES,
    PARTS,
    TOKEN,
    check_same_ancestries,
    estimate_work,
    is_finished,
)
from learngene_zoo.bench.running.trial import CHECKPOINTS, TRAINED, UNTRAINED, make_failed_row
from learngene_zoo.errors import Refused, WrongCall
from learngene_zoo.ownership import (
    MARKER,
    find_foreign_below,
    is_workspace,
    mark_workspace,
    remove_below,
)
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run, get_world_size
from learngene_zoo.settings import Recipe
from learngene_zoo.text import count_noun, format_count, format_seconds

Say = Callable[[str], None]


class Pace:
    """An estimate of the seconds of the remaining work, at the speed so far.

    `left` is in any unit.
    """

    def __init__(self, left: float) -> None:
        self.left, self.measured, self.spent = left, 0.0, 0.0

    def record(self, work: float, seconds: float | None) -> None:
        """Record that some work has ended.

        `seconds` is None if it failed or never started; it is then ignored in the estimate.
        """
        self.left -= work
        if seconds is not None:
            self.measured += work
            self.spent += seconds

    @property
    def seconds(self) -> float:
        """Return the seconds of the remaining work; 0 before anything is measured."""
        return self.left * self.spent / self.measured if self.measured else 0.0


class TimeLeft:
    """The time left, from the wall seconds of the finished jobs; `slots` jobs run at once."""

    def __init__(self, cells: Sequence[Cell], extractions: int, slots: int) -> None:
        self.total, self.done, self.slots = len(cells), 0, slots
        self.cells, self.extractions = Pace(sum(map(_count_work, cells))), Pace(extractions)

    def record_cell(self, cell: Cell, seconds: float | None) -> None:
        """Record that a cell has ended."""
        self.done += 1
        self.cells.record(_count_work(cell), seconds)

    @property
    def seconds(self) -> float | None:
        """Return the seconds left; None before a job of each remaining kind is finished."""
        if not self.cells.measured and self.done < self.total:
            return None
        if not self.extractions.measured and self.extractions.left:
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
    """Return the row of every cell, in the order of the cells.

    Cells that are finished in `out` are not computed again. A cell that fails leaves a row with its
    error and is retried by the next call.

    Args:
        cells: the cells of the grid.
        out: the bench's folder.
        run: how to compute, without its seed and folder; with `run.resume` an interrupted training
            continues from its last checkpoint, else it starts again.
        executor: where the jobs run; None for this process.
        say: receives one line per cell, with an estimate of the time left.
        anew: whether all results in `out` are deleted first.
        begin: called once `out` is locked.

    Raises:
        Refused: another process writes into `out`, its results come from another ancestry model or
            precision, or it holds other files.
        WrongCall: the process was started by torchrun, or is a worker that imports the program.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise WrongCall(
            "run_grid is called while a worker process imports this program; put the call under "
            'if __name__ == "__main__":'
        )
    if get_world_size() > 1:
        raise WrongCall(
            "lgzoo bench runs in parallel with --workers or --ray; start it without torchrun"
        )
    check_folder(out)
    claim_workspace(out, anew)
    run = replace(run, folder=None, progress=False, lines=False, threads=run.threads or 1)
    with Results(out / RESULTS, anew) as results:
        if anew:
            _remove_results(out)
        for folder in (out, *(out / name for name in (LEARNGENES, UNTRAINED, TRAINED))):
            remove_drafts_in(folder)
        if results.repaired:
            say(results.repaired)
        check_same_ancestries(cells, out, run)
        check_same_computation(out, run, has_results=bool(results.finished), say=say)
        begin()
        by_key = {cell.key: cell for cell in cells}
        codes = {cell.arm.method: cell.code for cell in cells}
        for method in _list_changed(results.rows(), codes):
            say(f"the code of {method} has changed since earlier cells, which are computed again")
        waiting = [cell for key, cell in by_key.items() if key not in results.finished]
        if len(waiting) < len(by_key):
            say(f"{len(by_key) - len(waiting)} of {len(by_key)} cells are finished already")
        if waiting:
            with closing(executor or InProcess()) as executor:
                executor.open(out, run)
                _Conductor(waiting, out, run, executor, results, say).conduct()
        return select(results.rows(), by_key)


def _list_changed(rows: Iterable[Row], codes: Mapping[str, str]) -> list[str]:
    """Return the methods whose rows all were measured with other code than the current one."""
    measured: dict[str, set[str]] = {}
    for row in rows:
        measured.setdefault(row.method, set()).add(row.code)
    return [name for name, code in codes.items() if name in measured and code not in measured[name]]


def claim_workspace(out: Path, anew: bool) -> None:
    """Mark a new or empty folder as that of a bench.

    A bench of an earlier version, without a mark, may be continued if all of its rows can be read,
    and is never removed.

    Raises:
        Refused: the folder holds other files.
    """
    if not is_workspace(out, _KIND):
        rows = out / RESULTS
        empty = {RESULTS} if rows.is_file() and not rows.stat().st_size else set()
        entries = [entry.name for entry in sorted(out.iterdir())] if out.is_dir() else []
        strange = [name for name in entries if name not in empty and not _is_lock(name)]
        if strange and (anew or not rows.is_file() or not read_rows(rows)):
            raise Refused(
                f"{out} holds {strange[0]}, and no valid {MARKER} file that says that it is the "
                "folder of a bench; "
                "move it, or choose another folder with -o"
            )
        if not strange:
            out.mkdir(parents=True, exist_ok=True)
            mark_workspace(out, _KIND)
    for folder in _FOLDERS if anew else ():
        is_link = (out / folder).is_symlink()
        foreign = "" if is_link else find_foreign_below(out / folder, _is_name_of_bench)
        if is_link or foreign:
            name = f"{folder}/{foreign}" if foreign else folder
            raise Refused(
                f"{out} holds {name}, which lgzoo did not write; move it, then start over"
            )


def _remove_results(out: Path) -> None:
    """Remove everything that a bench keeps beside its results, except lock files.

    Other processes may wait for a lock file.
    """
    for folder in _FOLDERS:
        remove_below(out / folder, lambda name: _is_name_of_bench(name) and not _is_lock(name))
    for name in (ANCESTRIES, COMPUTATION, TOKEN):
        (out / name).unlink(missing_ok=True)


_KIND = "bench"
_FOLDERS = (LEARNGENES, PARTS, UNTRAINED, TRAINED, CHECKPOINTS)
_NAMES = re.compile(
    r"([\w.-]+-)?[0-9a-f]{16}(\.cost)?\.json|(cost|kept|shared|run|holder)\.json|metrics\.jsonl"
)


def _is_name_of_bench(name: str) -> bool:
    """Return whether a bench gives files this name, in a folder with its mark."""
    return _NAMES.fullmatch(name) is not None or _is_lock(name)


def _is_lock(name: str) -> bool:
    return name.endswith(".lock")


class _Conductor:
    """Passes jobs to the executor and their rows to the results file until none is left."""

    def __init__(
        self,
        cells: Sequence[Cell],
        out: Path,
        run: Run,
        executor: Executor,
        results: Results,
        say: Say,
    ) -> None:
        self.schedule = Schedule(
            cells, lambda extraction: is_finished(extraction, out), slots=executor.slots
        )
        self.estimate = TimeLeft(cells, len(self.schedule.unstarted_extractions), executor.slots)
        self.run, self.executor, self.results, self.say = run, executor, results, say
        self.running: dict[str, tuple[Job, float]] = {}  # and when they began, by their keys
        todo = self.schedule.unstarted_extractions
        work = sum(map(_count_work, cells)) + sum(
            estimate_work(extraction, run.offline) for extraction in todo
        )
        jobs = f"{count_noun(len(cells), 'cell')}, {count_noun(len(todo), 'extraction')}"
        phase = " for tuning" if all(map(is_tuning, cells)) else ""
        say(f"to compute{phase}: {jobs} ({format_count(round(work))} training images x layers)")

    def conduct(self) -> None:
        """Keep every slot busy until all jobs have ended."""
        with report_activity("cells", self.estimate.total) as activity:
            while self._fill():
                activity.num_done = self.estimate.done
                activity.note = describe_jobs([job for job, _ in self.running.values()])
                job, outcome = self.executor.wait()
                seconds = time.monotonic() - self.running.pop(job.key)[1]
                if isinstance(job, Extraction):
                    self._record_extraction(job, outcome, seconds)
                else:
                    self._record_cell(job, outcome, seconds)

    def _fill(self) -> bool:
        """Start jobs while there is a slot for one, and return whether any is running."""
        while len(self.running) < self.executor.slots and (job := self.schedule.next()):
            if isinstance(job, Extraction):
                self.say(describe_jobs([job]))
            self.running[job.key] = job, time.monotonic()
            self.executor.start(job)
        return bool(self.running)

    def _record_extraction(self, extraction: Extraction, outcome: Outcome, seconds: float) -> None:
        self.estimate.extractions.record(1, seconds)
        lost = self.schedule.finish_extraction(extraction, outcome)
        if isinstance(outcome, Failure):
            for cell in lost:
                self._record_cell(cell, Failure(f"extraction: {outcome.error}"), None)

    def _record_cell(self, cell: Cell, outcome: Outcome, seconds: float | None) -> None:
        row = (
            make_failed_row(cell, outcome.error, self.run)
            if isinstance(outcome, Failure)
            else outcome
        )
        assert isinstance(row, Row)
        self.results.append(row)
        self.estimate.record_cell(cell, None if row.error else seconds)
        self.say(format_progress(row, self.estimate, cell.recipe if is_tuning(cell) else None))


class Schedule:
    """The jobs of a grid, in the order in which they are started.

    Cells whose extraction is finished come before further extractions, so that results and an
    estimate of the time come early. Only the last extractions, fewer than `slots` jobs run at once,
    come before them: they are the longest jobs, and no slot shall be idle while they run.

    Args:
        cells: the cells of the grid.
        is_ready: returns whether an extraction is finished already.
        slots: the number of jobs that run at once.
    """

    def __init__(
        self, cells: Sequence[Cell], is_ready: Callable[[Extraction], bool], slots: int
    ) -> None:
        needed = [cell.extraction for cell in cells]
        todo = {extraction.key: extraction for extraction in needed}
        todo = {key: extraction for key, extraction in todo.items() if not is_ready(extraction)}
        self._awaited = set(todo)
        self._slots = slots
        self._extractions = [*todo.values()]  # that have not started
        self._cells = [(cell, each.key) for cell, each in zip(cells, needed)]

    @property
    def unstarted_extractions(self) -> list[Extraction]:
        """Return the extractions that have not started."""
        return [*self._extractions]

    def next(self) -> Job | None:
        """Return the next job, or None while every remaining cell waits for an extraction."""
        if 0 < len(self._extractions) < self._slots:
            return self._extractions.pop(0)
        for index, (cell, needs) in enumerate(self._cells):
            if needs not in self._awaited:
                del self._cells[index]
                return cell
        return self._extractions.pop(0) if self._extractions else None

    def finish_extraction(self, extraction: Extraction, outcome: Outcome) -> list[Cell]:
        """Record that an extraction has ended, and return the cells that can never start.

        There are such cells if it failed.
        """
        self._awaited.discard(extraction.key)
        if not isinstance(outcome, Failure):
            return []
        lost = [cell for cell, needs in self._cells if needs == extraction.key]
        self._cells = [(cell, needs) for cell, needs in self._cells if needs != extraction.key]
        return lost


def _count_work(cell: Cell) -> float:
    """Return training images times layers over all epochs; the evaluation counts as one more."""
    return cell.layers * (cell.recipe.epochs + 1) * (cell.recipe.images or 1)


def describe_jobs(jobs: Sequence[Job]) -> str:
    """Describe the first of the running jobs, and give the number of the others."""
    job = jobs[0]
    first = (
        f"{job.arm.name} on {job.task}"
        if isinstance(job, Cell)
        else f"extracting {job.arm.method}, seed {job.seed}"
    )
    return f"{first} and {len(jobs) - 1} more" if len(jobs) > 1 else first


def is_tuning(cell: Cell) -> bool:
    """Return whether a cell serves to choose a rate or an augmentation."""
    return cell.split == "validation" and not cell.look and cell.recipe.epochs > 0


def format_progress(row: Row, time: TimeLeft, tried: Recipe | None = None) -> str:
    """Return one line for a finished cell, with the settings that it tries."""
    result = (
        f"{row.metric} {100 * row.value:.1f} %" if row.value is not None else f"failed: {row.error}"
    )
    settings = f", lr {tried.lr:g}, augmentation {tried.augment}" if tried else ""
    size_name = f" ({row.size})" if row.size else ""
    size = (
        f"{Size(row.layers, row.width)}{size_name}, {count_noun(row.epochs, 'epoch')}, seed "
        f"{row.seed}"
    )
    left = (
        f"  (about {format_seconds(time.seconds)} left)"
        if time.seconds and time.done < time.total
        else ""
    )
    return f"[{time.done}/{time.total}] {row.task}, {size}, {row.arm}{settings}: {result}{left}"
