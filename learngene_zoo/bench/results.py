"""`results.jsonl`: what every cell of a grid left, one line each; only ever appended to. Cold.

A line is on disk before `append` returns. A kill can cut the last one short: then it is moved to `results.jsonl.broken` when
the file is next opened, and its cell is computed again. One process at a time may write; the lock of a process that died is
free at once, because the operating system holds it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO

from learngene_zoo.bench.cell import Row
from learngene_zoo.errors import BadFile, Refused, Unavailable
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.storage import nearest_parent

RESULTS = "results.jsonl"


class Results:
    """The results file at `path`, open for appending; made if there is none, and emptied first if it is begun `anew`.

    `repaired` says in one line what was done to a half-written last line, if there was one. Raises `BadFile` for a line that
    cannot be read before the last, `Refused` while another process writes.
    """

    def __init__(self, path: Path, anew: bool = False) -> None:
        from filelock import FileLock, Timeout

        self.path = path
        try:
            nearest_parent(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path.with_name(path.name + ".lock"))
            self._lock.acquire(timeout=0)
        except Timeout:
            raise Refused(f"another process is writing {path}; wait for it, or choose another place with -o") from None
        except OSError as error:
            raise Unavailable(f"{path} cannot be written: {error.strerror or error}") from error
        try:
            if anew:
                path.unlink(missing_ok=True)
            self.repaired = _repair(path)
            self._rows = {row.key: row for row in read_rows(path)}
            self._file: IO[bytes] = path.open("ab", buffering=0)
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rows(self) -> list[Row]:
        """The newest row of every cell, in the order in which cells were first begun."""
        return list(self._rows.values())

    @property
    def finished(self) -> frozenset[str]:
        """The keys of the cells that need not be computed again. One that failed is tried again."""
        return frozenset(key for key, row in self._rows.items() if row.error is None)

    def append(self, row: Row) -> None:
        """Write one row; it is on disk when this returns. Raises `Unavailable` if it cannot be written whole."""
        line = json.dumps(to_json(row), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        size = self._file.seek(0, os.SEEK_END)
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(size)
            raise Unavailable(f"{self.path} could not be written: {error.strerror or error}") from error
        self._rows[row.key] = row

    def close(self) -> None:
        """Let others write."""
        self._file.close()
        self._lock.release()


def read_rows(path: Path) -> list[Row]:
    """The newest row of every cell, without opening the file for writing; a half-written last line is passed over.

    Raises `BadFile` that names the line which cannot be read.
    """
    found: dict[str, Row] = {}
    lines = _lines(path)
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise BadFile(
                f"{path}, line {number} is not valid JSON: {error}; remove the line, and its cell is computed again"
            ) from error
        row = from_json(Row, data, f"{path}, line {number}")
        found[row.key] = row
    return list(found.values())


def select(rows: Iterable[Row], keys: Iterable[str]) -> list[Row]:
    """The rows of these cells, in the order of the keys; cells without a row are left out."""
    of = {row.key: row for row in rows}
    return [of[key] for key in dict.fromkeys(keys) if key in of]


def _lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    if not path.is_file():
        raise BadFile(f"{path} is no file; choose another place with -o")
    lines = path.read_bytes().split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _repair(path: Path) -> str | None:
    """End a last line that is whole; move one that is not into `*.broken`. Says what was done."""
    lines = _lines(path)
    if not lines:
        return None
    whole = sum(len(line) + 1 for line in lines[:-1])
    try:
        json.loads(lines[-1])
    except ValueError:
        broken = path.with_name(path.name + ".broken")
        _write_at_end(broken, lines[-1] + b"\n")
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
        return f"the last line of {path} was half-written; it was moved to {broken.name} and its cell is computed again"
    if path.stat().st_size == whole + len(lines[-1]):
        _write_at_end(path, b"\n")
    return None


def _write_at_end(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
