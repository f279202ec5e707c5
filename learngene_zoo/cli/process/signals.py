"""SIGINT and SIGTERM: a command ends after its step, with its checkpoint."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

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

    def interrupt(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        if arrived.count(number) > 1:
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # one that was forked, such as a loader's
            os._exit(TERMINATED)
        if number not in arrived:  # `timeout` sends two
            arrived.append(number)
            handle: Any = signal.getsignal(signal.SIGINT)  # a training's, if one is running
            handle(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    handles_sigterm = is_default and "WORLD_SIZE" not in os.environ
    # Leave the signal alone in a program that handles it. One that is ignored, as in the background
    # of a script, stays without effect: it is blocked while a handler for SIGTERM is needed.
    if is_ignored and handles_sigterm and hasattr(signal, "pthread_sigmask"):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before = None
    else:
        yield arrived
        return
    signal.signal(signal.SIGINT, interrupt)
    if handles_sigterm:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield arrived
    finally:
        if handles_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if before is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        elif not arrived:
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
