"""`results.jsonl`: one line per finished cell, only ever appended to.

A line is on disk before `append` returns. If the process is killed while it writes, the last line
may be incomplete: it is moved to `results.jsonl.broken` when the file is next opened, and its cell
is computed again. One process at a time may write; the operating system releases the lock of a
process that died.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

from learngene_zoo.atomic import find_nearest_parent
from learngene_zoo.errors import BadFile, Refused, Unavailable, WrongCall, explain_os_error
from learngene_zoo.families.spec import LIMITS
from learngene_zoo.settings import Bounds, check_bounds, from_json, to_json
from learngene_zoo.storage import parse_json
from learngene_zoo.text import MAX_PATH_LENGTH, check_name, escape_controls

RESULTS = "results.jsonl"
MAX_ERROR_LETTERS = 2000  # characters of an error that are kept
_Count = Annotated[int, Bounds(least=0, most=10**18)]
_Seconds = Annotated[float, Bounds(least=0, most=1e12)]
# Matthews correlation goes from -1 to 1, other metrics from 0
_Metric = Annotated[float | None, Bounds(least=-1, most=1)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the results file. A failed cell has an `error` and no numbers.

    Texts are kept in a printable form.

    Raises:
        WrongCall: a value that no cell can have.
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
    code: str = ""  # of a method that is not of this project, see `Cell`
    weights: str = ""  # digest of the model before its training; "" in rows of earlier versions
    error: str | None = None
    metric: str = "accuracy"  # or mIoU, matthews, F1
    value: _Metric = None
    # one flag per image of the split, in its order, packed into hexadecimal digits
    correct: str | None = None
    evaluated: _Count = 0  # images of the split
    chance: _Metric = None  # value of the best constant answer; None in rows of earlier versions
    untrained: _Metric = None  # the metric before any training
    probe: _Metric = None  # the same of a ridge regression of its features
    params: _Count = 0  # of the descendant
    flops: _Count = 0
    stored_params: _Count = 0  # of the learngene: the numbers to keep in order to build any size
    extraction_seconds: _Seconds = 0.0
    # images that the extraction has shown to a model, every pass counted
    extraction_images: _Count = 0
    seconds: _Seconds = 0.0  # of the fine-tuning
    machine: str = ""
    finished: str = ""  # UTC, ISO 8601

    def __post_init__(self) -> None:
        check_bounds(self)
        for name, value in vars(self).items():
            if isinstance(value, str):
                object.__setattr__(
                    self,
                    name,
                    escape_controls(value[:MAX_ERROR_LETTERS] if name == "error" else value),
                )
        for name in ("value", "chance", "untrained", "probe"):
            value = getattr(self, name)
            if value is not None and value < 0 and self.metric != "matthews":
                raise WrongCall(f"{name} is {value}; only a Matthews correlation is below 0")
        check_name(self.task, "task", MAX_PATH_LENGTH)
        for name in (
            "key",
            "arm",
            "method",
            "control",
            "split",
            "size",
            "metric",
            "machine",
            "finished",
            "code",
        ):
            check_name(getattr(self, name) or "", name)
        digits = "" if self.correct is None else self.correct
        if set(digits) - set("0123456789abcdef") or len(digits) not in (0, -(-self.evaluated // 4)):
            raise WrongCall(
                f"correct is not one hexadecimal digit for every four of {self.evaluated} images"
            )


def compute_chance_limit(row: Row, errors: float) -> float:
    """Return the value that a row must exceed to be better than a constant answer.

    It is -inf in rows of earlier versions, which do not record the chance level.

    Args:
        row: with the value of the best constant answer.
        errors: standard errors above that value, which other images might give by chance.
    """
    if row.chance is None:
        return -math.inf
    return row.chance + errors * math.sqrt(compute_variance(row, row.chance))


def compute_variance(row: Row, value: float) -> float:
    """Return the variance of a value of the row's metric, over other images.

    It is that of a share of the images, or of a correlation; 0 if their number is unknown.
    """
    spread = (1 - value**2) ** 2 if row.metric == "matthews" else value * (1 - value)
    return spread / row.evaluated if row.evaluated else 0.0


def pack_flags(correct: tuple[bool, ...]) -> str:
    """Return flags as hexadecimal digits, four images each, the first image the highest bit.

    The last digit is filled with 0.
    """
    bits = "".join("1" if right else "0" for right in correct)
    digits = -(-len(bits) // 4)
    return f"{int(bits.ljust(4 * digits, '0'), 2):0{digits}x}"


def unpack_flags(digits: str, images: int) -> tuple[bool, ...]:
    """Return the flags in the digits of `pack_flags`."""
    bits = f"{int(digits, 16):0{4 * len(digits)}b}"
    return tuple(bit == "1" for bit in bits[:images])


class Results:
    """The results file at `path`, open for appending.

    It is created if missing, and emptied first with `anew`. `repaired` is one line about an
    incomplete last line, if there was one.

    Raises:
        BadFile: an earlier line cannot be read.
        Refused: another process has the file open.
        Unavailable: the file cannot be written.
    """

    def __init__(self, path: Path, anew: bool = False) -> None:
        from filelock import FileLock, Timeout

        self.path = path
        try:
            find_nearest_parent(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path.with_name(path.name + ".lock"))
            self._lock.acquire(timeout=0)
        except Timeout:
            raise Refused(
                f"another process is writing {path}; wait for it, or choose another folder with -o"
            ) from None
        except OSError as error:
            raise Unavailable(f"{path} cannot be written: {explain_os_error(error)}") from error
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
        """Return the newest row of every cell, in the order of their first writing."""
        return list(self._rows.values())

    @property
    def finished(self) -> frozenset[str]:
        """Return the keys of the cells that need not be computed again, without failed ones."""
        return frozenset(key for key, row in self._rows.items() if row.error is None)

    def append(self, row: Row) -> None:
        """Write one row and sync it to disk.

        Raises:
            Unavailable: the write failed; the file is left as it was.
        """
        line = json.dumps(to_json(row), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        size = self._file.seek(0, os.SEEK_END)
        try:
            left = memoryview(line)
            # A disk with little space takes a part; the next call raises the error.
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(size)
            raise Unavailable(
                f"{self.path} could not be written: {explain_os_error(error)}"
            ) from error
        self._rows[row.key] = row

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()
        self._lock.release()


def read_rows(path: Path) -> list[Row]:
    """Return the newest row of every cell, without locking the file.

    An incomplete last line is ignored.

    Raises:
        BadFile: another line cannot be read; the message has its number.
    """
    rows: dict[str, Row] = {}
    for number, line in enumerate(_split(path)[0], start=1):
        try:
            data = parse_json(line)
        except ValueError as error:
            raise BadFile(
                f"{path}, line {number} is not valid JSON: {error}; remove the line, and its cell "
                "will be computed again"
            ) from error
        row = from_json(Row, data, f"{path}, line {number}")
        rows[row.key] = row
    return list(rows.values())


def select(rows: Iterable[Row], keys: Iterable[str]) -> list[Row]:
    """Return the rows of these cells, in the order of the keys; cells without a row are skipped."""
    by_key = {row.key: row for row in rows}
    return [by_key[key] for key in dict.fromkeys(keys) if key in by_key]


def _split(path: Path) -> tuple[list[bytes], bytes]:
    """Return the lines of the file, and the part of an incomplete last line.

    A line is cut short by a kill, which changes nothing before it.
    """
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
    """Terminate a complete last line; move an incomplete one to `*.broken`.

    Returns a line that describes a move, or None.
    """
    lines, rest = _split(path)
    complete_lines = b"".join(line + b"\n" for line in lines)
    if rest:
        broken = path.with_name(path.name + ".broken")
        _write(broken, "ab", rest + b"\n")
    if path.exists() and path.stat().st_size != len(complete_lines):
        _write(path, "r+b", complete_lines)
    if not rest:
        return None
    return (
        f"the last line of {path} was incomplete; it was moved to {broken.name} and its cell will "
        "be computed again"
    )


def _write(path: Path, mode: str, data: bytes) -> None:
    """Write the data, end the file there, and sync it to disk."""
    with path.open(mode) as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
