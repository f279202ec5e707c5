"""PITH: a hypernetwork projects the matrices of the ancestry model to any size.

Xu et al., Unlocking Pre-trained Weights: Parameter Inheritance for Zero-Shot Initialization, CVPR
2026. PITH is the successor of TAL: the ancestry model's tensors enter, not its features.

A hypernetwork H reads the graph of a ViT. For each matrix it predicts a weight W_g and two
projections, P (out x ancestry's out) and Q (ancestry's in x in). With the ancestry model's matrix
W_a of the same layer, of block min(i, L - 1) for block i,

    W = (1 - a) W_g + a P W_a Q,    a = sigmoid(s),    s starts at -1.5, a at 0.18

Biases, norms and the head are W_g alone. H is trained in two stages, both with the loss

    CE + 3e-5 sum ||predicted||_F

    stage 1    on the source task, another architecture in every step
    stage 2    on many tasks; the task's embedding scales and shifts the encoder's features, as in
               TAL (tal.py), and all parameters are trained

Where paper, README and released code differ, docs/results/pith.md says what is built here. Beyond
the paper, `--start projections` starts P and Q at the principal directions of the ancestry model's
residual stream (modules/inheritance.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import FLAT, Extractor, LearngeneConfig, Method, ViTSpec, WrongCall
from lgzoo_tal import logah
from lgzoo_tal.config import (
    PUBLISHED,
    Curriculum,
    MetaStep,
    SourceRecipe,
    Stage,
    TasksRecipe,
    adapt_rows,
    build_outline,
    build_stages,
    check_recipes,
    count_matrix_rows,
    estimate_work,
    limit_to_two_steps,
    list_sources,
    shorten_recipe,
)
from lgzoo_tal.hypernet_spec import HypernetDetails, LowRank, Start, list_obstacles
from lgzoo_tal.predict import HypernetExpander

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Json,
        Learngene,
        Part,
        Run,
        Spec,
        StateDict,
        Task,
        Work,
    )

_CURRICULUM = Curriculum(task_layer=True, attributes=False)
_TRAINING = replace(PUBLISHED, epochs=300)  # the released code's default
_TUNING = replace(PUBLISHED, epochs=100, batch_size=256)
# At PUBLISHED's rate of 3e-4 with 60 and 27 steps of warm-up, three of eight trainings lost the
# features of the start `projections` (docs/results/pith.md).
_GENTLE = replace(PUBLISHED, lr=1e-4)
# Differences from a plain ViT that the start `projections` inherits, or that are those of the head.
_SERVED = ("a dense head", "no classes", "layer scale", "no position of its class token")
_HYPERNET = LowRank(hidden=128, layers=5, heads=16, rank=90, widest=4096)


@dataclass(frozen=True, kw_only=True)
class PithExtractor(Extractor):
    """Meta-train a hypernetwork that projects the ancestry model's matrices, in two stages."""

    store: Annotated[
        bool,
        "store the ancestry model's tensors in the learngene; otherwise every expansion opens that "
        "model again and checks its checksum",
    ] = True
    start: Annotated[
        Start,
        "initial P and Q: noise as in the released code, or the principal directions of the "
        "ancestry model's residual stream",
    ] = "noise"
    curriculum: Curriculum = field(default=_CURRICULUM, metadata=FLAT)
    step: MetaStep = field(default=MetaStep(architectures="tal+"), metadata=FLAT)
    training: SourceRecipe = _TRAINING
    tuning: TasksRecipe = _TUNING
    hypernet: LowRank = _HYPERNET

    def __post_init__(self) -> None:
        super().__post_init__()
        check_recipes(self.training, self.tuning)

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with enough rows in the factors for the ancestry model.

        With the start `projections` they also have enough channels for P0 W_a Q0, which would
        otherwise be tiled.
        """
        ancestry, hypernet = ancestries[0], self.hypernet
        if self.start == "projections":
            hypernet = replace(hypernet, widest=max(hypernet.widest, count_matrix_rows(ancestry)))
        return replace(self, hypernet=adapt_rows(hypernet, ancestry, "projected"))

    def build_stages(self, ancestry: Spec) -> tuple[Stage, Stage]:
        """Return the settings of both stages."""
        spec = self.hypernet.build_spec().with_(decoder="projected", start=self.start)
        return build_stages(self.curriculum, self.step, spec, self.training, self.tuning, ancestry)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config of plain ViTs of the ancestry's size.

        Raises `WrongCall` if the decoder cannot predict such models, or cannot project the
        ancestry model's tensors.
        """
        ancestry, (_, stage_2) = ancestries[0], self.build_stages(ancestries[0])
        rows = count_matrix_rows(ancestry)
        if rows > self.hypernet.chunk:
            raise WrongCall(
                f"the ancestry model's largest matrix has {rows} rows, but the factors of P and Q "
                f"have {self.hypernet.chunk}; increase hypernet_chunk"
            )
        if self.start == "projections":
            check_projections(ancestry, self.hypernet.widest)
        return build_outline(stage_2, ancestry)

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
            collect_learngene,
            embed_tasks,
            get_stage_2_run,
            group_tasks,
            split_tasks,
        )
        from lgzoo_tal.modules.inheritance import collect_inherited

        ancestry = ancestries[0]
        source, other_tasks = split_tasks(self.curriculum, ancestry.spec, tasks, run)
        embeddings = embed_tasks(self.curriculum, ancestry, source, other_tasks, run)
        stage_1, stage_2 = self.build_stages(ancestry.spec)
        directions = self._measure_directions(ancestry, source or other_tasks[0], run)
        first: Part | None = None
        if source is not None:
            inputs = [ancestry, (source,), None, {}, directions]
            first = compute_once(run.part("stage-1"), "pith.train", train_stage, stage_1, inputs)
        seconds = {
            owner: compute_once(
                get_stage_2_run(owner, run),
                "pith.train",
                train_stage,
                stage_2,
                [ancestry, group, first, embeddings, directions],
            )
            for owner, group in group_tasks(self.curriculum, other_tasks).items()
        }
        config = self.outline([ancestry.spec])
        learngene = collect_learngene(config, source, other_tasks, first, seconds, embeddings)
        tensors = collect_inherited(ancestry, self.start, directions, store=self.store)
        return replace(learngene, state={**learngene.state, **tensors})

    def _measure_directions(self, ancestry: Ancestry, task: Task, run: Run) -> Part | None:
        """Measure the principal directions if P and Q start there."""
        from learngene_zoo.plugin import compute_once
        from lgzoo_tal.modules.directions import measure_directions
        from lgzoo_tal.modules.embedding import EmbeddingSettings

        if self.start == "noise":
            return None
        settings = EmbeddingSettings(images=self.curriculum.embedding_images)
        inputs = [ancestry, task]
        part = run.part("directions")
        return compute_once(part, "pith.directions", measure_directions, settings, inputs)


