"""Ctrl-C during a training: the step that is being taken is finished and saved before the training
ends.
"""

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
    """Remember the first Ctrl-C until the body of the `with` asks for it; the second one acts at
    once.

    Nothing changes where interrupts are ignored, end the process, or go to another thread.

    Args:
        is_wanted: False leaves Ctrl-C as it is.
        is_announced: print on stderr that the first one arrived, and what happens next.

    Yields:
        A function that returns whether there was one.

    Raises:
        KeyboardInterrupt: at the end of the body, if one arrived.
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
            # Print may have been interrupted itself, and cannot be entered twice
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
        if arrived:  # it arrived in the last step, or the training was ended early
            raise KeyboardInterrupt
