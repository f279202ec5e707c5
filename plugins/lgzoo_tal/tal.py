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

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from learngene_zoo.plugin import Method, Recipe
from lgzoo_tal.architectures import SetName
from lgzoo_tal.course import Axis, Direction, Guidance, LowRank, Projection, Reduction
from lgzoo_tal.meta_training import MINI, PUBLISHED, SMOKE, MetaTraining, mini, smoke, work_of
from lgzoo_tal.predict import Predict
from lgzoo_tal.variants import TaskForm, TaskPlace

_TUNING = replace(PUBLISHED, epochs=100)
_HYPERNET = LowRank()
NAME = "tal"


@dataclass(frozen=True, kw_only=True)
class MetaTrain(MetaTraining):
    """Meta-train a hypernetwork under the ancestry's guidance, then tell it the task."""

    method: ClassVar[str] = NAME

    task_layer: Annotated[bool, "tell the encoder the task in stage 2"] = True
    architectures: Annotated[SetName, "the models that are drawn: TAL's, the deeper ones of TAL+, or LoGAH's"] = "tal"
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
    task_form: Annotated[
        TaskForm,
        "(1 + gamma) f + beta, started at f, or gamma f + beta, as printed, which forgets at its start what stage 1 has learnt",
    ] = "residual"
    task_place: Annotated[TaskPlace, "in each layer after its first norm, or once before the first layer"] = "layers"
    freeze: Annotated[
        bool, "stage 2 leaves the encoder as stage 1 has trained it (the authors' code means to, and undoes it)"
    ] = False
    training: Annotated[Recipe, "of stage 1"] = PUBLISHED
    tuning: Annotated[Recipe, "of stage 2; an epoch is as many images as all its tasks have"] = _TUNING
    hypernet: LowRank = _HYPERNET

    def beside(self) -> dict[str, Any]:
        """The guidance, as one record."""
        told = {name: value for name, value in vars(self).items() if name in Guidance.__dataclass_fields__}
        return {"guidance": Guidance(**told) if self.guidance else None}


TAL = Method(
    name=NAME,
    title="a hypernetwork, taught by the ancestry and told the task, predicts the weights of any size",
    paper="Task-Aware Learngene (TAL). ICML 2025",
    expander=Predict(),
    presets={
        "mini": MetaTrain(**mini(PUBLISHED), alpha=0.9, hypernet=MINI),
        "paper": MetaTrain(hypernet=LowRank(hidden=128, layers=5, heads=16, rank=90)),
        "plus": MetaTrain(hypernet=LowRank(hidden=128, layers=5, heads=16, rank=90), architectures="tal+"),
        "smoke": MetaTrain(**smoke(PUBLISHED), hypernet=SMOKE),
    },
    tasks="many",
    work=work_of,
    plot="lgzoo_tal.plot:picture",
)
