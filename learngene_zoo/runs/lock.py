"""Lock files that are removed after use, and that two processes never hold at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock


@contextmanager
def hold_lock(path: Path) -> Iterator[bool]:
    """Yield whether this process holds the lock, taken without waiting.

    Its folder is created, and removed if it ends up empty. The holder removes the file before it
    releases the lock. Another process may have opened that file meanwhile and lock it then, while a
    third one creates and locks a new file of the same name. So a lock counts only if it is on the
    file that has the name.
    """
    lock = _take_lock(path)
    if lock is None:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):  # where a file that is open cannot be removed, it stays
            path.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            path.parent.rmdir()


def _take_lock(path: Path) -> BaseFileLock | None:
    from filelock import FileLock, Timeout

    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except FileNotFoundError:  # the folder was removed between the two lines
            continue
        except Timeout:
            return None
        if _is_at(lock, path):
            return lock
        lock.release()


def _is_at(lock: BaseFileLock, path: Path) -> bool:
    """Return whether the file that a lock holds is the one at its path."""
    descriptor = lock._context.lock_file_fd
    try:
        return descriptor is None or os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
