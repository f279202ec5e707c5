"""`Loader`: a split as batches, one epoch at a time.

Every pixel is a function of (seed, epoch, sample index): equal for any number of workers or processes and wherever a run
resumes. The order of an epoch is a function of (seed, epoch). No global random state is read or changed.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from learngene_zoo.errors import BadData, WrongCall, ZooError, unknown
from learngene_zoo.families.spec import InputFormat
from learngene_zoo.runs.run import rank, world
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.augmentation import AUGMENTS, Augment, Images, light, light_joint, rand, rand_joint
from learngene_zoo.tasks.images import checked, fitted, fitted_masks, normalised
from learngene_zoo.tasks.splits import balanced
from learngene_zoo.tasks.task import Split, Task


class Batch(NamedTuple):
    """This process's share of one step: images float32 (B, C, H, W), normalised; labels and sample indices int64 (B,).

    The labels of a segmentation task are int64 (B, H, W), 255 where a pixel does not count. The attributes of a task that has
    some are float32 (B, A), NaN where one has no meaning.
    """

    images: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor
    attributes: torch.Tensor | None = None


class Made(NamedTuple):
    """What a worker returns: images uint8 (B, C, size, size) and what belongs to them."""

    images: torch.Tensor
    masks: torch.Tensor | None = None  # uint8 (B, size, size)
    attributes: torch.Tensor | None = None  # float32 (B, A)


@dataclass(frozen=True)
class Pictures:
    """What a worker does: decode, check, fit and augment. An item is one whole batch."""

    task: Task
    split: Split
    size: int
    seed: int
    augment: Augment

    def __getitem__(self, batch: tuple[int, list[int]]) -> Made | ZooError:
        """The batch of (epoch, indices). An error is returned, so that the loader can raise it with its own type."""
        epoch, indices = batch
        try:
            return self.pictures(epoch, indices)
        except ZooError as error:
            return error

    def pictures(self, epoch: int, indices: list[int]) -> Made:
        """The images at `indices` as this epoch shows them; with several processes there may be none."""
        return self.shown(self.split.__getitems__(indices), epoch, indices) if indices else self._none()

    def _none(self) -> Made:
        return Made(
            torch.empty(0, self.task.channels, self.size, self.size, dtype=torch.uint8),
            torch.empty(0, self.size, self.size, dtype=torch.uint8) if self.task.dense else None,
            torch.empty(0, len(self.task.attributes)) if self.task.attributes else None,
        )

    def shown(self, got: Any, epoch: int, indices: list[int]) -> Made:
        """What the split returned for `indices`, as this epoch shows it. Raises `BadData` if it does not fit the task."""
        samples = checked(got, self.task, indices)
        how = self.seed, epoch, indices, self.task.flip
        if samples.masks is not None:
            return Made(*_changed_jointly(samples.images, samples.masks, self.augment, self.size, how))
        return Made(_changed(samples.images, self.augment, self.size, how), attributes=samples.attributes)


How = tuple[int, int, list[int], bool]  # seed, epoch, indices, whether a mirrored image keeps its label


def _changed(images: Images, augment: Augment, size: int, how: How) -> torch.Tensor:
    if augment == "rand":
        return rand(images, *how, size)
    pictures = fitted(images, size)
    return light(pictures, *how) if augment == "light" else pictures


def _changed_jointly(
    images: Images, masks: Images, augment: Augment, size: int, how: How
) -> tuple[torch.Tensor, torch.Tensor]:
    if augment == "rand":
        return rand_joint(images, masks, *how, size)
    pictures, classes = fitted(images, size), fitted_masks(masks, size)
    return light_joint(pictures, classes, *how) if augment == "light" else (pictures, classes)


class Plan:
    """The batches that the workers make next, as a sampler; every epoch sets a new list."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[int]]] = []

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Loader:
    """Batches of one split, presented as `input_format` says.

    `batch_size` counts the images of a step over all processes; each process gets every world-th of them. `images` limits
    the number of images, balanced over the classes. `drop_last` drops an epoch's last, smaller batch: by default when
    shuffling, unless it is the only one.
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
    ) -> None:
        check_settings(task, augment, batch_size=batch_size, images=images, workers=workers, shuffle=shuffle)
        self.task, self.input_format, self.seed, self.shuffle = task, input_format, seed, shuffle
        self.batch_size, self.workers = batch_size, workers
        source = task.split(split)
        self._labels = torch.from_numpy(np.asarray(source.labels, dtype=np.int64))
        if not len(source):
            raise BadData(f"task {task.name} has no {split} images")
        self._used = _used(self._labels.numpy(), images, seed)
        if shuffle and self.images < world():
            raise WrongCall(f"{self.images} images cannot be shared among {world()} processes; use more images")
        drop = shuffle if drop_last is None else drop_last
        self._whole = drop and (self.images >= batch_size or drop_last is True)
        self._pictures = Pictures(replace(task, open_split=closed), source, input_format.image_size, seed, augment)
        self._plan = Plan()
        self._feeder: DataLoader[Any] | None = None

    @property
    def images(self) -> int:
        """The number of images used; an epoch that drops its last batch shows slightly fewer."""
        return len(self._used)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return self.images // self.batch_size if self._whole else -(-self.images // self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from step `start` on; those before it are not loaded. Raises `BadData`."""
        order = self._order(epoch)
        plan = [(epoch, self._share(order, step)) for step in range(start, self.steps)]
        for (_, indices), made in zip(plan, self._feed(plan), strict=True):
            if isinstance(made, ZooError):
                raise made
            places = torch.tensor(indices, dtype=torch.int64)
            labels = self._labels[places] if made.masks is None else made.masks.long()
            yield Batch(normalised(made.images, self.input_format), labels, places, made.attributes)

    def _share(self, order: np.ndarray, step: int) -> list[int]:
        """The sample indices of this process in one step of an epoch in this order."""
        shared: list[int] = order[step * self.batch_size : (step + 1) * self.batch_size][rank() :: world()].tolist()
        return shared

    def _order(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return self._used
        generator = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "order", epoch)))
        return generator.permutation(self._used)

    def _feed(self, plan: Sequence[tuple[int, list[int]]]) -> Iterator[Made | ZooError]:
        if not self.workers:
            return (self._pictures[batch] for batch in plan)
        self._plan.batches = list(plan)
        if self._feeder is None:
            self._feeder = feeder(self._pictures, self._plan, self.workers)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            return iter(self._feeder)


