"""TAL: Task-Aware Learngene. A hypernetwork that the ancestry teaches and that is told the task writes a model's weights. Cold.

Stage 1, on the source task. The hypernetwork H reads the graph of a ViT, drawn anew for every step, and predicts its weights;
the ancestry model's features guide it:

    L = (1 - alpha) CE + alpha KL(softmax(M f_des) || softmax(f_anc)) + 3e-5 sum ||predicted||_F                 (eq. 4)

Stage 2, on many tasks. Each step samples a task, p ~ N^(1/T) of its images. The task's embedding e, the ancestry's mean
feature over the task's images, scales and shifts the encoder's features f, so that the weights are the task's:

    gamma = W_gamma e,  beta = W_beta e,  f <- (1 + gamma) f + beta                                              (eq. 2, 3)

A descendant of any size for any task is then one forward pass of H. The encoder is the learngene.

Paper and released code differ; each reading is a setting, and docs/methods/tal.md lists them. M is predicted here, as the
paper says, through one more node of the graph beside the head; in the code it is drawn anew in every step.
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
from lgzoo_tal.course import Axis, Course, Direction, Guidance, LowRank, Projection, Reduction, outline, work
from lgzoo_tal.predict import Predict
from lgzoo_tal.variants import TaskForm, TaskPlace

if TYPE_CHECKING:
    from learngene_zoo.ancestry import Ancestry
    from learngene_zoo.run import Run
    from learngene_zoo.tasks.task import Task

# Of the released code; attributes of the source task would not be true of images that were moved.
_TRAINING = Recipe(
    epochs=75, batch_size=512, lr=3e-4, warmup=5, weight_decay=0.01, clip=5.0, label_smoothing=0.1, augment="none"
)
_TUNING = replace(_TRAINING, epochs=100)
_HYPERNET = LowRank()


@dataclass(frozen=True, kw_only=True)
class MetaTrain(Extractor):
    """Meta-train a hypernetwork under the ancestry's guidance, then tell it the task."""

    source: Annotated[str | None, "the task of stage 1, opened unless it is among the tasks; none: no stage 1"] = (
        "source"
    )
    guidance: Annotated[bool, "whether the ancestry guides stage 1"] = True
    alpha: Annotated[float, "the guidance's share of the loss (the paper names none; 0.2 in the authors' code)"] = 0.2
    direction: Annotated[
        Direction, "KL from the student's features to the ancestry's, as printed, or from hers, as in the authors' code"
    ] = "student-teacher"
    temperature: Annotated[float, "what features are divided by before the softmax (3 in the authors' code)"] = 1.0
    axis: Annotated[
        Axis,
        "softmax over the features of the class token, or over all tokens, feature by feature, as in the work cited",
    ] = "features"
    reduction: Annotated[
        Reduction, "mean over images, or over images and divided by the classes too, as in the authors' code"
    ] = "images"
    projection: Annotated[
        Projection,
        "M, which brings a student's features to the ancestry's width: predicted, or a fresh random one each step",
    ] = "predicted"
    attributes: Annotated[bool, "learn the source task's attributes too, where it has some"] = True
    task_layer: Annotated[bool, "tell the encoder the task in stage 2"] = True
    task_form: Annotated[
        TaskForm,
        "(1 + gamma) f + beta, started at f, or gamma f + beta, as printed, which forgets at its start what stage 1 has learnt",
    ] = "residual"
    task_place: Annotated[TaskPlace, "in each layer after its first norm, or once before the first layer"] = "layers"
    embedding_images: Annotated[int | None, "training images that a task is embedded from (default: all)"] = None
    joint: Annotated[bool, "one hypernetwork for all tasks of stage 2, or one for each"] = True
    sampling: Annotated[float, "temperature of the sampling of tasks: 1 by their images, inf all alike"] = 2.0
    freeze: Annotated[
        bool, "stage 2 leaves the encoder as stage 1 has trained it (the authors' code means to, and undoes it)"
    ] = False
    architectures: Annotated[SetName, "the models that are drawn: TAL's, the deeper ones of TAL+, or LoGAH's"] = "tal"
    hold_out: Annotated[tuple[str, ...], "sizes never to draw: 12x96 (layers x width), 12 (layers) or x96 (width)"] = ()
    meta_batch: Annotated[int, "models predicted in each step; all are trained"] = 1
    norm_weight: Annotated[float, "weight of the norms of predicted tensors in the loss"] = 3e-5
    judged: Annotated[
        int | None, "validation images of each task that some predicted models are judged on (default: all)"
    ] = None
    training: Annotated[Recipe, "of stage 1"] = _TRAINING
    tuning: Annotated[Recipe, "of stage 2; an epoch is as many images as all its tasks have"] = _TUNING
    hypernet: LowRank = _HYPERNET

    def __post_init__(self) -> None:
        self.course  # noqa: B018  there must be one

    @property
    def course(self) -> Course:
        """What is to be done."""
        guidance = Guidance(
            alpha=self.alpha,
            direction=self.direction,
            temperature=self.temperature,
            axis=self.axis,
            reduction=self.reduction,
            projection=self.projection,
        )
        own = {name: value for name, value in vars(self).items() if name in Course.__dataclass_fields__}
        return Course(
            **{
                **own,
                "method": NAME,
                "hypernet": self.hypernet.spec(),
                "guidance": guidance if self.guidance else None,
            }
        )

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """The ancestry's size; a descendant is a plain ViT. Raises `WrongCall` for what the decoder cannot reach."""
        return outline(self.course, ancestries[0])

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Both stages, and the embeddings between them, each a part of the run."""
        from lgzoo_tal.stages import extract

        return extract(self.course, self.outline([ancestries[0].spec]), ancestries[0], tasks, run)


def _work(extractor: Extractor, ancestries: Sequence[ViTSpec], images: Sequence[int]) -> list[Work]:
    made: MetaTrain = extractor  # type: ignore[assignment]
    return work(made.course, ancestries[0], images)


NAME = "tal"
_MINI_HYPERNET = LowRank(hidden=64, layers=3, heads=8, rank=32, widest=512, chunk=1024)
_MINI = replace(_TRAINING, epochs=1, batch_size=32, warmup=0.05)
_SMOKE = replace(_MINI, images=32, batch_size=16, warmup=0.0)
TAL = Method(
    name=NAME,
    title="a hypernetwork, taught by the ancestry and told the task, predicts the weights of any size",
    paper="Task-Aware Learngene (TAL). ICML 2025",
    expander=Predict(),
    presets={
        "mini": MetaTrain(
            embedding_images=500,
            judged=500,
            architectures="tal+",
            hypernet=_MINI_HYPERNET,
            training=replace(_MINI, images=64_000),
            tuning=replace(_MINI, epochs=4, images=4000),
        ),
        "paper": MetaTrain(hypernet=LowRank(hidden=128, layers=5, heads=16, rank=90)),
        "plus": MetaTrain(hypernet=LowRank(hidden=128, layers=5, heads=16, rank=90), architectures="tal+"),
        "smoke": MetaTrain(
            embedding_images=16,
            judged=0,
            hypernet=LowRank(hidden=16, layers=1, heads=2, rank=4, widest=64, chunk=512),
            training=_SMOKE,
            tuning=_SMOKE,
        ),
    },
    tasks="many",
    work=_work,
    plot="lgzoo_tal.plot:draw",
)
