"""Open data without labels: pictures in folders of any depth, in tables, or in tars, and texts in
folders or tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.runs.progress import show_progress
from learngene_zoo.tasks.folders import Files, list_left_out
from learngene_zoo.tasks.hub_data import list_image_folders, load_hub_tables
from learngene_zoo.tasks.layout import split_reference
from learngene_zoo.tasks.listing import list_pictures
from learngene_zoo.tasks.splits.assembly import assemble_photo_task, assemble_text_task
from learngene_zoo.tasks.splits.cutting import SEED, cut_split
from learngene_zoo.tasks.splits.roles import group_files_by_split
from learngene_zoo.tasks.splits.samples import (
    DecodedSplit,
    Rows,
    TextSplit,
)
from learngene_zoo.tasks.stamps import FileStamp
from learngene_zoo.tasks.streams.facts import FACTS, Facts, load_facts, refuse_split
from learngene_zoo.tasks.streams.order import StreamPart
from learngene_zoo.tasks.streams.places import is_remote, list_tars
from learngene_zoo.tasks.streams.tars import Group, Tars, make_stamp, name_tars, read_tar
from learngene_zoo.tasks.tables import (
    find_image_column,
    load_parquet,
    make_rows,
    name_files,
    select_known_splits,
    stamp_files,
)
from learngene_zoo.tasks.task import HubSource, Sample, Stream, Task
from learngene_zoo.tasks.texts.files import parse_columns, read_tables
from learngene_zoo.tasks.texts.folders import list_texts, read_texts
from learngene_zoo.tasks.texts.rows import TextRows
from learngene_zoo.tasks.texts.tables import check_text_columns, find_text_columns, read_rows

CLASS_NAMES = ("image",)  # a task has at least one class
SHARE = 0.1  # of the pictures that are held out


def open_plain_folder(path: str, offline: bool) -> Task:
    """Open all pictures below a folder, or below those that `PATH:train=a+b` names.

    Without any picture these are all texts, .txt files. Raises `BadData` for a folder that is
    missing or without either, and for broken links.
    """
    top, roles = split_reference(path)
    folders = [top / name for name in roles["train"]] if roles else [top]
    missing = next((folder for folder in folders if not folder.is_dir()), None)
    if missing is not None:
        raise BadData(f"there is no folder {missing}; give a folder of images")
    listings = [list_pictures(folder) for folder in folders]
    files = tuple(file for listing in listings for file in listing.pictures)
    dangling = [link for listing in listings for link in listing.dangling]
    if dangling:
        more = f" (and {len(dangling) - 1} more)" if dangling[1:] else ""
        raise BadData(f"link {dangling[0]} is broken{more}; correct or remove it")
    if not files and (texts := [path for folder in folders for path in list_texts(folder)]):
        return _open_text_files(f"folder:{path}", top, texts)
    if not files:
        raise BadData(f"{top} contains no images; give a folder of images")
    stamp = FileStamp([(os.path.relpath(file, top), file) for file in files], _list_no_facts)
    left_out = [file for listing in listings for file in listing.left_out]
    return _make_task(f"folder:{path}", Files(files), stamp=stamp, notes=list_left_out(left_out))


def open_plain_parquet(path: str, offline: bool) -> Task:
    """Open the images of Parquet files without a column of labels.

    Raises `BadData` for files that cannot be read, or without a column of images.
    """
    name = f"parquet:{path}"
    tables, folders, grouped = load_parquet(path)
    stamp = FileStamp(name_files(grouped.files), _list_no_facts)
    rows = _read_rows(name, tables, folders)
    return _make_task(name, rows, stamp=stamp, notes=grouped.notes)


def open_plain_hub(reference: str, offline: bool) -> Task:
    """Open the images of a data set of the Hub without a column of labels.

    Raises `Unavailable` and `BadData` as `hub_data.open_hub` does.
    """
    name = f"hf:{reference}"
    tables, fields = load_hub_tables(HubSource(reference=reference), offline)
    rows = _read_rows(name, tables, list_image_folders(reference))
    return _make_task(name, rows, **fields)


def open_plain_tars(pattern: str, offline: bool) -> Task:
    """Open the images of tars without labels.

    Raises `BadData`, `WrongCall`, or `Unavailable` if remote tars cannot be read.
    """
    name, tars = f"wds:{pattern}", list_tars(pattern)
    if offline and any(map(is_remote, tars)):
        raise Unavailable(f"{name} is not available offline; download the tars and name the files")
    grouped = group_files_by_split(name, tars)
    train = {"train": grouped.files["train"]}
    counts = tuple(_count_images(name, train["train"])["counts"])
    stream = PlainTars(tuple(train["train"]), counts, None)
    streams: dict[str, Stream] = {
        split: StreamPart(stream, split, ("validation",)) for split in ("train", "validation")
    }
    sizes = {split: sum(part.counts) for split, part in streams.items()}
    stamp = FileStamp(name_tars(train), partial(_list_counts, counts))
    fields = {
        "sizes": {**sizes, "test": 0},
        "open_split": partial(refuse_split, name),
        "open_stream": streams.__getitem__,
        "stamp": stamp,
        "notes": grouped.notes,
    }
    return assemble_photo_task(name, CLASS_NAMES, {}, fields)


def open_plain_rows(kind: str, reference: str, offline: bool) -> Task:
    """Open the texts of CSV or JSONL files without a column of labels.

    Raises `BadData` for files that cannot be read, or without a column of texts.
    """
    path, named = parse_columns(reference)
    name, (tables, grouped) = f"{kind}:{reference}", read_tables(kind, path)
    table = select_known_splits(name, tables, {})["train"]
    columns = named.get("texts") or find_text_columns(table.features, None, name)
    rows = read_rows(table, check_text_columns(table.features, columns, name), f"{name} train")
    return stamp_files(assemble_text_task(name, CLASS_NAMES, _cut_texts(rows), {}), grouped)


def _open_text_files(name: str, top: Path, paths: Sequence[str]) -> Task:
    """Open files of texts. Raises `BadData` as `read_texts` does."""
    stamp = FileStamp([(os.path.relpath(path, top), path) for path in paths], _list_no_facts)
    return assemble_text_task(name, CLASS_NAMES, _cut_texts(read_texts(paths)), {"stamp": stamp})


def _cut_texts(rows: TextRows) -> dict[str, TextSplit]:
    labels, members = _cut_rows(len(rows))
    return {split: TextSplit(rows, rows_N, labels[rows_N]) for split, rows_N in members.items()}


PLAIN: Mapping[str, Callable[[str, bool], Task]] = {
    "folder": open_plain_folder,
    "parquet": open_plain_parquet,
    "hf": open_plain_hub,
    "wds": open_plain_tars,
    "csv": partial(open_plain_rows, "csv"),
    "jsonl": partial(open_plain_rows, "jsonl"),
}


def open_labelled_or_plain(
    reference: str, offline: bool, open_labelled: Callable[[], Task]
) -> Task:
    """Open the user's data with their labels, or all of their images if they have none.

    A folder with more images outside of its class folders than in them has none either: its
    subfolders hold a part of the images, and are not classes.

    Args:
        reference: the data.
        offline: do not use the network.
        open_labelled: opens them with labels; it raises `BadData` if that is not possible.

    Raises:
        BadData: for data that cannot be used in either way.
    """
    kind, _, rest = reference.partition(":")
    try:
        task = open_labelled()
    except BadData as error:
        if kind not in PLAIN or not rest:
            raise
        try:
            return PLAIN[kind](rest, offline)
        except BadData as other:
            raise other from error
    if kind != "folder" or task.dense:
        return task
    with suppress(BadData):
        plain = open_plain_folder(rest, offline)
        if _count_all(plain) > 2 * _count_all(task):
            return plain
    return task


def _count_all(task: Task) -> int:
    return sum(task.sizes.values())


class PlainTars(Tars):
    """Tars of images without labels."""

    def _sample(self, group: Group) -> Sample:
        return Sample(group.data[group.image], group.where)


def _count_images(name: str, tars: list[str]) -> Facts:
    """Count the images of every tar, by reading all headers."""

    def find() -> Facts:
        counts = []
        for tar in show_progress(tars, f"counting the images of {name}"):
            counts.append(sum(1 for group in read_tar(tar, lambda *_: False) if group.image))
        return {"counts": counts}

    return load_facts("tars", [FACTS, "without labels", *map(make_stamp, tars)], find)


def _read_rows(name: str, tables: Mapping[str, Any], folders: Any) -> Rows:
    table = select_known_splits(name, tables, {})["train"]
    return make_rows(table, find_image_column(table.features, name), name, folders)


def _make_task(name: str, rows: Rows, **fields: Any) -> Task:
    """Build the task of these images; a share of them is held out, the same ones every time."""
    labels, members = _cut_rows(len(rows))
    splits = {
        split: DecodedSplit(rows, rows_N, labels[rows_N]) for split, rows_N in members.items()
    }
    return assemble_photo_task(name, CLASS_NAMES, splits, fields)


def _cut_rows(count: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return labels of 0 for all rows, and the rows of each split."""
    labels = np.zeros(count, dtype=np.int64)
    parts = cut_split(labels, max(1, round(SHARE * count)), SEED)
    cut, left = parts or (np.empty(0, dtype=np.int64), np.arange(count))
    return labels, {"train": left, "validation": cut, "test": np.empty(0, dtype=np.int64)}


def _list_no_facts() -> Iterator[bytes]:
    yield from ()


def _list_counts(counts: tuple[int, ...]) -> Iterator[bytes]:
    yield " ".join(map(str, counts)).encode()
