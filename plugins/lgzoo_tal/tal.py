"""TAL: Task-Aware Learngene. A hypernetwork, guided by the ancestry model and conditioned on the task, predicts weights.

Stage 1, on the source task. The hypernetwork H reads the graph of a ViT, drawn anew in every step, and predicts its weights;
the ancestry model's features guide it:

    L = (1 - alpha) CE + alpha KL(softmax(M f_des) || softmax(f_anc)) + 3e-5 sum ||predicted||_F                 (eq. 4)

Stage 2, on many tasks. Each step samples a task, p ~ N^(1/T) for N images. The task's embedding e, the ancestry model's mean
feature over the task's images, scales and shifts the encoder's features f, so that the weights fit the task:

    gamma = W_gamma e,  beta = W_beta e,  f <- (1 + gamma) f + beta                                              (eq. 2, 3)

A descendant of any size for any task is then one forward pass of H. The encoder is the learngene.

Where paper and released code differ, each reading is a setting; docs/methods/tal.md lists them. M is predicted here, as the
paper says, by one more node of the graph beside the head; the code draws it anew in every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import FLAT, Extractor, LearngeneConfig, Method, Recipe, Spec, Work, WrongCall
from lgzoo_tal import config, logah
from lgzoo_tal.config import PUBLISHED, Curriculum, Guidance, MetaStep, Stage, check_recipes, short, two_steps
from lgzoo_tal.hypernet_spec import LowRank, TaskForm, TaskPlace
from lgzoo_tal.learngene import Details
from lgzoo_tal.predict import Predict
from lgzoo_tal.two_stages import META_TRAIN, meta_train

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, InputFormat, Json, Learngene, Part, Run, StateDict, Task

NAME = "tal"
_CURRICULUM = Curriculum(task_layer=True)
_TUNING = replace(PUBLISHED, epochs=100)
_HYPERNET = LowRank()


@dataclass(frozen=True, kw_only=True)
class MetaTrain(Extractor):
    """Meta-train a hypernetwork: guided by the ancestry model on a source task, then conditioned on the task on all others."""

    curriculum: Curriculum = field(default=_CURRICULUM, metadata=FLAT)
    step: MetaStep = field(default=MetaStep(architectures="tal"), metadata=FLAT)
    guidance: Annotated[bool, "let the ancestry model guide stage 1"] = True
    guide: Guidance = field(default=Guidance(), metadata=FLAT)
    task_form: Annotated[
        TaskForm,
        "(1 + gamma) f + beta, initialised as f, or gamma f + beta, as printed, which initially scrambles what stage 1 learnt",
    ] = "residual"
    task_place: Annotated[TaskPlace, "in each layer after its first norm, or once before the first layer"] = "layers"
    normalise_embeddings: Annotated[
        bool, "scale each task embedding to a root mean square of 1 (in the authors' code their norms differ fourfold)"
    ] = False
    freeze: Annotated[bool, "freeze the encoder in stage 2 (as the authors' code intends, but does not do)"] = False
    training: Annotated[Recipe, "of stage 1"] = PUBLISHED
    tuning: Annotated[Recipe, "of stage 2; an epoch has as many images as all its tasks together"] = _TUNING
    hypernet: LowRank = _HYPERNET

    def __post_init__(self) -> None:
        super().__post_init__()
        check_recipes(self.training, self.tuning)
        if self.guidance and self.curriculum.source is None:
            raise WrongCall(
                "there is no stage 1 to guide without a source task; use --no-guidance, or choose a --source"
            )

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Embed the tasks; stage 1 on the source task; stage 2 on all other tasks, from where stage 1 ended."""
        from learngene_zoo.plugin import once
        from lgzoo_tal.meta_training import groups_of_tasks, learngene_of, stage_2_of, task_embeddings, tasks_of_stages

        ancestry = ancestries[0]
        source, others = tasks_of_stages(self.curriculum, tasks, run)
        embeddings = task_embeddings(self.curriculum, ancestry, source, others, run)
        first_settings, second_settings = self.stages(ancestry.spec)
        shown, first = (ancestry.spec, ancestry.input_format), None
        if source is not None and self.guidance:
            first = once(run.part("stage-1"), "tal.stage_1", stage_1, first_settings, [ancestry, source])
        elif source is not None:  # the same training as LoGAH's, and shared with it
            first = once(run.part("stage-1"), META_TRAIN, meta_train, first_settings, [*shown, (source,), None, {}])
        seconds = {
            owner: once(
                stage_2_of(owner, run), "tal.stage_2", stage_2, second_settings, [*shown, group, first, embeddings]
            )
            for owner, group in groups_of_tasks(self.curriculum, others).items()
        }
        return learngene_of(self.outline([ancestry.spec]), source, others, first, seconds, embeddings)

    def stages(self, ancestry: Spec) -> tuple[Stage, Stage]:
        """The settings of both stages."""
        hypernet = self.hypernet.spec()
        first, second = config.stages(self.curriculum, self.step, hypernet, self.training, self.tuning, ancestry)
        if self.curriculum.task_layer:
            hypernet = second.hypernet.with_(
                task_form=self.task_form, task_place=self.task_place, task_normalised=self.normalise_embeddings
            )
        guidance = self.guide if self.guidance else None
        return replace(first, guidance=guidance), replace(second, hypernet=hypernet, freeze=self.freeze)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The learngene of plain ViTs of the ancestry's size. Raises `WrongCall` if the decoder cannot predict such models."""
        return config.outline(NAME, self.stages(ancestries[0])[1], ancestries[0])

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """The cost of both stages."""
        return config.work(self.curriculum, self.stages(ancestries[0]), ancestries[0], images)


