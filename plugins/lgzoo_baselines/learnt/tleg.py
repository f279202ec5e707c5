"""TLEG: Transformer as Linear Expansion of learnGene. All layers are linear in two blocks.

Xia, Zhang, Yang, Chen, Chen and Geng, Transformer as Linear Expansion of Learngene, AAAI 2024:

    theta_i = theta_B + (i / L) theta_A        i = 0, ..., L - 1: all tensors of block i of L

theta_B is the first layer, and the last is one step before theta_B + theta_A. The learngene
is theta_B (`blocks.0`) and theta_A (`blocks.1`), stem, final norm and head, trained in an auxiliary
model of 12 layers by distillation alone (`auxiliary.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import (
    FLAT,
    Bounds,
    Expander,
    Extractor,
    Finetuning,
    LearngeneConfig,
    Member,
    Method,
    adapt_rates,
    compute_once,
)
from lgzoo_baselines.blocks.block_choice import list_shallower_members
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


def expand_line(layers: int) -> Rows:
    """Return the shares of theta_B and of theta_A in each layer."""
    return tuple((1.0, i / layers) for i in range(layers))


@dataclass(frozen=True, kw_only=True)
class TlegExtractor(Extractor):
    """Train theta_B and theta_A in an auxiliary model, with the ancestry model as its teacher."""

    each: DistillationSettings = field(default=LOGITS, metadata=FLAT)
    teacher: TeacherName = None
    teaching: TeacherTraining = TRAINING
    init: Init = "timm"
    auxiliary_layers: Annotated[
        int | None,
        "layers of the auxiliary model (default: the ancestry's)",
        Bounds(least=1),
    ] = None

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, random_rates=["lr"])

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the auxiliary model's shape."""
        layers = self.auxiliary_layers or ancestries[0].layers
        spec = derive_auxiliary_spec(ancestries[0], layers)
        return LearngeneConfig(spec=spec).with_details(StoredBlocksDetails(blocks=2))

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate the auxiliary model's training; the teacher's fine-tuning is not counted."""
        specs, recipe = [self.outline(ancestries).spec], self.each.training
        return estimate_work(specs, ancestries[0], recipe, images[0], has_teacher=True)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return theta_B and theta_A with stem, final norm and head of the auxiliary model."""
        ancestry, task, config = ancestries[0], tasks[0], self.outline([ancestries[0].spec])
        teacher, metrics = prepare_teacher(self.teacher, ancestry, task, self.teaching, run)
        part, details = run.part("auxiliary"), StoredBlocksDetails(blocks=2).with_task(task)
        stored = derive_stored_spec(config, details)
        start = start_stored_blocks(stored, (1,), self.init, ancestry, part.seed)
        rows = expand_line(config.spec.layers)
        trained = compute_once(
            part, "tleg.condense", train_auxiliary, self.each, [rows, start, teacher, task]
        )
        return collect_learngene(config, details, trained, metrics)


@dataclass(frozen=True, kw_only=True)
class TlegExpander(Expander):
    """Build the requested number of layers by linear expansion."""

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to the auxiliary model's. Deeper ones can be built by name."""
        return list_shallower_members(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build the layers on the line; the head is new unless the task is the learngene's."""
        rows = expand_line(target.apply(learngene.config.spec).layers)
        provenance = {"line": [slope for _, slope in rows]}
        return build_from_rows(learngene, target, rows, run, provenance)


# For DeiT-Base's width the authors' code has 40 epochs.
DESCENDANT = replace(
    AUXILIARY, epochs=35, warmup=0, label_smoothing=0.1, drop_path=0.1, ema=0.99996
)

TLEG = Method(
    name="tleg",
    title="two blocks, learnt by distillation; linear expansion builds every depth from them",
    paper=(
        "Xia, Zhang, Yang, Chen, Chen, Geng. Transformer as Linear Expansion of Learngene. "
        "AAAI 2024"
    ),
    expander=TlegExpander(),
    presets=build_presets(TlegExtractor),
    families=("vit", "gpt2", "bert"),
    tasks="one",
    details=StoredBlocksDetails,
    finetuning={"paper": Finetuning(recipe=DESCENDANT)},
)
