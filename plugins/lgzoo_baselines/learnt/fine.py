"""FINE: every matrix is U diag(sigma) V', with U and V shared by all layers.

Xie, Feng, Shi, Shen, Wang, Rui and Geng, FINE: Factorizing Knowledge for Initialization of
Variable-sized Diffusion Models, CVPR 2026:

    W_i = U diag(sigma_i) V'        U (rows, r), V (columns, r), sigma_i (r,) of layer i

for each kind of matrix: queries, keys and values; projection; first and second layer of the MLP. U,
V and all sigma_i are trained in an auxiliary model with the ancestry model as teacher
(`factored.py`); for another depth only the sigma_i are new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import (
    FLAT,
    LIMITS,
    Bounds,
    Expander,
    Extractor,
    LearngeneConfig,
    Member,
    Method,
    adapt_rates,
    parse_details,
)
from lgzoo_baselines.blocks.block_choice import list_shallower_members
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

    from learngene_zoo.plugin import Ancestry, Descendant, Learngene, Run, Spec, Target, Task, Work


@dataclass(frozen=True, kw_only=True)
class DiagonalFactorisation(Factorisation):
    """Products of shared matrices with a diagonal between them."""

    rank: Annotated[
        int | None,
        "number of columns of U and V (default: the full rank)",
        Bounds(least=1, most=LIMITS["width"]),
    ] = None

    def list_draws(self, spec: Spec, std: Std) -> tuple[Draws, Draws]:
        """Return U and V, with columns of about length 1, and the sigma of one layer."""
        factors: Draws = {}
        scalers: Draws = {}
        for kind, (rows, columns) in list_matrices(spec).items():
            rank = min(rows, columns, self.rank or rows)
            factors[f"{kind}.u"] = ((rows, rank), rows**-0.5)
            factors[f"{kind}.v"] = ((columns, rank), columns**-0.5)
            scalers[kind] = ((rank,), std((rows, columns)) * (rows * columns / rank) ** 0.5)
        return factors, scalers

    def build_matrix(self, kind: str, factors: Mapping[str, Tensor], scaler: Tensor) -> Tensor:
        """Return U diag(sigma) V'."""
        return (factors[f"{kind}.u"] * scaler) @ factors[f"{kind}.v"].T


@dataclass(frozen=True, kw_only=True)
class FineDetails(HeadRecord):
    """Record what `details` of a learngene hold."""

    form: DiagonalFactorisation


@dataclass(frozen=True, kw_only=True)
class FineExtractor(Extractor):
    """Train U, V and all sigma in an auxiliary model, with the ancestry as its teacher."""

    each: DistillationSettings = field(default=LOGITS, metadata=FLAT)
    teacher: TeacherName = None
    teaching: TeacherTraining = TRAINING
    init: Init = "timm"
    form: DiagonalFactorisation = field(default=DiagonalFactorisation(), metadata=FLAT)

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, random_rates=["lr"])

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the auxiliary model's shape, as deep as the ancestry model.

        Raises `WrongCall` for a shape whose matrices cannot be factorised.
        """
        return outline_factors(ancestries[0], self.form, FineDetails(form=self.form))

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate the auxiliary model's training; the teacher's fine-tuning is not counted."""
        specs, recipe = [self.outline(ancestries).spec], self.each.training
        return estimate_work(specs, ancestries[0], recipe, images[0], has_teacher=True)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return stem, U, V, sigma and vectors of all layers, final norm and head."""
        details, name = FineDetails(form=self.form), "fine.train_factors"
        return extract_factors(self, self.form, details, name, ancestries[0], tasks[0], run)


@dataclass(frozen=True, kw_only=True)
class FineExpander(Expander):
    """Build any depth from U and V with a sigma for each layer."""

    learning: ScalerTraining = LEARNING

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to the auxiliary model's."""
        return list_shallower_members(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of U, V and interpolated, or learnt, sigma.

        Raises `WrongCall` for a wider model, and where scalers are to learn without a task.
        """
        details = parse_details(learngene.config, FineDetails)
        return expand_factors(learngene, details, details.form, target, self.learning, run)


FINE = Method(
    name="fine",
    title=(
        "matrices with shared U and V, learnt by distillation; each layer of a "
        "descendant has separate singular values"
    ),
    paper=(
        "Xie, Feng, Shi, Shen, Wang, Rui, Geng. FINE: Factorizing Knowledge for Initialization of "
        "Variable-sized Diffusion Models. CVPR 2026"
    ),
    expander=FineExpander(),
    presets=build_presets(
        FineExtractor,
        DistillationSettings(share=0.5, temperature=1.0),
        form=DiagonalFactorisation(rank=8),
    ),
    tasks="one",
    details=FineDetails,
)