def stage_1(stage: Stage, ancestry: Ancestry, source: Task, run: Run) -> tuple[StateDict, Json]:
    """Equation 4: a fresh hypernetwork on the source task, guided by the ancestry model."""
    from learngene_zoo.plugin import open_device, train
    from lgzoo_tal.meta_training import MetaTraining, starting
    from lgzoo_tal.objective import Guide

    assert stage.guidance is not None
    hypernet = starting(stage.hypernet, None, run)
    guide = Guide(ancestry.model().to(open_device(run)), stage.guidance)
    training = MetaTraining(stage, hypernet, ancestry.spec, ancestry.input_format, (source,), run, guide=guide)
    for step in train(training.objective, training.batches, stage.recipe, run, unused=True, label=training.label):
        training.objective.finished.fill_(step.step)  # the next step draws other architectures
    return training.result()


def stage_2(
    stage: Stage,
    ancestry: Spec,
    input_format: InputFormat,
    tasks: tuple[Task, ...],
    before: Part | None,
    embeddings: Mapping[str, Part],
    run: Run,
) -> tuple[StateDict, Json]:
    """Equations 2 and 3: the hypernetwork of stage 1, with task layers, on a sampled task in each step."""
    from learngene_zoo.plugin import train
    from lgzoo_tal.meta_training import MetaTraining, freeze_encoder, starting

    hypernet = starting(stage.hypernet, before, run)
    if stage.freeze:
        freeze_encoder(hypernet)
    training = MetaTraining(stage, hypernet, ancestry, input_format, tasks, run, embeddings=embeddings)
    for step in train(training.objective, training.batches, stage.recipe, run, unused=True, label=training.label):
        training.objective.finished.fill_(step.step)
    return training.result()


TAL = Method(
    name=NAME,
    title="a hypernetwork, guided by the ancestry model and conditioned on the task, predicts the weights of any size",
    paper="Learngene Tells You How to Customize: Task-Aware Parameter Initialization at Flexible Scales (TAL). ICML 2025",
    expander=Predict(),
    presets={
        "mini": MetaTrain(
            curriculum=replace(_CURRICULUM, embedding_images=500, attributes=False),
            step=MetaStep(architectures="tal+", judged=500),
            guide=Guidance(alpha=0.9),
            training=short(PUBLISHED, images=100_000),
            tuning=short(PUBLISHED, images=4000, epochs=10),
            hypernet=logah.MINI,
        ),
        "paper": MetaTrain(hypernet=logah.SMALL),
        "plus": MetaTrain(hypernet=logah.SMALL, step=MetaStep(architectures="tal+")),
        "smoke": MetaTrain(
            curriculum=replace(_CURRICULUM, embedding_images=16),
            step=MetaStep(architectures="tal", judged=0),
            training=two_steps(PUBLISHED),
            tuning=two_steps(PUBLISHED),
            hypernet=logah.SMOKE,
        ),
    },
    tasks="many",
    details=Details,
    plot="lgzoo_tal.plot:picture",
)
