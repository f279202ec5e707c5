"""Read texts, or pairs of texts, and labels from the columns of tables.

The columns are chosen by their names, as for images; a user can name them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.labels import (
    SPLIT_COLUMN,
    describe_type,
    divide_tables,
    find_label_columns,
    match_columns,
    refuse_label_columns,
)
from learngene_zoo.tasks.listing import list_suffixes
from learngene_zoo.tasks.splits.assembly import assemble_task
from learngene_zoo.tasks.tables import (
    check_column,
    describe_candidates,
    find_image_column,
    label_rows,
    select_known_splits,
)
from learngene_zoo.tasks.task import Task
from learngene_zoo.tasks.texts.encoding import Text
from learngene_zoo.tasks.texts.rows import TextRows, check_texts

# Columns of texts by name, in order of preference.
TEXT_COLUMNS = (
    *("text", "sentence", "content", "review", "comment", "body", "document", "message"),
    *("description", "question", "title"),
)
PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "answer"),
    ("text1", "text2"),
    ("text_a", "text_b"),
)
TEXT_TYPES = ("string", "large_string", "string_view")
# Labels of all rows of a test split whose labels are not published, those of CSV files included.
WITHHELD = {-1, "-1", "", None}


def holds_texts(tables: Mapping[str, Any]) -> bool:
    """Return whether tables have a column of texts and none of images."""
    return is_text_table(next(iter(tables.values())).features or {})


def is_text_table(features: Mapping[str, Any]) -> bool:
    """Return whether a table has a column of texts and none of images."""
    try:
        find_image_column(features, "")
    except BadData:
        label = next(iter(find_label_columns(features)), None)
        named = any(match_columns(features, (*TEXT_COLUMNS, *sum(PAIR_COLUMNS, ()))))
        return named or bool(list_text_columns(features, label))
    return False


def assemble_from_texts(
    name: str,
    tables: Mapping[str, Any],
    /,
    *,
    roles: Mapping[str, str] | None = None,
    texts: Sequence[str] = (),
    label: str | None = None,
    **fields: Any,
) -> Task:
    """Build the task of the texts in a `datasets.DatasetDict`.

    A test split whose labels are all withheld is left out; the validation split is used for it.

    Args:
        name: the name of the task.
        tables: the stored splits.
        roles: for each split, the stored split that is used for it.
        texts: the column of the texts, or the two columns of pairs; (): by their names.
        label: the label column; by default it is determined from the features.
        fields: fields of `Task`.

    Raises:
        BadData: names a column or a row which is missing or wrong.
    """
    splits, notes = divide_tables(name, select_known_splits(name, tables, roles or {}))
    features = splits["train"].features
    if label is None:
        notes += describe_candidates(features)
        label = find_label_column(features, name)
    check_column(features, label, name)
    columns = check_text_columns(features, texts or find_text_columns(features, label, name), name)
    splits, more_notes = replace_withheld(splits, label)
    class_names, labelled = label_rows(
        name, splits, label, lambda split, table: read_rows(table, columns, f"{name} {split}")
    )
    notes = [*fields.get("notes", ()), *notes, *more_notes]
    fields = {**fields, "kind": "text", "notes": tuple(notes)}
    return assemble_task(
        name, labelled, class_names, **fields, text_columns=columns, label_column=label
    )


def find_label_column(features: Mapping[str, Any], name: str) -> str:
    """Return the label column. Raises `BadData` if there is none."""
    label = next(iter(find_label_columns(features)), None)
    if label is None:
        raise refuse_label_columns(features, name)
    return label


def list_text_columns(features: Mapping[str, Any], label: str | None) -> list[str]:
    """Return the columns of texts, without those of labels and splits."""
    return [
        column
        for column, kind in features.items()
        if _is_text(kind) and column != label and column.lower() != SPLIT_COLUMN
    ]


def find_text_columns(features: Mapping[str, Any], label: str | None, name: str) -> Sequence[str]:
    """Return the column of texts, or the two columns of pairs.

    Raises `BadData` if there is none, or if it is not clear which one is meant.
    """
    others = [column for column in features if column != label]
    for pair in PAIR_COLUMNS:
        first, second = (match_columns(others, [column])[:1] for column in pair)
        if first and second:
            return *first, *second
    if named := match_columns(others, TEXT_COLUMNS):
        return named[:1]
    possible = list_text_columns(features, label)
    if not possible:
        raise BadData(f"{name} has no column of texts, only {', '.join(features)}; call it 'text'")
    if len(possible) > 1:
        raise BadData(
            f"{name} has several columns of texts ({', '.join(possible)}); name the one that is "
            f"meant, or two of them: text={possible[0]} or text={possible[0]}+{possible[1]} after "
            "a colon"
        )
    return possible


def check_text_columns(
    features: Mapping[str, Any], columns: Sequence[str], name: str
) -> tuple[str, ...]:
    """Return the columns. Raises `BadData` for a missing one, or one that does not hold texts."""
    for column in columns:
        check_column(features, column, name)
        if not _is_text(features[column]):
            raise BadData(
                f"{name}: column {column!r} is of type {describe_type(features[column])}; store "
                "text"
            )
    return tuple(columns)


def _is_text(kind: Any) -> bool:
    return not getattr(kind, "names", None) and str(getattr(kind, "dtype", "")) in TEXT_TYPES


def replace_withheld(splits: Mapping[str, Any], label: str) -> tuple[dict[str, Any], list[str]]:
    """Return the splits with validation instead of a test split without labels, and a note."""
    test = splits.get("test")
    if test is None or not len(test) or label not in test.features:
        return dict(splits), []
    if not _are_withheld(test.with_format(None)[label][:], splits["train"], label):
        return dict(splits), []
    kept = {split: table for split, table in splits.items() if split != "test"}
    if "validation" not in kept:
        note = "the labels of the test split are withheld: it is left out, and another one is cut"
        return kept, [f"{note} from the training texts"]
    kept["test"] = kept.pop("validation")
    note = "the labels of the test split are withheld: its validation split is the test split"
    return kept, [note]


def _are_withheld(labels: Sequence[Any], train: Any, label: str) -> bool:
    """Return whether all labels stand for missing ones, and no training text has them."""
    if not all(isinstance(value, Hashable) and value in WITHHELD for value in labels):
        return False
    return set(labels).isdisjoint(
        value for value in train.with_format(None)[label][:] if isinstance(value, Hashable)
    )


def read_rows(table: Any, columns: Sequence[str], name: str) -> TextRows:
    """Return the texts of a split. Raises `BadData` for a row without text."""
    for column in columns:
        check_column(table.features, column, name)
    plain = table.with_format(None)
    parts = [[value or "" for value in plain[column][:]] for column in columns]
    suffixes = tuple(list_suffixes())
    for column, values in zip(columns, parts, strict=True):
        if len(values) > 1 and all(map(_is_number, values)):
            raise BadData(
                f"{name}: column {column!r} holds numbers, such as {values[0]!r:.40}; name the "
                "column of texts: text=COLUMN after a colon"
            )
        if values and all(value.lower().endswith(suffixes) for value in values):
            raise BadData(
                f"{name}: column {column!r} holds names of images, such as {values[0]!r:.40}; such "
                "tables are of texts: for images give a folder with a subfolder for each class"
            )
    texts: list[Text] = parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))
    return check_texts(TextRows(texts, name, getattr(table, "where", None)))


def _is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
