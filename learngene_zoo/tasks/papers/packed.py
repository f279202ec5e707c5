"""Images in a tar file that stays packed: where each begins is read once, then each is read from there."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from learngene_zoo.errors import BadData


@dataclass(frozen=True)
class Packed:
    """Members of a tar file, one a row: their names, and where their bytes begin and how many there are."""

    tar: str
    names: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.names)

    def image(self, row: int) -> bytes:
        """The member's bytes."""
        start, size = self.spans[row]
        with open(self.tar, "rb") as file:
            file.seek(start)
            return file.read(size)

    def where(self, row: int) -> str:
        """The tar file and the member."""
        return f"{self.tar}:{self.names[row]}"


def spans(tar: Path) -> dict[str, tuple[int, int]]:
    """Where the bytes of every plain file in an uncompressed tar begin, and how many they are. Raises `BadData`."""
    return _spans(tar, tar.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _spans(tar: Path, changed: int) -> dict[str, tuple[int, int]]:
    """The same, of a tar file last `changed` then: two splits lie in one, and reading a million headers takes minutes."""
    found = {}
    try:
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                if member.isreg():
                    found[member.name.removeprefix("./")] = (member.offset_data, member.size)
    except (tarfile.TarError, OSError, EOFError) as error:
        reason = " ".join(str(error).split())[:120]
        raise BadData(f"{tar} cannot be read as a tar file ({reason}); fetch it anew") from None
    return found
