"""Learngene Pool: distil two auxiliary models out of the ancestry model, stitch them, build any path. Cold.

Algorithm 1. Two auxiliary models of l blocks, one at the ancestry's width and a narrow one, are distilled from the frozen ancestry
model (`distillation.py`; low, middle and high level for the narrow one, the last block for the wide one: `levels.py`).
Their blocks are the learngene instances, 2 l of them, and stitch layers lead from the narrow to the wide ones (`paths.py`),
started from the transformation matrices that the distillation learnt (`transforms.py`). Then the pool is fine-tuned: every step
trains one path, drawn anew (`tuning.py`).

A descendant is one path: `low` blocks of the narrow model, a stitch, `high` blocks of the wide one; or one of the two models.
Block j of the narrow model leads to a block k of the wide one with |j - k| <= 1, so that low + high is l - 1, l or l + 1 in
the interior of the pool: tables 1 and 2 of the paper are the paths of l blocks, k = j + 1.

Where the paper is silent: heads have the ancestry's head width in all stages (3 of them at width 192; the authors' code
distils with 3 and builds the pool with 12), and stitched paths have the last norm (that code leaves it out).

`alpha` 1 with `stitch` ls needs no ancestry's answers: it is what the paper calls SN-Net with the auxiliary architectures,
two anchors trained on labels and stitched by least squares, of equal storage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from learngene_zoo.plugin import (
    BadFile,
    Expander,
    Extractor,
    Json,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Recipe,
    Target,
    ViTSpec,
    WrongCall,
)
from lgzoo_pool.details import Details, details_of, read_details
from lgzoo_pool.levels import LEVELS, levels
from lgzoo_pool.members import choices, choose
from lgzoo_pool.paths import Path
from lgzoo_pool.recipes import DEIT
from lgzoo_pool.work import work

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, Task

# The source task's attributes would not be true of images that were moved.
_TRAINING = Recipe(epochs=10, lr=1e-3, warmup=0.5, clip=1.0, augment="none")
# The paper takes over SN-Net's settings; their rate of 5e-4 is for 512 images a step.
_PAPER = replace(DEIT, epochs=100, batch_size=128, lr=1.25e-4)


@dataclass(frozen=True, kw_only=True)
class Distil(Extractor):
    """Distil two auxiliary models from the ancestry model, stitch them, and fine-tune all paths together."""

    blocks: Annotated[int, "blocks of each auxiliary model; the pool has twice as many instances"] = 6
    low_width: Annotated[
        int | None, "width of the narrow model (default: a quarter of the ancestry's, in whole heads)"
    ] = None
    high_width: Annotated[int | None, "width of the wide model (default: the ancestry's)"] = None
    init: Annotated[Literal["timm", "fan_in"], "the weights that the auxiliary models start from"] = "timm"
    low_levels: Annotated[int, "levels at which the narrow model imitates the ancestry: 3, or 1 (the last), or 0"] = 3
    high_levels: Annotated[int, "levels at which the wide model imitates the ancestry: 3, or 1 (the last), or 0"] = 1
    alpha: Annotated[float, "the labels' share of the loss; with 1 the ancestry is not asked"] = 0.1
    tau: Annotated[float, "what the ancestry's logits are divided by"] = 1.0
    pred_reduction: Annotated[
        Literal["sample", "entries"], "mean over images, or over images and classes as the authors' code has it"
    ] = "sample"
    stitch: Annotated[
        Literal["tm", "pinv", "ls"],
        "where stitches start: the matrices' transpose, their pseudo-inverse, or least squares",
    ] = "tm"
    stitch_images: Annotated[int, "images that least squares, and the report on the stitches' start, look at"] = 100
    guidance: Annotated[
        Literal["none", "soft", "hard"] | None,
        "what the ancestry tells in the fine-tuning (default: soft; with alpha 1 none)",
    ] = None
    guidance_share: Annotated[float, "the ancestry's share of the loss in the fine-tuning"] = 0.5
    keep_teacher: Annotated[bool, "keep the ancestry's answers on disk while the run goes on, to ask but once"] = False
    kept: Annotated[Literal["fp32", "fp16"], "the precision they are kept in"] = "fp32"
    judged: Annotated[int | None, "validation images on which all paths are judged (default: all; 0: none)"] = None
    training: Annotated[Recipe, "of the auxiliary models"] = _TRAINING
    tuning: Annotated[Recipe, "the fine-tuning of the pool"] = _TRAINING
    teaching: Annotated[Recipe, "the ancestry's fine-tuning, if the task is not its own"] = _TRAINING

    def __post_init__(self) -> None:
        for name in ("blocks", "stitch_images"):
            if getattr(self, name) < 1:
                raise WrongCall(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("alpha", "guidance_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise WrongCall(f"{name} is {getattr(self, name)}; it must lie between 0 and 1")
        if self.judged is not None and self.judged < 0:
            raise WrongCall(f"judged is {self.judged}; it must not be negative")
        if not 0 < self.tau < math.inf:
            raise WrongCall(f"tau is {self.tau}; it must be above 0")
        if self.stitch != "ls" and (self.alpha == 1 or not self.low_levels):
            why = "alpha 1 teaches none" if self.alpha == 1 else "low_levels 0 has none"
            raise WrongCall(f"stitch {self.stitch} starts from the narrow model's matrices, and {why}; use --stitch ls")
        self._check_levels(self.blocks, "an auxiliary model")
        if self.keep_teacher:
            self._check_repeats()

    @property
    def guided(self) -> Literal["none", "soft", "hard"]:
        """What the ancestry tells in the fine-tuning."""
        return self.guidance or ("none" if self.alpha == 1 else "soft")

    def auxiliaries(self, ancestry: ViTSpec) -> tuple[ViTSpec, ViTSpec]:
        """The narrow and the wide auxiliary model. Raises `WrongCall` for widths and levels that this ancestry cannot have."""
        self._check_levels(ancestry.layers, "the ancestry model")
        head = ancestry.head_width
        low = self.low_width or math.ceil(ancestry.width / 4 / head) * head
        high = self.high_width or ancestry.width
        for name, width in (("low_width", low), ("high_width", high)):
            if width < 1 or width % head:
                near = max(width // head, 1) * head
                raise WrongCall(
                    f"{name} is {width}, which is no number of heads of the ancestry's width of {head}; take {near}"
                )
        if low >= high:
            raise WrongCall(f"low_width {low} is not below high_width {high}; stitches lead from narrow to wide")
        if self.high_levels == 0 and self.alpha < 1 and self.stitch != "ls" and high != ancestry.width:
            raise WrongCall(
                f"stitch {self.stitch} leads to width {high} by the wide model's matrices, and high_levels 0 has none; "
                "use --stitch ls"
            )
        narrow, wide = (ancestry.with_(layers=self.blocks, width=w, heads=w // head) for w in (low, high))
        return narrow, wide

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """The anchors are the auxiliary models; the spec is the wide one's."""
        low, high = self.auxiliaries(ancestries[0])
        return LearngeneConfig(method=POOL.name, spec=high, details=details_of([low, high]).json())

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Both auxiliary models and the fine-tuning, each a part of the run."""
        from lgzoo_pool.filling import fill

        config = self.outline([ancestries[0].spec])
        task = tasks[0]
        details = replace(read_details(config), task=task.name, classes=task.classes, dense=task.dense)
        state, metrics = fill(self, ancestries[0], task, details, run)
        return Learngene(config=replace(config, details=details.json(), metrics=metrics), state=state)

    def _check_levels(self, blocks: int, whose: str) -> None:
        """Raises `WrongCall`, naming the option, if a model of so many blocks has not the levels to distil."""
        for name in ("low_levels", "high_levels"):
            if not 0 <= getattr(self, name) <= LEVELS:
                raise WrongCall(
                    f"{name} is {getattr(self, name)}; there are low, middle and high: choose 0 to {LEVELS}"
                )
            try:
                levels(blocks, getattr(self, name) if self.alpha < 1 else 0)
            except WrongCall as error:
                raise WrongCall(f"{name} is {getattr(self, name)}, but {whose} has {blocks} blocks: {error}") from error

    def _check_repeats(self) -> None:
        """Raises `WrongCall` unless every training shows an image the same way in every epoch."""
        asked = {"training": self.training, "tuning": self.tuning}
        for name, recipe in asked.items():
            changing = [f"{kind} {getattr(recipe, kind):g}" for kind in ("mixup", "cutmix") if getattr(recipe, kind)]
            changing += [f"augment {recipe.augment}"] if recipe.augment != "none" else []
            if changing:
                raise WrongCall(
                    f"keep_teacher needs images that repeat exactly, and the {name}'s {changing[0]} changes them in every "
                    "epoch; turn it off, or leave keep_teacher out"
                )


@dataclass(frozen=True, kw_only=True)
class Expand(Expander):
    """Take one path through the pool."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    low: Annotated[int | None, "blocks of the narrow model"] = None
    high: Annotated[int | None, "blocks of the wide model"] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every path of the pool: both models, and every pair of an instance with a next one."""
        _two_models(config)
        return [choice.member for choice in choices(config, named)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build it; of several paths that fit the one with the most parameters. Its head is fresh for another task."""
        from lgzoo_pool.assembly import build

        _two_models(learngene.config)
        choice = choose(learngene.config, named, target, {"low": self.low, "high": self.high})
        return build(learngene, choice.path, choice.spec, task=target.task, seed=run.seed)


