"""The settings of the parts of both methods' extractions, and what Learngene Pool's mean for an ancestry model.

A part of a run is kept under a hash of its settings (`learngene_zoo.plugin.once`): each part gets its own record, with what it depends
on and nothing else.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from learngene_zoo.plugin import Json, Recipe, ViTSpec, Work, WrongCall, to_json

if TYPE_CHECKING:
    from learngene_zoo.plugin import Batches, InputFormat, Run, Task

Init = Literal["timm", "fan_in"]
Reduction = Literal["sample", "entries"]
Start = Literal["tm", "pinv", "ls"]
Guidance = Literal["hard", "soft", "none"]

LEVELS = 3  # low, middle and high

# What both papers train with, but for epochs, batch size and learning rate: DeiT's settings, as SN-Net released them.
DEIT = Recipe(min_lr=1e-6, warmup=5, drop_path=0.1, label_smoothing=0.1, mixup=0.8, cutmix=1.0, augment="rand")
# No augmentation: the source task's attributes would not be true of images that were moved.
TRAINING = Recipe(epochs=10, warmup=0.5, clip=1.0, augment="none")


@dataclass(frozen=True, kw_only=True)
class Imitating:
    """How an auxiliary model imitates the ancestry model: see `imitation.py`."""

    levels: int
    alpha: float
    tau: float
    reduction: Reduction


@dataclass(frozen=True, kw_only=True)
class Auxiliary:
    """The training of one auxiliary model; without `imitating` it learns from labels alone."""

    init: Init
    training: Recipe
    imitating: Imitating | None


@dataclass(frozen=True, kw_only=True)
class PathTraining:
    """The training of all paths of a network, one in each step: see `sampled_paths.py`."""

    recipe: Recipe
    guidance: Guidance
    share: float = 0.0  # the teacher's part of the loss
    temperature: float = 1.0
    evaluated: int | None = None  # validation images; None: all, 0: none


@dataclass(frozen=True, kw_only=True)
class PoolTraining:
    """How a pool's stitches start, and its fine-tuning."""

    stitch: Start
    stitch_images: int
    paths: PathTraining


@dataclass(frozen=True, kw_only=True)
class LeastSquares:
    """SN-Net's initialisation of the stitches from the features of some training images."""

    images: int


@dataclass(frozen=True, kw_only=True)
class NetworkTraining:
    """The joint training of SN-Net: of all weights, or of the stitches and what else must be trained with them."""

    trained: Literal["all", "stitches"]
    paths: PathTraining


@dataclass(frozen=True, kw_only=True)
class Images:
    """A task's training images. Which and in which order is a function of the whole run's seed, equal for all parts."""

    task: Task
    input_format: InputFormat
    seed: int

    def batches(self, recipe: Recipe, run: Run) -> Batches:
        """The batches of one part."""
        from learngene_zoo.plugin import training_images

        return training_images(self.task, self.input_format, recipe, replace(run, seed=self.seed))


def levels(blocks: int, count: int) -> tuple[int, ...]:
    """The blocks, counted from 0, at the last `count` of the three levels of a model: (1, 3, 5) of 6 blocks, (5,) for one.

    Low, middle and high level are a third, two thirds and all of the depth, rounded to the nearest block (Learngene Pool, section
    "Distillation": of 12 blocks the 4th, 8th and 12th, of 6 the 2nd, 4th and 6th).
    """
    return tuple((2 * level * blocks + LEVELS) // (2 * LEVELS) - 1 for level in range(LEVELS - count + 1, LEVELS + 1))


def paired_levels(student: int, ancestry: int, count: int) -> tuple[tuple[int, int], ...]:
    """(block of the student, block of the ancestry model) at each of `count` levels, given how many blocks each has."""
    return tuple(zip(levels(student, count), levels(ancestry, count)))


def check_levels(low: int, high: int, blocks: int, whose: str) -> None:
    """Raises `WrongCall`, naming the option, if a model with this number of blocks has not that many levels to distil."""
    for name, count in (("low_levels", low), ("high_levels", high)):
        if blocks < count:
            raise WrongCall(
                f"{name} is {count}, but {whose} has {blocks} blocks, one or more for each level; distil fewer levels"
            )


def auxiliary_specs(
    ancestry: ViTSpec, blocks: int, low_width: int | None, high_width: int | None
) -> tuple[ViTSpec, ViTSpec]:
    """The shapes of the narrow and the wide auxiliary model: a quarter of the ancestry's width in whole heads, and all of it.

    Both have the ancestry's head width. Raises `WrongCall` for widths that are not multiples of it, or not in order.
    """
    head = ancestry.head_width
    low = low_width or math.ceil(ancestry.width / 4 / head) * head
    high = high_width or ancestry.width
    for name, width in (("low_width", low), ("high_width", high)):
        if width % head:
            near = max(width // head, 1) * head
            raise WrongCall(
                f"{name} is {width}, which is not a multiple of the ancestry's head width of {head}; try {near}"
            )
    if low >= high:
        raise WrongCall(f"low_width {low} is not below high_width {high}; stitches lead from narrow to wide")
    narrow, wide = (ancestry.with_(layers=blocks, width=width, heads=width // head) for width in (low, high))
    return narrow, wide


def work_of(
    depends: Json, models: Sequence[ViTSpec], recipe: Recipe, images: int, ancestry: ViTSpec, taught: bool
) -> Work:
    """The work of a training on `images` images, each of which runs one of `models`, and with `taught` the ancestry model, too.

    Layers are counted in layers of the ancestry's width. A narrower layer counts for its share of the width, not of its
    square: at the size of the bundled models most of a layer's time is proportional to its width.
    """
    layers = [segment.layers * segment.width / ancestry.width for model in models for segment in model.segments]
    return Work(
        depends=to_json([depends, taught]),
        images=min(recipe.images or sys.maxsize, images) * recipe.epochs,
        trained=sum(layers) / len(models),
        asked=ancestry.layers if taught else 0,
    )
