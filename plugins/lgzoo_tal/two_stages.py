"""Meta-training without an ancestry model's guidance, in two stages: LoGAH and GHN-3, which differ in their decoders.

Each step draws an architecture, predicts its weights, and backpropagates the task's loss and 3e-5 times the norms of the
predicted tensors into the hypernetwork: stage 1 on the source task, stage 2 on all other tasks, together or each by itself.
A released checkpoint takes the place of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from learngene_zoo.plugin import FLAT, Extractor, LearngeneConfig, Recipe, Spec, Work
from lgzoo_tal import config
from lgzoo_tal.config import PUBLISHED, Curriculum, MetaStep, Stage, check_recipes
from lgzoo_tal.hypernet_spec import Conv, Decoder, LowRank

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, InputFormat, Json, Learngene, Part, Run, StateDict, Task

META_TRAIN = (
    "tal.meta_train"  # the name of the part that `meta_train` computes, for GHN-3, LoGAH and TAL without guidance
)


@dataclass(frozen=True, kw_only=True)
class TwoStages(Extractor):
    """Meta-train a hypernetwork: on a source task first, then on all other tasks."""

    method: ClassVar[str]
    decoder: ClassVar[Decoder]

    curriculum: Curriculum = field(default=Curriculum(), metadata=FLAT)
    step: MetaStep = field(default=MetaStep(), metadata=FLAT)
    released: Annotated[
        str | None, "use this checkpoint instead of training: a file, or hf-hub:organisation/name/file"
    ] = None
    training: Annotated[Recipe, "of stage 1"] = PUBLISHED
    tuning: Annotated[Recipe, "of stage 2; an epoch has as many images as all its tasks together"] = PUBLISHED
    hypernet: LowRank | Conv

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
            return imported(self.released, self.decoder, outline, run)
        source, others = tasks_of_stages(self.curriculum, tasks, run)
        embeddings = task_embeddings(self.curriculum, ancestry, source, others, run)
        stage_1, stage_2 = self.stages(ancestry.spec)
        shown, first = (ancestry.spec, ancestry.input_format), None
        if source is not None:
            first = once(run.part("stage-1"), META_TRAIN, meta_train, stage_1, [*shown, (source,), None, {}])
        seconds = {
            owner: once(stage_2_of(owner, run), META_TRAIN, meta_train, stage_2, [*shown, group, first, embeddings])
            for owner, group in groups_of_tasks(self.curriculum, others).items()
        }
        return learngene_of(outline, source, others, first, seconds, embeddings)

    def stages(self, ancestry: Spec) -> tuple[Stage, Stage]:
        """The settings of both stages."""
        return config.stages(self.curriculum, self.step, self.hypernet.spec(), self.training, self.tuning, ancestry)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The learngene of plain ViTs of the ancestry's size. Raises `WrongCall` if the decoder cannot predict such models."""
        return config.outline(self.method, self.stages(ancestries[0])[1], ancestries[0], known=self.released is None)

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
