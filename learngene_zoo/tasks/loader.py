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
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader

from learngene_zoo.errors import BadData, WrongCall, ZooError, unknown
from learngene_zoo.families.spec import InputFormat
from learngene_zoo.runs.progress import print_note
from learngene_zoo.runs.run import rank, world
from learngene_zoo.seeds import balanced, derive_seed
from learngene_zoo.tasks.fitted import keep_fitted
from learngene_zoo.tasks.images import describe_deep_grey, read
from learngene_zoo.tasks.splits import DecodedSplit
from learngene_zoo.tasks.streams.order import Order, beginning, shown
from learngene_zoo.tasks.task import Sample, Split, Stream, Task
from learngene_zoo.tasks.transforms import AUGMENTS, Augment, augmented, checked, normalised

WINDOW = 1_000
NOTED = 16  # images whose headers say whether a note about them is due
FEW = 8  # full batches; shuffled epochs of fewer do not drop what is left over: it would be more than a ninth of the images
COPY = (
    2**40
)  # added to an image's index for each further copy of it in an epoch: the index that its draws are a function of


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
    draws: list[int]  # what the augmentations' draws are a function of: the indices, other ones for further copies
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
    repeats: int = 1

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
            places = _places(step, batch_size, self.images)
            mine = order[places // self.repeats]
            draws = mine + COPY * (places % self.repeats)
            yield Share(epoch, mine.tolist(), draws.tolist(), self.labels[mine].tolist())


@dataclass(frozen=True)
class Streamed:
    """The first `used[i]` images of each shard i, which this process reads in order and workers decode."""

    stream: Stream
    used: tuple[int, ...]
    order: Order
    repeats: int = 1
    split: ClassVar[None] = None  # workers get no way to the data

    @cached_property
    def images(self) -> int:
        """The number of images used."""
        return sum(self.used)

    def shares(self, epoch: int, steps: range, batch_size: int) -> Iterator[Share]:
        """As of `Picked`; the images before these steps are not read."""
        first, last = steps.start * batch_size, min(steps.stop * batch_size, self.images)

        def mine(images: np.ndarray) -> np.ndarray:
            places = images[:, None] * self.repeats + np.arange(self.repeats)
            own = (places >= first) & (places < last) & (places % batch_size % world() == rank())
            return own.any(axis=1)

        following = shown(self.stream, self.used, self.order, epoch, mine)
        image, index, sample = -1, -1, Sample(None, "")
        for step in steps:
            share = []
            for place in _places(step, batch_size, self.images).tolist():
                if place // self.repeats != image:
                    image, (index, sample) = place // self.repeats, next(following)
                share.append((index, index + COPY * (place % self.repeats), sample.label, sample))
            yield Share(epoch, *map(list, zip(*share))) if share else Share(epoch, [], [], [])


def _places(step: int, batch_size: int, images: int) -> np.ndarray:
    """The places of this process's images of a step in the epoch."""
    return np.arange(step * batch_size, min((step + 1) * batch_size, images))[rank() :: world()]


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
        how = self.seed, share.epoch, share.draws, self.task.flip
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
    an epoch's last, smaller batch: by default when shuffling, if the epoch has at least `FEW` full ones or the processes
    outnumber its images. `repeats` is repeated augmentation (Hoffer et al. 2020): an epoch shows an N-th of the images, each N times
    in a row with draws of its own. `images` limits the number of images,
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
        repeats: int = 1,
    ) -> None:
        _check(task, augment, shuffle, batch_size, images=images, workers=workers, window=window, repeats=repeats)
        self.task, self.input_format, self.batch_size = task, input_format, batch_size
        self._source: Picked | Streamed
        if task.open_stream is None:
            self._source = _picked(task.split(split), images, seed, shuffle, repeats)
        else:
            stream = task.stream(split)
            order = Order(seed, window if shuffle else None)
            self._source = Streamed(stream, beginning(stream.counts, images, seed), order, repeats)
        self.images = self._source.images
        if not self.images:
            raise BadData(f"task {task.name} has no {split} images")
        if shuffle and self.images < world():
            raise WrongCall(f"{self.images} images cannot be shared among {world()} processes; use more images")
        full, left = divmod(self.images, batch_size)
        drop = shuffle and full > 0 and (full >= FEW or left < world()) if drop_last is None else drop_last
        self.steps = full if drop or not left else full + 1
        closed = replace(task, open_split=_closed, open_stream=None)
        _note_deep_grey(task, self._source)
        self._pictures = Pictures(closed, self._source.split, input_format, seed, augment)
        # Workers would each keep their own; masks and attributes come with the decoded image.
        is_alike = augment in ("none", "light") and not (workers or task.dense or task.attributes)
        source = self._source.split
        kept = keep_fitted(source, input_format, self.images) if is_alike and source is not None else None
        if kept is not None:
            self._pictures = replace(self._pictures, split=kept[0], input_format=kept[1])
        self._upcoming, self._workers = Upcoming(), workers
        self._feeder: Feeder | None = None

    @property
    def used(self) -> np.ndarray:
        """The indices of the images used, int64; none of a stream."""
        return self._source.used if isinstance(self._source, Picked) else np.empty(0, dtype=np.int64)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from step `start` on; those before it are not loaded. Raises `BadData`."""
        for made in self._made(self._source.shares(epoch, range(start, self.steps), self.batch_size)):
            if isinstance(made, ZooError):
                try:
                    raise made
                finally:
                    del made  # else it, its traceback and this frame keep each other, and the workers, alive
            finished = made.images.is_floating_point()
            images = made.images if finished else normalised(made.images, self.input_format)
            yield made._replace(images=images, labels=made.labels.long())

    def _made(self, shares: Iterator[Share]) -> Iterator[Batch | ZooError]:
        if not self._workers:
            return (self._pictures[share] for share in shares)
        self._upcoming.shares = shares
        if self._feeder is None:
            self._feeder = Feeder(self._pictures, self._upcoming, self._workers)
        return iter(self._feeder)


class Feeder(DataLoader[Any]):
    """Worker processes that make `items[i]`, a whole batch each, for every i in `order`, each time it is iterated over."""

    def __init__(self, items: Any, order: Any, workers: int) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)  # their number is the user's
            super().__init__(
                items,
                batch_size=None,
                sampler=order,
                num_workers=workers,
                persistent_workers=True,
                generator=torch.Generator(),  # else it draws from the global one
            )

    def __iter__(self) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            return super().__iter__()


def _note_deep_grey(task: Task, source: Picked | Streamed) -> None:
    """Print a note if some of the images, as far as a few say it, store grey of more than 8 bits."""
    if isinstance(source, Picked) and isinstance(source.split, DecodedSplit):
        split = source.split
        some = source.used[:: max(1, len(source.used) // NOTED)][:NOTED]
        text = describe_deep_grey(split.rows[int(split.members[index])] for index in some)
        if text:
            print_note(text, f"deep grey of {task.name}")


def _closed(name: str) -> Split:
    """Replaces `open_split` in the copy of the task that workers get: they are given their split."""
    raise AssertionError("a worker opens no split")


def _picked(split: Split, images: int | None, seed: int, shuffle: bool, repeats: int) -> Picked:
    labels = np.asarray(split.labels, dtype=np.int64)
    used = np.arange(len(labels)) if images is None or images >= len(labels) else balanced(labels, images, seed)
    return Picked(split, used, labels, seed, shuffle, repeats)


def _check(task: Task, augment: str, shuffle: bool, batch_size: int, **counts: int | None) -> None:
    """Raises `WrongCall` for settings that are impossible, with this task or with any."""
    if augment not in AUGMENTS:
        raise unknown("augmentation", augment, AUGMENTS)
    if task.attributes and augment != "none":
        raise WrongCall(
            f"the attributes of {task.name} say where things are in an image, and the augmentation {augment} moves them; "
            "use --augment none"
        )
    if augment == "deit" and task.dense:
        raise WrongCall(f"the augmentation deit does not move the masks of {task.name}; use --augment rand")
    for name, count in {"batch_size": batch_size, **counts}.items():
        least = 0 if name == "workers" else 1
        if count is not None and count < least:
            raise WrongCall(f"got {name}={count}; expected at least {least}")
    if shuffle and batch_size % world():
        raise WrongCall(
            f"a batch of {batch_size} cannot be shared equally among {world()} processes; use a multiple of {world()}"
        )
