"""The files in a tar archive, one after the other, from anything that can be read forwards. Nothing is unpacked.

The standard library's reader takes a damaged header for the archive's end, and a data set would silently be smaller. This
one goes by the same header parser and raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from tarfile import BLOCKSIZE, HeaderError, TarInfo
from typing import Protocol

from learngene_zoo.errors import BadData

CHUNK = 2**20
MOST_EXTENSION = 2**20  # bytes of a header that only holds a long name
LONG_NAME, PAX, GLOBAL_PAX, FOLDER = b"L", b"x", b"g", b"5"
FILES = (b"0", b"\0", b"7")


class Readable(Protocol):
    """What an archive is read from."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; fewer only at the end."""

    def seekable(self) -> bool:
        """Whether `seek` works."""

    def seek(self, offset: int, whence: int, /) -> int:
        """Go elsewhere."""

    def close(self) -> None:
        """Give it back."""


@dataclass
class Member:
    """A file in an archive. Its bytes can be read once, before the next member is asked for."""

    name: str
    size: int
    archive: Archive
    unread: int = field(init=False)

    def __post_init__(self) -> None:
        self.unread = -(-self.size // BLOCKSIZE) * BLOCKSIZE

    def read(self) -> bytes:
        """Its bytes. Raises `BadData` if the archive ends before."""
        data = self.archive.exactly(self.unread, self.name)
        self.unread = 0
        return data[: self.size]


@dataclass
class Archive:
    """An open archive and the name it has in errors."""

    file: Readable
    name: str

    def __iter__(self) -> Iterator[Member]:
        """Its files. Raises `BadData` for an archive that is cut short or damaged, and for a link."""
        name, size, before = "", None, "its beginning"
        while (header := self._header(before)) is not None:
            member = Member(name or header.name, header.size if size is None else size, self)
            before = member.name
            if header.type in (LONG_NAME, PAX):
                name, size = self._extension(header, member, name, size)
                continue
            if header.type in FILES:
                yield member
            elif header.type not in (FOLDER, GLOBAL_PAX):
                raise BadData(f"{self.name}: {member.name} is a link or a device; put the file itself there")
            self._skip(member.unread, member.name)
            name, size = "", None

    def _header(self, before: str) -> TarInfo | None:
        block = self.file.read(BLOCKSIZE)
        if len(block) == BLOCKSIZE and not any(block):
            return None
        try:
            return TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except HeaderError as error:
            what = "is cut short" if len(block) < BLOCKSIZE else f"is damaged ({error})"
            raise BadData(f"{self.name} {what} after {before}; fetch or write it anew") from None

    def _extension(self, header: TarInfo, member: Member, name: str, size: int | None) -> tuple[str, int | None]:
        """The name and size that a header of its own gives to the next file."""
        if header.size > MOST_EXTENSION:
            raise BadData(f"{self.name} is damaged: the name of a file is {header.size} bytes long; write it anew")
        data = Member(header.name, header.size, self).read()
        if header.type == LONG_NAME:
            return data.rstrip(b"\0").decode("utf-8", "surrogateescape"), size
        try:
            told = dict(_records(data))
            return told.get("path", name), int(told["size"]) if "size" in told else size
        except ValueError:
            raise BadData(f"{self.name} is damaged in the header of {member.name}; write it anew") from None

    def _skip(self, count: int, name: str) -> None:
        if count and self.file.seekable():
            self.file.seek(count, 1)  # past the end of an archive cut short, where no header can be read
            return
        while count:
            count -= len(self.exactly(min(count, CHUNK), name))

    def exactly(self, count: int, name: str) -> bytes:
        """The next bytes. Raises `BadData` if there are fewer."""
        data = self.file.read(count)
        if len(data) < count:
            raise BadData(f"{self.name} is cut short in {name}; fetch or write it anew")
        return data


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """The "length key=value" lines of a pax header."""
    while data:
        length = int(data.split(b" ", 1)[0])
        if not 0 < length <= len(data):
            raise ValueError("a record longer than its header")
        key, _, value = data[:length].split(b" ", 1)[1].rstrip(b"\n").partition(b"=")
        yield key.decode(), value.decode("utf-8", "surrogateescape")
        data = data[length:]
