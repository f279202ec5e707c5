"""`Table`: what each axis of each tensor of a family's models means, and how each tensor starts.

Shapes, parameter counts, initial values and every operation that cuts tensors follow from it. An axis that is a product is
written with its factors from slow to fast: `qkv heads head_width` is (3, heads, head width) flattened.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from learngene_zoo.families.spec import Spec

# How a tensor is initialised (see `model.initial`), or a function from the spec to the value that fills it.
Start = Literal["matrix", "patches", "token", "positions", "one", "zero"] | Callable[[Any], float]
Axes = tuple[tuple[str, ...], ...]
Condition = Callable[[Any], bool]


@dataclass(frozen=True)
class ParameterSpec:
    """One kind of tensor: its name (within its block, if it is in one), its axes, its start, and which specs have it."""

    name: str
    axes: Axes
    start: Start
    present: Condition

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The tensor's shape where the axes have these sizes."""
        return tuple(math.prod(sizes[part] for part in axis) for axis in self.axes)


def parameter(name: str, axes: str, start: Start, present: Condition = lambda spec: True) -> ParameterSpec:
    """A row of a table; `axes` as in "qkv heads head_width, width"."""
    return ParameterSpec(name, tuple(tuple(axis.split()) for axis in axes.split(",")), start, present)


def norm(name: str, axis: str, present: Condition = lambda spec: True) -> tuple[ParameterSpec, ParameterSpec]:
    """The two rows of a LayerNorm."""
    return parameter(f"{name}.weight", axis, "one", present), parameter(f"{name}.bias", axis, "zero", present)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Every tensor that a family's models can have, in the order of their state_dict, by the part that it belongs to."""

    prefix: str  # of the names of a block's tensors, before the number of the block: "blocks."
    sizes: Callable[[Any], dict[str, int]]  # the size of every axis in a plain model
    stem: tuple[ParameterSpec, ...]  # before the blocks
    block: tuple[ParameterSpec, ...]
    stitch: tuple[
        ParameterSpec, ...
    ] = ()  # last in the first block of a later segment; axis `before`: the width it comes from
    final_norm: tuple[ParameterSpec, ...]
    head: tuple[ParameterSpec, ...]

    def parameters(self, spec: Spec) -> Iterator[tuple[str, ParameterSpec, Mapping[str, int]]]:
        """Name, kind and axis sizes of every tensor of the model, in the order of its state_dict."""
        sizes = self.sizes(spec.first)
        yield from ((kind.name, kind, sizes) for kind in self.stem if kind.present(spec))
        inside = [kind for kind in self.block if kind.present(spec)]
        start, before = 0, None
        for segment in spec.segments:
            sizes = self.sizes(segment) | ({} if before is None else {"before": before})
            for block in range(start, start + segment.layers):
                kinds = inside if before is None or block > start else [*inside, *self.stitch]
                yield from ((self.block_name(block, kind.name), kind, sizes) for kind in kinds)
            start, before = start + segment.layers, segment.width
        sizes = self.sizes(spec)
        yield from ((kind.name, kind, sizes) for kind in (*self.final_norm, *self.head) if kind.present(spec))

    def find(self, name: str) -> ParameterSpec | None:
        """The kind of a tensor; None if no model of the family has one of that name."""
        return self._outside.get(name) if self.block_of(name) is None else self._inside.get(self.inner_name(name))

    def block_name(self, block: int, inner: str) -> str:
        """The name of a block's tensor: `blocks.3.attn.qkv.weight`."""
        return f"{self.prefix}{block}.{inner}"

    def block_of(self, name: str) -> int | None:
        """The block that a tensor is in, counted from 0; None outside of the blocks."""
        if not name.startswith(self.prefix):
            return None
        index, _, inner = name[len(self.prefix) :].partition(".")
        return int(index) if index.isdecimal() and inner else None

    def inner_name(self, name: str) -> str:
        """A block's tensor by its name within the block: `attn.qkv.weight` of `blocks.3.attn.qkv.weight`."""
        return name[len(self.prefix) :].partition(".")[2]

    def is_stem(self, name: str) -> bool:
        """Whether a tensor comes before the blocks."""
        return name in self._names_in["stem"]

    def is_final_norm(self, name: str) -> bool:
        """Whether a tensor belongs to the norm after the blocks."""
        return name in self._names_in["final_norm"]

    def is_head(self, name: str) -> bool:
        """Whether a tensor belongs to the classification head."""
        return name in self._names_in["head"]

    def named(self, start: Start) -> str | None:
        """The name of the stem's tensor that starts so ("positions", "patches"); None if the family has none."""
        return next((kind.name for kind in self.stem if kind.start == start), None)

    @cached_property
    def _outside(self) -> dict[str, ParameterSpec]:
        return {kind.name: kind for kind in (*self.stem, *self.final_norm, *self.head)}

    @cached_property
    def _inside(self) -> dict[str, ParameterSpec]:
        return {kind.name: kind for kind in (*self.stitch, *self.block)}

    @cached_property
    def _names_in(self) -> dict[str, frozenset[str]]:
        return {part: frozenset(kind.name for kind in getattr(self, part)) for part in ("stem", "final_norm", "head")}
