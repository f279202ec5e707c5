"""`Loader`: a split as batches, one epoch at a time.

Every pixel is a function of (seed, epoch, sample index): equal for any number of workers or processes and wherever a run
resumes. The order of an epoch is a function of (seed, epoch). No global random state is read or changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from learngene_zoo.errors import BadData, WrongCall, ZooError, unknown
from learngene_zoo.processes import rank, world
from learngene_zoo.run import derive_seed
from learngene_zoo.tasks.augmentation import AUGMENTS, Augment, light, rand
from learngene_zoo.tasks.presenting import fitted, normalised
from learngene_zoo.tasks.splits import balanced
from learngene_zoo.tasks.task import Split, Task
from learngene_zoo.view import View


class Batch(NamedTuple):
    """This process's share of one step: images float32 (B, C, H, W), normalised; labels and sample indices int64 (B,)."""

    images: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor


@dataclass(frozen=True)
class Pictures:
    """What a worker does: decode, fit and augment, uint8 (B, C, H, W). An item is one whole batch."""

    split: Split
    size: int
    seed: int
    augment: Augment
    flip: bool

    def __getitem__(self, batch: tuple[int, list[int]]) -> torch.Tensor | ZooError:
        """The pictures of (epoch, indices). An error is returned, to be raised with its own type by the loader."""
        epoch, indices = batch
        try:
            return self.pictures(epoch, indices)
        except ZooError as error:
            return error

    def pictures(self, epoch: int, indices: list[int]) -> torch.Tensor:
        """uint8 (B, C, size, size)."""
        images = self.split.__getitems__(indices)
        if self.augment == "rand":
            return rand(images, self.seed, epoch, indices, self.flip, self.size)
        pictures = fitted(images, self.size)
        return light(pictures, self.seed, epoch, indices, self.flip) if self.augment == "light" else pictures


class Plan:
    """The batches that workers are to make next, as a sampler; it is given a new list for every epoch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[int]]] = []

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Loader:
    """Batches of one split, presented as `view` says.

    `batch_size` counts the images of a step over all processes; each process gets every world-th of them. `images` uses
    only so many, as many of each class as there are. `drop_last` leaves out an epoch's last, smaller batch: by default
    when shuffling, unless it is the only one.
    """

    def __init__(
        self,
        task: Task,
        split: str,
        view: View,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = False,
        augment: Augment = "none",
        images: int | None = None,
        workers: int = 0,
        drop_last: bool | None = None,
    ) -> None:
        if augment not in AUGMENTS:
            raise unknown("augmentation", augment, AUGMENTS)
        _check(batch_size, images, workers, shuffle)
        self.task, self.view, self.seed, self.shuffle = task, view, seed, shuffle
        self.batch_size, self.workers = batch_size, workers
        source = task.split(split)
        self._labels = torch.from_numpy(np.asarray(source.labels, dtype=np.int64))
        if not len(source):
            raise BadData(f"task {task.name} has no {split} images")
        self._used = _used(self._labels.numpy(), images, seed)
        if shuffle and self.images < world():
            raise WrongCall(f"{self.images} images cannot be shared by {world()} processes; use more images")
        drop = shuffle if drop_last is None else drop_last
        self._whole = drop and (self.images >= batch_size or drop_last is True)
        self._pictures = Pictures(source, view.image_size, seed, augment, task.flip)
        self._plan = Plan()
        self._feeder: DataLoader[Any] | None = None

    @property
    def images(self) -> int:
        """How many images are used; an epoch that drops its last batch shows a little fewer."""
        return len(self._used)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return self.images // self.batch_size if self._whole else -(-self.images // self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from step `start` on; those before it are not loaded. Raises `BadData`."""
        order = self._order(epoch)
        plan = [(epoch, self._share(order, step)) for step in range(start, self.steps)]
        for (_, indices), pictures in zip(plan, self._feed(plan), strict=True):
            if isinstance(pictures, ZooError):
                raise pictures
            places = torch.tensor(indices, dtype=torch.int64)
            yield Batch(normalised(pictures, self.view), self._labels[places], places)

    def _share(self, order: np.ndarray, step: int) -> list[int]:
        """The sample indices of this process in one step of an epoch in this order."""
        shared: list[int] = order[step * self.batch_size : (step + 1) * self.batch_size][rank() :: world()].tolist()
        return shared

    def _order(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return self._used
        generator = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "order", epoch)))
        return generator.permutation(self._used)

    def _feed(self, plan: Sequence[tuple[int, list[int]]]) -> Iterator[torch.Tensor | ZooError]:
        if not self.workers:
            return (self._pictures[batch] for batch in plan)
        self._plan.batches = list(plan)
        if self._feeder is None:
            self._feeder = DataLoader(
                self._pictures,  # type: ignore[arg-type]
                batch_size=None,
                sampler=self._plan,  # type: ignore[arg-type]
                num_workers=self.workers,
                persistent_workers=True,
                generator=torch.Generator(),  # else it draws from the global one
            )
        return iter(self._feeder)


def _check(batch_size: int, images: int | None, workers: int, shuffle: bool) -> None:
    if batch_size < 1 or workers < 0 or (images is not None and images < 1):
        raise WrongCall(
            f"got batch_size={batch_size}, images={images}, workers={workers}; the first two are at least 1, the last 0"
        )
    if shuffle and batch_size % world():
        raise WrongCall(
            f"a batch of {batch_size} cannot be shared equally by {world()} processes; use a multiple of it"
        )


def _used(labels_N: np.ndarray, images: int | None, seed: int) -> np.ndarray:
    if images is None or images >= len(labels_N):
        return np.arange(len(labels_N))
    return balanced(labels_N, images, seed)
