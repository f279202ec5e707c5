"""What an extraction does, as one record: the three methods say it with settings of their own. Cold.

Stage 1 meta-trains a hypernetwork on the source task, stage 2 on all other tasks, each step with one task, one batch and
freshly drawn architectures:

    loss = CE + norm_weight * sum of the predicted tensors' Frobenius norms                          (stage 2)
    loss = (1 - alpha) CE + alpha guidance + norm_weight * sum of ...                                (stage 1)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from learngene_zoo.plugin import Json, LearngeneConfig, Recipe, ViTSpec, Work, WrongCall, find_entry, to_json
from lgzoo_tal.architectures import Rule, SetName, architectures, scaled
from lgzoo_tal.details import Details
from lgzoo_tal.variants import Form, HypernetSpec, TaskForm, TaskPlace, check_target

Direction = Literal["student-teacher", "teacher-student"]
Axis = Literal["features", "positions"]
Reduction = Literal["images", "classes"]
Projection = Literal["predicted", "random"]

# What a step takes for the hypernetwork itself, forward and back, in images through one layer of a model of the ancestry's
# width: measured with the presets `mini`.
HYPERNET_STEP = 36


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """How large a hypernetwork with LoGAH's low-rank decoder is."""

    hidden: Annotated[int, "width of the hypernetwork's encoder"] = 64
    layers: Annotated[int, "layers of its encoder"] = 3
    heads: Annotated[int, "attention heads of its encoder"] = 8
    rank: Annotated[int, "largest rank of a predicted matrix"] = 32
    widest: Annotated[int, "channels beyond which a predicted tensor is made of copies"] = 2048
    chunk: Annotated[int, "rows that its decoder can make of each factor"] = 2048 * 16
    form: Annotated[
        Form,
        "as published, or centred, which learns more from few images, with a convolutional decoder far more",
    ] = "published"

    def spec(self) -> HypernetSpec:
        """As the hypernetwork is built."""
        return HypernetSpec(decoder="low_rank", **vars(self))


