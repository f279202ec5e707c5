"""Load a split as batches, one epoch at a time: `Loader`.

Every pixel is a function of (seed, epoch, sample index), and every token of the sample, the same
for any number of workers or processes and after resuming at any step. The order of an epoch is a
function of (seed, epoch). A global batch contains the same samples on any number of processes. No
global random state is read or changed.

Images are read one by one, or in order if the task is streamed; then at most two windows of encoded
images and the batches in flight are in memory.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader

from learngene_zoo.errors import BadData, WrongCall, ZooError, refuse_unknown
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.text_format import TextFormat, Tokens
from learngene_zoo.runs.progress import print_note
from learngene_zoo.runs.run import Run, get_world_size, join
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.epochs import (
    PickedImages,
    StepShare,
    StreamedImages,
    divide_epoch,
    select_images,
)
from learngene_zoo.tasks.images import decode_samples, describe_deep_grey, describe_transparency
from learngene_zoo.tasks.splits.samples import (
    DecodedSplit,
    PartOfSplit,
    PixelSplit,
    keep_fitted,
    name_sample,
)
from learngene_zoo.tasks.task import Split, Task, check_inputs
from learngene_zoo.tasks.texts.encoding import Encoder
from learngene_zoo.tasks.transforms import (
    AUGMENTS,
    Augment,
    augment_images,
    check_samples,
    normalise_images,
)
from learngene_zoo.text import name_option

WINDOW = 1_000
MAX_NOTE_IMAGES = 16  # images whose headers are read for a note about them
# Shuffled epochs of fewer full batches keep their last batch: it can be more than a ninth of the
# images.


class Batch(NamedTuple):
    """One process's share of a training or evaluation step.

    Attributes:
        inputs: images, float32 (B, C, H, W), normalised; of a text task `Tokens`.
        labels: int64 (B,); for a segmentation task int64 (B, H, W), 255 for ignored pixels.
        indices: sample indices, int64 (B,).
        attributes: float32 (B, A), NaN where one has no meaning; None if the task has none.
    """

    inputs: Any
    labels: torch.Tensor
    indices: torch.Tensor
    attributes: torch.Tensor | None = None


class Batches(Protocol):
    """The interface of a split for training and evaluation: batches, one epoch at a time."""

    task: Task
    input_format: InputFormat
    batch_size: int  # over all processes

    @property
    def images(self) -> int:
        """The number of images used; an epoch that drops its last batch has slightly fewer."""

    @property
    def steps(self) -> int:
        """The number of batches in an epoch."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield this process's share of the batches of one epoch, starting at step `start`.

        Raises `BadData`.
        """


@dataclass(frozen=True)
class BatchDataset:
    """The workers' data set: decodes, checks, resizes and augments images.

    An item is one batch, with images and masks uint8.
    """

    task: Task
    split: Split | None  # None: every share has its samples
    input_format: InputFormat
    seed: int
    augment: Augment

    def __getitem__(self, share: StepShare) -> Batch | ZooError:
        """Return the batch, or the error.

        An error is returned so that the loader can raise it with its type.
        """
        try:
            return self.batch(share)
        except ZooError as error:
            return error

    def batch(self, share: StepShare) -> Batch:
        """Return the images as augmented in this epoch; with several processes there may be none.

        Raises `BadData`.
        """
        if not share.indices:
            return self._none()
        if share.samples is not None:
            got = decode_samples(share.samples)
        else:
            assert self.split is not None, "a share of a stream has its samples"
            got = self.split.__getitems__(share.indices)
        samples = check_samples(got, self.task, share.indices)
        draw_settings = self.seed, share.epoch, share.draws, self.task.flip
        images, masks = augment_images(
            samples.images, samples.masks, self.augment, self.input_format, draw_settings
        )
        labels = torch.tensor(share.labels, dtype=torch.int64) if masks is None else masks
        return Batch(
            images, labels, torch.tensor(share.indices, dtype=torch.int64), samples.attributes
        )

    def _none(self) -> Batch:
        size = self.input_format.image_size
        images = torch.empty(0, self.task.channels, size, size, dtype=torch.uint8)
        none = torch.empty(0, dtype=torch.int64)
        attributes = torch.empty(0, len(self.task.attributes)) if self.task.attributes else None
        return Batch(images, images[:, 0] if self.task.dense else none, none, attributes)


@dataclass(frozen=True)
class TextBatchDataset:
    """The workers' data set of a text task: encodes them. An item is one batch."""

    task: Task
    split: Split
    encoder: Encoder

    def __getitem__(self, share: StepShare) -> Batch | ZooError:
        """Return the batch, or the error, as `BatchDataset` does."""
        try:
            return self.batch(share)
        except ZooError as error:
            return error

    def batch(self, share: StepShare) -> Batch:
        """Return the texts; with several processes there may be none. Raises `BadData`."""
        texts = self.split.__getitems__(share.indices) if share.indices else []
        where = [name_sample(self.split, index, "text") for index in share.indices]
        return Batch(
            self.encoder(texts, where),
            torch.tensor(share.labels, dtype=torch.int64),
            torch.tensor(share.indices, dtype=torch.int64),
        )


