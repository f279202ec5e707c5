"""Read the labels in a column of a table; columns of unsuitable types are refused by name and type.

Integers, text and booleans are classes; so are floats without a fractional part, and lists of one
element. A column `split` divides a table that is not divided yet.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from learngene_zoo.errors import BadData, NoLabels
from learngene_zoo.tasks.layout import normalize_name
from learngene_zoo.tasks.splits.assembly import check_train_classes
from learngene_zoo.tasks.splits.roles import find_roles
from learngene_zoo.text import MAX_NAME_LENGTH

LABEL_COLUMNS = (
    "label",
    "fine_label",
    "labels",
    "class",
    "category",
    "target",
    "cls",
    "y",
    "sentiment",
)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FRACTIONS = ("float16", "halffloat", "float32", "float", "float64", "double")
LABEL_TYPES = frozenset((*INTEGERS, *FRACTIONS, "string", "large_string", "string_view", "bool"))
EXPECTED = "integers, text or a ClassLabel, one per row"
SPLIT_COLUMN = "split"
NAMING = ("csv", "jsonl", "parquet")  # the data whose columns can be named, see `task.COLUMNS`


def find_scalar(kind: Any) -> Any:
    """Return the element type of a list type; any other type unchanged."""
    while True:
        inner = kind[0] if isinstance(kind, list) and kind else getattr(kind, "feature", None)
        if inner is None or isinstance(inner, dict):
            return kind
        kind = inner


def is_label_type(kind: Any) -> bool:
    """Return whether a column of this type can hold labels."""
    return str(getattr(find_scalar(kind), "dtype", "")) in LABEL_TYPES


def describe_type(kind: Any) -> str:
    """Return a column's type in readable form: `timestamp[s]`, `list of float32`."""
    scalar = find_scalar(kind)
    name = str(getattr(scalar, "dtype", None) or type(scalar).__name__)
    return name if scalar is kind else f"list of {name}"


def read_label(value: Any) -> int | str | bool:
    """Return a stored label as the name of its class, without blanks around it.

    Raises `ValueError` with a description of any other value.
    """
    if isinstance(value, list | tuple | np.ndarray):
        if len(value) != 1:
            raise ValueError(f"holds {len(value)} labels; keep one")
        value = value[0]
    value = value.strip() if isinstance(value, str) else value
    if value is None or value == "" or (isinstance(value, float) and value != value):
        raise ValueError("is empty; fill it or remove the row")
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"holds {value}, which is not a class; store {EXPECTED}")
        return int(value)
    if isinstance(value, str):
        return normalize_name(value)
    if isinstance(value, int | bool):
        return value
    raise ValueError(f"holds a {type(value).__name__}; store {EXPECTED}")


def name_row(table: Any, name: str, row: int) -> str:
    """Return the name of a row in errors: its line in a file, or its number in the table `name`."""
    where = getattr(table, "where", None)
    return f"{name} row {row}" if where is None else str(where[row])


def read_labels(table: Any, column: str, name: str) -> list[int | str | bool]:
    """Return the labels of a table's rows. Raises `BadData` that names the row."""
    labels = []
    for row, value in enumerate(table.with_format(None)[column][:] if len(table) else []):
        try:
            labels.append(read_label(value))
        except ValueError as error:
            raise BadData(f"{name_row(table, name, row)}: column {column!r} {error}") from None
    return labels


def list_classes(
    name: str,
    labels: Mapping[str, Sequence[Any]],
    locate: Callable[[str, int], str] | None = None,
) -> tuple[str, ...]:
    """Return the classes of the training images, sorted by number if all are numbers, else by name.

    Digits that are too long for the name of a class count as a name, which `Task` refuses; `int`
    does not convert more than 4,300.

    Args:
        name: the name of the data in errors.
        labels: the labels of each split's rows.
        locate: returns the name of a row in errors, given its split and its number.

    Raises:
        BadData: if another split has further classes.
    """
    train = check_train_classes(
        name, {split: list(map(str, values)) for split, values in labels.items()}, locate
    )
    numbers = all(
        len(text) <= MAX_NAME_LENGTH and text.removeprefix("-").isdecimal() for text in train
    )
    return tuple(sorted(train, key=(lambda text: (int(text), text)) if numbers else None))


