"""Read the images of a task once before training on them; the error names those that cannot be
read.

Before its first step a training run spends up to half a minute on reading: first the headers of all
images, then the images themselves. Images that were read without a problem are remembered in the
folder LGZOO_CACHE (default ~/.cache/learngene_zoo) by size and time of change, so the next run
continues with the remaining ones. `lgzoo doctor` reads all of them, see findings.py.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from learngene_zoo.atomic import new_file, remove_drafts
from learngene_zoo.errors import BadData, ZooError
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import is_first
from learngene_zoo.tasks.images import decode_image, decode_mask, open_source, read_size
from learngene_zoo.tasks.loader import WorkerLoader
from learngene_zoo.tasks.splits.samples import DecodedSplit
from learngene_zoo.tasks.streams.facts import cache_folder
from learngene_zoo.tasks.task import SPLITS, Split, Task
from learngene_zoo.tasks.transforms import check_samples
from learngene_zoo.text import quote_word

SECONDS = 30.0  # time limit before training, for each task in a process
MORE_SECONDS = 3.0  # for reading images after headers that cannot be read
CHUNK = 16  # images that a worker reads at a time
NAMED = 3  # maximal number of broken images in an error
PictureIndex = tuple[str, int]  # a split and an index in it
_spent: defaultdict[str, float] = defaultdict(float)


class PictureCheck(NamedTuple):
    """The result of reading one image."""

    split: str
    number: int  # its index in the split
    where: str
    problem: str = ""  # the reason why it cannot be used; "" if it can
    content: str = ""  # a hash of the stored bytes, or of the pixels of a split in memory
    size: tuple[int, int] = (0, 0)  # width and height


@dataclass(frozen=True)
class PictureReader:
    """The workers' data set: reads the images at some indices, or only their headers."""

    task: Task
    splits: Mapping[str, Split]
    headers: bool = False

    def __getitem__(self, places: Sequence[PictureIndex]) -> list[PictureCheck]:
        return [self._read(split, index) for split, index in places]

    def _read(self, name: str, index: int) -> PictureCheck:
        split, where = self.splits[name], f"image {index} of {name}"
        try:
            if not isinstance(split, DecodedSplit):
                image = check_samples(split.__getitems__([index]), self.task, [index]).images[0]
                return PictureCheck(
                    name, index, where, "", _hash(image.numpy().tobytes()), _read_size(image)
                )
            sample = split.rows[int(split.members[index])]
            where = sample.where
            if self.headers:
                return PictureCheck(name, index, where, size=read_size(sample.image, where))
            data = _read_bytes(sample.image, where)
            if sample.mask is not None:
                decode_mask(sample.mask, where)
            size = _read_size(decode_image(data, where))
            return PictureCheck(
                name, index, where, "", _hash(data) if isinstance(data, bytes) else "", size
            )
        except (ZooError, OSError) as error:
            return PictureCheck(name, index, where, str(error).removeprefix(f"{where}: "))


def _read_bytes(image: Any, where: str) -> Any:
    """Return the bytes of a file; other values are returned unchanged, for decoding to refuse."""
    source = open_source(image, where)
    return source.read_bytes() if isinstance(source, Path) and source.is_file() else source


def _read_size(image_CHW: torch.Tensor) -> tuple[int, int]:
    _, height, width = image_CHW.shape
    return width, height


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def read_pictures(
    reader: PictureReader, places: Iterable[Sequence[PictureIndex]], workers: int
) -> Iterator[PictureCheck]:
    """Yield the results of `reader` for the chunks of `places`, in order.

    With `workers` > 0 they are read in that many other processes.
    """
    batches = (
        WorkerLoader(reader, places, workers) if workers else (reader[batch] for batch in places)
    )
    for batch in batches:
        yield from batch


def check_before_training(task: Task, used: Sequence[int] | np.ndarray, workers: int) -> None:
    """Check that the images `used` in training, and all those of the other splits, can be read.

    Images in memory, streams, and images that were read before are skipped. The check takes at most
    about half a minute.

    Raises `BadData` that names the images which cannot be read.
    """
    deadline = time.monotonic() + SECONDS - _spent[task.name]
    if not is_first():
        return
    start, good = time.monotonic(), []
    splits = {name: task.split(name) for name in SPLITS}
    reader = PictureReader(replace(task, open_split=splits.__getitem__), splits, headers=True)
    unchecked = _UncheckedChunks(splits, used, _read_remembered(task), deadline)
    with report_activity(f"reading the images of {task.name}"):
        broken = [
            picture for picture in read_pictures(reader, unchecked, workers) if picture.problem
        ]
        if broken:  # an error follows, which names as many as a few seconds show
            deadline = min(deadline, time.monotonic() + MORE_SECONDS)
        known = {(picture.split, picture.number) for picture in broken}
        in_time = (
            [place for place in chunk if place not in known]
            for chunk in unchecked.met
            if time.monotonic() < deadline
        )
        for picture in read_pictures(replace(reader, headers=False), in_time, workers):
            if picture.problem:
                broken.append(picture)
            else:
                good.append(stamp(splits[picture.split], picture.number))
    _spent[task.name] += time.monotonic() - start
    remember(task, good)
    if broken:
        raise BadData(_name_broken(broken, task))


