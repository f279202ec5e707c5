"""Which weights AdamW decays: matrices and kernels; not biases, norms, layer scales, tokens and positions."""

from __future__ import annotations

from typing import Any

from torch import nn

from learngene_zoo.errors import WrongCall
from learngene_zoo.recipe import Recipe

UNDECAYED = frozenset({"pos_embed", "cls_token", "dist_token", "reg_token"})


def parameter_groups(module: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """AdamW's groups of all trainable parameters.

    A group may carry an `lr_scale`: its learning rate is the schedule's times that. Raises `WrongCall` if nothing is
    trainable.
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            plain = parameter.dim() < 2 or name.rpartition(".")[2] in UNDECAYED
            (others if plain else decayed).append(parameter)
    if not decayed and not others:
        raise WrongCall("this objective has no trainable parameter; unfreeze some, or train for 0 epochs")
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
