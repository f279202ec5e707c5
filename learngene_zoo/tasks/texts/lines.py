"""Tables of text files in memory, whose rows are named by their lines in errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Lines:
    """The names of rows, such as `reviews.csv line 2`; lines are counted from 1."""

    files: Sequence[str]
    file_indices: np.ndarray  # the index of each row's file
    numbers: np.ndarray  # the line in which each row begins

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, row: int, /) -> str:
        return f"{self.files[self.file_indices[row]]} line {self.numbers[row]}"

    def select(self, rows: np.ndarray) -> Lines:
        """Return the names of these rows."""
        return Lines(self.files, self.file_indices[rows], self.numbers[rows])


def join_lines(files: Sequence[str], lines: Sequence[Sequence[int]]) -> Lines:
    """Return the names of the rows of several files, one after the other."""
    counts = [len(numbers) for numbers in lines]
    numbers = np.concatenate([np.asarray(part, dtype=np.int64) for part in lines])
    return Lines(files, np.repeat(np.arange(len(files)), counts), numbers)


@dataclass(frozen=True)
class LineTable:
    """Columns with those methods of a `datasets.Dataset` that text tasks call."""

    columns: Mapping[str, Sequence[Any]]
    features: Mapping[str, Any]
    where: Lines

    def __len__(self) -> int:
        return len(self.where)

    def __getitem__(self, column: str, /) -> Sequence[Any]:
        return self.columns[column]

    def with_format(self, kind: None) -> LineTable:
        """Return the table, whose values are always Python objects."""
        return self

    def select(self, rows: Iterable[int]) -> LineTable:
        """Return a table of these rows."""
        chosen = np.asarray(rows, dtype=np.int64)
        columns = {
            name: [values[row] for row in chosen.tolist()] for name, values in self.columns.items()
        }
        return LineTable(columns, self.features, self.where.select(chosen))


@dataclass(frozen=True)
class Scalar:
    """The type of a column of scalars, as a `datasets.Value`."""

    dtype: str


def infer_features(columns: Mapping[str, Sequence[Any]]) -> dict[str, Scalar] | None:
    """Return the types of columns of text, of integers or of booleans; None if there are others."""
    kinds = {name: _infer_type(values) for name, values in columns.items()}
    return (
        {name: Scalar(kind) for name, kind in kinds.items() if kind}
        if all(kinds.values())
        else None
    )


def _infer_type(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        return "string" if all(value is None or _is_storable(value) for value in values) else ""
    if kinds == {int}:
        inside = all(value is None or -(2**63) <= value < 2**63 for value in values)
        return "int64" if inside else ""
    return "bool" if kinds == {bool} else ""


def _is_storable(text: str) -> bool:
    """Return whether a text can be stored in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
