"""Open images or texts for a training without labels: any task, or pictures that have none.

Data with labels are used as `--task` does: its training images, and its validation images as
held-out ones. So its test images stay unseen. Of other data (a flat folder, a table without a
column of labels) all pictures are used, and a tenth of them is held out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from learngene_zoo.artifacts.records import is_own_data
from learngene_zoo.errors import BadData, NoLabels
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.splits.cutting import ensure_validation
from learngene_zoo.tasks.splits.samples import (
    DecodedSplit,
    PartOfSplit,
    TextSplit,
)
from learngene_zoo.tasks.task import Sample, Samples, Split, Stream, Task
from learngene_zoo.tasks.unlabelled.plain import CLASS_NAMES, PLAIN
from learngene_zoo.text import count_noun

MIN_IMAGES = 20


def open_images(reference: str, *, offline: bool = False) -> Task:
    """Open images without labels: all of them have the class 0, and the test split is empty.

    Args:
        reference: a task of the catalogue, or data as for `open_task`, with labels or without.
        offline: do not use the network.

    Raises:
        WrongCall: for an unknown task.
        BadData: for data that cannot be used, and for fewer than `MIN_IMAGES` images.
        Unavailable: if the data must be downloaded and `offline` is set.
    """
    task = _open(reference, offline)
    count = task.sizes["train"] + task.sizes["validation"]
    if count < MIN_IMAGES:
        raise BadData(
            f"{reference} has {count_noun(count, task.sample_noun)} outside its test split; give "
            f"at least {MIN_IMAGES}"
        )
    return task


def open_with_or_without_labels(reference: str, *, offline: bool = False) -> tuple[Task, str]:
    """Open a task, or all of the user's images or texts if they have no labels.

    Returns:
        The task, and the reason why it has no labels; "" if it has.

    Raises:
        WrongCall: for an unknown task.
        BadData: for data that cannot be used, and for labels that are there but wrong.
        Unavailable: if the data must be downloaded and `offline` is set.
    """
    try:
        return open_task(reference, offline=offline), ""
    except NoLabels as error:
        try:
            task = open_task(reference, offline=offline, require_labels=False)
        except BadData:
            raise error from None
        return task, str(error)


def _open(reference: str, offline: bool) -> Task:
    task = open_task(reference, offline=offline, require_labels=False)
    if not task.is_labelled:
        return task
    kind, _, rest = reference.partition(":")
    try:
        return remove_labels(ensure_validation(task))
    except BadData:  # too few images of each class, or a stream
        if not is_own_data(reference) or kind not in PLAIN:
            raise
        return PLAIN[kind](rest, offline)


def remove_labels(task: Task) -> Task:
    """Return the task without its labels and test images."""
    unused = task.sizes["test"]
    note = f"{count_noun(unused, f'test {task.sample_noun}')} of it left out" if unused else ""
    return replace(
        task,
        kind="text" if task.is_text else "classification",
        metric="accuracy",
        classes=1,
        class_names=CLASS_NAMES,
        attributes=(),
        sizes={**task.sizes, "test": 0},
        notes=(*task.notes, *([note] if note else [])),
        open_split=partial(_open_split, task.open_split, task.dense),
        open_stream=task.open_stream and partial(_open_stream, task.open_stream),
    )


def _open_split(opener: Callable[[str], Split], is_dense: bool, name: str) -> Split:
    if name == "test":
        return PartOfSplit(UnlabelledSplit(opener("train")), np.empty(0, dtype=np.int64))
    split = opener(name)
    return UnlabelledSplit(split) if is_dense else _remove_labels(split)


def _open_stream(opener: Callable[[str], Stream], name: str) -> Stream:
    return UnlabelledStream(opener(name))


def _remove_labels(split: Split) -> Split:
    """Return a split without labels; one that caches decoded images still does."""
    if isinstance(split, DecodedSplit | TextSplit):
        return replace(split, labels=np.zeros(len(split), dtype=np.int64))
    if isinstance(split, PartOfSplit):
        return PartOfSplit(_remove_labels(split.split), split.members)
    return UnlabelledSplit(split)


@dataclass(frozen=True)
class UnlabelledSplit:
    """The images of a split, without labels, masks and attributes."""

    split: Split

    @property
    def labels(self) -> np.ndarray:
        """Zeros, int64 (N,)."""
        return np.zeros(len(self.split), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.split)

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the images at these indices, as the split does."""
        read = self.split.__getitems__(indices)
        return read.images if isinstance(read, Samples) else read


@dataclass(frozen=True)
class UnlabelledStream:
    """The images of a stream, without labels and masks."""

    stream: Stream

    @property
    def counts(self) -> Sequence[int]:
        """The number of images in each shard."""
        return self.stream.counts

    def read(self, shard: int, selected: np.ndarray) -> Generator[Sample | None]:
        """Yield the samples as `Stream.read` does."""
        for sample in self.stream.read(shard, selected):
            yield sample and sample._replace(label=0, mask=None)
