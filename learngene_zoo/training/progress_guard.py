"""Stop a training that does not leave chance, long before its budget is spent."""

from __future__ import annotations

import math
from collections.abc import Iterator

from learngene_zoo.errors import TrainingFailed
from learngene_zoo.training.objectives import CLASS_LOSS
from learngene_zoo.training.step import Step

FEWEST_STEPS = 50  # before that even a good training may still be at chance
NEAR = 0.02


def stalled(steps: Iterator[Step], classes: int) -> Iterator[Step]:
    """The same steps; looks once, after a tenth of the budget (and at least 50 steps).

    Raises `TrainingFailed` if the mean cross-entropy of the classes, whatever other losses there are, over the second half
    of the steps until then is within 2 % of ln(classes), that of a guess. A training resumed after that point has been
    looked at already.
    """
    chance, losses = math.log(classes), []
    for step in steps:
        when = max(math.ceil(step.steps / 10), FEWEST_STEPS)
        if when // 2 < step.step <= when:
            losses.append(step.losses[CLASS_LOSS])
        if step.step == when:
            mean = sum(losses) / len(losses)
            if abs(mean - chance) <= NEAR * chance:
                raise TrainingFailed(
                    f"after {step.step} of {step.steps} steps the loss is {mean:.3f}, and guessing among {classes} "
                    f"classes gives {chance:.3f}: the training does not move; try another --lr or a longer --warmup"
                )
        yield step
