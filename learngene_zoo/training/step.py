"""`Step`: what the training loop tells whoever iterates over it. Cold.

The learning rate as a function of the step alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from learngene_zoo.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Step:
    """One finished step of training."""

    epoch: int  # from 0
    step: int  # from 1, over all epochs
    steps: int  # how many there will be
    losses: Mapping[str, float]  # by name, means over the batch of all processes
    lr: float
    end_of_epoch: bool

    @property
    def loss(self) -> float:
        """The sum of the losses: what was minimised."""
        return sum(self.losses.values())


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The rate of the `step`-th step (from 1).

    The first W = warmup * steps_per_epoch steps rise linearly, the W-th to `lr`. Of the others the n-th (from 0) of N is
    at t = n/N: `cosine` gives min_lr + (lr - min_lr) (1 + cos(pi t)) / 2, `poly` min_lr + (lr - min_lr) (1 - t)^power,
    `constant` lr.
    """
    done = step - 1
    warm = round(recipe.warmup * steps_per_epoch)
    if done < warm:
        return recipe.lr * step / warm
    if recipe.schedule == "constant":
        return recipe.lr
    t = min((done - warm) / max(recipe.epochs * steps_per_epoch - warm, 1), 1.0)
    share = (1 + math.cos(math.pi * t)) / 2 if recipe.schedule == "cosine" else (1 - t) ** recipe.power
    return recipe.min_lr + (recipe.lr - recipe.min_lr) * share
