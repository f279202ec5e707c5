"""FINE: every matrix is U diag(sigma) V', with U and V shared by all layers.

Xie, Feng, Shi, Shen, Wang, Rui and Geng, FINE: Factorizing Knowledge for Initialization of Variable-sized Diffusion Models, CVPR 2026:

    W_i = U diag(sigma_i) V'        for each kind of matrix; U (rows, r), V (columns, r), sigma_i (r,) of layer i

Kinds are queries, keys and values; projection; first and second layer of the MLP. U, V and all sigma_i learn in an auxiliary model with the
ancestry model as its teacher (`factored.py`); for another depth only the sigma_i are new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import FLAT, LIMITS, Bounds, Method
from lgzoo_baselines.auxiliary import Origin, presets
from lgzoo_baselines.distillation import Distilling
from lgzoo_baselines.factored import Factor, Rescale
from lgzoo_baselines.forms import Draws, Form, Std, matrices

if TYPE_CHECKING:
    from torch import Tensor

    from learngene_zoo.plugin import Spec


@dataclass(frozen=True, kw_only=True)
class Products(Form):
    """Products of shared matrices with a diagonal between them."""

    rank: Annotated[
        int | None,
        "columns of U and V (default: as many as the matrix has at most)",
        Bounds(least=1, most=LIMITS["width"]),
    ] = None

    def draws(self, spec: Spec, std: Std) -> tuple[Draws, Draws]:
        """U and V, with columns of about length 1, and the sigma of one layer."""
        factors: Draws = {}
        scalers: Draws = {}
        for kind, (rows, columns) in matrices(spec).items():
            rank = min(rows, columns, self.rank or rows)
            factors[f"{kind}.u"] = ((rows, rank), rows**-0.5)
            factors[f"{kind}.v"] = ((columns, rank), columns**-0.5)
            scalers[kind] = ((rank,), std((rows, columns)) * (rows * columns / rank) ** 0.5)
        return factors, scalers

    def matrix(self, kind: str, factors: Mapping[str, Tensor], scaler: Tensor) -> Tensor:
        """U diag(sigma) V'."""
        return (factors[f"{kind}.u"] * scaler) @ factors[f"{kind}.v"].T


@dataclass(frozen=True, kw_only=True)
class Details(Origin):
    """What `details` of a learngene hold."""

    form: Products


@dataclass(frozen=True, kw_only=True)
class Factorize(Factor):
    """Train U, V and the sigma of every layer in an auxiliary model."""

    method = "fine"
    details = Details

    form: Products = field(default=Products(), metadata=FLAT)


@dataclass(frozen=True, kw_only=True)
class Expand(Rescale):
    """U and V with a sigma for any depth."""

    details = Details


FINE = Method(
    name="fine",
    title="matrices that share their singular directions, learnt by distillation; every depth has singular values of its own",
    paper=(
        "Xie, Feng, Shi, Shen, Wang, Rui, Geng. FINE: Factorizing Knowledge for Initialization of Variable-sized Diffusion "
        "Models. CVPR 2026"
    ),
    expander=Expand(),
    presets=presets(Factorize, Distilling(share=0.5, temperature=1.0), form=Products(rank=8)),
    tasks="one",
    details=Details,
)
