"""Let one of several processes work while the others wait, and say what they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from learngene_zoo.runs.progress import report_activity


@contextmanager
def wait_for_lock(path: Path, work: str) -> Iterator[None]:
    """Wait for the lock of a file, and hold it. Lines of progress name what another holder does.

    Args:
        path: the file of the lock, made if it does not exist.
        work: what the holder does, as "extracting lsamd".
    """
    from filelock import FileLock

    lock = FileLock(path)
    with report_activity(f"waiting for another process ({work})"):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