def named(number: int, path: Path, details: Details) -> Mapping[str, Json]:
    """How many instances of the narrow and of the wide model are on a path."""
    low, high = (sum(part.stop - part.start for part in path.parts if part.anchor == anchor) for anchor in (0, 1))
    return {"low": low, "high": high}


def _two_models(config: LearngeneConfig) -> None:
    details = read_details(config)
    layers: list[Any] = [anchor.layers for anchor in details.anchors]
    if len(layers) != 2 or layers[0] != layers[1]:
        raise BadFile(
            f"details of the learngene: anchors of {layers} blocks; a pool has two, with as many blocks each: extract or "
            "fetch it again"
        )


_MINI = replace(_TRAINING, epochs=1, images=24_000, batch_size=32, lr=2e-3, warmup=0.05)
_SMOKE = replace(_TRAINING, epochs=1, images=32, batch_size=16, warmup=0.0)
POOL = Method(
    name="pool",
    title="two models distilled from the ancestry and stitched together; every path through their blocks is a model",
    paper="Shi, Xia, Yang, Chen, Kou, Geng. Building Variable-Sized Models via Learngene Pool. AAAI 2024",
    expander=Expand(),
    presets={
        # Three or four minutes of one core with the bundled ancestry model. With so few steps stitches must start well, and
        # labels would undo what was distilled: the ancestry's share stays what it was (docs/methods/pool.md).
        "mini": Distil(
            init="fan_in",
            stitch="ls",
            guidance_share=0.9,
            judged=1000,
            training=_MINI,
            tuning=replace(_MINI, images=48_000, lr=1e-3),
            teaching=replace(_TRAINING, epochs=4, images=6000),
        ),
        "paper": Distil(training=_PAPER, tuning=replace(_PAPER, epochs=50), teaching=replace(_PAPER, epochs=30)),
        "smoke": Distil(
            blocks=2,
            init="fan_in",
            low_levels=2,
            stitch_images=16,
            training=_SMOKE,
            tuning=_SMOKE,
            teaching=_SMOKE,
        ),
    },
    tasks="one",
    work=work,
    plot="lgzoo_pool.plot:picture",
)
