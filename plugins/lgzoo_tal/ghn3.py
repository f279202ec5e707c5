"""GHN-3: a graph hypernetwork with a convolutional decoder. Cold.

A hypernetwork reads a ViT's graph and predicts its weights. From a node's embedding the decoder makes a block of at most
K x K channels (K is the encoder's width); larger tensors are tiled with copies of it. It is trained on models that exist for one
step only (meta-training): draw an architecture, predict, and let the task's loss and 3e-5 times the norms of what was
predicted flow back into the hypernetwork.

The paper trains on ImageNet alone: `--task source`, or another task that `--source` names, is that. With more tasks a second
stage goes on with these, all together or each by itself, as LoGAH's protocols do (logah.py); `--task-layer` tells it the task.

The released checkpoints can be taken in training's place: `--released hf-hub:SamsungSAILMontreal/ghn3/ghn3tm8.pt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.learngene import Learngene, LearngeneConfig
from learngene_zoo.method import Extractor, Method, Work
from learngene_zoo.recipe import Recipe
from learngene_zoo.spec import ViTSpec
from lgzoo_tal.architectures import SetName
from lgzoo_tal.course import Conv, Course, outline, work
from lgzoo_tal.predict import Predict

if TYPE_CHECKING:
    from learngene_zoo.ancestry import Ancestry
    from learngene_zoo.run import Run
    from learngene_zoo.tasks.task import Task

# Of the released code.
_TRAINING = Recipe(
    epochs=75, batch_size=128, lr=4e-4, warmup=5, weight_decay=0.01, clip=5.0, label_smoothing=0.1, augment="none"
)
_HYPERNET = Conv()
NAME = "ghn3"


@dataclass(frozen=True, kw_only=True)
class MetaTrain(Extractor):
    """Meta-train a hypernetwork with a convolutional decoder."""

    source: Annotated[
        str | None, "the task to train on first, opened unless it is among the tasks; none: no such stage"
    ] = "source"
    joint: Annotated[bool, "one hypernetwork for all tasks, or one for each"] = True
    sampling: Annotated[float, "temperature of the sampling of tasks: 1 by their images, inf all alike"] = 2.0
    task_layer: Annotated[bool, "tell the encoder the task, as TAL does"] = False
    embedding_images: Annotated[int | None, "training images that a task is embedded from (default: all)"] = None
    attributes: Annotated[bool, "learn the source task's attributes too, where it has some"] = True
    architectures: Annotated[SetName, "the models that are drawn: LoGAH's, TAL's, or the deeper ones of TAL+"] = (
        "vits-1k"
    )
    hold_out: Annotated[tuple[str, ...], "sizes never to draw: 12x96 (layers x width), 12 (layers) or x96 (width)"] = ()
    meta_batch: Annotated[int, "models predicted in each step; all are trained"] = 1
    norm_weight: Annotated[float, "weight of the norms of predicted tensors in the loss"] = 3e-5
    judged: Annotated[int | None, "validation images of each task to judge some predicted models on (default: all)"] = (
        None
    )
    released: Annotated[
        str | None, "take this checkpoint instead of training: a file, or hf-hub:organisation/name/file"
    ] = None
    training: Annotated[Recipe, "on the source task"] = _TRAINING
    tuning: Annotated[Recipe, "on the tasks; an epoch is as many images as they have together"] = _TRAINING
    hypernet: Conv = _HYPERNET

    def __post_init__(self) -> None:
        self.course  # noqa: B018  there must be one

    @property
    def course(self) -> Course:
        """What is to be done."""
        own = {name: value for name, value in vars(self).items() if name in Course.__dataclass_fields__}
        return Course(**{**own, "method": NAME, "hypernet": self.hypernet.spec()})

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """The ancestry's size; a descendant is a plain ViT. Raises `WrongCall` for what the decoder cannot reach."""
        return outline(self.course, ancestries[0], known=self.released is None)

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Both stages, each a part of the run; or a released checkpoint. Of the ancestry's tensors none is used."""
        from lgzoo_tal.importing import imported
        from lgzoo_tal.stages import extract

        config = self.outline([ancestries[0].spec])
        if self.released is not None:
            return imported(self.released, "conv", config, run)
        return extract(self.course, config, ancestries[0], tasks, run)


def _work(extractor: Extractor, ancestries: Sequence[ViTSpec], images: Sequence[int]) -> list[Work]:
    made: MetaTrain = extractor  # type: ignore[assignment]
    return work(made.course, ancestries[0], images)


_MINI = replace(_TRAINING, epochs=1, batch_size=32, warmup=0.05)
_SMOKE = replace(_MINI, images=32, batch_size=16, warmup=0.0)
GHN3 = Method(
    name=NAME,
    title="a hypernetwork with a convolutional decoder predicts the weights of any size",
    paper="Knyazev, Hwang, Lacoste-Julien. Can We Scale Transformers to Predict Parameters of Diverse ImageNet Models? ICML 2023",
    expander=Predict(),
    presets={
        "mini": MetaTrain(
            embedding_images=500,
            judged=500,
            architectures="tal+",
            hypernet=Conv(hidden=32, layers=3, heads=8),
            training=replace(_MINI, images=64_000),
            tuning=replace(_MINI, epochs=4, images=4000),
        ),
        "paper": MetaTrain(hypernet=Conv(hidden=384, layers=24, heads=16), meta_batch=16),
        "t": MetaTrain(hypernet=Conv(), meta_batch=8),
        "s": MetaTrain(hypernet=Conv(hidden=128, layers=5, heads=16), meta_batch=8),
        "l": MetaTrain(hypernet=Conv(hidden=256, layers=12, heads=16), meta_batch=8),
        "smoke": MetaTrain(
            source=None,
            embedding_images=16,
            judged=0,
            hypernet=Conv(hidden=16, layers=1, heads=2),
            training=_SMOKE,
            tuning=_SMOKE,
        ),
    },
    tasks="many",
    uses_tasks=lambda extractor: not getattr(extractor, "released", None),
    work=_work,
    plot="lgzoo_tal.plot:draw",
)
