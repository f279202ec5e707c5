"""SIGINT and SIGTERM: a command ends after its step, with its checkpoint."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

# Exit codes that a shell gives to a process that SIGINT or SIGTERM ended.
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


@contextmanager
def handle_interrupts() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the first Ctrl-C within, and end the process at the second.

    SIGTERM, which schedulers send before they kill a process, acts as one Ctrl-C, but not in
    processes of torchrun, which ends them itself. Yields the list of the signals that arrived.
    Unfinished output stays a draft, which the next call removes.
    """
    arrived: list[int] = []
    process = os.getpid()

    def interrupt(number: int, frame: object) -> None:
        arrived.append(number)
        if arrived.count(number) > 1:
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    def terminate(number: int, frame: object) -> None:
        if os.getpid() != process:  # one that was forked, such as a loader's
            os._exit(TERMINATED)
        if number not in arrived:  # `timeout` sends two
            arrived.append(number)
            signal.raise_signal(signal.SIGINT)

    # Leave the signal alone in a program that ignores or handles it, and in a thread.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield arrived
        return
    try:
        signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not in the main thread
        yield arrived
        return
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    handles_sigterm = is_default and "WORLD_SIZE" not in os.environ
    if handles_sigterm:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield arrived
    finally:
        if handles_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not arrived:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def end_now(code: int) -> NoReturn:
    """Run the registered exit functions, then end the process with this code.

    Python ends some interrupted processes by a signal instead, and prints tracebacks while it tears
    down.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
