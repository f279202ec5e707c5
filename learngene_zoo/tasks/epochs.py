"""The images of each batch of an epoch, for one process.

A global batch contains the same samples on any number of processes. The order of an epoch is a
function of (seed, epoch). Images are picked from a split by their index, or read in order from a
stream.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from learngene_zoo.runs.run import get_world_size, rank
from learngene_zoo.seeds import derive_seed, draw_balanced
from learngene_zoo.tasks.streams.order import EpochOrder, count_used, iterate_shown
from learngene_zoo.tasks.task import Sample, Split, Stream, Task

# Added to an image's index for each further copy of it in an epoch; its random draws are a
# function of the sum.
COPY_OFFSET = 2**40
MIN_FULL_BATCHES = 8


class StepShare(NamedTuple):
    """The images of this process in one step; `samples` are those of a stream, already read."""

    epoch: int
    indices: list[int]
    # Seeds of the augmentations: the indices, with an offset for further copies.
    draws: list[int]
    labels: list[int]
    samples: list[Sample] | None = None


@dataclass(frozen=True)
class PickedImages:
    """The images `used` of a split, read one by one by workers."""

    split: Split
    used: np.ndarray
    labels: np.ndarray
    seed: int
    shuffle: bool
    repeats: int = 1

    @property
    def images(self) -> int:
        """The number of images used."""
        return len(self.used)

    def shares(self, epoch: int, bounds: np.ndarray) -> Iterator[StepShare]:
        """Yield this process's share of the batches of an epoch that `bounds` separate."""
        order = self.used
        if self.shuffle:
            order = np.random.Generator(
                np.random.PCG64(derive_seed(self.seed, "order", epoch))
            ).permutation(order)
        for first, last in pairwise(bounds.tolist()):
            positions = _list_positions(first, last)
            mine = order[positions // self.repeats]
            draws = mine + COPY_OFFSET * (positions % self.repeats)
            yield StepShare(epoch, mine.tolist(), draws.tolist(), self.labels[mine].tolist())


@dataclass(frozen=True)
class StreamedImages:
    """The first `used[i]` images of each shard i, read in order by this process.

    Workers decode them.
    """

    stream: Stream
    used: tuple[int, ...]
    order: EpochOrder
    repeats: int = 1
    split: ClassVar[None] = None  # workers do not read the data

    @cached_property
    def images(self) -> int:
        """The number of images used."""
        return sum(self.used)

    def shares(self, epoch: int, bounds: np.ndarray) -> Iterator[StepShare]:
        """Yield this process's share of the batches of an epoch that `bounds` separate.

        Earlier images are skipped.
        """

        def mine(images: np.ndarray) -> np.ndarray:
            positions = images[:, None] * self.repeats + np.arange(self.repeats)
            batches = np.searchsorted(bounds, positions, side="right") - 1
            is_mine = (
                (positions >= bounds[0])
                & (positions < bounds[-1])
                & ((positions - bounds[batches]) % get_world_size() == rank())
            )
            return is_mine.any(axis=1)

        following = iterate_shown(self.stream, self.used, self.order, epoch, mine)
        image, index, sample = -1, -1, Sample(None, "")
        for first, last in pairwise(bounds.tolist()):
            share = []
            for position in _list_positions(first, last).tolist():
                if position // self.repeats != image:
                    image, (index, sample) = position // self.repeats, next(following)
                share.append(
                    (index, index + COPY_OFFSET * (position % self.repeats), sample.label, sample)
                )
            yield (
                StepShare(epoch, *map(list, zip(*share))) if share else StepShare(epoch, [], [], [])
            )


def _list_positions(first: int, last: int) -> np.ndarray:
    """Return the positions in the epoch of this process's images of a batch."""
    return np.arange(first, last)[rank() :: get_world_size()]


def divide_epoch(
    images: int, batch_size: int, *, drop_last: bool | None = None, shuffle: bool
) -> np.ndarray:
    """Return the positions in an epoch at which its batches start, and the end of the last one.

    A last batch that is kept has the images that are left over. If those of a shuffled epoch are
    less than half a batch, all batches have nearly equal sizes instead: a step of Adam is as large
    for one image as for 64. By default it is dropped from a shuffled epoch of at least
    `MIN_FULL_BATCHES` others, or with fewer images than processes.

    Args:
        images: images of an epoch.
        batch_size: images of a batch, over all processes.
        drop_last: whether a smaller last batch is dropped; None: the default.
        shuffle: whether each epoch has another order.
    """
    full, left = divmod(images, batch_size)
    if drop_last is None:
        drop_last = shuffle and full > 0 and (full >= MIN_FULL_BATCHES or left < get_world_size())
    if drop_last or not left:
        return np.arange(full + 1) * batch_size
    if shuffle and 2 * left < batch_size and full:
        return np.arange(full + 2) * images // (full + 1)
    return np.minimum(np.arange(full + 2) * batch_size, images)


def count_steps(images: int, batch_size: int) -> int:
    """Return the number of batches of a shuffled epoch."""
    return len(divide_epoch(images, batch_size, shuffle=True)) - 1


def select_images(
    task: Task,
    split: str,
    images: int | None,
    *,
    seed: int,
    shuffle: bool,
    window: int,
    repeats: int,
) -> PickedImages | StreamedImages:
    """Return the images of a split that are used, in their order for every epoch."""
    if task.open_stream is None:
        return _pick_images(task.split(split), images, seed, shuffle, repeats)
    stream = task.stream(split)
    order = EpochOrder(seed, window if shuffle else None)
    return StreamedImages(stream, count_used(stream.counts, images, seed), order, repeats)


def _pick_images(
    split: Split, images: int | None, seed: int, shuffle: bool, repeats: int
) -> PickedImages:
    labels = np.asarray(split.labels, dtype=np.int64)
    used = (
        np.arange(len(labels))
        if images is None or images >= len(labels)
        else draw_balanced(labels, images, seed)
    )
    return PickedImages(split, used, labels, seed, shuffle, repeats)
