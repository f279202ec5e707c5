"""Read images and labels from the columns of `datasets` tables and of Parquet files
(`parquet:PATH`).

The columns are chosen by the features of a table. PATH is a file, or a folder of files whose names
contain `train`, `validation` or `test`.
"""

import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.settings import Json, fingerprint
from learngene_zoo.tasks.images import make_stored_image
from learngene_zoo.tasks.labels import (
    check_names,
    divide_tables,
    find_label_columns,
    find_scalar,
    list_classes,
    name_row,
    read_labels,
    refuse_label_columns,
)
from learngene_zoo.tasks.listing import list_files
from learngene_zoo.tasks.splits.assembly import assemble_task, assign_roles
from learngene_zoo.tasks.splits.roles import (
    SplitFiles,
    find_roles,
    group_files_by_split,
    split_name,
)
from learngene_zoo.tasks.splits.samples import Labelled, Rows
from learngene_zoo.tasks.stamps import FileStamp, list_facts
from learngene_zoo.tasks.task import SPLITS, Sample, Task

IMAGE_COLUMNS = ("image", "img", "jpg", "png", "jpeg", "webp", "picture", "pixels")


@dataclass(frozen=True)
class TableRows:
    """A column of undecoded images.

    Images that are stored as paths are read only below `folders`.
    """

    table: Any
    column: str
    name: str
    folders: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int, /) -> Sample:
        """Return the stored bytes or path; errors name the data and the row."""
        return Sample(
            make_stored_image(self.table[row][self.column], self.folders), f"{self.name} row {row}"
        )


def assemble_from_tables(
    name: str,
    tables: Mapping[str, Any],
    /,
    *,
    roles: Mapping[str, str] | None = None,
    label: str | None = None,
    folders: tuple[Path, ...] = (),
    may_lack_classes: bool = False,
    **fields: Any,
) -> Task:
    """Build the task of a `datasets.DatasetDict`.

    Args:
        name: the name of the task.
        tables: the stored splits.
        roles: for each split, the stored split that is used for it.
        label: the label column; by default it is determined from the features.
        folders: images that rows name by path are read only below these.
        may_lack_classes: whether there may be classes without training images.
        fields: fields of `Task`.

    Raises:
        BadData: names a column which is missing or wrong.
    """
    splits, notes = divide_tables(name, select_known_splits(name, tables, roles or {}))
    if label is None:
        notes += describe_candidates(splits["train"].features)
    image, label = find_columns(splits["train"].features, name, label)
    class_names, labelled = label_rows(
        name,
        splits,
        label,
        lambda split, table: make_rows(table, image, f"{name} {split}", folders),
    )
    fields = {**fields, "notes": (*fields.get("notes", ()), *notes)}
    return assemble_task(name, labelled, class_names, may_lack_classes=may_lack_classes, **fields)


def label_rows(
    name: str, splits: Mapping[str, Any], label: str, rows_of: Callable[[str, Any], Rows]
) -> tuple[tuple[str, ...], dict[str, Labelled]]:
    """Return the classes of tables, and the rows of each split with their labels.

    Args:
        name: the name of the data in errors.
        splits: the tables.
        label: the label column.
        rows_of: returns the rows of a split, given its name and its table.

    Raises:
        BadData: for labels that cannot be used.
    """
    listed = read_listed_classes(splits, label, name)
    values = {
        split: read_labels(table, label, f"{name} {split}") for split, table in splits.items()
    }
    class_names = listed or list_classes(
        name, values, lambda split, row: name_row(splits[split], "", row).lstrip()
    )
    number = {text: index for index, text in enumerate(class_names)}
    labelled = {}
    for split, table in splits.items():
        labels = values[split] if listed else [number[str(value)] for value in values[split]]
        labelled[split] = Labelled(rows_of(split, table), np.array(labels, dtype=np.int64))
    return class_names, labelled


