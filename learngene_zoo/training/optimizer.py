"""What AdamW is told: the learning rate of every step, and which parameters are decayed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from learngene_zoo.errors import WrongCall
from learngene_zoo.settings import Recipe

# AdamW's groups of an objective's parameters; a group may have an `lr_scale`.
Groups = Callable[[nn.Module, Recipe], list[dict[str, Any]]]
UNDECAYED = frozenset({"pos_embed", "cls_token", "dist_token", "reg_token", "freqs"})


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of the `step`-th step (from 1), a function of the step alone.

    It rises linearly over the first W = warmup * steps_per_epoch steps and reaches `lr` at the W-th. The n-th (from 0)
    of the N others is at t = n/N: `cosine` gives min_lr + (lr - min_lr) (1 + cos(pi t)) / 2, `poly` min_lr + (lr -
    min_lr) (1 - t)^power, `constant` lr.
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


def parameter_groups(module: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """AdamW's groups of all trainable parameters: matrices are decayed; biases, norms, tokens and positions are not.

    A group with an `lr_scale` gets the schedule's learning rate times that. Raises `WrongCall` if nothing is trainable.
    """
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    plain = {name for name, p in trained.items() if p.dim() < 2 or name.rpartition(".")[2] in UNDECAYED}
    decayed = [parameter for name, parameter in trained.items() if name not in plain]
    others = [parameter for name, parameter in trained.items() if name in plain]
    if not trained:
        raise WrongCall("this objective has no trainable parameter; unfreeze some, or train for 0 epochs")
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
