"""`results.jsonl`: one line per finished cell, only ever appended to.

A line is on disk before `append` returns. If the process is killed while it writes, the last line may be incomplete: it is moved
to `results.jsonl.broken` when the file is next opened, and its cell is computed again. One process at a time may write; the
operating system releases the lock of a process that died.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

from learngene_zoo.atomic import nearest_parent
from learngene_zoo.errors import BadFile, Refused, Unavailable, WrongCall, explained
from learngene_zoo.families.spec import LIMITS
from learngene_zoo.settings import Bounds, check_bounds, from_json, to_json
from learngene_zoo.storage import parse_json
from learngene_zoo.text import MOST_OF_PATH, check_name, printable

RESULTS = "results.jsonl"
MOST_ERROR = 2000  # characters of an error that are kept
_Count = Annotated[int, Bounds(least=0, most=10**18)]
_Seconds = Annotated[float, Bounds(least=0, most=1e12)]
_Share = Annotated[float | None, Bounds(least=0, most=1)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the results file. A failed cell has an `error` and no numbers.

    Texts are kept as they can be printed. Raises `WrongCall` for what no cell can leave.
    """

    key: str
    arm: str
    method: str
    control: str | None
    task: str
    layers: Annotated[int, Bounds(least=0, most=LIMITS["layers"])]
    width: Annotated[int, Bounds(least=0, most=LIMITS["width"])]
    seed: Annotated[int, Bounds(least=0)]
    epochs: Annotated[int, Bounds(least=0, most=10**6)]
    lr: Annotated[float, Bounds(least=0, most=1e6)]
    images: _Count  # training images of the fine-tuning
    split: str
    size: str = ""  # how the expander's settings name it, where layers alone do not
    version: _Count = 1  # of the suite that drew the test images
    weights: str = ""  # digest of the model before its training; "" in rows of earlier versions
    error: str | None = None
    metric: str = "accuracy"  # or mIoU
    value: _Share = None
    correct: str | None = None  # one flag per image of the split, in its order, packed into hexadecimal digits
    evaluated: _Count = 0  # images of the split
    chance: _Share = None  # what the best constant answer reaches; None in rows of earlier versions
    untrained: _Share = None  # the metric before any training
    probe: _Share = None  # accuracy of the nearest class mean of its features before training
    params: _Count = 0  # of the descendant
    flops: _Count = 0
    stored_params: _Count = 0  # of the learngene: the numbers to keep in order to build any size
    extraction_seconds: _Seconds = 0.0
    extraction_images: _Count = 0  # images that the extraction has shown to a model, every pass counted
    seconds: _Seconds = 0.0  # of the fine-tuning
    machine: str = ""
    finished: str = ""  # UTC, ISO 8601

    def __post_init__(self) -> None:
        check_bounds(self)
        for name, value in vars(self).items():
            if isinstance(value, str):
                object.__setattr__(self, name, printable(value[:MOST_ERROR] if name == "error" else value))
        check_name(self.task, "task", MOST_OF_PATH)
        for name in ("key", "arm", "method", "control", "split", "size", "metric", "machine", "finished"):
            check_name(getattr(self, name) or "", name)
        digits = "" if self.correct is None else self.correct
        if set(digits) - set("0123456789abcdef") or len(digits) not in (0, -(-self.evaluated // 4)):
            raise WrongCall(f"correct is not one hexadecimal digit for every four of {self.evaluated} images")


def packed(correct: tuple[bool, ...]) -> str:
    """Flags as hexadecimal digits, four images each, the first image the highest bit; the last digit is filled with 0."""
    bits = "".join("1" if right else "0" for right in correct)
    digits = -(-len(bits) // 4)
    return f"{int(bits.ljust(4 * digits, '0'), 2):0{digits}x}"


def unpacked(digits: str, images: int) -> tuple[bool, ...]:
    """The inverse of `packed`."""
    bits = f"{int(digits, 16):0{4 * len(digits)}b}"
    return tuple(bit == "1" for bit in bits[:images])


class Results:
    """The results file at `path`, open for appending; created if missing, emptied first with `anew`.

    `repaired` is one line about an incomplete last line, if there was one. Raises `BadFile` if an earlier line cannot be read,
    and `Refused` while another process has the file open.
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
            raise Refused(f"another process is writing {path}; wait for it, or choose another folder with -o") from None
        except OSError as error:
            raise Unavailable(f"{path} cannot be written: {explained(error)}") from error
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

    def __exit__(self, *error: object) -> None:
        self.close()

    def rows(self) -> list[Row]:
        """The newest row of every cell, in the order in which the cells were first written."""
        return list(self._rows.values())

    @property
    def finished(self) -> frozenset[str]:
        """The keys of the cells that need not be computed again; failed ones are not among them."""
        return frozenset(key for key, row in self._rows.items() if row.error is None)

    def append(self, row: Row) -> None:
        """Write one row and sync it to disk. Raises `Unavailable`, and leaves the file as it was, if that fails."""
        line = json.dumps(to_json(row), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        size = self._file.seek(0, os.SEEK_END)
        try:
            left = memoryview(line)
            while left:  # a disk with little space takes a part; the next call says why it does not take the rest
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(size)
            raise Unavailable(f"{self.path} could not be written: {explained(error)}") from error
        self._rows[row.key] = row

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()
        self._lock.release()


def read_rows(path: Path) -> list[Row]:
    """The newest row of every cell, without locking the file; an incomplete last line is ignored.

    Raises `BadFile`, with the line's number, if another line cannot be read.
    """
    found: dict[str, Row] = {}
    for number, line in enumerate(_split(path)[0], start=1):
        try:
            data = parse_json(line)
        except ValueError as error:
            raise BadFile(
                f"{path}, line {number} is not valid JSON: {error}; remove the line, and its cell will be computed again"
            ) from error
        row = from_json(Row, data, f"{path}, line {number}")
        found[row.key] = row
    return list(found.values())


def select(rows: Iterable[Row], keys: Iterable[str]) -> list[Row]:
    """The rows of these cells, in the order of the keys; cells without a row are skipped."""
    of = {row.key: row for row in rows}
    return [of[key] for key in dict.fromkeys(keys) if key in of]


def _split(path: Path) -> tuple[list[bytes], bytes]:
    """The lines of the file, and what is there of one that was cut short: by a kill, which changes nothing before it."""
    if not path.exists():
        return [], b""
    if not path.is_file():
        raise BadFile(f"{path} is not a file; choose another folder with -o")
    *lines, rest = path.read_bytes().split(b"\n")
    try:
        parse_json(rest)
    except ValueError:
        return lines, rest
    return [*lines, rest], b""  # it lacks its end alone


def _repair(path: Path) -> str | None:
    """Terminate a complete last line; move an incomplete one to `*.broken`. Returns what was done."""
    lines, rest = _split(path)
    whole = b"".join(line + b"\n" for line in lines)
    if rest:
        broken = path.with_name(path.name + ".broken")
        _write(broken, "ab", rest + b"\n")
    if path.exists() and path.stat().st_size != len(whole):
        _write(path, "r+b", whole)
    if not rest:
        return None
    return f"the last line of {path} was incomplete; it was moved to {broken.name} and its cell will be computed again"


def _write(path: Path, mode: str, data: bytes) -> None:
    """Write the data, end the file there, and sync it to disk."""
    with path.open(mode) as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
