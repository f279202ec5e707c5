"""One process that does jobs for another, and how that one speaks to it. Cold."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from pathlib import Path

from learngene_zoo.bench.jobs import Failure, Job, Outcome, perform
from learngene_zoo.run import Run

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
