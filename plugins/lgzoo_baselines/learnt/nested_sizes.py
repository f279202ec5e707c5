"""The sizes of nested models, and the settings of their training: see `nested.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import FLAT, Bounds, check_bounds
from lgzoo_baselines.blocks.block_choice import choose_evenly, choose_first
from lgzoo_baselines.trained.with_teacher import DistillationSettings

if TYPE_CHECKING:
    from learngene_zoo.plugin import Spec

SHARE = Bounds(above=0, most=1)
CHOICES = {"even": choose_evenly, "first": choose_first}


@dataclass(frozen=True, kw_only=True)
class NestedGrid:
    """List the sizes in training: every combination of these shares, and the full model."""

    hidden: Annotated[
        tuple[float, ...], "shares of the hidden neurons of each MLP that slices have", SHARE
    ] = (
        0.125,
        0.25,
        0.5,
    )
    attention: Annotated[
        tuple[float, ...], "shares of the attention heads, without changing the width", SHARE
    ] = ()
    stream: Annotated[
        tuple[float, ...], "shares of the model width, rounded to complete heads", SHARE
    ] = ()
    blocks: Annotated[tuple[float, ...], "shares of the number of blocks", SHARE] = ()
    choice: Annotated[Literal["even", "first"], "blocks of a slice: evenly spaced or the first"] = (
        "even"
    )

    def __post_init__(self) -> None:
        check_bounds(self)

    def list_specs(self, full: Spec) -> list[Spec]:
        """Return the shapes of the slices, ascending, each once; the last is `full`."""
        specs = {
            derive_slice_spec(
                full,
                layers=_round_up(depth, full.layers),
                stream_heads=stream_heads,
                heads=_round_up(attention, stream_heads),
                mlp_ratio=hidden * full.mlp_ratio,
            ): None
            for depth in _sort_shares(self.blocks)
            for stream_heads in _list_heads(self.stream, full.heads)
            for attention, hidden in product(
                _sort_shares(self.attention), _sort_shares(self.hidden)
            )
        }
        return list(specs)

    def choose_blocks(self, full: Spec, layers: int) -> list[int]:
        """Return the indices of the blocks of a slice with so many layers."""
        return CHOICES[self.choice](full.layers, layers)


def _sort_shares(shares: Sequence[float]) -> list[float]:
    return sorted({*shares, 1.0})


def _list_heads(shares: Sequence[float], heads: int) -> list[int]:
    return sorted({_round_up(share, heads) for share in _sort_shares(shares)})


def _round_up(share: float, count: int) -> int:
    """Return that share of `count`, rounded up."""
    return math.ceil(round(share * count, 6))


def derive_slice_spec(
    full: Spec, layers: int, stream_heads: int, heads: int, mlp_ratio: float
) -> Spec:
    """Return the shape of a slice.

    Args:
        full: the shape of the full model.
        layers: of the slice.
        stream_heads: the width of the slice, in heads.
        heads: in attention, at most as many as `stream_heads`.
        mlp_ratio: hidden neurons per channel of the slice.
    """
    unit = full.head_width
    attention_width = None if heads == stream_heads else heads * unit
    return full.with_(
        layers=layers,
        width=stream_heads * unit,
        heads=heads,
        attention_width=attention_width,
        mlp_ratio=mlp_ratio,
    )


@dataclass(frozen=True, kw_only=True)
class NestedSettings(DistillationSettings):
    """Configure which slices are trained, and how."""

    grid: NestedGrid = field(default=NestedGrid(), metadata=FLAT)
    order: Annotated[
        Literal["magnitude", "none"],
        "order of neurons and heads before the training: by mean absolute value "
        "on images, as in weight_subcloning, or unchanged",
    ] = "magnitude"
    ranked: Annotated[
        int,
        "number of training images for this order (labels are not used)",
        Bounds(least=1),
    ] = 256
