"""Where the jobs of a grid are done: in this process, or in several on this machine. Cold.

All executors give the same rows: a job's numbers depend on the job alone (and, in their last digits, on the threads and
the device that `run` names).
"""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType

from learngene_zoo.bench.cell import Cell
from learngene_zoo.bench.jobs import Failure, Job, Outcome, perform
from learngene_zoo.bench.trial import failed
from learngene_zoo.bench.worker import Worker
from learngene_zoo.errors import WrongCall
from learngene_zoo.run import Run


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
