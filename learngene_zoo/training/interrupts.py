"""Handle Ctrl-C during a training: complete and save the current step, then stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

MESSAGE = "\ninterrupted: saving after this step; press Ctrl-C again to stop at once\n"


@contextmanager
def defer_interrupts(is_wanted: bool, is_announced: bool = False) -> Iterator[Callable[[], bool]]:
    """Defer the first Ctrl-C in the body of the `with`; a second one acts immediately.

    Nothing changes if interrupts are ignored, end the process, or go to another thread.

    Args:
        is_wanted: False leaves the handling of Ctrl-C unchanged.
        is_announced: print on stderr that the first Ctrl-C arrived, and what happens next.

    Yields:
        A function that returns whether a Ctrl-C arrived.

    Raises:
        KeyboardInterrupt: at the end of the body, if a Ctrl-C arrived.
    """
    arrived: list[int] = []
    previous = signal.getsignal(signal.SIGINT)

    def remember(number: int, frame: FrameType | None) -> None:
        if arrived and callable(previous):
            arrived.clear()
            signal.signal(signal.SIGINT, previous)
            previous(number, frame)
            return
        arrived.append(number)
        if is_announced:
            # Not `print`: the interrupt may have arrived within it, and it is not reentrant.
            os.write(2, MESSAGE.encode())

    if (
        not is_wanted
        or not callable(previous)
        or threading.current_thread() is not threading.main_thread()
    ):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(arrived)
    except KeyboardInterrupt:
        arrived.clear()
        raise
    finally:
        signal.signal(signal.SIGINT, previous)
        if arrived:  # in the last step, or before an early end of the training
            raise KeyboardInterrupt