def check_projections(ancestry: Spec, widest: int) -> None:
    """Check that P and Q can start at projections of an ancestry model.

    Args:
        ancestry: its shape.
        widest: the largest number of channels that the decoder predicts.

    Raises:
        WrongCall: for a ViT that is not plain, and if its largest matrix would be tiled.
    """
    assert isinstance(ancestry, ViTSpec)  # the only family
    first = next((name for name in list_obstacles(ancestry) if name not in _SERVED), None)
    if first is not None:
        raise WrongCall(
            f"the ancestry model has {first}, which the start projections does not inherit; choose "
            "a plain ViT with a class token, or the start noise"
        )
    rows = count_matrix_rows(ancestry)
    if rows > widest:
        raise WrongCall(
            f"the ancestry model's largest matrix has {rows} rows, but with the start projections "
            f"the decoder predicts {widest}; increase hypernet_widest"
        )


def train_stage(
    stage: Stage,
    ancestry: Ancestry,
    tasks: tuple[Task, ...],
    before: Part | None,
    embeddings: Mapping[str, Part],
    directions: Part | None,
    run: Run,
) -> tuple[StateDict, Json]:
    """Train one stage: each step predicts an architecture of another size for one of the tasks.

    Args:
        stage: the settings of the stage.
        ancestry: the model whose tensors are projected.
        tasks: each step samples one of them.
        before: the hypernetwork of stage 1; None starts from a new one.
        embeddings: the task embeddings by task.
        directions: the principal directions, if P and Q start there.
        run: how to compute.

    Returns:
        The trained tensors and the record of the training.
    """
    from learngene_zoo.plugin import train
    from lgzoo_tal.meta_training import MetaTraining, build_hypernet
    from lgzoo_tal.modules.inheritance import build_inheritance, collect_inherited

    hypernet = build_hypernet(stage.hypernet, before, run)
    tensors = collect_inherited(ancestry, stage.hypernet.start, directions)
    hypernet.inheritance = build_inheritance(stage.hypernet, ancestry.spec, tensors)
    training = MetaTraining(
        stage,
        hypernet,
        ancestry.spec,
        ancestry.input_format,
        tasks,
        run,
        embeddings=embeddings,
    )
    objective, batches, label = training.objective, training.batches, training.label
    for step in train(objective, batches, stage.recipe, run, unused=True, label=label):
        objective.finished.fill_(step.step)  # the next step draws other architectures
    return training.collect_result()


PITH = Method(
    name="pith",
    title="a hypernetwork, conditioned on the task, projects the ancestry model's matrices",
    paper=(
        "Xu et al. Unlocking Pre-trained Weights: Parameter Inheritance for Zero-Shot "
        "Initialization (PITH). CVPR 2026"
    ),
    expander=HypernetExpander(),
    presets={
        "mini": PithExtractor(
            start="projections",
            curriculum=replace(_CURRICULUM, embedding_images=500),
            step=MetaStep(architectures="tal+", judged=500),
            training=replace(shorten_recipe(_GENTLE, images=100_000), warmup=0.2),
            tuning=replace(shorten_recipe(_GENTLE, images=4000, epochs=10), warmup=0.5),
            hypernet=logah.MINI,
        ),
        "paper": PithExtractor(),
        "smoke": PithExtractor(
            curriculum=replace(_CURRICULUM, embedding_images=16),
            step=MetaStep(architectures="tal+", judged=0),
            training=limit_to_two_steps(PUBLISHED),
            tuning=limit_to_two_steps(PUBLISHED),
            hypernet=logah.SMOKE,
        ),
    },
    tasks="many",
    details=HypernetDetails,
    plot="lgzoo_tal.plot:draw_picture",
)
