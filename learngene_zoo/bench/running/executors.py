"""Where the jobs of a grid run: in this process, or in several on this machine.

All executors give the same rows: a job's numbers depend on the job alone (and, in their last
digits, on the threads and the device of the run).
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from learngene_zoo.bench.grid.cell import Cell, Extraction
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.bench.running.extraction import ExtractionCost, extract_once
from learngene_zoo.bench.running.trial import run_cell
from learngene_zoo.errors import WrongCall, ZooError
from learngene_zoo.runs.progress import SILENT
from learngene_zoo.runs.run import Run, end_with_parent

Job = Extraction | Cell


@dataclass(frozen=True)
class Failure:
    """The reason why a job ended without a result."""

    error: str


Outcome = Row | ExtractionCost | Failure


def perform(job: Job, out: Path, run: Run) -> Outcome:
    """Run a job and return its outcome.

    An exception becomes a `Failure` of one line, so that the other jobs go on. Only an interruption
    is raised.
    """
    try:
        return run_cell(job, out, run) if isinstance(job, Cell) else extract_once(job, out, run)[1]
    except Exception as error:  # no fault of one method must end the grid
        text = " ".join(str(error).split())
        return Failure(text if isinstance(error, ZooError) else f"{type(error).__name__}: {text}")


class Executor(ABC):
    """Runs jobs, `slots` at once."""

    slots = 1

    def open(self, out: Path, run: Run) -> None:
        """Prepare for the jobs of a grid whose results are in `out`."""
        self._out, self._run = out, run

    @abstractmethod
    def start(self, job: Job) -> None:
        """Start a job. Never called while `slots` jobs are running."""

    @abstractmethod
    def wait(self) -> tuple[Job, Outcome]:
        """Wait for the next job that ends, and return it with its outcome."""

    def close(self) -> None:
        """Stop all jobs that are still running."""
        return


class InProcess(Executor):
    """One job after the other, in this process."""

    def start(self, job: Job) -> None:
        """Keep the job; `wait` runs it."""
        self._job = job

    def wait(self) -> tuple[Job, Outcome]:
        """Run the job and return it with its outcome."""
        return self._job, perform(self._job, self._out, self._run)


class Workers(Executor):
    """`count` processes on this machine, each with one thread unless the run names more.

    If one dies (out of memory, a crash), its job has failed and another process takes its place.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise WrongCall(f"expected at least 1 worker, got {count}")
        self.slots = count
        self._idle: list[Worker] = []
        self._busy: dict[Worker, Job] = {}

    def start(self, job: Job) -> None:
        """Send the job to an idle process."""
        worker = self._idle.pop() if self._idle else Worker(self._out, self._run)
        self._busy[worker] = job
        with suppress(OSError):  # it died meanwhile; `wait` reports that
            worker.answers.send(job)

    def wait(self) -> tuple[Job, Outcome]:
        """Wait for the first answer or the first death: both make a connection readable."""
        ready = wait([worker.answers for worker in self._busy])
        worker = next(worker for worker in self._busy if worker.answers in ready)
        job, outcome = self._busy.pop(worker), receive_message(worker.answers)
        if outcome is None:
            return job, worker.explain_death()
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


PATIENCE = 5.0  # seconds that a process has to end by itself


class Worker:
    """A child process that runs jobs. It ends by itself when its parent is gone."""

    def __init__(self, out: Path, run: Run) -> None:
        # A forked child would inherit torch's thread pools in an unusable state.
        context = multiprocessing.get_context("spawn")
        self.answers, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, out, run, SILENT.is_set()), daemon=True
        )
        with _hold_interrupts():
            self.process.start()
        theirs.close()  # else its death would leave our end open

    def explain_death(self) -> Failure:
        """Return the reason why there is no answer."""
        self.process.join(PATIENCE)
        code = self.process.exitcode
        if code is not None and code < 0:
            return Failure(
                f"the worker process was killed by signal {-code}; if memory ran out, use fewer "
                "--workers"
            )
        how = (
            "does not answer any more"
            if code is None
            else f"was told to end, or ended by itself (code {code})"
        )
        return Failure(f"the worker process {how}; give the same command again")

    def stop(self, idle: bool) -> None:
        """End the process, even while it runs a job.

        An `idle` one ends by itself once its connection is closed.
        """
        self.answers.close()
        if idle:
            self.process.join(PATIENCE)
        self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Block Ctrl-C within; a process that is started meanwhile never receives it.

    So a process that is still importing prints no traceback: its parent ends it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(jobs: Connection, out: Path, run: Run, is_quiet: bool) -> None:
    """Run the jobs that arrive until the connection is closed.

    Args:
        jobs: the connection.
        out: the folder of the grid's results.
        run: how to compute.
        is_quiet: print no progress, as the parent.
    """
    # Ctrl-C reaches all processes: the parent decides what it means and ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _unwind)
    end_with_parent()
    multiprocessing.current_process().daemon = False  # so that it can have data loading processes
    if is_quiet:
        SILENT.set()
    with suppress(OSError):
        while (job := receive_message(jobs)) is not None:
            jobs.send(perform(job, out, run))


def _unwind(number: int, frame: object) -> None:
    """Exit, so that the cost so far is still recorded.

    `timeout` and schedulers send a second signal meanwhile, which is ignored.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def receive_message(connection: Connection) -> Any:
    """Return the next message, or None once the other end is gone."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None
