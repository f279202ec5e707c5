"""`open_loader`: the batches of any task, by `Loader` or, for a stream, by `StreamLoader`, which keeps the same promises.

Every pixel is a function of (seed, epoch, index), whatever the number of workers or processes and wherever a run resumes;
the order of an epoch is a function of (seed, epoch). A global batch holds the same images on any number of processes. At most
two windows of encoded images and the batches in flight are held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader

from learngene_zoo.errors import BadData, WrongCall, ZooError
from learngene_zoo.families.spec import InputFormat
from learngene_zoo.runs.run import rank, world
from learngene_zoo.tasks.augmentation import Augment
from learngene_zoo.tasks.images import decoded, decoded_mask, normalised
from learngene_zoo.tasks.loader import Batch, Loader, Made, Pictures, check_settings, closed, feeder
from learngene_zoo.tasks.streams.order import Order, beginning, shown
from learngene_zoo.tasks.task import Sample, Samples, Stream, Task


class Batches(Protocol):
    """What training and evaluation use: a split as batches, one epoch at a time."""

    task: Task
    input_format: InputFormat
    batch_size: int  # over all processes

    @property
    def images(self) -> int:
        """The number of images used."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This process's share of the batches of one epoch, from step `start` on. Raises `BadData`."""


def open_loader(task: Task, split: str, input_format: InputFormat, **settings: Any) -> Batches:
    """Batches of one split of `task`, presented as `input_format` says; the settings are those of `Loader`."""
    kind = Loader if task.open_stream is None else StreamLoader
    return kind(task, split, input_format, **settings)


WINDOW = 1_000


@dataclass(frozen=True)
class Handful:
    """A few samples that were read, as a split, by their index; they are decoded when they are needed."""

    samples: Mapping[int, Sample]

    @property
    def labels(self) -> np.ndarray:
        """The class of every image."""
        return np.array([sample.label for sample in self.samples.values()], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor] | Samples:
        """uint8 (3, H, W) each, with uint8 (H, W) masks if they have some. Raises `BadData`."""
        chosen = [self.samples[index] for index in indices]
        images = [decoded(sample.image, sample.where) for sample in chosen]
        masks = [decoded_mask(sample.mask, sample.where) for sample in chosen if sample.mask is not None]
        return Samples(images, masks) if masks else images


@dataclass(frozen=True)
class Decoder:
    """What a worker does: decode, fit and augment one batch that was read for it."""

    pictures: Pictures

    def __getitem__(self, share: Share) -> tuple[Made | ZooError, list[int], list[int]]:
        """The batch (or the error), the labels and the indices of its images."""
        epoch, read = share
        indices, labels = [index for index, _ in read], [sample.label for _, sample in read]
        if not read:  # in a last batch a process may be left without an image
            size = self.pictures.size
            none = torch.zeros(0, 3, size, size, dtype=torch.uint8)
            return Made(none, none[:, 0] if self.pictures.task.dense else None), labels, indices
        return replace(self.pictures, split=Handful(dict(read)))[epoch, indices], labels, indices


class Upcoming:
    """The batches that the workers make next, as a sampler: they are read when a worker is ready for them."""

    def __init__(self) -> None:
        self.shares: Iterator[Share] = iter(())

    def __iter__(self) -> Iterator[Share]:
        return self.shares


class StreamLoader:
    """Batches of one split, presented as `input_format` says; the settings are those of `Loader`.

    `images` limits the number of images to those that come first in an order of the shards drawn from the seed, whatever
    their class. Shuffling mixes the images of a `window`. `workers` processes decode what this one reads.
    """

    def __init__(
        self,
        task: Task,
        split: str,
        input_format: InputFormat,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = False,
        augment: Augment = "none",
        images: int | None = None,
        workers: int = 0,
        drop_last: bool | None = None,
        window: int = WINDOW,
    ) -> None:
        check_settings(task, augment, batch_size=batch_size, images=images, workers=workers, shuffle=shuffle)
        if window < 1:
            raise WrongCall(f"expected a window of at least 1 image, got {window}")
        self.task, self.input_format, self.seed, self.shuffle = task, input_format, seed, shuffle
        self.batch_size, self.workers = batch_size, workers
        stream = task.stream(split)
        used = beginning(stream.counts, images, seed)
        count = sum(used)
        if not count:
            raise BadData(f"task {task.name} has no {split} images")
        if shuffle and count < world():
            raise WrongCall(f"{count} images cannot be shared among {world()} processes; use more images")
        drop = shuffle if drop_last is None else drop_last
        whole = drop and (count >= batch_size or drop_last is True)
        self._reading = Reading(stream, used, Order(seed, window if shuffle else None), batch_size, whole)
        shown = replace(task, open_split=closed, open_stream=None)  # workers get no way to the data
        self._decoder = Decoder(Pictures(shown, Handful({}), input_format.image_size, seed, augment))
        self._upcoming = Upcoming()
        self._feeder: DataLoader[Any] | None = None

    @property
    def images(self) -> int:
        """The number of images used; an epoch that drops its last batch shows slightly fewer."""
        return self._reading.images

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return self._reading.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from step `start` on; the images before it are not read. Raises `BadData`."""
        for made, labels, indices in self._feed(self._reading.shares(epoch, start)):
            if isinstance(made, ZooError):
                try:
                    raise made
                finally:
                    del made  # else it, its traceback and this frame keep each other, and the workers, alive
            classes = torch.tensor(labels, dtype=torch.int64) if made.masks is None else made.masks.long()
            yield Batch(normalised(made.images, self.input_format), classes, torch.tensor(indices, dtype=torch.int64))

    def _feed(self, shares: Iterator[Share]) -> Iterator[tuple[Made | ZooError, Sequence[int], Sequence[int]]]:
        if not self.workers:
            return (self._decoder[share] for share in shares)
        self._upcoming.shares = shares
        if self._feeder is None:
            self._feeder = feeder(self._decoder, self._upcoming, self.workers)
        return iter(self._feeder)


Share = tuple[int, list[tuple[int, Sample]]]  # an epoch, and the indices and samples of one batch


@dataclass(frozen=True)
class Reading:
    """The first `used[i]` images of each shard i, in batches over all processes; `whole` drops a smaller last one.

    It holds no loader, so that the iterators made of it keep none alive.
    """

    stream: Stream
    used: tuple[int, ...]
    order: Order
    batch_size: int
    whole: bool

    @cached_property
    def images(self) -> int:
        """The number of images used."""
        return sum(self.used)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return self.images // self.batch_size if self.whole else -(-self.images // self.batch_size)

    def shares(self, epoch: int, start: int) -> Iterator[Share]:
        """This process's share of every batch of an epoch from step `start` on."""
        read = shown(self.stream, self.used, self.order, epoch, self._mine(start))
        for step in range(start, self.steps):
            size = min(self.batch_size, self.images - step * self.batch_size)
            yield epoch, list(islice(read, len(range(rank(), size, world()))))

    def _mine(self, start: int) -> Callable[[np.ndarray], np.ndarray]:
        """Which places of an epoch this process shows from step `start` on."""
        first, last, size = start * self.batch_size, self.steps * self.batch_size, self.batch_size
        return lambda places: (places >= first) & (places < last) & (places % size % world() == rank())
