"""TAL: Task-Aware Learngene. A hypernetwork, conditioned on the task, predicts weights.

Xu, Xia, Yang, Lv and Geng, Learngene Tells You How to Customize: Task-Aware Parameter
Initialization at Flexible Scales, ICML 2025.

Stage 1, on the source task. The hypernetwork H reads the graph of a ViT, another one in every
step, and predicts its weights, with the guidance of the ancestry model's features:

    L = (1 - alpha) CE + alpha KL(softmax(M f_des) || softmax(f_anc))           (eq. 4, 5, 6)
        + 3e-5 sum ||predicted||_F                                              (section 4.1)

Stage 2, on many tasks. Each step samples a task, p ~ N^(1/T) for N images. The task's embedding e,
the ancestry model's mean feature over the task's images, scales and shifts the encoder's
features f:

    gamma = W_gamma e,  beta = W_beta e,  f <- (1 + gamma) f + beta                 (eq. 2, 3)

One forward pass of H predicts a descendant of any size for any task. The encoder is the learngene.
The norms are the predicted parameter regularization of Knyazev et al. (2023).

Where paper and released code differ, each reading is a setting; docs/results/tal.md lists them.
Eq. 3 prints gamma f + beta; (1 + gamma) f + beta is the code's. M is predicted, as in the paper, by
an additional node of the graph; the code draws it at random in every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import FLAT, Extractor, LearngeneConfig, Method, TextSpec, WrongCall
from lgzoo_tal import logah
from lgzoo_tal.config import (
    PUBLISHED,
    Curriculum,
    Guidance,
    MetaStep,
    SourceRecipe,
    Stage,
    TasksRecipe,
    adapt_rows,
    build_outline,
    build_stages,
    check_recipes,
    estimate_work,
    limit_to_two_steps,
    list_sources,
    shorten_recipe,
)
from lgzoo_tal.hypernet_spec import HypernetDetails, LowRank, TaskForm, TaskPlace
from lgzoo_tal.predict import HypernetExpander

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        InputFormat,
        Json,
        Learngene,
        Part,
        Run,
        Spec,
        StateDict,
        Task,
        Work,
    )
    from lgzoo_tal.meta_training import Donor

_CURRICULUM = Curriculum(task_layer=True)
_TUNING = replace(PUBLISHED, epochs=100)
_HYPERNET = logah.TINY


@dataclass(frozen=True, kw_only=True)
class TalExtractor(Extractor):
    """Meta-train a hypernetwork: guided by the ancestry model, then conditioned on the task."""

    curriculum: Curriculum = field(default=_CURRICULUM, metadata=FLAT)
    step: MetaStep = field(default=MetaStep(architectures="tal"), metadata=FLAT)
    guidance: Annotated[bool, "train stage 1 with the guidance of the ancestry model"] = True
    guide: Guidance = field(default=Guidance(), metadata=FLAT)
    task_form: Annotated[
        TaskForm,
        "form of the task layer: (1 + gamma) f + beta, initialised as f; or "
        "gamma f + beta as in eq. 3, which initially destroys the result of "
        "stage 1",
    ] = "residual"
    task_place: Annotated[
        TaskPlace,
        "position of the task layer: in every encoder layer after its first "
        "norm, or once before the first layer",
    ] = "layers"
    normalise_embeddings: Annotated[
        bool,
        "scale each task embedding to a root mean square of 1 (in the authors' code their norms "
        "differ fourfold)",
    ] = False
    freeze: Annotated[
        bool, "freeze the encoder in stage 2 (as the authors' code intends, but does not do)"
    ] = False
    training: SourceRecipe = PUBLISHED
    tuning: TasksRecipe = _TUNING
    hypernet: LowRank = _HYPERNET

    def __post_init__(self) -> None:
        super().__post_init__()
        check_recipes(self.training, self.tuning)
        if self.guidance and self.curriculum.source is None:
            raise WrongCall(
                "there is no stage 1 to guide without a source task; choose one, or do without "
                "guidance"
            )

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with enough rows in the factors for the ancestry model."""
        return replace(self, hypernet=adapt_rows(self.hypernet, ancestries[0]))

    def build_stages(self, ancestry: Spec) -> tuple[Stage, Stage]:
        """Return the settings of both stages."""
        spec = self.hypernet.build_spec()
        stage_1, stage_2 = build_stages(
            self.curriculum, self.step, spec, self.training, self.tuning, ancestry
        )
        spec = stage_2.hypernet
        if self.curriculum.task_layer:
            spec = spec.with_(
                task_form=self.task_form,
                task_place=self.task_place,
                task_normalised=self.normalise_embeddings,
            )
        if isinstance(ancestry, TextSpec) and self.guide.axis == "positions":
            raise WrongCall("axis is positions; of texts only the feature guides: use features")
        stage_1 = replace(stage_1, guidance=self.guide if self.guidance else None)
        return stage_1, replace(stage_2, hypernet=spec, freeze=self.freeze)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config of plain ViTs of the ancestry's size.

        Raises `WrongCall` if the decoder cannot predict such models.
        """
        _, stage_2 = self.build_stages(ancestries[0])
        return build_outline(stage_2, ancestries[0])

    def list_further_tasks(self, ancestries: Sequence[Spec]) -> tuple[str, ...]:
        """Return the source task."""
        return list_sources(self.curriculum, ancestries[0])

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Return the cost of both stages."""
        stages = self.build_stages(ancestries[0])
        return estimate_work(self.curriculum, stages, ancestries[0], images)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Embed the tasks, train stage 1 on the source task, then stage 2 on the other tasks."""
        from learngene_zoo.plugin import compute_once
        from lgzoo_tal.meta_training import (
            choose_donor,
            collect_learngene,
            embed_tasks,
            get_stage_2_run,
            group_tasks,
            meta_train_on_source,
            split_tasks,
        )

        ancestry = ancestries[0]
        source, other_tasks = split_tasks(self.curriculum, ancestry.spec, tasks, run)
        embeddings = embed_tasks(self.curriculum, ancestry, source, other_tasks, run)
        stage_1, stage_2 = self.build_stages(ancestry.spec)
        first: Part | None
        if source is not None and self.guidance:
            inputs = [ancestry, source]
            first = compute_once(run.part("stage-1"), "tal.stage_1", train_stage_1, stage_1, inputs)
        else:  # the same training as LoGAH's, and shared with it
            first = meta_train_on_source(stage_1, ancestry, source, run)
        seconds = {
            owner: compute_once(
                get_stage_2_run(owner, run),
                "tal.stage_2",
                train_stage_2,
                stage_2,
                [
                    choose_donor(stage_2, ancestry),
                    *(ancestry.input_format, group, first, embeddings),
                ],
            )
            for owner, group in group_tasks(self.curriculum, other_tasks).items()
        }
        config = self.outline([ancestry.spec])
        return collect_learngene(config, source, other_tasks, first, seconds, embeddings, ancestry)


def train_stage_1(
    stage: Stage, ancestry: Ancestry, source: Task, run: Run
) -> tuple[StateDict, Json]:
    """Train a new hypernetwork on the source task, guided by the ancestry model (eq. 4).

    Args:
        stage: the settings, with a guidance.
        ancestry: the guide.
        source: the source task.
        run: how to compute.

    Returns:
        The trained tensors and the record of the training.
    """
    from learngene_zoo.plugin import open_device, train
    from lgzoo_tal.meta_training import MetaTraining, build_hypernet, choose_donor
    from lgzoo_tal.modules.objective import Guide

    assert stage.guidance is not None
    hypernet = build_hypernet(stage.hypernet, None, run)
    guide = Guide(ancestry.model().to(open_device(run)), stage.guidance, ancestry.spec.width)
    donor = choose_donor(stage, ancestry)
    training = MetaTraining(
        stage, hypernet, donor, ancestry.input_format, (source,), run, guide=guide
    )
    objective, batches, label = training.objective, training.batches, training.label
    for step in train(objective, batches, stage.recipe, run, unused=True, label=label):
        objective.finished.fill_(step.step)  # the next step draws other architectures
    return training.collect_result()


def train_stage_2(
    stage: Stage,
    ancestry: Donor,
    input_format: InputFormat,
    tasks: tuple[Task, ...],
    before: Part | None,
    embeddings: Mapping[str, Part],
    run: Run,
) -> tuple[StateDict, Json]:
    """Train the hypernetwork of stage 1, with task layers, on a sampled task a step (eq. 2, 3).

    Args:
        stage: the settings of the stage.
        ancestry: the shape of the ancestry model, or the model.
        input_format: the format of the images.
        tasks: each step samples one of them.
        before: the hypernetwork of stage 1; None starts from a new one.
        embeddings: the task embeddings by task.
        run: how to compute.

    Returns:
        The trained tensors and the record of the training.
    """
    from learngene_zoo.plugin import train
    from lgzoo_tal.meta_training import MetaTraining, build_hypernet, freeze_encoder

    hypernet = build_hypernet(stage.hypernet, before, run)
    if stage.freeze:
        freeze_encoder(hypernet)
    training = MetaTraining(
        stage, hypernet, ancestry, input_format, tasks, run, embeddings=embeddings
    )
    objective, batches, label = training.objective, training.batches, training.label
    for step in train(objective, batches, stage.recipe, run, unused=True, label=label):
        objective.finished.fill_(step.step)
    return training.collect_result()


TAL = Method(
    name="tal",
    title=(
        "a hypernetwork, guided by the ancestry model and conditioned on the "
        "task, predicts weights of any size"
    ),
    paper=(
        "Xu, Xia, Yang, Lv, Geng. Learngene Tells You How to Customize: "
        "Task-Aware Parameter Initialization at Flexible Scales (TAL). ICML 2025"
    ),
    expander=HypernetExpander(),
    presets={
        "mini": TalExtractor(
            curriculum=replace(_CURRICULUM, embedding_images=500, attributes=False),
            step=MetaStep(architectures="tal+", judged=500),
            guide=Guidance(alpha=0.9),
            training=shorten_recipe(PUBLISHED, images=100_000),
            tuning=shorten_recipe(PUBLISHED, images=4000, epochs=10),
            hypernet=logah.MINI,
        ),
        "paper": TalExtractor(hypernet=logah.SMALL),
        "plus": TalExtractor(hypernet=logah.SMALL, step=MetaStep(architectures="tal+")),
        "smoke": TalExtractor(
            curriculum=replace(_CURRICULUM, embedding_images=16),
            step=MetaStep(architectures="tal", judged=0),
            training=limit_to_two_steps(PUBLISHED),
            tuning=limit_to_two_steps(PUBLISHED),
            hypernet=logah.SMOKE,
        ),
    },
    tasks="many",
    families=("vit", "gpt2"),
    details=HypernetDetails,
    plot="lgzoo_tal.plot:draw_picture",
)
