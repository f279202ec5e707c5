"""Where the jobs of a grid are done: in this process, or in several on this machine. Cold.

All executors give the same rows: a job's numbers depend on the job alone (and, in their last digits, on the threads and
the device that `run` names).

Jobs: what an executor is given to do, and what comes back. Cold.

One process that does jobs for another, and how that one speaks to it. Cold.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from pathlib import Path
from types import TracebackType

from learngene_zoo.bench.cell import Cell, Row
from learngene_zoo.bench.extraction import Extraction, Spent, extract_once
from learngene_zoo.bench.trial import failed, reason, run_cell
from learngene_zoo.errors import WrongCall
from learngene_zoo.runs.run import Run


class Executor(ABC):
    """Does jobs, `slots` at once. Used as a context: what still runs on leaving is stopped."""

    slots = 1

    @abstractmethod
    def open(self, out: Path, run: Run) -> None:
        """Be ready for jobs of a grid whose results lie in `out`."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Begin a job. Never called with `slots` jobs under way."""

    @abstractmethod
    def wait(self) -> tuple[Job, Outcome]:
        """The next job that is over."""

    @abstractmethod
    def close(self) -> None:
        """Stop what still runs."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class InProcess(Executor):
    """One job after the other, here."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def open(self, out: Path, run: Run) -> None:
        """Nothing is needed."""
        self._out, self._run = out, run

    def start(self, job: Job) -> None:
        """It is done when it is waited for."""
        self._jobs.append(job)

    def wait(self) -> tuple[Job, Outcome]:
        """Do the job."""
        job = self._jobs.popleft()
        return job, perform(job, self._out, self._run)

    def close(self) -> None:
        """Nothing runs between two jobs."""
        self._jobs.clear()


class Workers(Executor):
    """So many processes on this machine, each with one thread unless the run names more.

    One that dies (of memory, of a crash) costs the job it was at; another takes its place.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise WrongCall(f"{count} workers can do nothing; use at least 1")
        self.slots = count
        self._context = multiprocessing.get_context("spawn")  # forked, a child would inherit torch's threads half-dead
        self._idle: list[Worker] = []
        self._busy: dict[Worker, Job] = {}

    def open(self, out: Path, run: Run) -> None:
        """Processes are begun when there is a job for them."""
        self._out, self._run = out, replace(run, threads=run.threads or 1)

    def start(self, job: Job) -> None:
        """Send it to a process that has nothing to do."""
        worker = self._idle.pop() if self._idle else Worker(self._context, self._out, self._run)
        self._busy[worker] = job
        worker.send(job)

    def wait(self) -> tuple[Job, Outcome]:
        """The first answer, or the first death: both can be read off the connection."""
        ready = wait([worker.answers for worker in self._busy])
        worker = next(worker for worker in self._busy if worker.answers in ready)
        job, outcome = self._busy.pop(worker), worker.answer()
        if outcome is None:
            return job, _lost(job, worker.death(), self._run)
        self._idle.append(worker)
        return job, outcome

    def close(self) -> None:
        """End every process."""
        for worker in self._busy:
            worker.stop(idle=False)
        for worker in self._idle:
            worker.stop(idle=True)
        self._idle.clear()
        self._busy.clear()


def _lost(job: Job, failure: Failure, run: Run) -> Outcome:
    """What is left of a job whose process is gone."""
    return failed(job, failure.error, run) if isinstance(job, Cell) else failure


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


PATIENCE = 5.0  # seconds that a process gets to end after it was asked to


class Worker:
    """A process of its own. It ends by itself when the one that began it is gone."""

    def __init__(self, context: SpawnContext, out: Path, run: Run) -> None:
        self.answers, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, out, run), daemon=True)
        self.process.start()
        theirs.close()  # else its death would leave our end open

    def send(self, job: Job) -> None:
        """Give it a job. One that is dead by now says so when it is asked for the answer."""
        try:
            self.answers.send(job)
        except OSError:
            self.process.join(PATIENCE)

    def answer(self) -> Outcome | None:
        """The outcome of its job; None if it died over it."""
        try:
            outcome: Outcome = self.answers.recv()
        except (EOFError, OSError):
            return None
        return outcome

    def death(self) -> Failure:
        """Why there was no answer."""
        self.process.join(PATIENCE)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return Failure(f"the worker process {how}; if memory ran out, use fewer --workers")

    def stop(self, idle: bool) -> None:
        """End it, whatever it is at. One that is `idle` ends by itself as no more jobs can come."""
        self.answers.close()
        if idle:
            self.process.join(PATIENCE)
        self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def serve(jobs: Connection, out: Path, run: Run) -> None:
    """Do what comes, until nothing more can come."""
    # An interruption at the keyboard reaches all processes: the first decides what it means, and ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that what was spent is still written down
    multiprocessing.current_process().daemon = False  # so that it may have processes that load images
    while True:
        try:
            job: Job = jobs.recv()
        except (EOFError, OSError):
            return
        outcome = perform(job, out, run)
        try:
            jobs.send(outcome)
        except OSError:
            return
