"""The learning rate as a function of the step alone."""

from __future__ import annotations

import math

from learngene_zoo.recipe import Recipe


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