def describe_candidates(features: Mapping[str, Any]) -> list[str]:
    """Return a list with a note on further columns that could hold the labels, or an empty one."""
    candidates = find_label_columns(features)
    if len(candidates) < 2:
        return []
    return [
        f"the labels are column {candidates[0]!r}; to use {' or '.join(candidates[1:])}, leave "
        "that column out"
    ]


def select_known_splits(
    name: str, tables: Mapping[str, Any], roles: Mapping[str, str]
) -> dict[str, Any]:
    """Return the tables that are train, validation or test.

    Raises `BadData` if there is no train split.
    """
    parts = assign_roles(name_splits(tables), roles)
    if "train" not in parts:
        got = ", ".join(sorted(map(str, tables))) or "none"
        raise BadData(f"{name} has no train split, only {got}; name one of them train")
    return {split: part for split, part in parts.items() if split in SPLITS}


def name_splits(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables by the zoo's names of their splits.

    A split's exact name takes precedence over one that contains it.
    """
    named: dict[str, Any] = {}
    for key, table in tables.items():
        if key == split_name(key) or split_name(key) not in named:
            named[split_name(key)] = table
    for key, table in tables.items():
        roles = find_roles(key)
        if len(roles) == 1 and roles[0] not in named:
            named[roles[0]] = table
            del named[split_name(key)]
    return named


def find_columns(
    features: Mapping[str, Any], name: str, label: str | None = None
) -> tuple[str, str]:
    """Return the image column and the label column.

    Raises `BadData` that lists the columns if there is none.
    """
    if label is not None:
        check_column(features, label, name)
    image = find_image_column(features, name)
    label = label or next(iter(find_label_columns(features)), None)
    if label is None:
        raise refuse_label_columns(features, name)
    return image, label


def find_image_column(features: Mapping[str, Any], name: str) -> str:
    """Return the image column. Raises `BadData` that lists the columns if there is none."""
    from datasets import Image

    images = [key for key, kind in features.items() if isinstance(kind, Image)]
    image = _prefer_column(
        IMAGE_COLUMNS, images, [key for key in features if _holds_bytes(features[key])]
    )
    if image is None:
        raise BadData(f"{name} has no image column, only {', '.join(features)}; call it 'image'")
    return image


def check_column(features: Mapping[str, Any], column: str, name: str) -> None:
    """Check that a column exists. Raises `BadData` otherwise."""
    if column not in features:
        raise BadData(
            f"{name} has no column {column!r}, only {', '.join(features)}; add it, or name another"
        )


def _prefer_column(
    names: Sequence[str], certain: Sequence[str], possible: Sequence[str]
) -> str | None:
    """Return the preferred column of an image.

    That is the first of `names` in `certain`, else any of `certain`, else the first in `possible`.
    """
    among = [
        *(name for name in names if name in certain),
        *certain,
        *(name for name in names if name in possible),
    ]
    return among[0] if among else None


def _holds_bytes(kind: Any) -> bool:
    return (isinstance(kind, dict) and "bytes" in kind) or getattr(kind, "dtype", None) in (
        "binary",
        "large_binary",
    )


def read_listed_classes(tables: Mapping[str, Any], label: str, name: str) -> tuple[str, ...] | None:
    """Return the classes that the features list; None if they do not list any.

    Raises `BadData` if the splits differ.
    """
    names = getattr(find_scalar(tables["train"].features[label]), "names", None)
    listed = check_names(name, names) if names else None
    for split, table in tables.items():
        check_column(table.features, label, f"{name} {split}")
        split_names = getattr(find_scalar(table.features[label]), "names", None)
        if (check_names(name, split_names) if split_names else None) != listed:
            raise BadData(
                f"{name}: the classes of {split} and train differ; give both the same list"
            )
    return listed


def make_rows(table: Any, image: str, name: str, folders: tuple[Path, ...] = ()) -> TableRows:
    """Return the stored images of one column. Raises `BadData` if the column does not exist."""
    check_column(table.features, image, name)
    return TableRows(disable_decoding(table.select_columns([image])), image, name, folders)


def disable_decoding(table: Any) -> Any:
    """Return the table or stream with image decoding disabled."""
    from datasets import Image

    for column in [column for column, kind in table.features.items() if isinstance(kind, Image)]:
        table = table.cast_column(column, Image(decode=False))
    return table


@contextmanager
def silence_datasets() -> Iterator[None]:
    """Silence the progress bars and messages of `datasets`, and restore its state on exit."""
    from datasets.utils import logging

    has_bars, before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if has_bars:
            logging.enable_progress_bar()


def stamp_files(task: Task, grouped: SplitFiles) -> Task:
    """Return the task with a stamp of its files, classes and labels, and the notes on the files."""
    return replace(
        task,
        stamp=FileStamp(name_files(grouped.files), partial(_list_facts, task)),
        notes=(*task.notes, *grouped.notes),
    )


def load_parquet(path: str) -> tuple[Any, tuple[Path, ...], SplitFiles]:
    """Return the `DatasetDict` of a file or folder, the folder of its images, and its files.

    Raises `BadData` that names the file which is wrong.
    """
    from datasets import DatasetDict, load_dataset
    from pyarrow.parquet import read_metadata

    tables, folder = DatasetDict(), Path(os.path.expanduser(path))
    grouped = find_files(folder, (".parquet",))
    for split, names in grouped.files.items():
        for name in names:  # one by one, as an error of `datasets` would not name the file
            with _translate_errors(name):
                rows = read_metadata(name).num_rows
            if not rows:
                raise BadData(f"{name} has no rows; add some, or remove it")
        with _translate_errors(names[0]):
            patterns = [glob.escape(name) for name in names]
            tables[split] = load_dataset(
                "parquet", data_files=patterns, split="train", cache_dir=_choose_cache(names)
            )
    return tables, (folder,) if folder.is_dir() else (), grouped


def _choose_cache(names: Sequence[str]) -> str:
    """Return the folder of the cache of some files.

    `datasets` knows files by path and time only, and would read a replaced file of the same time
    from its cache.
    """
    from datasets.config import HF_DATASETS_CACHE

    stamps: list[Json] = []
    for name in names:
        facts = os.stat(name)
        stamps.append([os.path.abspath(name), facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns])
    return str(Path(HF_DATASETS_CACHE) / "lgzoo" / fingerprint(stamps)[:16])


def name_files(files: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return (split/name, path) of each file, for a stamp."""
    return [
        (f"{split}/{os.path.basename(file)}", file)
        for split, names in files.items()
        for file in names
    ]


def _list_facts(task: Task) -> Iterator[bytes]:
    """Yield the classes and the labels of each split."""
    return list_facts(task.class_names, {split: task.split(split).labels for split in SPLITS})


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Raise errors about unusable metadata or values of files as `BadData`."""
    from datasets.exceptions import DatasetsError
    from pyarrow import ArrowException

    try:
        with silence_datasets():
            yield
    except (ArrowException, DatasetsError, KeyError, OSError, TypeError, ValueError) as error:
        reason = error.__cause__ or error  # the cause has the details
        raise BadData(
            f"{name} cannot be read as Parquet ({' '.join(str(reason).split())[:160]}); correct "
            "its rows and features, or write it again"
        ) from None


def find_files(path: Path, suffixes: tuple[str, ...]) -> SplitFiles:
    """Return the files of each split: a single file, or those in a folder with these suffixes.

    Raises `BadData` if there are none, or if their names do not say which split they belong to.
    """
    if path.is_file():
        return SplitFiles({"train": [str(path)]})
    if not path.is_dir():
        raise BadData(
            f"there is no file or folder {path}; give a {suffixes[0]} file or a folder of them"
        )
    files = list_files(path, suffixes)
    if not files:
        raise BadData(f"{path} holds no {suffixes[0]} file; give a folder of them")
    return group_files_by_split(str(path), list(map(str, files)))
