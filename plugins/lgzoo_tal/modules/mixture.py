"""Batches of several tasks, one task per step, by temperature sampling.

    p ~ N^(1/T)        for a task of N images

At T = 1 every image is equally likely, for large T every task is. TAL uses 2. The task of a step
depends on the seed and the step alone.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import torch

from learngene_zoo.plugin import Batch, Batches, WrongCall, derive_seed


class TaskBatch(NamedTuple):
    """A task's batch and, for each image, the index of the task (the same for all)."""

    inputs: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor
    attributes: torch.Tensor | None
    tasks: torch.Tensor  # int64 (B,)


class TaskMixture:
    """The batches of several loaders. An epoch has as many images as all of them together.

    Each task goes through its own epochs, one after another, whatever other tasks come between two
    of its steps.
    """

    def __init__(
        self, loaders: Mapping[str, Batches], *, batch_size: int, temperature: float, seed: int
    ) -> None:
        self.names = tuple(loaders)
        self.loaders = tuple(loaders.values())
        self.task, self.input_format = self.loaders[0].task, self.loaders[0].input_format
        self.batch_size, self.seed = batch_size, seed
        images = {name: loader.images for name, loader in loaders.items()}
        self.probabilities = compute_probabilities(images, temperature)
        self.images = sum(images.values())
        self.steps = -(-self.images // batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the `TaskBatch`es of one epoch from step `start` on.

        Raises as the tasks' own loaders do.
        """
        first = epoch * self.steps + start
        counts = Counter(self.get_task_index(step) for step in range(first))
        sources: dict[int, Iterator[Batch]] = {}
        for step in range(first, (epoch + 1) * self.steps):
            number = self.get_task_index(step)
            if number not in sources:
                sources[number] = _repeat_epochs(self.loaders[number], counts[number])
            batch = next(sources[number])
            yield TaskBatch(*batch, tasks=torch.full_like(batch.indices, number))

    def get_task_index(self, step: int) -> int:
        """Return the index of the task of a step; steps are counted from 0 over all epochs."""
        return self.names.index(sample_task(self.probabilities, self.seed, step))


def _repeat_epochs(loader: Batches, skip: int) -> Iterator[Batch]:
    """Yield a task's batches, epoch after epoch, without the first `skip`."""
    first, start = divmod(skip, loader.steps)
    for epoch in count(first):
        yield from loader.epoch(epoch, start=start if epoch == first else 0)


def compute_probabilities(images: Mapping[str, int], temperature: float = 2.0) -> dict[str, float]:
    """Return the probability of each task, from its number of training images.

    Raises `WrongCall` for a task without images.
    """
    for task, number in images.items():
        if number < 1:
            raise WrongCall(
                f"the task {task} has {number} training images; it needs at least 1 to be sampled"
            )
    largest = max(images.values())  # relative to the largest, so that no temperature overflows
    weights = {
        task: math.exp(math.log(number / largest) / temperature) for task, number in images.items()
    }
    total = math.fsum(weights.values())
    return {task: weight / total for task, weight in weights.items()}


def sample_task(probabilities: Mapping[str, float], seed: int, step: int) -> str:
    """Return the task of a step: a function of the arguments alone.

    Args:
        probabilities: by task.
        seed: of the draws.
        step: counted from 0 over all epochs.
    """
    left = derive_seed(seed, "task", step) / 2**63
    for task, probability in probabilities.items():
        left -= probability
        if left < 0:
            return task
    # Rounding: the probabilities add up to slightly less than 1.
    return max(probabilities, key=lambda task: probabilities[task])
