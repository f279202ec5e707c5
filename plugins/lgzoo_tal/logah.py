"""LoGAH: a graph hypernetwork with a low-rank decoder. Cold.

A hypernetwork reads a ViT's graph and predicts its weights; a matrix is the product of two factors of rank r, so that the
decoder grows with r^2 and not with the square of the widest layer:

    W = U V^T,   U (o, r) and V (i, r) from one MLP of the node's embedding

It is trained on models that exist for one step only (meta-training): draw an architecture, predict, and let the task's loss and
3e-5 times the norms of what was predicted flow back into the hypernetwork. TAL's tables know four protocols:

    v1  --source none --no-joint    on each task by itself
    v2  --source source --no-joint  on the source task first, then on each task by itself
    v3  --source none               on all tasks together
    v4  --source source             on the source task first, then on all together

Checkpoints of the authors' training code can be taken in training's place (`--released`).
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
from lgzoo_tal.course import Course, LowRank, outline, work
from lgzoo_tal.predict import Predict

if TYPE_CHECKING:
    from learngene_zoo.ancestry import Ancestry
    from learngene_zoo.run import Run
    from learngene_zoo.tasks.task import Task

# Of the released code, as TAL's authors ran it.
_TRAINING = Recipe(
    epochs=75, batch_size=512, lr=3e-4, warmup=5, weight_decay=0.01, clip=5.0, label_smoothing=0.1, augment="none"
)
_HYPERNET = LowRank()
NAME = "logah"


@dataclass(frozen=True, kw_only=True)
class MetaTrain(Extractor):
    """Meta-train a hypernetwork with a low-rank decoder."""

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
    hypernet: LowRank = _HYPERNET

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
            return imported(self.released, "low_rank", config, run)
        return extract(self.course, config, ancestries[0], tasks, run)


def _work(extractor: Extractor, ancestries: Sequence[ViTSpec], images: Sequence[int]) -> list[Work]:
    made: MetaTrain = extractor  # type: ignore[assignment]
    return work(made.course, ancestries[0], images)


_MINI = replace(_TRAINING, epochs=1, batch_size=32, warmup=0.05)
_SMOKE = replace(_MINI, images=32, batch_size=16, warmup=0.0)
_SMALL = LowRank(hidden=128, layers=5, heads=16, rank=90)
LOGAH = Method(
    name=NAME,
    title="a hypernetwork with a low-rank decoder predicts the weights of any size",
    paper="Zhou, Knyazev, Jolicoeur-Martineau, Fu. LoGAH: Predicting 774-Million-Parameter Transformers using Graph "
    "HyperNetworks with 1/100 Parameters. 2024",
    expander=Predict(),
    presets={
        "mini": MetaTrain(
            embedding_images=500,
            judged=500,
            architectures="tal+",
            hypernet=LowRank(hidden=64, layers=3, heads=8, rank=32, widest=512, chunk=1024),
            training=replace(_MINI, images=64_000),
            tuning=replace(_MINI, epochs=4, images=4000),
        ),
        "paper": MetaTrain(hypernet=_SMALL),
        "tiny": MetaTrain(hypernet=LowRank()),
        "base": MetaTrain(hypernet=LowRank(hidden=256, layers=5, heads=16, rank=128)),
        "large": MetaTrain(hypernet=LowRank(hidden=256, layers=12, heads=16, rank=256)),
        "smoke": MetaTrain(
            source=None,
            embedding_images=16,
            judged=0,
            hypernet=LowRank(hidden=16, layers=1, heads=2, rank=4, widest=64, chunk=512),
            training=_SMOKE,
            tuning=_SMOKE,
        ),
    },
    tasks="many",
    uses_tasks=lambda extractor: not getattr(extractor, "released", None),
    work=_work,
    plot="lgzoo_tal.plot:draw",
)
