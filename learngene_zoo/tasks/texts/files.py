"""Open `csv:PATH`, `jsonl:PATH` and `parquet:PATH`: a file, or a folder of files whose names
contain `train`, `validation` or `test`.

`PATH:text=a+b,label=c` names the columns. Of Parquet files the columns decide whether they hold
images or texts.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from learngene_zoo.errors import BadData, WrongCall, explain_os_error
from learngene_zoo.storage import parse_json
from learngene_zoo.tasks.splits.roles import SplitFiles
from learngene_zoo.tasks.tables import (
    assemble_from_tables,
    find_files,
    load_parquet,
    stamp_files,
)
from learngene_zoo.tasks.task import COLUMNS, KIND_OF, TABLES, Task
from learngene_zoo.tasks.texts.lines import Lines, LineTable, infer_features, join_lines
from learngene_zoo.tasks.texts.rows import decode_text
from learngene_zoo.tasks.texts.tables import assemble_from_texts, holds_texts
from learngene_zoo.text import count_noun

SEPARATORS = ",;\t|"  # that are recognised in a file which is separated by another one
MAX_FIELD = 2**27  # characters of a cell; the csv module's limit of 131,072 is too small for texts
Table = dict[str, list[Any]]


def parse_columns(reference: str) -> tuple[str, dict[str, Any]]:
    """Parse `PATH` or `PATH:text=a+b,label=c` into the path and arguments of `assemble_from_texts`.

    A path that exists takes precedence over options, and may contain `:`, `=`, `,` and `+`.

    Raises `WrongCall` for a column that is named twice, and for more than two columns of texts.
    """
    match = None if Path(os.path.expanduser(reference)).exists() else COLUMNS.search(reference)
    if match is None:
        return reference, {}
    columns: dict[str, Any] = {}
    for pair in match[1].split(","):
        key, _, value = pair.partition("=")
        names = value.split("+") if key == "text" else [value]
        if key in columns or len(names) > 2:
            raise WrongCall(
                f"{reference}: expected text=COLUMN or text=COLUMN+COLUMN, and label=COLUMN, each "
                f"once, got {pair}"
            )
        columns[key] = names
    arguments: dict[str, Any] = {"texts": columns["text"]} if "text" in columns else {}
    if "label" in columns:
        arguments["label"] = columns["label"][0]
    return reference[: match.start()], arguments


def open_parquet(reference: str) -> Task:
    """Open the images or texts of Parquet files.

    Raises `BadData` that names the file or column which is wrong.
    """
    path, columns = parse_columns(reference)
    tables, folders, grouped = load_parquet(path)
    name = f"parquet:{reference}"
    task = (
        assemble_from_texts(name, tables, **columns)
        if columns or holds_texts(tables)
        else assemble_from_tables(name, tables, folders=folders)
    )
    return stamp_files(task, grouped)


def open_rows(kind: str, reference: str) -> Task:
    """Open the texts of CSV or JSONL files.

    Raises `BadData` that names the file, row or column which is wrong.
    """
    path, columns = parse_columns(reference)
    tables, grouped = read_tables(kind, path)
    return stamp_files(assemble_from_texts(f"{kind}:{reference}", tables, **columns), grouped)


def read_tables(kind: str, path: str) -> tuple[dict[str, Any], SplitFiles]:
    """Return the tables of CSV or JSONL files, and the files, by split."""
    grouped = find_files(Path(os.path.expanduser(path)), TABLES[kind])
    _check_suffix(kind, path)
    tables = {}
    for split, names in grouped.files.items():
        read = [READERS[kind](name) for name in names]
        columns = _join([columns for columns, _ in read], names)
        lines = join_lines(names, [numbers for _, numbers in read])
        tables[split] = _make_table(columns, lines)
    return tables, grouped


def _check_suffix(kind: str, path: str) -> None:
    """Raise `BadData` for a file whose suffix is that of another kind."""
    suffix = Path(path).suffix.lower()
    other = KIND_OF.get(suffix, kind)
    if other != kind and Path(os.path.expanduser(path)).is_file():
        raise BadData(f"{path} ends in {suffix}; write {other}:{path}")


def _make_table(columns: Table, lines: Lines) -> LineTable:
    """Return a table. Raises `BadData` for values that `datasets` cannot store."""
    features = infer_features(columns)
    if features is not None:
        return LineTable(columns, features, lines)
    from datasets import Dataset
    from pyarrow import ArrowException

    try:
        table = Dataset.from_dict(columns)
    except (ArrowException, OverflowError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise BadData(
            f"{lines.files[0]} cannot be stored as a table ({reason}); correct it"
        ) from None
    return LineTable(table[:], table.features, lines)


def read_csv(path: str) -> tuple[Table, list[int]]:
    """Return the columns of a CSV file with a header, and the lines in which its rows begin.

    The columns of .tsv are separated by tabs. Rows of blank cells are skipped.

    Raises `BadData` for a file that is not a table in UTF-8.
    """
    text, separator = _read(path), "\t" if path.lower().endswith(".tsv") else ","
    _check_separator(path, text, separator)
    try:
        rows = _split_rows(text, separator, strict=True)
    except csv.Error as error:
        raise BadData(f"{path} cannot be read as CSV ({error}); correct its quotes") from None
    header = [name.strip() for name in rows[0][1]] if rows else []
    _check_header(path, header, len(rows) - 1)
    for number, row in rows[1:]:
        if len(row) != len(header):
            remedy = (
                "put texts that contain the separator into quotes"
                if len(row) > len(header)
                else "add the missing ones, or remove the line"
            )
            raise BadData(
                f"{path} line {number} has {count_noun(len(row), 'cell')}, and the header has "
                f"{len(header)}; {remedy}"
            )
    columns = {name: [row[index] for _, row in rows[1:]] for index, name in enumerate(header)}
    return columns, [number for number, _ in rows[1:]]


def _split_rows(text: str, separator: str, strict: bool) -> list[tuple[int, list[str]]]:
    """Return the first line and the cells of the rows with a cell that is not blank.

    Raises `csv.Error`.
    """
    limit = csv.field_size_limit(MAX_FIELD)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=strict)
        rows, line = [], 1
        for row in reader:
            if any(map(str.strip, row)):
                rows.append((line, row))
            line = reader.line_num + 1
        return rows
    finally:
        csv.field_size_limit(limit)


def _check_separator(path: str, text: str, separator: str) -> None:
    """Check that a header of one cell is not one of several with another separator.

    Raises `BadData` if it is, and most rows have as many cells as the header.
    """
    header = text.lstrip().partition("\n")[0]
    for other in () if separator in header else SEPARATORS:
        if other not in header:
            continue
        try:
            counts = [len(row) for _, row in _split_rows(text, other, strict=False)]
        except csv.Error:
            continue
        if len(counts) > 1 and 2 * (counts.count(counts[0]) - 1) > len(counts) - 1:
            name = repr(other) if other != "\t" else "tabs"
            expected = "tabs" if separator == "\t" else "commas, or tabs in a .tsv file"
            raise BadData(f"{path} looks separated by {name}; separate its cells by {expected}")


def read_jsonl(path: str) -> tuple[Table, list[int]]:
    """Return the columns of a file with one JSON object in each line, and the lines of its rows.

    All objects have the same keys.

    Raises `BadData` for another content.
    """
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    for number, line in enumerate(_read(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line.encode())
        except ValueError as error:
            raise BadData(f"{path} line {number} is not JSON ({error}); correct it") from None
        if not isinstance(row, dict):
            raise BadData(f"{path} line {number} is not an object; write {{...}} in each line")
        if rows and row.keys() != rows[0].keys():
            odd = min(row.keys() ^ rows[0].keys())
            raise BadData(
                f"{path} line {number} and line {numbers[0]} do not both have {odd!r}; add it"
            )
        rows.append(row)
        numbers.append(number)
    _check_header(path, list(rows[0]) if rows else [], len(rows))
    table = {name: [row[name] for row in rows] for name in rows[0]}
    for name, values in table.items():
        _check_types(path, name, values)
    return table, numbers


READERS: Mapping[str, Callable[[str], tuple[Table, list[int]]]] = {
    "csv": read_csv,
    "jsonl": read_jsonl,
}


def _read(path: str) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadData(f"{path} cannot be read: {explain_os_error(error)}") from None
    return decode_text(data, path)


def _check_header(path: str, header: Sequence[str], num_rows: int) -> None:
    """Check that there are rows, and that no two columns have one name. Raises `BadData`."""
    if num_rows < 1:
        problem = "has no rows below its header" if header else "is empty"
        raise BadData(f"{path} {problem}; add rows, or remove the file")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise BadData(f"{path} has two columns {twice!r}; rename one")


def _check_types(path: str, name: str, values: Sequence[Any]) -> None:
    """Check that a column has values of one type, as a table needs. Raises `BadData`."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1 and kinds != {int, float}:
        listed = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise BadData(f"{path}: column {name!r} has values of several types ({listed}); use one")


def _join(tables: Sequence[Table], names: Sequence[str]) -> Table:
    """Return the rows of all files of a split. Raises `BadData` if their columns differ."""
    for table, name in zip(tables, names, strict=True):
        if table.keys() != tables[0].keys():
            raise BadData(f"{name} and {names[0]} have different columns; give both the same")
    return {column: list(_iterate_column(tables, column)) for column in tables[0]}


def _iterate_column(tables: Sequence[Table], column: str) -> Iterator[Any]:
    for table in tables:
        yield from table[column]
