"""Compute the stamp of a task's data, by which later commands on this machine detect changed files
or labels.

The stamp is a digest of the names of all files within the data, their sizes, the labels and the
classes, and contents: all of up to `MAX_READ_WHOLE` bytes; for larger data three pieces of each
file, of at most `MAX_SAMPLED_FILES` files. Neither times nor the path of the folder are included,
so a copy has the same stamp.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from learngene_zoo.errors import BadData, explain_os_error

if TYPE_CHECKING:
    import numpy as np

MAX_READ_WHOLE = 256 * 2**20  # bytes of all files together
MAX_SAMPLED_FILES = 20_000  # files of larger data whose pieces are read, evenly spaced
PIECE = 4096  # bytes at the beginning, in the middle and at the end


@dataclass(frozen=True)
class FileStamp:
    """A callable that returns the stamp of files, computed at the first call.

    Attributes:
        files: the name of each file within the data, and its path.
        facts: returns further content of the stamp, such as labels.
    """

    files: Sequence[tuple[str, str]]
    facts: Callable[[], Iterable[bytes]]

    def __call__(self) -> str:
        return self.digest

    @cached_property
    def digest(self) -> str:
        """The stamp, 32 hexadecimal digits. Raises `BadData` if a file cannot be read."""
        digest = hashlib.sha256()
        for fact in self.facts():
            digest.update(b"%d:" % len(fact) + fact)
        sizes = [_read_size(path) for _, path in self.files]
        is_small = sum(sizes) <= MAX_READ_WHOLE
        step = 1 if is_small else -(-len(sizes) // MAX_SAMPLED_FILES)
        for number, ((name, path), size) in enumerate(zip(self.files, sizes, strict=True)):
            digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            if number % step == 0 and size >= 0:
                digest.update(_read_pieces(path, size, is_small))
        return digest.hexdigest()[:32]


def list_facts(names: Sequence[str], labels: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Yield the classes and the labels of each split as bytes for a stamp."""
    yield "\n".join(names).encode()
    for split, numbers in labels.items():
        yield split.encode()
        yield numbers.astype("<i8").tobytes()


def _read_size(path: str) -> int:
    """Return the size of a file in bytes; -1 for a missing file, a pipe or a device."""
    try:
        facts = os.stat(path)
    except OSError:
        return -1
    return facts.st_size if stat.S_ISREG(facts.st_mode) else -1


def _read_pieces(path: str, size: int, is_small: bool) -> bytes:
    """Return the digest of a file's content, or of three pieces of it."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            if is_small or size <= 3 * PIECE:
                while block := file.read(2**20):
                    digest.update(block)
            else:
                for start in (0, (size - PIECE) // 2, size - PIECE):
                    file.seek(start)
                    digest.update(file.read(PIECE))
    except OSError as error:
        raise BadData(f"{path} cannot be read: {explain_os_error(error)}") from None
    return digest.digest()
