"""Which task a step of multi-task training is for: temperature sampling, p ~ N^(1/T). Cold.

N images and temperature T: at 1 every image is as likely as any other, at infinity every task. TAL samples at 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from learngene_zoo.plugin import WrongCall, derive_seed


def probabilities(images: Mapping[str, int], temperature: float = 2.0) -> dict[str, float]:
    """How likely each task is, from its number of training images; in the order given.

    Raises `WrongCall` for a temperature that is not positive, without tasks, and for a task without images.
    """
    if not temperature > 0:
        raise WrongCall(
            f"the temperature of task sampling is {temperature}; it must be positive (inf: all tasks alike)"
        )
    if not images:
        raise WrongCall("there is no task to sample; name at least one with --task")
    for task, count in images.items():
        if count < 1:
            raise WrongCall(f"the task {task} has {count} training images; it needs at least one to be sampled")
    # Against the largest, so that a low temperature overflows nothing.
    most = max(images.values())
    weights = {task: math.exp(math.log(count / most) / temperature) for task, count in images.items()}
    total = math.fsum(weights.values())
    return {task: weight / total for task, weight in weights.items()}


def task_at(likely: Mapping[str, float], seed: int, step: int) -> str:
    """The task of a step: a function of the probabilities, the seed and the step alone."""
    left = derive_seed(seed, "task", step) / 2**63
    for task, probability in likely.items():
        left -= probability
        if left < 0:
            return task
    return max(likely, key=lambda task: likely[task])  # the probabilities sum to a hair less than one


def steps_per_epoch(images: Mapping[str, int], batch: int) -> int:
    """Steps after which as many images have been seen as all tasks have together. Raises `WrongCall` for a batch below 1."""
    if batch < 1:
        raise WrongCall(f"a batch of {batch} images; it must have at least one")
    return -(-sum(images.values()) // batch)
