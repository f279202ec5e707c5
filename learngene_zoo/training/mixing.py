"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019), as timm does them, on a whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from learngene_zoo.recipe import Recipe


def mixing(recipe: Recipe, classes: int) -> Callable[[Any], Any] | None:
    """A function from a batch with labels (B,) to one with mixed images and labels (B, classes); None if both are off.

    It draws from numpy's global generator, which the loop seeds before every step.
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
