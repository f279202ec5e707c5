"""GHN-3: a graph hypernetwork with a convolutional decoder.

A hypernetwork reads a ViT's graph and predicts its weights. From a node's embedding the decoder makes a block of at most K x K
channels, where K is the width of the encoder; larger tensors are tiled with copies of it. It is meta-trained: each step draws
an architecture, predicts its weights, and backpropagates the task's loss and 3e-5 times the norms of the predicted tensors
into the hypernetwork.

The paper trains on ImageNet alone: `--task forms`, or another task that `--source` names, does that. With more tasks a second
stage continues with these, as in LoGAH's protocols (logah.py); `--task-layer` conditions it on the task.

The released checkpoints can be used instead of training: `--released hf-hub:SamsungSAILMontreal/ghn3/ghn3tm8.pt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import FLAT, Extractor, LearngeneConfig, Method, Recipe, Spec, Work
from lgzoo_tal import config
from lgzoo_tal.config import PUBLISHED, Curriculum, MetaStep, Stage, check_recipes, short, two_steps
from lgzoo_tal.hypernet_spec import Conv
from lgzoo_tal.learngene import Details
from lgzoo_tal.predict import Predict

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, InputFormat, Json, Learngene, Part, Run, StateDict, Task

NAME = "ghn3"
_RECIPE = replace(PUBLISHED, batch_size=128, lr=4e-4)  # of the released code
_TINY = Conv()


@dataclass(frozen=True, kw_only=True)
class MetaTrain(Extractor):
    """Meta-train a hypernetwork with a convolutional decoder: on a source task first, then on all other tasks."""

    curriculum: Curriculum = field(default=Curriculum(), metadata=FLAT)
    step: MetaStep = field(default=MetaStep(), metadata=FLAT)
    released: Annotated[
        str | None, "use this checkpoint instead of training: a file, or hf-hub:organisation/name/file"
    ] = None
    training: Annotated[Recipe, "of stage 1"] = _RECIPE
    tuning: Annotated[Recipe, "of stage 2; an epoch has as many images as all its tasks together"] = _RECIPE
    hypernet: Conv = _TINY

    def __post_init__(self) -> None:
        super().__post_init__()
        check_recipes(self.training, self.tuning)

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Stage 1 on the source task, then stage 2 on all other tasks, together or each by itself."""
        from learngene_zoo.plugin import once
        from lgzoo_tal.meta_training import groups_of_tasks, learngene_of, stage_2_of, task_embeddings, tasks_of_stages
        from lgzoo_tal.released import imported

        ancestry, outline = ancestries[0], self.outline([ancestries[0].spec])
        if self.released is not None:
            return imported(self.released, "conv", outline, run)
        source, others = tasks_of_stages(self.curriculum, tasks, run)
        embeddings = task_embeddings(self.curriculum, ancestry, source, others, run)
        stage_1, stage_2 = self.stages(ancestry.spec)
        shown, first = (ancestry.spec, ancestry.input_format), None
        if source is not None:
            first = once(run.part("stage-1"), meta_train, stage_1, [*shown, (source,), None, {}])
        seconds = {
            owner: once(stage_2_of(owner, run), meta_train, stage_2, [*shown, group, first, embeddings])
            for owner, group in groups_of_tasks(self.curriculum, others).items()
        }
        return learngene_of(outline, source, others, first, seconds, embeddings)

    def stages(self, ancestry: Spec) -> tuple[Stage, Stage]:
        """The settings of both stages."""
        return config.stages(self.curriculum, self.step, self.hypernet.spec(), self.training, self.tuning, ancestry)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The learngene of plain ViTs of the ancestry's size."""
        return config.outline(NAME, self.stages(ancestries[0])[1], ancestries[0], known=self.released is None)

    def needs_tasks(self) -> bool:
        """Whether anything is trained."""
        return self.released is None

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """The cost of both stages."""
        return config.work(self.curriculum, self.stages(ancestries[0]), ancestries[0], images)


def meta_train(
    stage: Stage,
    ancestry: Spec,
    input_format: InputFormat,
    tasks: tuple[Task, ...],
    before: Part | None,
    embeddings: Mapping[str, Part],
    run: Run,
) -> tuple[StateDict, Json]:
    """One stage: a hypernetwork, fresh or as the stage before left it, predicts a new architecture for a task in each step."""
    from learngene_zoo.plugin import train
    from lgzoo_tal.meta_training import MetaTraining, starting

    hypernet = starting(stage.hypernet, before, run)
    training = MetaTraining(stage, hypernet, ancestry, input_format, tasks, run, embeddings=embeddings)
    for step in train(training.objective, training.batches, stage.recipe, run, unused=True, label=training.label):
        training.objective.finished.fill_(step.step)
    return training.result()


GHN3 = Method(
    name=NAME,
    title="a hypernetwork with a convolutional decoder predicts the weights of any size",
    paper="Knyazev, Hwang, Lacoste-Julien. Can We Scale Transformers to Predict Parameters of Diverse ImageNet Models? ICML 2023",
    expander=Predict(),
    presets={
        "mini": MetaTrain(
            curriculum=Curriculum(embedding_images=500, attributes=False),
            step=MetaStep(architectures="tal+", judged=500),
            training=short(_RECIPE, images=100_000),
            tuning=short(_RECIPE, images=4000, epochs=10),
            hypernet=Conv(form="centred", places="relative", writers="by_depth"),
        ),
        "paper": MetaTrain(hypernet=Conv(hidden=384, layers=24, heads=16), step=MetaStep(meta_batch=16)),
        "t": MetaTrain(step=MetaStep(meta_batch=8)),
        "s": MetaTrain(hypernet=Conv(hidden=128, layers=5, heads=16), step=MetaStep(meta_batch=8)),
        "l": MetaTrain(hypernet=Conv(hidden=256, layers=12, heads=16), step=MetaStep(meta_batch=8)),
        "smoke": MetaTrain(
            curriculum=Curriculum(source=None, embedding_images=16),
            step=MetaStep(judged=0),
            training=two_steps(_RECIPE),
            tuning=two_steps(_RECIPE),
            hypernet=Conv(hidden=16, layers=1, heads=2),
        ),
    },
    tasks="many",
    details=Details,
    plot="lgzoo_tal.plot:picture",
)
