"""The findings of `lgzoo doctor` on a task: pictures that are broken or stand in two splits, and classes with few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.runs.progress import progress
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.check import CHUNK, Picture, Place, Reader, read_pictures, remember, stamp
from learngene_zoo.tasks.folders import open_folder
from learngene_zoo.tasks.splits import DecodedSplit
from learngene_zoo.tasks.task import SPLITS, Split, Task

FEW = 10  # training images of a class
Row = Mapping[str, str]


def findings(task: Task, workers: int) -> tuple[list[Row], Task]:
    """A row `what status found` for each split and for whatever is wrong, and the task without what cannot be read.

    Raises `WrongCall` for a streamed task.
    """
    if task.open_stream is not None:
        raise WrongCall(f"{task.name} is streamed; the images of folder:, parquet: and hf: data can be checked")
    splits = {name: task.split(name) for name in SPLITS}
    chunks = _chunks(splits)
    reader = Reader(replace(task, open_split=splits.__getitem__), splits)
    pictures = list(read_pictures(reader, progress(chunks, f"reading {task.name}"), workers))
    good = [picture for picture in pictures if not picture.problem]
    remember(task, [stamp(splits[picture.split], picture.number) for picture in good])
    rows = [_summary(name, good, splits[name]) for name in splits]
    rows += [_row(picture.where, "bad", picture.problem) for picture in pictures if picture.problem]
    rows += [*_twice(task, splits, good), *_few(task, splits["train"], good)]
    rows += [_row("note", "info", note) for note in task.notes]
    return rows, _without_broken(task, splits, good)


def open_with_problems(reference: str, offline: bool) -> tuple[Task | None, list[Row]]:
    """Return a task with what can be read of it, and a row for each thing that is wrong; None if too little is left.

    Raises `ZooError` if nothing is known of the data, or if there is nothing else to say.
    """
    kind, _, path = reference.partition(":")
    if kind != "folder" or not path:
        return open_task(reference, offline=offline), []
    rows: list[Row] = []
    try:
        task = open_folder(path, report=lambda where, what: rows.append(_row(where, "bad", what)))
    except BadData as error:
        if not rows:
            raise
        return None, [*rows, _row(reference, "bad", str(error))]
    return task, rows


def _row(what: str, status: str, found: str) -> Row:
    return {"what": what, "status": status, "found": found}


def _summary(name: str, good: Sequence[Picture], split: Split) -> Row:
    sizes = [picture.size for picture in good if picture.split == name]
    least, most = (
        f"{w} x {h}" for w, h in (min(sizes, default=(0, 0), key=_area), max(sizes, default=(0, 0), key=_area))
    )
    extent = f"of {least} pixels" if least == most else f"of {least} to {most} pixels"
    return _row(
        name, "ok" if len(sizes) == len(split) else "bad", f"{len(sizes)} of {len(split)} images read, {extent}"
    )


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _twice(task: Task, splits: Mapping[str, Split], good: Sequence[Picture]) -> Iterator[Row]:
    """Pictures whose stored bytes are those of one before, in another split or with another class."""
    first: dict[str, Picture] = {}
    for picture in good:
        before = first.setdefault(picture.content, picture) if picture.content else picture
        names = [task.class_names[int(splits[one.split].labels[one.number])] for one in (before, picture)]
        if before.split != picture.split:
            yield _row(
                picture.where, "info", f"in {picture.split}, is the same file as {before.where} in {before.split}"
            )
        elif names[0] != names[1] and not task.dense:
            yield _row(picture.where, "info", f"of class {names[1]}, is the same file as {before.where} of {names[0]}")


def _few(task: Task, train: Split, good: Sequence[Picture]) -> Iterator[Row]:
    if task.dense:
        return
    read = [picture.number for picture in good if picture.split == "train"]
    counts = np.bincount(np.asarray(train.labels)[read], minlength=task.classes)
    for name, count in zip(task.class_names, counts.tolist()):
        if count < FEW:
            yield _row(f"class {name}", "info", f"has {count} training images; with fewer than {FEW} little is learnt")


def _without_broken(task: Task, splits: Mapping[str, Split], good: Sequence[Picture]) -> Task:
    left: dict[str, Split] = {}
    for name, split in splits.items():
        read = [picture.number for picture in good if picture.split == name]
        if isinstance(split, DecodedSplit):
            split = replace(split, members=split.members[read], labels=split.labels[read])
        left[name] = split
    return replace(task, open_split=left.__getitem__)


def _chunks(splits: Mapping[str, Split]) -> list[list[Place]]:
    return [
        [(name, index) for index in range(first, min(first + CHUNK, len(split)))]
        for name, split in splits.items()
        for first in range(0, len(split), CHUNK)
    ]
