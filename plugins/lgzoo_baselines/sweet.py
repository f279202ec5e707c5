"""SWEET: all matrices of all layers are one tensor in Tucker form, a shared template with a scaler on each of its sides.

Xie, Feng, Shi, Wang, Rui and Geng, Self-Supervised Weight Templates for Scalable Vision Model Initialization, arXiv 2601.19694, 2026. The
matrices of a layer (queries, keys, values, projection, both layers of the MLP) are cut into squares as wide as the stream, D, twelve where
the MLP is four times as wide. All squares p of all layers i are one tensor, and

    W[(i, p), a, b] = sum over t, u, v of  S_i[p, t]  A[a, u]  B[b, v]  T[t, u, v]

The template T (r, s, s) is of no size. The scalers are: S_i (squares, r) of a layer, A (D, s) and B (D, s) of a width. All of them learn in
an auxiliary model with the ancestry model as its teacher (`factored.py`); for another size the template stays, and the scalers are
interpolated, cut, and may learn.

Which sides the paper's tensor has could not be read; see docs/methods/sweet.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import FLAT, LIMITS, Bounds, Method, WrongCall
from lgzoo_baselines.auxiliary import Origin, presets
from lgzoo_baselines.distillation import Distilling
from lgzoo_baselines.factored import Factor, Rescale
from lgzoo_baselines.forms import Draws, Form, Std, matrices

if TYPE_CHECKING:
    from torch import Tensor

    from learngene_zoo.plugin import Spec, StateDict


@dataclass(frozen=True, kw_only=True)
class Tucker(Form):
    """A template, and a scaler on each of its sides."""

    rank: Annotated[int, "r, the template's side that squares mix", Bounds(least=1, most=4096)] = 64
    stream: Annotated[
        int | None,
        "s, the template's sides that channels mix (default: the ancestry's width)",
        Bounds(least=1, most=LIMITS["width"]),
    ] = None

    adapted = frozenset({"rows", "columns"})

    def draws(self, spec: Spec, std: Std) -> tuple[Draws, Draws]:
        """T, A and B, and S of one layer: for every kind of matrix (squares below, squares beside each other, r)."""
        width, kinds = spec.width, matrices(spec)
        for kind, (rows, columns) in kinds.items():
            if rows % width or columns % width:
                raise WrongCall(
                    f"{kind} is a matrix of {rows} x {columns}; squares as wide as the stream, {width}, do not fill it"
                )
        side = self.stream or width
        scaler: Draws = {"rows": ((width, side), side**-0.5), "columns": ((width, side), side**-0.5)}
        layer: Draws = {
            kind: ((rows // width, columns // width, self.rank), std((rows, columns)) * self.rank**-0.5)
            for kind, (rows, columns) in kinds.items()
        }
        return {"template": ((self.rank, side, side), 1.0), **scaler}, layer

    def matrix(self, kind: str, factors: Mapping[str, Tensor], scaler: Tensor) -> Tensor:
        """The squares of one matrix in their places."""
        import torch

        mixed_ijuv = torch.einsum("ijt,tuv->ijuv", scaler, factors["template"])
        squares_ijab = factors["rows"] @ mixed_ijuv @ factors["columns"].T
        return squares_ijab.transpose(1, 2).flatten(2).flatten(0, 1)

    def indices(self, whole: Spec, small: Spec) -> dict[str, list[int]]:
        """Of hidden neurons the first of each square, as many as the smaller stream has channels."""
        squares = range(whole.hidden // whole.width) if small.width < whole.width else ()
        hidden = [square * whole.width + channel for square in squares for channel in range(small.width)]
        return {**super().indices(whole, small), **({"hidden": hidden} if hidden else {})}

    def narrowed(self, factors: StateDict, scalers: StateDict, small: Spec) -> tuple[StateDict, StateDict]:
        """A and B of the first channels."""
        return {**factors, **{name: factors[name][: small.width] for name in self.adapted}}, scalers


@dataclass(frozen=True, kw_only=True)
class Details(Origin):
    """What `details` of a learngene hold."""

    form: Tucker


@dataclass(frozen=True, kw_only=True)
class Templating(Factor):
    """Train a template and its scalers in an auxiliary model."""

    method = "sweet"
    details = Details

    form: Tucker = field(default=Tucker(), metadata=FLAT)


@dataclass(frozen=True, kw_only=True)
class Expand(Rescale):
    """The template with scalers for any depth, and of whole heads."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})
    details = Details


SWEET = Method(
    name="sweet",
    title="one template of all matrices, learnt by distillation; every depth and width has scalers on its sides",
    paper=(
        "Xie, Feng, Shi, Wang, Rui, Geng. Self-Supervised Weight Templates for Scalable Vision Model Initialization. arXiv 2601.19694, 2026"
    ),
    expander=Expand(),
    presets=presets(Templating, Distilling(share=0.5, temperature=1.0), form=Tucker(rank=8, stream=16)),
    tasks="one",
    details=Details,
)
