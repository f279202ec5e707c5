"""The stamp of a task's data: a digest by which a later command on this machine sees that files or labels changed.

It covers the names of all files within the data, their sizes, the labels and the classes, and contents: of up to `READ_WHOLE` bytes
everything, of larger data three pieces of each file, of at most `MOST_SAMPLED` files. Neither times nor the folder's own place count, so
a copy has the same stamp.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from learngene_zoo.errors import BadData, explained

if TYPE_CHECKING:
    import numpy as np

    from learngene_zoo.tasks.task import Task

READ_WHOLE = 256 * 2**20  # bytes of all files together
MOST_SAMPLED = 20_000  # files of larger data of which pieces are read, evenly spread
PIECE = 4096  # bytes at the beginning, in the middle and at the end


def stamp_task(task: Task) -> str:
    """Return the stamp of a task's data; "" for data that never changes under its name, as what is built in or pinned.

    Raises `BadData` if a file cannot be read.
    """
    return task.stamp() if task.stamp is not None else ""


def stamp_tasks(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the stamps of those tasks whose data can change, by their names."""
    stamps = {task.name: stamp_task(task) for task in tasks}
    return {name: stamp for name, stamp in stamps.items() if stamp}


@dataclass(frozen=True)
class FileStamp:
    """What computes the stamp of some files when it is called, once.

    files: the name of each file within the data, and where it is. facts: what else changes the data, as the labels.
    """

    files: Sequence[tuple[str, str]]
    facts: Callable[[], Iterable[bytes]]

    def __call__(self) -> str:
        return self.digest

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits. Raises `BadData` if a file cannot be read."""
        digest = hashlib.sha256()
        for fact in self.facts():
            digest.update(b"%d:" % len(fact) + fact)
        sizes = [_size(place) for _, place in self.files]
        is_small = sum(sizes) <= READ_WHOLE
        step = 1 if is_small else -(-len(sizes) // MOST_SAMPLED)
        for number, ((name, place), size) in enumerate(zip(self.files, sizes, strict=True)):
            digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            if number % step == 0 and size >= 0:
                digest.update(_read_pieces(place, size, is_small))
        return digest.hexdigest()[:32]


def list_facts(names: Sequence[str], labels: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Yield the classes and the labels of each split, as a stamp takes them."""
    yield "\n".join(names).encode()
    for split, numbers in labels.items():
        yield split.encode()
        yield numbers.astype("<i8").tobytes()


def _size(place: str) -> int:
    """Return the size of a file in bytes; -1 if there is none, or if it is a pipe or a device."""
    try:
        facts = os.stat(place)
    except OSError:
        return -1
    return facts.st_size if stat.S_ISREG(facts.st_mode) else -1


def _read_pieces(place: str, size: int, is_small: bool) -> bytes:
    """Return the digest of a file's content, or of three pieces of it."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(place, "rb") as file:
            if is_small or size <= 3 * PIECE:
                while block := file.read(2**20):
                    digest.update(block)
            else:
                for start in (0, (size - PIECE) // 2, size - PIECE):
                    file.seek(start)
                    digest.update(file.read(PIECE))
    except OSError as error:
        raise BadData(f"{place} cannot be read: {explained(error)}") from None
    return digest.digest()