def feeder(items: Any, order: Any, workers: int) -> DataLoader[Any]:
    """Worker processes that make `items[i]`, a whole batch each, for every i in `order`, each time it is iterated over."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)  # their number is the user's
        return DataLoader(
            items,
            batch_size=None,
            sampler=order,
            num_workers=workers,
            persistent_workers=True,
            generator=torch.Generator(),  # else it draws from the global one
        )


def closed(name: str) -> Split:
    """Replaces `open_split` in the copy of the task that workers get: they are given their split."""
    raise AssertionError("a worker opens no split")


def check_settings(
    task: Task, augment: str, *, batch_size: int, images: int | None, workers: int, shuffle: bool
) -> None:
    """Raises `WrongCall` for settings that are impossible, with this task or with any."""
    if augment not in AUGMENTS:
        raise unknown("augmentation", augment, AUGMENTS)
    if task.attributes and augment != "none":
        raise WrongCall(
            f"the attributes of {task.name} say where things are in an image, and the augmentation {augment} moves them; "
            "use --augment none"
        )
    if batch_size < 1 or workers < 0 or (images is not None and images < 1):
        raise WrongCall(
            f"got batch_size={batch_size}, images={images}, workers={workers}; expected at least 1, 1 and 0"
        )
    if shuffle and batch_size % world():
        raise WrongCall(
            f"a batch of {batch_size} cannot be shared equally among {world()} processes; use a multiple of {world()}"
        )


def _used(labels_N: np.ndarray, images: int | None, seed: int) -> np.ndarray:
    if images is None or images >= len(labels_N):
        return np.arange(len(labels_N))
    return balanced(labels_N, images, seed)
