"""Settings of the ranking of elastic: curvature, evolution of factors, and shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import FLAT, Bounds, Spec, WrongCall, check_bounds
from lgzoo_closed_form.sizes import count_by_share, derive_minimum

if TYPE_CHECKING:
    import torch

FIFTIETHS = tuple(step / 50 for step in range(10, 51))  # the grid of shares: 0.2, 0.22, ..., 1


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Images and crops on which curvature is measured."""

    images: Annotated[int, "training images, without their labels", Bounds(least=1)] = 300
    crops: Annotated[int, "small crops of each image, and two large ones", Bounds(least=0)] = 10

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """Settings of the search for factors."""

    evaluations: Annotated[int, "vectors of factors to evaluate", Bounds(least=1)] = 120
    spread: Annotated[float, "initial standard deviation of the factors", Bounds(above=0)] = 0.3
    first: Annotated[float, "initial factor of the first block", Bounds(above=0)] = 1.2
    last: Annotated[
        float,
        "initial factor of the last block; linear between them",
        Bounds(above=0),
    ] = 0.8
    sparsities: Annotated[
        tuple[float, ...],
        "shares of hidden neurons to cut when features are compared",
        Bounds(above=0, most=1),
    ] = (0.15, 0.35, 0.55, 0.65)
    components: Annotated[
        int, "principal components of the features to compare", Bounds(least=1)
    ] = 192
    compared: Annotated[int, "number of images on which features are compared", Bounds(least=2)] = (
        128
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.sparsities:
            raise WrongCall("sparsities has no value; name one or more, such as 0.35")


@dataclass(frozen=True, kw_only=True)
class RankingSettings:
    """All that the ranking depends on, beside the ancestry model, the task and the seed."""

    sensitivity: Sensitivity = field(default=Sensitivity(), metadata=FLAT)
    evolution: Evolution = field(default=Evolution(), metadata=FLAT)
    lead: Annotated[
        float,
        "share of kept heads minus the share of kept hidden neurons",
        Bounds(least=0, most=1),
    ] = 0.15

    def __post_init__(self) -> None:
        check_bounds(self)

    def compute_shares(self, keep: float) -> tuple[float, float]:
        """Return the shares of heads and of hidden neurons. Rounded: 0.85 and 0.15 make 1."""
        return min(round(keep + self.lead, 6), 1.0), keep

    def count_kept(
        self, ranks: Sequence[torch.Tensor], spec: Spec
    ) -> list[tuple[tuple[int, ...], ...]]:
        """Return how many heads, and neurons, each block keeps of each of `FIFTIETHS`.

        Args:
            ranks: the importances of heads (L, H) and of hidden neurons (L, M).
            spec: the shape of the ancestry model.
        """
        grids = zip(*(self.compute_shares(keep) for keep in FIFTIETHS))
        return [
            count_by_share(rows.tolist(), grid, minimum)
            for rows, grid, minimum in zip(ranks, grids, derive_minimum(spec))
        ]
