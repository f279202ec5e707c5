"""What a step of training is made of: its learning rate, the groups of parameters, mixed batches and stochastic depth.

`Step` is what the loop yields after each.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from learngene_zoo.errors import WrongCall
from learngene_zoo.recipe import Recipe

# AdamW's groups of an objective's parameters; a group may have an `lr_scale`.
Groups = Callable[[nn.Module, Recipe], list[dict[str, Any]]]
UNDECAYED = frozenset({"pos_embed", "cls_token", "dist_token", "reg_token"})
PLACES = ("drop_path1", "drop_path2")


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


def mixing(recipe: Recipe, classes: int) -> Callable[[Any], Any] | None:
    """Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) as in timm; None if both are off.

    A function from a batch with labels (B,) to one with mixed images and labels (B, classes). It draws from numpy's
    global generator, which the loop seeds before every step.
    """
    if not (recipe.mixup or recipe.cutmix):
        return None
    from timm.data import Mixup

    mix = Mixup(recipe.mixup, recipe.cutmix, label_smoothing=0.0, num_classes=classes)

    def mixed(batch: Any) -> Any:
        images_BCHW, labels_B, size = batch.images, batch.labels, len(batch.images)
        if size % 2:  # timm mixes even batches only: the first image stands in as the last one's partner
            images_BCHW = torch.cat([images_BCHW, images_BCHW[:1]])
            labels_B = torch.cat([labels_B, labels_B[:1]])
        images_BCHW, labels_BK = mix(images_BCHW.clone(), labels_B)
        return batch._replace(images=images_BCHW[:size], labels=labels_BK[:size])

    return mixed


@contextmanager
def stochastic_depth(module: nn.Module, rate: float) -> Iterator[None]:
    """Stochastic depth (Huang et al. 2016): within, block i of L of every ViT in `module` is skipped with probability
    rate * i / (L - 1).

    With rate 0 nothing changes. Raises `WrongCall` if there is no block to drop.
    """
    if not rate:
        yield
        return
    before = [(block, place, getattr(block, place)) for block, place, _ in _places(module, rate)]
    if not before:
        raise WrongCall("drop_path needs blocks with drop_path1 and drop_path2, as timm's ViTs have; set it to 0")
    from timm.layers import DropPath

    try:
        for block, place, probability in list(_places(module, rate)):
            setattr(block, place, DropPath(probability) if probability else nn.Identity())
        yield
    finally:
        for block, place, layer in before:
            setattr(block, place, layer)


def _places(module: nn.Module, rate: float) -> Iterator[tuple[nn.Module, str, float]]:
    """Every place for a `DropPath`, with its probability. A layer may hold several blocks (a routed one holds two)."""
    for vit in module.modules():
        layers = getattr(vit, "blocks", None)
        if not isinstance(layers, (nn.Sequential, nn.ModuleList)):
            continue
        for i, layer in enumerate(layers):
            for block in layer.modules():
                for place in PLACES:
                    if hasattr(block, place):
                        yield block, place, rate * i / max(len(layers) - 1, 1)