class ShareSampler:
    """A sampler of shares for the workers, which are read when a worker is ready."""

    def __init__(self) -> None:
        self.shares: Iterator[StepShare] = iter(())

    def __iter__(self) -> Iterator[StepShare]:
        return self.shares


class Loader:
    """Batches of one split, in the format `input_format`.

    Args:
        task: the data set.
        split: the split.
        input_format: size, channels and normalisation of the images; for texts a `TextFormat`.
        batch_size: images of a step over all processes; each process gets every world-th of them.
        seed: determines the order, the augmentation and the choice of images.
        shuffle: whether each epoch has a random order.
        augment: the augmentation.
        images: maximal number of images, balanced over the classes; for a stream the first ones in
            an order of the shards drawn from the seed, regardless of their class.
        workers: number of worker processes; 0: load in this process.
        drop_last: whether to drop an epoch's last, smaller batch; None: the default of
            `divide_epoch`.
        window: number of consecutive images of a stream that are shuffled together.
        repeats: N for repeated augmentation (Hoffer et al. 2020): an epoch has an N-th of the
            images, each N times in a row with independent draws.
        by_length: whether the texts of an epoch that is not shuffled are in the order of their
            number of tokens, the longest first, so that batches have little padding. Without effect
            on images.
    """

    def __init__(
        self,
        task: Task,
        split: str,
        input_format: InputFormat | TextFormat,
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
        by_length: bool = False,
    ) -> None:
        _check(
            task,
            augment,
            shuffle,
            batch_size,
            images=images,
            workers=workers,
            window=window,
            repeats=repeats,
        )
        check_inputs(task, input_format)
        # Typed as that of images, which most callers need
        self.input_format: Any = input_format
        self.task, self.batch_size = task, batch_size
        self._source = select_images(
            task, split, images, seed=seed, shuffle=shuffle, window=window, repeats=repeats
        )
        self.images = self._source.images
        if not self.images:
            raise BadData(f"task {task.name} has no {split} {task.sample_noun}s")
        if shuffle and self.images < get_world_size():
            raise WrongCall(
                f"{self.images} {task.sample_noun}s cannot be shared among {get_world_size()} "
                f"processes; use more {task.sample_noun}s"
            )
        self._bounds = divide_epoch(self.images, batch_size, drop_last=drop_last, shuffle=shuffle)
        self.steps = len(self._bounds) - 1
        closed = replace(task, open_split=_refuse_split, open_stream=None)
        self._dataset = (
            self._open_texts(closed, input_format, by_length and not shuffle)
            if isinstance(input_format, TextFormat)
            else self._open_images(closed, input_format, seed, augment, workers)
        )
        self._upcoming, self._workers = ShareSampler(), workers
        self._feeder: WorkerLoader | None = None

    def _open_texts(
        self, task: Task, input_format: TextFormat, by_length: bool
    ) -> TextBatchDataset:
        assert isinstance(self._source, PickedImages), "no text task is streamed"
        split, encoder = self._source.split, Encoder.of(input_format)
        if by_length:
            used = encoder.order_by_length(split, self._source.used)
            self._source = replace(self._source, used=used)
        return TextBatchDataset(task, split, encoder)

    def _open_images(
        self, task: Task, input_format: InputFormat, seed: int, augment: Augment, workers: int
    ) -> BatchDataset:
        source = self._source.split
        _print_notes_on_modes(task, self._source)
        dataset = BatchDataset(task, source, input_format, seed, augment)
        # Not with workers, which would each cache all images, nor with masks or attributes
        is_alike = augment in ("none", "light") and not (workers or task.dense or task.attributes)
        fitted = (
            keep_fitted(source, input_format, self.images)
            if is_alike and isinstance(source, DecodedSplit | PixelSplit | PartOfSplit)
            else None
        )
        if fitted is None:
            return dataset
        return replace(dataset, split=fitted[0], input_format=fitted[1])

    @property
    def used(self) -> np.ndarray:
        """The indices of the images used, int64; empty for a stream."""
        return (
            self._source.used
            if isinstance(self._source, PickedImages)
            else np.empty(0, dtype=np.int64)
        )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, starting at step `start`; earlier ones are not loaded.

        Raises `BadData`.
        """
        for batch in self._iterate_batches(self._source.shares(epoch, self._bounds[start:])):
            if isinstance(batch, ZooError):
                try:
                    raise batch
                finally:
                    # Otherwise a cycle of error, traceback and frame keeps the workers alive
                    del batch
            yield batch._replace(inputs=self._finish(batch.inputs), labels=batch.labels.long())

    def _finish(self, inputs: torch.Tensor | Tokens) -> torch.Tensor | Tokens:
        """Normalise images that an augmentation has not normalised."""
        if isinstance(inputs, Tokens) or inputs.is_floating_point():
            return inputs
        return normalise_images(inputs, self.input_format)

    def _iterate_batches(self, shares: Iterator[StepShare]) -> Iterator[Batch | ZooError]:
        if not self._workers:
            return (self._dataset[share] for share in shares)
        self._upcoming.shares = shares
        if self._feeder is None:
            self._feeder = WorkerLoader(self._dataset, self._upcoming, self._workers)
        return iter(self._feeder)


def sample_images(
    task: Task,
    split: Literal["train", "validation", "test"],
    input_format: InputFormat | TextFormat,
    run: Run,
    *,
    images: int | None,
    batch_size: int,
    seed: int | None = None,
    augment: Augment = "none",
    by_length: bool = False,
) -> Loader:
    """Create a loader for a sample of a split's images, in order.

    Under torchrun the processes share the images.

    Args:
        task: the data set.
        split: the split.
        input_format: size, channels and normalisation of the images.
        run: gives the device, the workers, and the default seed of the sample.
        images: the size of the sample; None: all images.
        batch_size: images of a step over all processes.
        seed: the seed of the sample; by default that of a training with the run's seed.
        augment: the augmentation.
        by_length: whether texts are in the order of their number of tokens, the longest first.

    Raises:
        BadData: for a split without images.
    """
    join(run.device_name)
    return Loader(
        task,
        split,
        input_format,
        batch_size=batch_size,
        seed=derive_seed(run.seed, "data") if seed is None else seed,
        images=images,
        workers=run.workers,
        augment=augment,
        by_length=by_length,
    )


class WorkerLoader(DataLoader[Any]):
    """A `DataLoader` whose workers compute `items[i]`, one batch each, for every i in `order`.

    `order` is iterated once for each iteration over the loader.
    """

    def __init__(self, items: Any, order: Any, workers: int) -> None:
        with warnings.catch_warnings():
            # The user chooses the number of workers
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            super().__init__(
                items,
                batch_size=None,
                sampler=order,
                num_workers=workers,
                persistent_workers=True,
                generator=torch.Generator(),  # instead of drawing from the global one
            )

    def __iter__(self) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            return super().__iter__()


def _print_notes_on_modes(task: Task, source: PickedImages | StreamedImages) -> None:
    """Print notes if a few images show grey of more than 8 bits, or transparent parts."""
    if isinstance(source, PickedImages) and isinstance(source.split, DecodedSplit):
        split = source.split
        sampled = source.used[:: max(1, len(source.used) // MAX_NOTE_IMAGES)][:MAX_NOTE_IMAGES]
        samples = [split.rows[int(split.members[index])] for index in sampled]
        if text := describe_deep_grey(samples):
            print_note(text, f"deep grey of {task.name}")
        if text := describe_transparency(samples):
            print_note(text, f"transparency of {task.name}")


def _refuse_split(name: str) -> Split:
    """Raise an error; this is `open_split` of the task's copy in workers."""
    raise AssertionError("a worker opens no split")


def _check(task: Task, augment: str, shuffle: bool, batch_size: int, **counts: int | None) -> None:
    """Check that the task supports these settings. Raises `WrongCall` otherwise."""
    if augment not in AUGMENTS:
        raise refuse_unknown("augmentation", augment, AUGMENTS)
    if task.is_text and augment != "none":
        raise WrongCall(
            f"texts are not augmented; use {name_option('augment', 'none')} for {task.name}"
        )
    if task.attributes and augment != "none":
        raise WrongCall(
            f"some attributes of {task.name} depend on positions in the image, which "
            f"the augmentation {augment} would change; use {name_option('augment', 'none')}"
        )
    if augment == "deit" and task.dense:
        raise WrongCall(
            f"the augmentation deit does not transform the masks of {task.name}; use "
            f"{name_option('augment', 'rand')}"
        )
    for name, count in {"batch_size": batch_size, **counts}.items():
        least = 0 if name == "workers" else 1
        if count is not None and count < least:
            raise WrongCall(f"got {name}={count}; expected at least {least}")
    if shuffle and batch_size % get_world_size():
        raise WrongCall(
            f"a batch of {batch_size} cannot be shared equally among {get_world_size()} "
            f"processes; use a multiple of {get_world_size()}"
        )
