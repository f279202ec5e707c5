"""The settings that both methods have, and those of the parts of SN-Net's extraction.

A part of a run is kept under a hash of its settings (`learngene_zoo.plugin.once`): each part gets its own record, with
what it depends on and nothing else.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from learngene_zoo.plugin import Recipe, Spec, Work

TeacherTargets = Literal["hard", "soft", "none"]

# What both papers train with, but for epochs, batch size and learning rate: DeiT's settings, as SN-Net released them.
DEIT = Recipe(min_lr=1e-6, warmup=5, drop_path=0.1, label_smoothing=0.1, mixup=0.8, cutmix=1.0, augment="rand")
# No augmentation: the source task's attributes would not be true of images that were moved.
TRAINING = Recipe(epochs=10, warmup=0.5, clip=1.0, augment="none")


@dataclass(frozen=True, kw_only=True)
class PathSettings:
    """The training of all paths of a network, one in each step: see `sampled_paths.py`."""

    recipe: Recipe
    guidance: TeacherTargets
    share: float = 0.0  # the teacher's part of the loss
    temperature: float = 1.0
    evaluated: int | None = None  # validation images; None: all, 0: none


@dataclass(frozen=True, kw_only=True)
class LeastSquaresSettings:
    """SN-Net's initialisation of the stitches from the features of some training images."""

    images: int


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The joint training of SN-Net: of all weights, or of the stitches and what else must be trained with them."""

    trained: Literal["all", "stitches"]
    paths: PathSettings


def work_of(models: Sequence[Spec], recipe: Recipe, images: int, ancestry: Spec, taught: bool) -> Work:
    """The work of a training in which each image runs one of `models` and, with `taught`, the ancestry model, too.

    Layers are counted in layers of the ancestry's width. A narrower layer counts for its share of the width, not of its
    square: at the size of the bundled models most of a layer's time is proportional to its width.
    """
    layers = [segment.layers * segment.width / ancestry.width for model in models for segment in model.segments]
    return Work(
        images=min(recipe.images or sys.maxsize, images) * recipe.epochs,
        trained=sum(layers) / len(models),
        frozen=ancestry.layers if taught else 0,
    )
