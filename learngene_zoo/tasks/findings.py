"""Check a task for `lgzoo doctor`: broken images, images in two splits, and small classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from learngene_zoo.errors import BadData, NoLabels, WrongCall
from learngene_zoo.runs.progress import show_progress
from learngene_zoo.tasks.check import (
    CHUNK,
    PictureCheck,
    PictureIndex,
    PictureReader,
    read_pictures,
    remember,
    stamp,
)
from learngene_zoo.tasks.folders import open_folder
from learngene_zoo.tasks.splits.samples import DecodedSplit
from learngene_zoo.tasks.task import SPLITS, Split, Task
from learngene_zoo.tasks.texts.folders import is_text_folder
from learngene_zoo.tasks.unlabelled.opening import open_with_or_without_labels
from learngene_zoo.text import count_noun

FEW = 10  # training images below which a class is reported
Row = Mapping[str, str]


def check_task(task: Task, workers: int) -> tuple[list[Row], Task]:
    """Return a row for each split and each problem, and the task without its broken images.

    Rows have the keys `what`, `status` and `found`. Raises `WrongCall` for a streamed task.
    """
    if task.is_text:
        raise WrongCall(
            f"{task.name} is a text task; texts are checked when it is opened, so leave out "
            "--check-images"
        )
    if task.open_stream is not None:
        raise WrongCall(
            f"{task.name} is streamed; the images of folder:, parquet: and hf: data can be checked"
        )
    splits = {name: task.split(name) for name in SPLITS}
    chunks = _make_chunks(splits)
    reader = PictureReader(replace(task, open_split=splits.__getitem__), splits)
    pictures = list(read_pictures(reader, show_progress(chunks, f"reading {task.name}"), workers))
    good = [picture for picture in pictures if not picture.problem]
    remember(task, [stamp(splits[picture.split], picture.number) for picture in good])
    rows = [
        _summarise_split(name, good, splits[name])
        for name in splits
        if task.is_labelled or len(splits[name])
    ]
    rows += [
        _make_row(picture.where, "bad", picture.problem) for picture in pictures if picture.problem
    ]
    rows += [
        *_find_duplicates(task, splits, good),
        *_find_small_classes(task, splits["train"], good),
    ]
    rows += [_make_row("note", "info", note) for note in task.notes]
    return rows, _drop_broken(task, splits, good)


def open_with_problems(reference: str, offline: bool) -> tuple[Task | None, list[Row]]:
    """Open the usable part of a task; returns the task and a row for each problem.

    The task is None if too little is left. Raises `ZooError` if the data cannot be opened at all
    and there is no other problem to report.
    """
    kind, _, path = reference.partition(":")
    rows: list[Row] = []
    if kind != "folder" or not path or is_text_folder(path):
        return _open_without_labels(reference, offline, rows)
    try:
        task = open_folder(
            path, report=lambda where, what: rows.append(_make_row(where, "bad", what))
        )
    except NoLabels:
        return _open_without_labels(reference, offline, rows)
    except BadData as error:
        if not rows:
            raise
        return None, [*rows, _make_row(reference, "bad", str(error))]
    return task, rows


def _open_without_labels(reference: str, offline: bool, rows: list[Row]) -> tuple[Task, list[Row]]:
    """Open a task, or data without labels, for which a row is added."""
    task, reason = open_with_or_without_labels(reference, offline=offline)
    return task, [*rows, *([_make_row("labels", "info", f"none: {reason}")] if reason else [])]


def _make_row(what: str, status: str, found: str) -> Row:
    return {"what": what, "status": status, "found": found}


def _summarise_split(name: str, good: Sequence[PictureCheck], split: Split) -> Row:
    sizes = [picture.size for picture in good if picture.split == name]
    least, most = (
        f"{w} x {h}"
        for w, h in (
            min(sizes, default=(0, 0), key=_compute_area),
            max(sizes, default=(0, 0), key=_compute_area),
        )
    )
    extent = f"of {least} pixels" if least == most else f"of {least} to {most} pixels"
    return _make_row(
        name,
        "ok" if len(sizes) == len(split) else "bad",
        f"{len(sizes)} of {len(split)} images read, {extent}",
    )


def _compute_area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _find_duplicates(
    task: Task, splits: Mapping[str, Split], good: Sequence[PictureCheck]
) -> Iterator[Row]:
    """Yield a row for each image with the same bytes as one in another split or class."""
    first: dict[str, PictureCheck] = {}
    for picture in good:
        before = first.setdefault(picture.content, picture) if picture.content else picture
        names = [
            task.class_names[int(splits[copy.split].labels[copy.number])]
            for copy in (before, picture)
        ]
        if before.split != picture.split:
            yield _make_row(
                picture.where,
                "info",
                f"in {picture.split}, is the same file as {before.where} in {before.split}",
            )
        elif names[0] != names[1] and not task.dense:
            yield _make_row(
                picture.where,
                "info",
                f"of class {names[1]}, is the same file as {before.where} of {names[0]}",
            )


def _find_small_classes(task: Task, train: Split, good: Sequence[PictureCheck]) -> Iterator[Row]:
    if task.dense or not task.is_labelled:
        return
    read = [picture.number for picture in good if picture.split == "train"]
    counts = np.bincount(np.asarray(train.labels)[read], minlength=task.classes)
    for name, count in zip(task.class_names, counts.tolist()):
        if count < FEW:
            yield _make_row(
                f"class {name}",
                "info",
                f"has {count_noun(count, 'training image')}; with fewer than {FEW} accuracy is "
                "usually low",
            )


def _drop_broken(task: Task, splits: Mapping[str, Split], good: Sequence[PictureCheck]) -> Task:
    left: dict[str, Split] = {}
    for name, split in splits.items():
        read = [picture.number for picture in good if picture.split == name]
        if isinstance(split, DecodedSplit):
            split = replace(
                split, members=split.members[read], labels=split.labels[read], fitted={}
            )
        left[name] = split
    return replace(task, open_split=left.__getitem__)


def _make_chunks(splits: Mapping[str, Split]) -> list[list[PictureIndex]]:
    return [
        [(name, index) for index in range(first, min(first + CHUNK, len(split)))]
        for name, split in splits.items()
        for first in range(0, len(split), CHUNK)
    ]
