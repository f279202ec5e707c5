"""SWEET: all matrices of all layers form one Tucker-factorised tensor with a shared template.

Xie, Feng, Shi, Wang, Rui and Geng, Self-Supervised Weight Templates for Scalable Vision Model
Initialization, arXiv 2601.19694, 2026. The matrices of a layer (queries, keys, values, projection,
both layers of the MLP) are cut into squares as wide as the stream, D, twelve where the MLP is four
times as wide. All squares p of all layers i form one tensor, a template with a scaler on each axis:

    W[(i, p), a, b] = sum over t, u, v of  S_i[p, t]  A[a, u]  B[b, v]  T[t, u, v]

The template T (r, s, s) does not depend on the size. The scalers are: S_i (squares, r) of a layer,
A (D, s) and B (D, s) of a width. All of them are trained in an auxiliary model with the ancestry
model as teacher (`factored.py`). For another size the template is unchanged, and the scalers are
interpolated, cut, and optionally trained.

The axes of the paper's tensor are not known to us; see docs/results/differences.md.
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
class TuckerFactorisation(Factorisation):
    """A template, and a scaler on each of its sides."""

    rank: Annotated[
        int, "size r of the template's axis for the squares", Bounds(least=1, most=4096)
    ] = 64
    stream: Annotated[
        int | None,
        "size s of the template's two axes for channels (default: the ancestry's width)",
        Bounds(least=1, most=LIMITS["width"]),
    ] = None

    adapted = frozenset({"rows", "columns"})

    def list_draws(self, spec: Spec, std: Std) -> tuple[Draws, Draws]:
        """Return T, A and B, and S of one layer.

        S has the shape (squares below, squares beside each other, r) for every kind of matrix.
        """
        width, kinds = spec.width, list_matrices(spec)
        for kind, (rows, columns) in kinds.items():
            if rows % width or columns % width:
                raise WrongCall(
                    f"{kind} is a matrix of {rows} x {columns}; squares as wide as the stream, "
                    f"{width}, do not fill it"
                )
        side = self.stream or width
        factors: Draws = {
            "template": ((self.rank, side, side), 1.0),
            "rows": ((width, side), side**-0.5),
            "columns": ((width, side), side**-0.5),
        }
        scalers: Draws = {
            kind: (
                (rows // width, columns // width, self.rank),
                std((rows, columns)) * self.rank**-0.5,
            )
            for kind, (rows, columns) in kinds.items()
        }
        return factors, scalers

    def build_matrix(self, kind: str, factors: Mapping[str, Tensor], scaler: Tensor) -> Tensor:
        """Return the matrix with its squares in their positions."""
        import torch

        mixed_ijuv = torch.einsum("ijt,tuv->ijuv", scaler, factors["template"])
        squares_ijab = factors["rows"] @ mixed_ijuv @ factors["columns"].T
        return squares_ijab.transpose(1, 2).flatten(2).flatten(0, 1)

    def select_entries(self, spec: Spec, smaller: Spec) -> dict[str, list[int]]:
        """Return the first heads and channels, and the first hidden neurons of each square.

        A square keeps as many neurons as the smaller stream has channels.
        """
        squares = range(spec.hidden // spec.width) if smaller.width < spec.width else ()
        hidden = [
            square * spec.width + channel for square in squares for channel in range(smaller.width)
        ]
        entries = super().select_entries(spec, smaller)
        return {**entries, **({"hidden": hidden} if hidden else {})}

    def narrow(
        self, factors: StateDict, scalers: StateDict, smaller: Spec
    ) -> tuple[StateDict, StateDict]:
        """Return A and B of the first channels."""
        cut = {name: factors[name][: smaller.width] for name in self.adapted}
        return {**factors, **cut}, scalers


@dataclass(frozen=True, kw_only=True)
class SweetDetails(HeadRecord):
    """Record what `details` of a learngene hold."""

    form: TuckerFactorisation


@dataclass(frozen=True, kw_only=True)
class SweetExtractor(Extractor):
    """Train a template and its scalers in an auxiliary model, with the ancestry as its teacher."""

    each: DistillationSettings = field(default=LOGITS, metadata=FLAT)
    teacher: TeacherName = None
    teaching: TeacherTraining = TRAINING
    init: Init = "timm"
    form: TuckerFactorisation = field(default=TuckerFactorisation(), metadata=FLAT)

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, random_rates=["lr"])

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the auxiliary model's shape, as deep as the ancestry model.

        Raises `WrongCall` for a shape whose matrices cannot be factorised.
        """
        return outline_factors(ancestries[0], self.form, SweetDetails(form=self.form))

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate the auxiliary model's training; the teacher's fine-tuning is not counted."""
        specs, recipe = [self.outline(ancestries).spec], self.each.training
        return estimate_work(specs, ancestries[0], recipe, images[0], has_teacher=True)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return stem, template, scalers and vectors of all layers, final norm and head."""
        details, name = SweetDetails(form=self.form), "sweet.train_factors"
        return extract_factors(self, self.form, details, name, ancestries[0], tasks[0], run)


@dataclass(frozen=True, kw_only=True)
class SweetExpander(Expander):
    """Build any depth, and any width in whole heads, from the template and its scalers."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    learning: ScalerTraining = LEARNING

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth and every width in whole heads up to the auxiliary model's."""
        return list_smaller_members(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of the template and interpolated, or learnt, scalers.

        Raises `WrongCall` for a wider model, and where scalers are to learn without a task.
        """
        details = parse_details(learngene.config, SweetDetails)
        return expand_factors(learngene, details, details.form, target, self.learning, run)


SWEET = Method(
    name="sweet",
    title=(
        "one template for all matrices, learnt by distillation; scalers adapt it "
        "to every depth and width"
    ),
    paper=(
        "Xie, Feng, Shi, Wang, Rui, Geng. Self-Supervised Weight Templates for Scalable Vision "
        "Model Initialization. arXiv 2601.19694, 2026"
    ),
    expander=SweetExpander(),
    presets=build_presets(
        SweetExtractor,
        DistillationSettings(share=0.5, temperature=1.0),
        form=TuckerFactorisation(rank=8, stream=16),
    ),
    tasks="one",
    details=SweetDetails,
)
