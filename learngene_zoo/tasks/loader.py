"""`Loader`: a split as batches, one epoch at a time.

Every pixel is a function of (seed, epoch, sample index): equal for any number of workers or processes and wherever a run
resumes. The order of an epoch is a function of (seed, epoch). A global batch holds the same images on any number of processes.
No global random state is read or changed.

Images are read one by one or, of a stream, in order: then at most two windows of encoded images and the batches in flight are
held in memory.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader

from learngene_zoo.errors import BadData, WrongCall, ZooError, unknown
from learngene_zoo.families.spec import InputFormat
from learngene_zoo.runs.run import rank, world
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.images import read
from learngene_zoo.tasks.splits import balanced
from learngene_zoo.tasks.streams.order import Order, beginning, shown
from learngene_zoo.tasks.task import Sample, Split, Stream, Task
from learngene_zoo.tasks.transforms import AUGMENTS, Augment, augmented, checked, normalised

WINDOW = 1_000


class Batch(NamedTuple):
    """This process's share of one step: images float32 (B, C, H, W), normalised; labels and sample indices int64 (B,).

    The labels of a segmentation task are int64 (B, H, W), 255 where a pixel does not count. The attributes of a task that has
    some are float32 (B, A), NaN where one has no meaning.
    """

    images: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor
    attributes: torch.Tensor | None = None


class Batches(Protocol):
    """What training and evaluation use: a split as batches, one epoch at a time."""

    task: Task
    input_format: InputFormat
    batch_size: int  # over all processes

    @property
    def images(self) -> int:
        """The number of images used; an epoch that drops its last batch shows slightly fewer."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This process's share of the batches of one epoch, from step `start` on. Raises `BadData`."""


# Which images a step shows.


class Share(NamedTuple):
    """What this process shows in one step; of a stream with the samples, which have been read."""

    epoch: int
    indices: list[int]
    labels: list[int]
    samples: list[Sample] | None = None


@dataclass(frozen=True)
class Picked:
    """The images `used` of a split, which workers read one by one."""

    split: Split
    used: np.ndarray
    labels: np.ndarray
    seed: int
    shuffle: bool

    @property
    def images(self) -> int:
        """The number of images used."""
        return len(self.used)

    def shares(self, epoch: int, steps: range, batch_size: int) -> Iterator[Share]:
        """This process's share of these steps of an epoch."""
        order = self.used
        if self.shuffle:
            order = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "order", epoch))).permutation(order)
        for step in steps:
            mine = order[step * batch_size : (step + 1) * batch_size][rank() :: world()]
            yield Share(epoch, mine.tolist(), self.labels[mine].tolist())


@dataclass(frozen=True)
class Streamed:
    """The first `used[i]` images of each shard i, which this process reads in order and workers decode."""

    stream: Stream
    used: tuple[int, ...]
    order: Order
    split: ClassVar[None] = None  # workers get no way to the data

    @cached_property
    def images(self) -> int:
        """The number of images used."""
        return sum(self.used)

    def shares(self, epoch: int, steps: range, batch_size: int) -> Iterator[Share]:
        """As of `Picked`; the images before these steps are not read."""
        first, last = steps.start * batch_size, steps.stop * batch_size

        def mine(places: np.ndarray) -> np.ndarray:
            return (places >= first) & (places < last) & (places % batch_size % world() == rank())

        following = shown(self.stream, self.used, self.order, epoch, mine)
        for step in steps:
            size = min(batch_size, self.images - step * batch_size)
            share = list(islice(following, len(range(rank(), size, world()))))
            samples = [sample for _, sample in share]
            yield Share(epoch, [index for index, _ in share], [sample.label for sample in samples], samples)


# Batches.


@dataclass(frozen=True)
class Pictures:
    """What a worker does: decode, check, fit and augment. An item is one whole batch, its images and masks still uint8."""

    task: Task
    split: Split | None  # None: every share has its samples
    input_format: InputFormat
    seed: int
    augment: Augment

    def __getitem__(self, share: Share) -> Batch | ZooError:
        """The batch. An error is returned, so that the loader can raise it with its own type."""
        try:
            return self.batch(share)
        except ZooError as error:
            return error

    def batch(self, share: Share) -> Batch:
        """The images as this epoch shows them; with several processes there may be none. Raises `BadData`."""
        if not share.indices:
            return self._none()
        if share.samples is not None:
            got = read(share.samples)
        else:
            assert self.split is not None, "a share of a stream has its samples"
            got = self.split.__getitems__(share.indices)
        samples = checked(got, self.task, share.indices)
        how = self.seed, share.epoch, share.indices, self.task.flip
        images, masks = augmented(samples.images, samples.masks, self.augment, self.input_format, how)
        labels = torch.tensor(share.labels, dtype=torch.int64) if masks is None else masks
        return Batch(images, labels, torch.tensor(share.indices, dtype=torch.int64), samples.attributes)

    def _none(self) -> Batch:
        size = self.input_format.image_size
        images = torch.empty(0, self.task.channels, size, size, dtype=torch.uint8)
        none = torch.empty(0, dtype=torch.int64)
        attributes = torch.empty(0, len(self.task.attributes)) if self.task.attributes else None
        return Batch(images, images[:, 0] if self.task.dense else none, none, attributes)


