"""SWS: Stage-wise Weight Sharing. All layers of a stage share one block.

Xia, Zhu, Yang and Geng, Exploring Learngene via Stage-wise Weight Sharing for Initializing
Variable-sized Models, IJCAI 2024:

    theta_i = theta_s(i)        s(0) <= s(1) <= ...: the stage of layer i, of S

The auxiliary model has 16 layers, in S = 5 stages of 3, 3, 4, 3 and 3. It is trained by
distillation alone (`auxiliary.py`). A descendant of L = q S + r layers has the same stages, the
first r of them with q + 1 layers and the others with q:

    L = 12        0 0 0 1 1 1 2 2 3 3 4 4        the authors' only example; the rule is our reading
    L < S         evenly spaced stages, the first and the last among them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import (
    FLAT,
    LIMITS,
    Bounds,
    Expander,
    Extractor,
    Finetuning,
    LearngeneConfig,
    Member,
    Method,
    WrongCall,
    adapt_rates,
    compute_once,
    parse_details,
)
from lgzoo_baselines.blocks.block_choice import choose_evenly
from lgzoo_baselines.learnt.auxiliary import (
    AUXILIARY,
    LOGITS,
    Rows,
    StoredBlocksDetails,
    build_from_rows,
    build_presets,
    collect_learngene,
    derive_auxiliary_spec,
    derive_stored_spec,
    start_stored_blocks,
    train_auxiliary,
)
from lgzoo_baselines.trained.pretrain_finetune import TRAINING
from lgzoo_baselines.trained.stored_models import Init, estimate_work
from lgzoo_baselines.trained.with_teacher import (
    DistillationSettings,
    TeacherName,
    TeacherTraining,
    prepare_teacher,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        Learngene,
        Run,
        Spec,
        Target,
        Task,
        Work,
    )


def assign_stages(layers: int, stages: int) -> list[int]:
    """Return the stage of each layer of a descendant, counted from 0."""
    if layers < stages:
        return choose_evenly(stages, layers)
    quotient, remainder = divmod(layers, stages)
    return repeat_stages([quotient + (stage < remainder) for stage in range(stages)])


def repeat_stages(stages: Sequence[int]) -> list[int]:
    """Return the stage of each layer, from the numbers of layers of the stages."""
    return [stage for stage, layers in enumerate(stages) for _ in range(layers)]


def copy_rows(layer_stages: Sequence[int], stages: int) -> Rows:
    """Return the share of each of `stages` blocks in each layer: 1 of its stage's, 0 of others."""
    return tuple(
        tuple(float(stage == layer_stage) for stage in range(stages))
        for layer_stage in layer_stages
    )


@dataclass(frozen=True, kw_only=True)
class SwsExtractor(Extractor):
    """Train a block for each stage in an auxiliary model, with the ancestry as its teacher."""

    each: DistillationSettings = field(default=LOGITS, metadata=FLAT)
    teacher: TeacherName = None
    teaching: TeacherTraining = TRAINING
    init: Init = "timm"
    stages: Annotated[
        tuple[int, ...],
        "number of layers of each stage of the auxiliary model",
        Bounds(least=1, most=LIMITS["layers"]),
    ] = (3, 3, 4, 3, 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stages:
            raise WrongCall("stages is empty; name the layers of each stage, as 3,3,4,3,3")

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, random_rates=["lr"])

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the auxiliary model's shape, of as many layers as the stages."""
        spec = derive_auxiliary_spec(ancestries[0], sum(self.stages))
        return LearngeneConfig(spec=spec).with_details(StoredBlocksDetails(blocks=len(self.stages)))

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate the auxiliary model's training; the teacher's fine-tuning is not counted."""
        specs, recipe = [self.outline(ancestries).spec], self.each.training
        return estimate_work(specs, ancestries[0], recipe, images[0], has_teacher=True)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return the stages' blocks with stem, final norm and head of the auxiliary model."""
        ancestry, task, config = ancestries[0], tasks[0], self.outline([ancestries[0].spec])
        teacher, metrics = prepare_teacher(self.teacher, ancestry, task, self.teaching, run)
        part = run.part("auxiliary")
        details = StoredBlocksDetails(blocks=len(self.stages)).with_task(task)
        stored = derive_stored_spec(config, details)
        start = start_stored_blocks(stored, (), self.init, ancestry, part.seed)
        rows = copy_rows(repeat_stages(self.stages), len(self.stages))
        trained = compute_once(
            part, "sws.condense", train_auxiliary, self.each, [rows, start, teacher, task]
        )
        return collect_learngene(config, details, trained, metrics)


@dataclass(frozen=True, kw_only=True)
class SwsExpander(Expander):
    """Repeat the stages' blocks in their order."""

    places: Annotated[
        tuple[int, ...] | None,
        "stage of each layer, counted from 0 (default: distributed evenly)",
        Bounds(least=0),
    ] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to the auxiliary model's. Deeper ones can be built by name."""
        depths = [len(self.places)] if self.places else range(1, config.spec.layers + 1)
        return [Member(spec=config.spec.with_(layers=layers)) for layers in depths]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build the layers of all stages; the head is new unless the task is the learngene's.

        Raises `WrongCall` for places that are not the stages of the layers in their order.
        """
        config = learngene.config
        target = replace(target, layers=target.layers or len(self.places or ()) or None)
        layers, stages = (
            target.apply(config.spec).layers,
            parse_details(config, StoredBlocksDetails).blocks,
        )
        places = self.places or assign_stages(layers, stages)
        is_descending = any(stage > following for stage, following in pairwise(places))
        if len(places) != layers or max(places) >= stages or is_descending:
            raise WrongCall(
                f"places is {','.join(map(str, places))}; expected the stages of {layers} layers "
                f"in their order, from 0 to {stages - 1}"
            )
        rows = copy_rows(places, stages)
        return build_from_rows(learngene, target, rows, run, {"blocks": list(places)})


SWS = Method(
    name="sws",
    title=(
        "one block per stage, learnt by distillation; descendants repeat the "
        "blocks within their stages"
    ),
    paper=(
        "Xia, Zhu, Yang, Geng. Exploring Learngene via Stage-wise Weight Sharing for Initializing "
        "Variable-sized Models. IJCAI 2024"
    ),
    expander=SwsExpander(),
    presets=build_presets(SwsExtractor, stages=(1, 2)),
    families=("vit", "gpt2", "bert"),
    tasks="one",
    details=StoredBlocksDetails,
    # For descendants of DeiT-Base's width the authors' code has 1e-5.
    finetuning={
        "paper": Finetuning(recipe=replace(AUXILIARY, epochs=10, lr=5e-5, min_lr=1e-6, warmup=0))
    },
)
