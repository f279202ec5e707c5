"""Batches of several tasks, one task a step, sampled by a temperature; a function of the seed and the step alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import torch

from learngene_zoo.plugin import Batch, Batches
from lgzoo_tal.sampling import probabilities, steps_per_epoch, task_at


class TaskBatch(NamedTuple):
    """A task's batch and, for each image, the number of the task (all the same)."""

    images: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor
    attributes: torch.Tensor | None
    tasks: torch.Tensor  # int64 (B,)


class Mixture:
    """The batches of several loaders; an epoch has as many steps as all their images fill.

    What a task has shown is counted for it alone: its epochs follow each other, whatever lies between two of its steps.
    """

    def __init__(self, loaders: Mapping[str, Batches], *, batch_size: int, temperature: float, seed: int) -> None:
        self.names = tuple(loaders)
        self.loaders = tuple(loaders.values())
        self.task, self.input_format = self.loaders[0].task, self.loaders[0].input_format
        self.batch_size, self.seed = batch_size, seed
        images = {name: loader.images for name, loader in loaders.items()}
        self.likely = probabilities(images, temperature)
        self.images = sum(images.values())
        self.steps = steps_per_epoch(images, batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The `TaskBatch`es of one epoch from step `start` on. Raises as the tasks' own loaders do."""
        first = epoch * self.steps + start
        shown = Counter(self.number_at(step) for step in range(first))
        sources: dict[int, Iterator[Batch]] = {}
        for step in range(first, (epoch + 1) * self.steps):
            number = self.number_at(step)
            if number not in sources:
                sources[number] = _endless(self.loaders[number], shown[number])
            batch = next(sources[number])
            yield TaskBatch(*batch, tasks=torch.full_like(batch.indices, number))

    def number_at(self, step: int) -> int:
        """The number of the task that a step is for; steps count from 0, over all epochs."""
        return self.names.index(task_at(self.likely, self.seed, step))


def _endless(loader: Batches, shown: int) -> Iterator[Batch]:
    """A task's batches, epoch after epoch, but for the first `shown`."""
    first, start = divmod(shown, loader.steps)
    for epoch in count(first):
        yield from loader.epoch(epoch, start=start if epoch == first else 0)