def check_names(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes in composed Unicode form (NFC).

    Raises `BadData` if two of them are then equal.
    """
    composed = tuple(map(normalize_name, names))
    twice = [text for text, count in Counter(composed).items() if count > 1]
    if twice:
        raise BadData(
            f"{name} lists the class {twice[0]!r} twice, or in two Unicode forms; rename or join "
            "them"
        )
    return composed


def find_label_columns(features: Mapping[str, Any]) -> list[str]:
    """Return the columns that may hold the labels, in order of preference."""
    named = [
        column for column, kind in features.items() if getattr(find_scalar(kind), "names", None)
    ]
    named = [column for column in named if column.lower() != SPLIT_COLUMN]
    usual = match_columns(features, LABEL_COLUMNS)
    possible = [column for column in usual if is_label_type(features[column])]
    ordered = [column for column in usual if column in named]
    return list(dict.fromkeys([*ordered, *named, *possible]))


def match_columns(features: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the columns with one of these names, also in capitals, in the order of the names."""
    columns = list(features)
    return [
        column
        for name in names
        for column in sorted(columns, key=name.__ne__)  # the exact name first
        if column.lower() == name
    ]


def refuse_label_columns(features: Mapping[str, Any], name: str) -> BadData:
    """Return the error for a table without a usable label column."""
    odd = next(iter(match_columns(features, LABEL_COLUMNS)), None)
    if odd is not None:
        return BadData(
            f"{name}: column {odd!r} is of type {describe_type(features[odd])}; store {EXPECTED}"
        )
    kind = name.partition(":")[0]
    named = f", or name another one: {name}:label=COLUMN" if kind in NAMING else ""
    header = " (the first row is read as the header)" if kind == "csv" else ""
    return NoLabels(
        f"{name} has no label column, only {', '.join(features)}; call it 'label'{named}{header}"
    )


def divide_tables(name: str, tables: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the tables by split, a single one divided by its column `split`, and notes.

    A note says that the column is not used if its values are not splits. Raises `BadData` for a row
    whose split is unclear, or differs from that of its file.
    """
    divided: dict[str, Any] = {}
    for split, table in tables.items():
        values = _read_split_column(table)
        roles = {value: find_roles(str(value)) for value in set(values)}
        if not any(roles.values()):
            divided[split] = table
            continue
        odd = next((row for row, value in enumerate(values) if len(roles[value]) != 1), None)
        if odd is not None:
            raise BadData(
                f"{name_row(table, name, odd)}: column {SPLIT_COLUMN!r} says {values[odd]!r}; "
                "expected train, validation or test"
            )
        parts = np.array([roles[value][0] for value in values])
        if len(tables) == 1:
            return _select(name, table, parts), []
        if (parts != split).any():
            row = int(np.flatnonzero(parts != split)[0])
            raise BadData(
                f"{name_row(table, f'{name} {split}', row)}: column {SPLIT_COLUMN!r} says "
                f"{parts[row]}; correct it or the file's name"
            )
        divided[split] = table
    unused = any(find_split_column(table) for table in tables.values()) and len(tables) == 1
    return divided, [f"column {SPLIT_COLUMN!r} names no split, so it is not used"] if unused else []


def _select(name: str, table: Any, parts: np.ndarray) -> dict[str, Any]:
    divided = {
        split: table.select(np.flatnonzero(parts == split))
        for split in dict.fromkeys(parts.tolist())
    }
    if "train" not in divided:
        raise BadData(
            f"{name}: column {SPLIT_COLUMN!r} names no training rows, only "
            f"{', '.join(sorted(divided))}; add some"
        )
    return divided


def find_split_column(table: Any) -> str | None:
    """Return the text column that names each row's split; None if there is none."""
    kinds = (table.features or {}).items()
    text = [
        name
        for name, kind in kinds
        if getattr(kind, "names", None) or str(getattr(kind, "dtype", "")).endswith("string")
    ]
    return next((name for name in text if name.lower() == SPLIT_COLUMN), None)


def _read_split_column(table: Any) -> list[Any]:
    """Return the values of a table's split column; [] if it has no such column."""
    column = find_split_column(table)
    if column is None or not len(table):
        return []
    kind = table.features[column]
    return [read_split(value, kind) for value in table.with_format(None)[column][:]]


def read_split(value: Any, kind: Any) -> Any:
    """Return the value of the split column in a row; numbers of a ClassLabel as text."""
    names = getattr(kind, "names", None)
    return names[value] if names and isinstance(value, int) and value >= 0 else value
