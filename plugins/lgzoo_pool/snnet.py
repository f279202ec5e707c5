"""SN-Net: Stitchable Neural Networks. Cold.

Two or three whole pretrained models, the anchors, ordered from narrow to wide, become one network of many sizes. Let anchor a
be f_1 .. f_l, its blocks, between stem and head. A stitch at (j, k) runs

    stem, f_1 .. f_j of the narrower anchor, then a linear layer, then f_k .. f_l and the head of the wider one

and where it may lie, and which stitches share their layer, is said in `paths.py`. Layers start from least squares over the
features of a few images (`least_squares.py`); then every step samples one configuration and trains it, on labels and with
the last anchor, as it came, for a teacher (`tuning.py`).

The paper's teacher is a RegNetY-16GF, no model of this zoo; here it is the widest anchor, fine-tuned first if the task is not
its own. Configurations are numbered as in the released code: the anchors, then the pairs of the first two, and so on; twelve
blocks each and three anchors are 71 of them. That code runs stitched configurations without the last norm, and its published
FLOPs say so; here they have it, unless the expander is told `legacy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
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
    Work,
    WrongCall,
    from_json,
    to_json,
)
from lgzoo_pool.details import Details, details_of
from lgzoo_pool.members import choices, choose
from lgzoo_pool.paths import Path
from lgzoo_pool.recipes import DEIT

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, Task

# The source task's attributes would not be true of images that were moved.
_TRAINING = Recipe(epochs=10, lr=2e-4, warmup=0.5, clip=1.0, augment="none")


@dataclass(frozen=True, kw_only=True)
class Join(Extractor):
    """Stitch a family of ancestry models and train all configurations together."""

    nearest: Annotated[bool, "stitch neighbouring anchors only, two to a configuration"] = True
    window: Annotated[int, "neighbouring blocks that share their stitches"] = 2
    stride: Annotated[int, "blocks by which the window slides"] = 1
    stitch: Annotated[
        Literal["ls", "random"], "where stitches start: least squares, or as a scratch model's matrices"
    ] = "ls"
    stitch_images: Annotated[int, "training images that least squares looks at"] = 100
    trained: Annotated[Literal["all", "stitches"], "what is trained: all weights, or stitches and class tokens"] = "all"
    guidance: Annotated[
        Literal["hard", "soft", "none"], "what the widest anchor tells: classes, logits, or nothing"
    ] = "hard"
    share: Annotated[float, "the teacher's share of the loss; the rest is the labels'"] = 0.5
    temperature: Annotated[float, "what logits are divided by under soft guidance"] = 1.0
    judged: Annotated[
        int | None, "validation images on which all configurations are judged (default: all; 0: none)"
    ] = None
    training: Recipe = _TRAINING
    teaching: Annotated[Recipe, "the teacher's fine-tuning, if the task is not its own"] = _TRAINING

    def __post_init__(self) -> None:
        for name in ("window", "stride", "stitch_images"):
            if getattr(self, name) < 1:
                raise WrongCall(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.share <= 1:
            raise WrongCall(f"share is {self.share}; it must lie between 0 and 1")
        if not self.temperature > 0:
            raise WrongCall(f"temperature is {self.temperature}; it must be above 0")
        if self.judged is not None and self.judged < 0:
            raise WrongCall(f"judged is {self.judged}; it must not be negative")

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """The anchors and their windows; the spec is the widest one's."""
        return LearngeneConfig(method=SNNET.name, spec=ancestries[-1], details=self._details(ancestries).json())

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Least squares, the teacher and the training, each a part of the run."""
        from lgzoo_pool.joining import join

        specs = [ancestry.spec for ancestry in ancestries]
        task = tasks[0]
        details = replace(self._details(specs), task=task.name, classes=task.classes, dense=task.dense)
        state, metrics = join(self, ancestries, task, details, run)
        return Learngene(config=replace(self.outline(specs), details=details.json(), metrics=metrics), state=state)

    def _details(self, specs: Sequence[ViTSpec]) -> Details:
        return details_of(specs, nearest=self.nearest, window=self.window, stride=self.stride)


@dataclass(frozen=True, kw_only=True)
class Expand(Expander):
    """Take one configuration."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    config: Annotated[int | None, "its number, as `lgzoo plan` lists it"] = None
    legacy: Annotated[bool, "leave the last norm out of stitched configurations, as the released code does"] = False

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every configuration, in the order of their numbers."""
        return [choice.member for choice in choices(config, names, legacy=self.legacy)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build it; of several that fit the one with the most parameters. Its head is fresh for another task."""
        from lgzoo_pool.assembly import build

        choice = choose(learngene.config, names, target, {"config": self.config}, legacy=self.legacy)
        return build(learngene, choice.path, choice.spec, task=target.task, seed=run.seed)


def names(number: int, path: Path, details: Details) -> Mapping[str, Json]:
    """The expander's settings that lead to a configuration."""
    return {"config": number}


def work(extractor: Extractor, ancestries: Sequence[ViTSpec], images: Sequence[int]) -> list[Work]:
    """The joint training; least squares and judging take seconds."""
    snnet = from_json(Join, to_json(extractor), "settings of snnet")
    widest, recipe = ancestries[-1], snnet.training
    config = snnet.outline(ancestries)
    layers = [_layers(member.spec, widest) for member in Expand().family(config)]
    shown = min(recipe.images or images[0], images[0])
    depends = to_json({"settings": snnet, "ancestries": list(ancestries)})
    asked = 0.0 if snnet.guidance == "none" else float(widest.layers)
    return [Work(depends=depends, images=shown * recipe.epochs, trained=sum(layers) / len(layers), asked=asked)]


def _layers(spec: ViTSpec, widest: ViTSpec) -> float:
    """A configuration's layers in those of the widest anchor."""
    return sum(segment.layers * segment.width / widest.width for segment in spec.segments)


_SMOKE = replace(_TRAINING, epochs=1, images=32, batch_size=16, warmup=0.0)
# The released settings; the learning rate is their 5e-5 for 512 images, times the 1024 of a step.
_PAPER = replace(DEIT, epochs=50, batch_size=1024, lr=1e-4)
SNNET = Method(
    name="snnet",
    title="whole models of several widths stitched together; every way from a narrow into a wide one is a model",
    paper="Pan, Cai, Zhuang. Stitchable Neural Networks. CVPR 2023",
    expander=Expand(),
    presets={
        # 36 paths share the steps: with fewer images, or a rate as low as the paper's, stitched ones hardly leave chance.
        "mini": Join(
            training=replace(_TRAINING, epochs=1, images=60_000, batch_size=64, lr=1.5e-3, warmup=0.05),
            teaching=replace(_TRAINING, epochs=4, images=6000),
            judged=1000,
        ),
        "paper": Join(training=_PAPER, teaching=replace(_PAPER, epochs=30)),
        "smoke": Join(stitch_images=16, training=_SMOKE, teaching=_SMOKE),
    },
    ancestries=(2, 3),
    tasks="one",
    work=work,
    plot="lgzoo_pool.plot:picture",
)
