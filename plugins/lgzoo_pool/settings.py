"""The settings of Learngene Pool and of the parts of both methods.

A part of a run is kept under a hash of its settings (`compute_once`): each part gets
its own record, with what it depends on and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    OMIT_DEFAULT,
    Bounds,
    Recipe,
    Spec,
    Work,
    WrongCall,
    check_bounds,
    name_option,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Batches, InputFormat, Run, Task

TeacherTargets = Literal["hard", "soft", "none"]
Init = Literal["timm", "fan_in"]
PredReduction = Literal["sample", "entries"]
StitchStart = Literal["tm", "pinv", "ls", "joint"]
FITTED: tuple[StitchStart, ...] = ("ls", "joint")  # need no matrices
LEVELS = 3  # low, middle and high

# The settings of both papers, but for epochs, batch size and learning rate: DeiT's, as SN-Net
# released them. DeiT's code also keeps a moving average of the weights (0.99996); SN-Net's makes
# none, and Learngene Pool takes the settings that it does not name from SN-Net.
DEIT = Recipe(
    min_lr=1e-6,
    warmup=5,
    drop_path=0.1,
    label_smoothing=0.1,
    mixup=0.8,
    cutmix=1.0,
    augment="deit",
    repeats=3,
)
# No augmentation: the source task's attributes would not be true of images that were moved.
TRAINING = Recipe(epochs=10, warmup=0.5, clip=1.0, augment="none")
POOL_TRAINING = replace(TRAINING, lr=1e-3)


@dataclass(frozen=True, kw_only=True)
class PathSettings:
    """The training of all paths of a network, one in each step: see `objectives.py`."""

    recipe: Recipe
    guidance: TeacherTargets
    share: float = 0.0  # the teacher's part of the loss
    temperature: float = 1.0
    tokens: float = field(default=0.0, metadata=OMIT_DEFAULT)  # weight of the teacher's tokens
    evaluated: int | None = None  # validation images; None: all, 0: none


@dataclass(frozen=True, kw_only=True)
class LeastSquaresSettings:
    """SN-Net's initialisation of the stitches from the features of some training images."""

    images: int


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The joint training of SN-Net: of all weights, or of stitches, class tokens and new heads."""

    trained: Literal["all", "stitches"]
    paths: PathSettings


def estimate_work(
    models: Sequence[Spec], recipe: Recipe, images: int, ancestry: Spec, has_teacher: bool
) -> Work:
    """Estimate the work of a training in which each image runs one of `models`.

    Layers are counted in layers of the ancestry's width. A narrower layer counts for its share of
    the width, not of its square: at the size of the bundled models most of a layer's time is
    proportional to its width.

    Args:
        models: the shapes.
        recipe: of the training.
        images: the number of training images.
        ancestry: the shape of the ancestry model.
        has_teacher: whether each image runs the ancestry model, too.
    """
    layers = [
        segment.layers * segment.width / ancestry.width
        for model in models
        for segment in model.segments
    ]
    return Work(
        images=min(recipe.images or images, images) * recipe.epochs,
        trained=sum(layers) / len(models),
        frozen=ancestry.layers if has_teacher else 0,
    )


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """The settings of an extraction.

    Raises `WrongCall` for settings that do not fit together.
    """

    blocks: Annotated[
        int,
        "blocks of each auxiliary model; the pool has twice as many learngene instances",
        Bounds(least=1),
    ] = 6
    low_width: Annotated[
        int | None,
        "width of the narrow model (default: a quarter of the ancestry's, "
        "rounded to complete heads)",
        Bounds(least=1),
    ] = None
    high_width: Annotated[
        int | None, "width of the wide model (default: the ancestry's)", Bounds(least=1)
    ] = None
    init: Annotated[
        Init, "initialisation of the auxiliary models: timm's, or standard deviation 1/sqrt(fan_in)"
    ] = "timm"
    low_levels: Annotated[
        int,
        "number of levels at which blocks are distilled into the narrow model: "
        "3, or 1 (the last), or 0",
        Bounds(least=0, most=LEVELS),
    ] = 3
    high_levels: Annotated[
        int,
        "number of levels at which blocks are distilled into the wide model: 3, "
        "or 1 (the last), or 0",
        Bounds(least=0, most=LEVELS),
    ] = 1
    alpha: Annotated[
        float, "weight of the labels' loss L_cls; 1: no teacher", Bounds(least=0, most=1)
    ] = 0.1
    tau: Annotated[
        float, "temperature of the ancestry's and the student's logits", Bounds(above=0)
    ] = 1.0
    pred_reduction: Annotated[
        PredReduction,
        "mean of L_pred over images, or over images and classes as in the authors' code",
    ] = "sample"
    stitch: Annotated[
        StitchStart,
        "initialisation of the stitch layers: transpose (tm) or pseudo-inverse "
        "of the transformation matrices, least squares averaged over pairs of "
        "blocks (ls), or least squares for all pairs (joint)",
    ] = "tm"
    stitch_images: Annotated[
        int,
        "number of images for least squares and for the reported fit of the stitches",
        Bounds(least=1),
    ] = 100
    guidance: Annotated[
        TeacherTargets | None,
        "distillation targets in the fine-tuning: the ancestry's class or logits "
        "(default: soft; none if alpha is 1)",
    ] = None
    guidance_share: Annotated[
        float, "weight of the distillation loss in the fine-tuning", Bounds(least=0, most=1)
    ] = 0.5
    guidance_tokens: Annotated[
        float,
        "weight of the distillation of the ancestry's last tokens in the fine-tuning",
        Bounds(least=0),
    ] = field(default=0.0, metadata=OMIT_DEFAULT)
    judged: Annotated[
        int | None,
        "number of validation images for the evaluation of all paths (none: all; 0: none of them)",
        Bounds(least=0),
    ] = None
    training: Annotated[Recipe, "training of the auxiliary models"] = POOL_TRAINING
    tuning: Annotated[Recipe, "fine-tuning of the pool"] = POOL_TRAINING
    teaching: Annotated[
        Recipe, "fine-tuning of the ancestry model if it was trained for another task"
    ] = POOL_TRAINING

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.stitch not in FITTED and (self.alpha == 1 or not self.low_levels):
            setting = "alpha 1" if self.alpha == 1 else "low_levels 0"
            raise WrongCall(
                f"stitch {self.stitch} starts from the narrow model's matrices, and with {setting} "
                f"it has none; use {name_option('stitch', 'ls')}"
            )
        self._check_levels(self.blocks, "an auxiliary model")

    @property
    def has_imitation(self) -> bool:
        """Whether the auxiliary models learn from the ancestry model."""
        return self.alpha < 1

    @property
    def guidance_targets(self) -> TeacherTargets:
        """The ancestry's targets in the fine-tuning."""
        return self.guidance or ("none" if self.alpha == 1 else "soft")

    def derive_auxiliaries(self, ancestry: Spec) -> tuple[Spec, Spec]:
        """Return the shapes of the narrow and the wide auxiliary model.

        They have the ancestry's head width.

        Raises `WrongCall` for widths that are not multiples of that or not in order, and for levels
        that the ancestry lacks.
        """
        self._check_levels(ancestry.layers, "the ancestry model")
        head = ancestry.head_width
        low = self.low_width or math.ceil(ancestry.width / 4 / head) * head
        high = self.high_width or ancestry.width
        for name, width in (("low_width", low), ("high_width", high)):
            if width % head:
                near = max(width // head, 1) * head
                raise WrongCall(
                    f"{name} is {width}, which is not a multiple of the ancestry's head width of "
                    f"{head}; try {near}"
                )
        if low >= high:
            raise WrongCall(
                f"low_width {low} is not below high_width {high}; stitches lead from narrow to wide"
            )
        needs_matrices = self.has_imitation and self.stitch not in FITTED
        if self.high_levels == 0 and needs_matrices and high != ancestry.width:
            raise WrongCall(
                f"stitch {self.stitch} leads to width {high} by the wide model's matrices, and "
                f"with high_levels 0 it has none; use {name_option('stitch', 'ls')}"
            )
        narrow, wide = (
            ancestry.with_(layers=self.blocks, width=width, heads=width // head)
            for width in (low, high)
        )
        return narrow, wide

    def _check_levels(self, blocks: int, model: str) -> None:
        for name, count in (("low_levels", self.low_levels), ("high_levels", self.high_levels)):
            if self.has_imitation and blocks < count:
                raise WrongCall(
                    f"{name} is {count}, but {model} has only {blocks} blocks; "
                    f"use a smaller --{name.replace('_', '-')}"
                )

    def derive_auxiliary_settings(self) -> list[AuxiliarySettings]:
        """Return the settings of step 1, for the narrow and the wide model."""
        settings = AuxiliarySettings(init=self.init, training=self.training)
        if not self.has_imitation:
            return [settings, settings]
        imitations = [
            ImitationSettings(
                levels=levels, alpha=self.alpha, tau=self.tau, reduction=self.pred_reduction
            )
            for levels in (self.low_levels, self.high_levels)
        ]
        return [replace(settings, imitating=imitation) for imitation in imitations]

    def derive_tuning(self) -> TuningSettings:
        """Return the settings of steps 2 and 3."""
        targets = self.guidance_targets
        paths = PathSettings(
            recipe=self.tuning,
            guidance=targets,
            share=self.guidance_share if targets != "none" else 0.0,
            tokens=self.guidance_tokens,
            evaluated=self.judged,
        )
        return TuningSettings(stitch=self.stitch, stitch_images=self.stitch_images, paths=paths)


@dataclass(frozen=True, kw_only=True)
class ImitationSettings:
    """How an auxiliary model imitates the ancestry model: see `objectives.py`."""

    levels: int
    alpha: float
    tau: float
    reduction: PredReduction


@dataclass(frozen=True, kw_only=True)
class AuxiliarySettings:
    """The training of one auxiliary model; without `imitating` on labels alone."""

    init: Init
    training: Recipe
    imitating: ImitationSettings | None = None


@dataclass(frozen=True, kw_only=True)
class TuningSettings:
    """How a pool's stitches start, and its fine-tuning."""

    stitch: StitchStart
    stitch_images: int
    paths: PathSettings


@dataclass(frozen=True, kw_only=True)
class PoolImages:
    """A task's training images.

    Their sample and order are functions of the run's seed, equal for all parts.
    """

    task: Task
    input_format: InputFormat
    seed: int

    def open_batches(self, recipe: Recipe, run: Run) -> Batches:
        """Return the batches of one part."""
        from learngene_zoo.plugin import load_training_images

        return load_training_images(
            self.task, self.input_format, recipe, replace(run, seed=self.seed)
        )


def select_levels(blocks: int, count: int) -> tuple[int, ...]:
    """Return the blocks, counted from 0, at the last `count` of a model's three levels.

    These are (1, 3, 5) of 6 blocks, (5,) for a count of one. Low, middle and high level are a
    third, two thirds and all of the depth, rounded to the nearest block (Learngene Pool,
    paragraph "Dense Distillation": of 12 blocks the 4th, 8th and 12th, of 6 the 2nd, 4th and 6th).
    """
    levels = range(LEVELS - count + 1, LEVELS + 1)
    return tuple((2 * level * blocks + LEVELS) // (2 * LEVELS) - 1 for level in levels)


def pair_levels(student: int, ancestry: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return (student's block, ancestry model's block) at each of `count` levels.

    `student` and `ancestry` are their numbers of blocks.
    """
    return tuple(zip(select_levels(student, count), select_levels(ancestry, count)))
