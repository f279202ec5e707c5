"""The sizes of nested models, and the settings of their training: see `nested.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import FLAT, Bounds, check_bounds
from lgzoo_baselines.block_choice import even, first
from lgzoo_baselines.distillation import Distilling

if TYPE_CHECKING:
    from learngene_zoo.plugin import Spec

SHARE = Bounds(above=0, most=1)
BLOCKS = {"even": even, "first": first}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The sizes that are trained: every combination of these shares; the whole always is among them."""

    hidden: Annotated[tuple[float, ...], "shares of each MLP's hidden neurons", SHARE] = (0.125, 0.25, 0.5)
    attention: Annotated[tuple[float, ...], "shares of the heads in attention, the stream as it is", SHARE] = ()
    stream: Annotated[tuple[float, ...], "shares of the stream's width, in whole heads", SHARE] = ()
    blocks: Annotated[tuple[float, ...], "shares of the blocks", SHARE] = ()
    choice: Annotated[Literal["even", "first"], "which blocks a slice has: evenly spaced ones, or the first"] = "even"

    def __post_init__(self) -> None:
        check_bounds(self)

    def sizes(self, whole: Spec) -> list[Spec]:
        """The shapes of the slices, ascending, each once; the last is `whole`."""
        found = {
            sized(whole, _whole(depth, whole.layers), heads, _whole(attention, heads), hidden * whole.mlp_ratio): None
            for depth in _ascending(self.blocks)
            for heads in sorted({_whole(share, whole.heads) for share in _ascending(self.stream)})
            for attention, hidden in product(_ascending(self.attention), _ascending(self.hidden))
        }
        return list(found)


def _ascending(shares: Sequence[float]) -> list[float]:
    return sorted({*shares, 1.0})


def _whole(share: float, count: int) -> int:
    """That share of so many, rounded up."""
    return math.ceil(round(share * count, 6))


def sized(whole: Spec, layers: int, stream: int, heads: int, mlp_ratio: float) -> Spec:
    """The shape of a slice: `stream` heads' channels wide, with `heads` heads in attention."""
    unit = whole.head_width
    own = None if heads == stream else heads * unit
    return whole.with_(layers=layers, width=stream * unit, heads=heads, attention_width=own, mlp_ratio=mlp_ratio)


@dataclass(frozen=True, kw_only=True)
class Nesting(Distilling):
    """Which slices are trained, and how."""

    grid: Grid = field(default=Grid(), metadata=FLAT)
    order: Annotated[
        Literal["magnitude", "none"],
        "neurons and heads before the training: by their mean absolute value on images, as in weight_subcloning, or as they are",
    ] = "magnitude"
    ranked: Annotated[int, "training images that they are ranked on, without their labels", Bounds(least=1)] = 256
