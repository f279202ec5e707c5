"""WAVE: every matrix is a sum of Kronecker products of scalers and shared weight templates.

Feng, Xie, Wang and Geng, WAVE: Weight Templates for Adaptive Initialization of Variable-sized
Models, CVPR 2025, equation 4, where the templates are the left factors:

    W_i = sum over t of S_it (x) T_t        t = 1, ..., N

that is, the block of W_i at (a, b) is sum over t of S_it[a, b] T_t. The templates T_t, squares as
wide as an attention head, are shared by the matrices of one kind (queries, keys and values;
projection; first and second layer of the MLP) in all layers; each layer has its scalers S_it. Both
are trained in an auxiliary model with

    loss = KL(softmax(teacher) || softmax(auxiliary)) + L_task

(`factored.py`). For another depth or width only the scalers are new: interpolated between the
auxiliary model's layers, and for a narrower model those of the first heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import (
    FLAT,
    Bounds,
    Expander,
    Extractor,
    LearngeneConfig,
    Member,
    Method,
    WrongCall,
    adapt_rates,
    parse_details,
)
from lgzoo_baselines.blocks.block_choice import list_smaller_members
from lgzoo_baselines.learnt.auxiliary import LOGITS, HeadRecord, build_presets
from lgzoo_baselines.learnt.factored import (
    LEARNING,
    ScalerTraining,
    expand_factors,
    extract_factors,
    outline_factors,
)
from lgzoo_baselines.learnt.forms import Draws, Factorisation, Std, list_matrices
from lgzoo_baselines.trained.pretrain_finetune import TRAINING
from lgzoo_baselines.trained.stored_models import Init, estimate_work
from lgzoo_baselines.trained.with_teacher import DistillationSettings, TeacherName, TeacherTraining

if TYPE_CHECKING:
    from torch import Tensor

    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        Learngene,
        Run,
        Spec,
        StateDict,
        Target,
        Task,
        Work,
    )


@dataclass(frozen=True, kw_only=True)
class KroneckerFactorisation(Factorisation):
    """Sums of Kronecker products of a scaler and a template."""

    templates: Annotated[
        int, "number of templates for each kind of matrix", Bounds(least=1, most=4096)
    ] = 32

    def list_draws(self, spec: Spec, std: Std) -> tuple[Draws, Draws]:
        """Return templates (N, side, side) and scalers (N, rows / side, columns / side)."""
        side, kinds = spec.head_width, list_matrices(spec)
        for kind, (rows, columns) in kinds.items():
            if rows % side or columns % side:
                raise WrongCall(
                    f"{kind} is a matrix of {rows} x {columns}; templates as wide as a head, "
                    f"{side}, do not fill it"
                )
        count = self.templates
        templates: Draws = {
            kind: ((count, side, side), std(shape)) for kind, shape in kinds.items()
        }
        scalers: Draws = {
            kind: ((count, rows // side, columns // side), count**-0.5)
            for kind, (rows, columns) in kinds.items()
        }
        return templates, scalers

    def build_matrix(self, kind: str, factors: Mapping[str, Tensor], scaler: Tensor) -> Tensor:
        """Return the sum of equation 4."""
        import torch

        blocks_aibj = torch.einsum("tab,tij->aibj", scaler, factors[kind])
        return blocks_aibj.flatten(2).flatten(0, 1)

    def narrow(
        self, factors: StateDict, scalers: StateDict, smaller: Spec
    ) -> tuple[StateDict, StateDict]:
        """Return the scalers of the first heads, of queries, keys and values each."""
        _, shapes = self.list_draws(smaller, lambda shape: 1.0)
        narrowed: dict[str, Tensor] = {}
        for kind, scaler in scalers.items():
            (count, rows, columns), parts = shapes[kind][0], 3 if kind == "attn.qkv.weight" else 1
            by_part = scaler.unflatten(1, (parts, scaler.shape[1] // parts))
            narrowed[kind] = by_part[:, :, : rows // parts, :columns].reshape(count, rows, columns)
        return factors, narrowed


@dataclass(frozen=True, kw_only=True)
class WaveDetails(HeadRecord):
    """Record what `details` of a learngene hold."""

    form: KroneckerFactorisation


@dataclass(frozen=True, kw_only=True)
class WaveExtractor(Extractor):
    """Train templates and scalers in an auxiliary model, with the ancestry as its teacher."""

    each: DistillationSettings = field(default=LOGITS, metadata=FLAT)
    teacher: TeacherName = None
    teaching: TeacherTraining = TRAINING
    init: Init = "timm"
    form: KroneckerFactorisation = field(default=KroneckerFactorisation(), metadata=FLAT)

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, random_rates=["lr"])

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the auxiliary model's shape, as deep as the ancestry model.

        Raises `WrongCall` for a shape whose matrices cannot be factorised.
        """
        return outline_factors(ancestries[0], self.form, WaveDetails(form=self.form))

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate the auxiliary model's training; the teacher's fine-tuning is not counted."""
        specs, recipe = [self.outline(ancestries).spec], self.each.training
        return estimate_work(specs, ancestries[0], recipe, images[0], has_teacher=True)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return stem, templates, scalers and vectors of all layers, final norm and head."""
        details, name = WaveDetails(form=self.form), "wave.train_factors"
        return extract_factors(self, self.form, details, name, ancestries[0], tasks[0], run)


@dataclass(frozen=True, kw_only=True)
class WaveExpander(Expander):
    """Build any depth, and any width in whole heads, from the templates and its scalers."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    learning: ScalerTraining = LEARNING

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth and every width in whole heads up to the auxiliary model's."""
        return list_smaller_members(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of the templates and interpolated, or learnt, scalers.

        Raises `WrongCall` for a wider model, and where scalers are to learn without a task.
        """
        details = parse_details(learngene.config, WaveDetails)
        return expand_factors(learngene, details, details.form, target, self.learning, run)


WAVE = Method(
    name="wave",
    title=(
        "weight templates, learnt by distillation; scalers combine them for every depth and width"
    ),
    paper=(
        "Feng, Xie, Wang, Geng. WAVE: Weight Templates for Adaptive Initialization of "
        "Variable-sized Models. CVPR 2025"
    ),
    expander=WaveExpander(),
    presets=build_presets(
        WaveExtractor,
        DistillationSettings(share=0.5, temperature=1.0),
        form=KroneckerFactorisation(templates=4),
    ),
    tasks="one",
    details=WaveDetails,
)