def _name_broken(broken: Sequence[PictureCheck], task: Task) -> str:
    if len(broken) == 1:
        return f"{broken[0].where}: {broken[0].problem}"
    more = "" if len(broken) <= NAMED else f"; and {len(broken) - NAMED} more"
    each = "; ".join(f"{picture.where}: {picture.problem}" for picture in broken[:NAMED])
    all_of_them = f"lgzoo doctor --check-images --task {quote_word(task.name)}"
    return (
        f"{len(broken)} images of {task.name} cannot be used: {each}{more} ({all_of_them} lists "
        "all)"
    )


class _UncheckedChunks:
    """Iterable of chunks of unchecked images, until the deadline; `met` has those yielded."""

    def __init__(
        self,
        splits: Mapping[str, Split],
        used: Sequence[int] | np.ndarray,
        checked: np.ndarray,
        deadline: float,
    ) -> None:
        self.splits, self.used, self.checked, self.deadline = splits, used, checked, deadline
        self.met: list[list[PictureIndex]] = []

    def __iter__(self) -> Iterator[list[PictureIndex]]:
        for name, split in self.splits.items():
            indices = np.sort(self.used) if name == "train" else np.arange(len(split))
            for chunk in np.split(indices, range(CHUNK, len(indices), CHUNK)):
                if time.monotonic() > self.deadline:
                    return
                stamps = np.array([stamp(split, int(index)) for index in chunk], dtype=np.uint64)
                places = [(name, int(index)) for index in chunk[~self._is_checked(stamps)]]
                if places:
                    self.met.append(places)
                    yield places

    def _is_checked(self, stamps: np.ndarray) -> np.ndarray:
        """Return which stamps are remembered, bool; those are sorted."""
        if not len(self.checked):
            return np.zeros(len(stamps), dtype=bool)
        places = np.searchsorted(self.checked, stamps)
        is_same: np.ndarray = self.checked[np.minimum(places, len(self.checked) - 1)] == stamps
        return is_same


def stamp(split: Split, index: int) -> int:
    """Return a hash of a stored image's path, size and time of change; 0 if these are not known."""
    if not isinstance(split, DecodedSplit):
        return 0
    row = int(split.members[index])
    table = getattr(split.rows, "table", None)
    if table is not None:
        words: tuple[Any, ...] = (getattr(table, "_fingerprint", None), row)
    else:
        image = split.rows[row].image
        try:
            status = os.stat(image)
        except (OSError, TypeError, ValueError):
            return 0
        words = (os.path.abspath(image), status.st_size, status.st_mtime_ns)
    return int.from_bytes(
        hashlib.blake2b(repr(words).encode("utf-8", "surrogateescape"), digest_size=8).digest(),
        "big",
    )


def _cache_file(task: Task) -> Path:
    return (
        cache_folder() / "pictures" / f"{hashlib.sha256(task.source.encode()).hexdigest()[:32]}.npy"
    )


def _read_remembered(task: Task) -> np.ndarray:
    """Return the stamps of the images that were read without a problem, uint64, sorted."""
    with suppress(OSError, ValueError, EOFError):
        stamps = np.load(_cache_file(task), allow_pickle=False)
        if stamps.dtype == np.uint64 and stamps.ndim == 1:
            return np.unique(stamps)
    return np.empty(0, dtype=np.uint64)


def remember(task: Task, stamps: Iterable[int]) -> None:
    """Add the stamps of images that were read without a problem to those remembered."""
    new = np.array([stamp for stamp in stamps if stamp], dtype=np.uint64)
    # Drafts left by a killed process are removed even if there is nothing new to write
    remove_drafts(_cache_file(task))
    if len(new) and is_first():
        remembered = np.union1d(new, _read_remembered(task))
        with (
            suppress(OSError, ZooError),
            new_file(_cache_file(task), force=True) as draft,
            draft.open("wb") as file,
        ):
            np.save(file, remembered)  # failing to write only costs time in the next run