class Upcoming:
    """The shares that the workers are given next, as a sampler: one is read when a worker is ready for it."""

    def __init__(self) -> None:
        self.shares: Iterator[Share] = iter(())

    def __iter__(self) -> Iterator[Share]:
        return self.shares


class Loader:
    """Batches of one split, presented as `input_format` says.

    `batch_size` counts the images of a step over all processes; each process gets every world-th of them. `drop_last` drops
    an epoch's last, smaller batch: by default when shuffling, unless it is the only one. `images` limits the number of images,
    balanced over the classes; of a stream it takes those that come first in an order of the shards drawn from the seed,
    whatever their class. Shuffling a stream mixes the images of a `window`.
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
        _check(task, augment, shuffle, batch_size, images=images, workers=workers, window=window)
        self.task, self.input_format, self.batch_size = task, input_format, batch_size
        self._source: Picked | Streamed
        if task.open_stream is None:
            self._source = _picked(task.split(split), images, seed, shuffle)
        else:
            stream = task.stream(split)
            order = Order(seed, window if shuffle else None)
            self._source = Streamed(stream, beginning(stream.counts, images, seed), order)
        self.images = self._source.images
        if not self.images:
            raise BadData(f"task {task.name} has no {split} images")
        if shuffle and self.images < world():
            raise WrongCall(f"{self.images} images cannot be shared among {world()} processes; use more images")
        drop = shuffle if drop_last is None else drop_last
        drop = drop and (self.images >= batch_size or drop_last is True)
        self.steps = self.images // batch_size if drop else -(-self.images // batch_size)
        closed = replace(task, open_split=_closed, open_stream=None)
        self._pictures = Pictures(closed, self._source.split, input_format, seed, augment)
        self._upcoming, self._workers = Upcoming(), workers
        self._feeder: DataLoader[Any] | None = None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from step `start` on; those before it are not loaded. Raises `BadData`."""
        for made in self._made(self._source.shares(epoch, range(start, self.steps), self.batch_size)):
            if isinstance(made, ZooError):
                try:
                    raise made
                finally:
                    del made  # else it, its traceback and this frame keep each other, and the workers, alive
            yield made._replace(images=normalised(made.images, self.input_format), labels=made.labels.long())

    def _made(self, shares: Iterator[Share]) -> Iterator[Batch | ZooError]:
        if not self._workers:
            return (self._pictures[share] for share in shares)
        self._upcoming.shares = shares
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)  # their number is the user's
            if self._feeder is None:
                self._feeder = _feeder(self._pictures, self._upcoming, self._workers)
            return iter(self._feeder)


def _feeder(items: Any, order: Any, workers: int) -> DataLoader[Any]:
    """Worker processes that make `items[i]`, a whole batch each, for every i in `order`, each time it is iterated over."""
    return DataLoader(
        items,
        batch_size=None,
        sampler=order,
        num_workers=workers,
        persistent_workers=True,
        generator=torch.Generator(),  # else it draws from the global one
    )


def _closed(name: str) -> Split:
    """Replaces `open_split` in the copy of the task that workers get: they are given their split."""
    raise AssertionError("a worker opens no split")


def _picked(split: Split, images: int | None, seed: int, shuffle: bool) -> Picked:
    labels = np.asarray(split.labels, dtype=np.int64)
    used = np.arange(len(labels)) if images is None or images >= len(labels) else balanced(labels, images, seed)
    return Picked(split, used, labels, seed, shuffle)


def _check(task: Task, augment: str, shuffle: bool, batch_size: int, **counts: int | None) -> None:
    """Raises `WrongCall` for settings that are impossible, with this task or with any."""
    if augment not in AUGMENTS:
        raise unknown("augmentation", augment, AUGMENTS)
    if task.attributes and augment != "none":
        raise WrongCall(
            f"the attributes of {task.name} say where things are in an image, and the augmentation {augment} moves them; "
            "use --augment none"
        )
    for name, count in {"batch_size": batch_size, **counts}.items():
        least = 0 if name == "workers" else 1
        if count is not None and count < least:
            raise WrongCall(f"got {name}={count}; expected at least {least}")
    if shuffle and batch_size % world():
        raise WrongCall(
            f"a batch of {batch_size} cannot be shared equally among {world()} processes; use a multiple of {world()}"
        )