@dataclass(frozen=True, kw_only=True)
class Conv:
    """How large a hypernetwork with GHN-3's convolutional decoder is."""

    hidden: Annotated[
        int, "width of the hypernetwork's encoder, and channels beyond which a tensor is made of copies"
    ] = 64
    layers: Annotated[int, "layers of its encoder"] = 3
    heads: Annotated[int, "attention heads of its encoder"] = 8
    form: Annotated[
        Form,
        "as published, or centred, which learns more from few images, with a convolutional decoder far more",
    ] = "published"

    def spec(self) -> HypernetSpec:
        """As the hypernetwork is built."""
        return HypernetSpec(decoder="conv", widest=self.hidden, **vars(self))


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """How the ancestry model guides stage 1. Raises `WrongCall` for numbers that cannot be meant."""

    alpha: float = 0.2
    direction: Direction = "student-teacher"
    temperature: float = 1.0
    axis: Axis = "features"
    reduction: Reduction = "images"
    projection: Projection = "predicted"

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise WrongCall(f"alpha is {self.alpha}; it must lie between 0 and 1 (without the ancestry: --no-guidance)")
        if not 0 < self.temperature < math.inf:
            raise WrongCall(f"temperature is {self.temperature}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class Course:
    """Everything that an extraction depends on beside ancestry, tasks and seed. Raises `WrongCall` for what cannot be meant."""

    method: str
    hypernet: HypernetSpec  # as stage 1 trains it: without a task layer
    architectures: SetName
    hold_out: tuple[str, ...] = ()
    meta_batch: int = 1
    norm_weight: float = 3e-5
    attributes: bool = True
    source: str | None = None  # None: no stage 1
    guidance: Guidance | None = None
    joint: bool = True
    sampling: float = 2.0
    task_layer: bool = False
    task_form: TaskForm = "residual"
    task_place: TaskPlace = "layers"
    embedding_images: int | None = None
    freeze: bool = False
    judged: int | None = None
    training: Recipe
    tuning: Recipe

    def __post_init__(self) -> None:
        if self.meta_batch < 1:
            raise WrongCall(f"meta_batch is {self.meta_batch}; it must be at least 1")
        if not 0 <= self.norm_weight < math.inf:
            raise WrongCall(f"norm_weight is {self.norm_weight}; it must not be negative")
        if not self.sampling > 0:
            raise WrongCall(f"sampling is {self.sampling}; it must be above 0 (inf: all tasks alike)")
        for name in ("embedding_images", "judged"):
            least, value = (1 if name == "embedding_images" else 0), getattr(self, name)
            if value is not None and value < least:
                raise WrongCall(f"{name} is {value}; it must be at least {least}, or be left out for all")
        if self.guidance is not None and self.source is None:
            raise WrongCall("the ancestry guides stage 1, and there is none without a source task; use --no-guidance")
        for stage, recipe in (("training", self.training), ("tuning", self.tuning)):
            for name in ("mixup", "cutmix", "drop_path"):
                if getattr(recipe, name):
                    raise WrongCall(f"{name} of the {stage} must be 0: predicted models are trained without it")
            if recipe.compile:
                raise WrongCall(f"compile of the {stage} must be off: every step has another graph")

    def rule(self, ancestry: ViTSpec) -> Rule:
        """The rule that architectures are drawn by, in the ancestry's measure."""
        return scaled(self.architectures, ancestry)

    def drawn(self, ancestry: ViTSpec) -> tuple[ViTSpec, ...]:
        """Those that are trained on, by the papers' own draws."""
        return tuple(plain(spec, ancestry) for spec in architectures(self.rule(ancestry), hold_out=self.hold_out))

    def tuned_hypernet(self, ancestry: ViTSpec) -> HypernetSpec:
        """The hypernetwork that stage 2 trains: with a task layer, if there is to be one."""
        if not self.task_layer:
            return self.hypernet
        return self.hypernet.with_(task=ancestry.width, task_form=self.task_form, task_place=self.task_place)

    def check(self, ancestry: ViTSpec) -> None:
        """Raises `WrongCall` if the hypernetwork cannot make the largest model of this ancestry's set."""
        rule = self.rule(ancestry)
        architectures(rule, hold_out=self.hold_out, count=0)  # refuses what names no size
        for width in sorted({width for _, width in rule.sizes}):
            check_target(
                self.hypernet, plain(ancestry.with_(width=width, heads=width // ancestry.head_width), ancestry)
            )

    def stage_settings(self, stage: Literal[1, 2]) -> dict[str, Json]:
        """What a stage depends on of these settings; stage 2 not repeating those of a stage 1 that it starts from."""
        names = ["hypernet", "architectures", "hold_out", "meta_batch", "norm_weight", "judged"]
        names += ["attributes", "guidance", "training"] if stage == 1 else []
        names += ["sampling", "task_layer", "task_form", "task_place", "embedding_images", "freeze", "tuning"] * (
            stage == 2
        )
        told: dict[str, Json] = to_json({"stage": stage, **{name: getattr(self, name) for name in names}})
        return told


def outline(course: Course, ancestry: ViTSpec, *, known: bool = True) -> LearngeneConfig:
    """The config that an extraction writes, as far as it is known before; the hypernetwork's sizes unless a file has them."""
    if known:
        course.check(ancestry)
    layers = sorted(course.rule(ancestry).widths)
    details = Details(hypernet=course.tuned_hypernet(ancestry) if known else None, layers=(layers[0], layers[-1]))
    return LearngeneConfig(method=course.method, spec=plain(ancestry, ancestry), details=details.json())


def plain(spec: ViTSpec, ancestry: ViTSpec) -> ViTSpec:
    """The plain ViT, of the kind that a hypernetwork makes, with the size of `spec` and the images of `ancestry`.

    Nothing of the ancestry's tensors is inherited, so that its layer scale, registers and so on are none of a descendant's.
    """
    return ViTSpec(
        layers=spec.layers,
        width=spec.width,
        heads=spec.heads,
        classes=max(ancestry.classes, 1),
        image_size=ancestry.image_size,
        patch_size=ancestry.patch_size,
        channels=ancestry.channels,
        mlp_ratio=ancestry.mlp_ratio,
    )


def work(course: Course, ancestry: ViTSpec, images: Sequence[int]) -> list[Work]:
    """What both stages will take; `images` are the training images of the tasks of stage 2."""
    drawn = course.drawn(ancestry)
    mean = sum(spec.layers * spec.width for spec in drawn) / len(drawn) / ancestry.width
    parts = []
    if course.source is not None:
        entry = find_entry(course.source)
        shown = _shown(course.training, entry.sizes["train"] if entry else course.training.images or 0)
        asked = ancestry.layers if course.guidance else 0
        parts.append(_part(course, 1, course.training, shown, mean, asked))
    groups = [images] if course.joint else [[count] for count in images]
    for number, group in enumerate(groups):
        shown = sum(_shown(course.tuning, count) for count in group)
        part = _part(course, 2, course.tuning, shown, mean, 0)
        depends = {
            **part.depends,
            "group": number,
            "images": shown,
            "before": [before.depends for before in parts[:1] if course.source],
        }
        parts.append(replace(part, depends=depends))
    return parts


def _part(course: Course, stage: Literal[1, 2], recipe: Recipe, images: int, layers: float, asked: float) -> Work:
    own = HYPERNET_STEP / recipe.batch_size
    return Work(
        depends=course.stage_settings(stage),
        images=images * recipe.epochs,
        trained=course.meta_batch * (layers + own),
        asked=asked,
    )


def _shown(recipe: Recipe, images: int) -> int:
    return min(recipe.images or sys.maxsize, images)


def widths(ancestry: ViTSpec) -> Iterable[int]:
    """Every width in whole heads of the ancestry's, up to its own."""
    return range(ancestry.head_width, ancestry.width + 1, ancestry.head_width)
