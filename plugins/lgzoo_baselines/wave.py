"""WAVE: every matrix is a sum of weight templates, each repeated side by side with a weight of its own at every place.

Feng, Xie, Wang and Geng, WAVE: Weight Templates for Adaptive Initialization of Variable-sized Models, CVPR 2025, equation 4:

    W_i = sum over t of S_it (x) T_t        t = 1, ..., N: the block of W_i at (a, b) is sum over t of S_it[a, b] T_t

The templates T_t, squares as wide as an attention head, are shared by the matrices of one kind (queries, keys and values; projection;
first and second layer of the MLP) in all layers; each layer has its own scalers S_it. Both learn in an auxiliary model by

    loss = KL(softmax(teacher) || softmax(auxiliary)) + L_task

(`factored.py`). For another depth or width only scalers are new: those between the auxiliary model's layers, and of a narrower model
those of the first heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import FLAT, Bounds, Method, WrongCall
from lgzoo_baselines.auxiliary import Origin, presets
from lgzoo_baselines.distillation import Distilling
from lgzoo_baselines.factored import Factor, Rescale
from lgzoo_baselines.forms import Draws, Form, Std, matrices

if TYPE_CHECKING:
    from torch import Tensor

    from learngene_zoo.plugin import Spec, StateDict


@dataclass(frozen=True, kw_only=True)
class Templates(Form):
    """Sums of Kronecker products."""

    templates: Annotated[int, "templates of each kind of matrix", Bounds(least=1, most=4096)] = 32

    def draws(self, spec: Spec, std: Std) -> tuple[Draws, Draws]:
        """Templates (N, side, side) and scalers (N, rows / side, columns / side)."""
        side, kinds = spec.head_width, matrices(spec)
        for kind, (rows, columns) in kinds.items():
            if rows % side or columns % side:
                raise WrongCall(
                    f"{kind} is a matrix of {rows} x {columns}; templates as wide as a head, {side}, do not fill it"
                )
        count = self.templates
        return (
            {kind: ((count, side, side), std(shape)) for kind, shape in kinds.items()},
            {kind: ((count, rows // side, columns // side), count**-0.5) for kind, (rows, columns) in kinds.items()},
        )

    def matrix(self, kind: str, factors: Mapping[str, Tensor], scaler: Tensor) -> Tensor:
        """Equation 4."""
        import torch

        blocks_aibj = torch.einsum("tab,tij->aibj", scaler, factors[kind])
        return blocks_aibj.flatten(2).flatten(0, 1)

    def narrowed(self, factors: StateDict, scalers: StateDict, small: Spec) -> tuple[StateDict, StateDict]:
        """The scalers of the first heads, of queries, keys and values each."""
        _, shapes = self.draws(small, lambda matrix: 1.0)
        found: dict[str, Tensor] = {}
        for kind, scaler in scalers.items():
            (count, rows, columns), parts = shapes[kind][0], 3 if kind == "attn.qkv.weight" else 1
            by_part = scaler.unflatten(1, (parts, scaler.shape[1] // parts))
            found[kind] = by_part[:, :, : rows // parts, :columns].reshape(count, rows, columns)
        return factors, found


@dataclass(frozen=True, kw_only=True)
class Details(Origin):
    """What `details` of a learngene hold."""

    form: Templates


@dataclass(frozen=True, kw_only=True)
class Templating(Factor):
    """Train templates in an auxiliary model."""

    method = "wave"
    details = Details

    form: Templates = field(default=Templates(), metadata=FLAT)


@dataclass(frozen=True, kw_only=True)
class Expand(Rescale):
    """The templates with scalers for any depth, and of whole heads."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})
    details = Details


WAVE = Method(
    name="wave",
    title="templates of all matrices, learnt by distillation; every depth and width weights them anew",
    paper="Feng, Xie, Wang, Geng. WAVE: Weight Templates for Adaptive Initialization of Variable-sized Models. CVPR 2025",
    expander=Expand(),
    presets=presets(Templating, Distilling(share=0.5, temperature=1.0), form=Templates(templates=4)),
    tasks="one",
    details=Details,
)
