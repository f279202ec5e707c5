"""Tensors as pickles describe them: a span of raw numbers somewhere, and how a tensor lies in it. Cold at its top.

Nothing is read before `Stored.tensor()`, so that an optimiser's state in a checkpoint costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Bytes of one number, by torch's names.
WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}

MOST_AXES = 8


@dataclass(eq=False)
class Span:
    """Raw numbers, little end first: what torch calls a storage."""

    kind: str  # a key of WIDTHS
    count: int
    read: Callable[[Span], memoryview]  # all of its bytes; raises `BadFile` if the file lacks some
    key: str = ""  # its name in the file

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.count * WIDTHS[self.kind]


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in a span. Raises `ValueError` if it does not lie within it."""

    span: Span
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.offset, *self.shape, *self.strides)
        if len(self.shape) > MOST_AXES or any(type(n) is not int for n in numbers):
            raise ValueError(f"a tensor has more than {MOST_AXES} axes, or sizes that are no numbers")
        if len(self.shape) != len(self.strides) or min(numbers) < 0:
            raise ValueError(f"a tensor of shape {self.shape} with strides {self.strides} at {self.offset} cannot be")
        last = self.offset + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides))
        # More numbers than there are would be repeated ones: a few bytes that fill the memory.
        if self.count and (last >= self.span.count or self.count > self.span.count):
            raise ValueError(
                f"a tensor of shape {self.shape} does not lie within the {self.span.count} numbers it is of"
            )

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def tensor(self) -> torch.Tensor:
        """The tensor, in fp32 and in memory of its own. Raises what the span's `read` does."""
        import torch

        if not self.count:
            return torch.empty(self.shape)
        data = self.span.read(self.span)
        assert len(data) == self.span.size
        numbers = torch.frombuffer(data, dtype=getattr(torch, self.span.kind))
        return numbers.as_strided(self.shape, self.strides, self.offset).to(torch.float32, copy=True).contiguous()


def contiguous(span: Span, shape: tuple[int, ...], *, columns_first: bool = False) -> Stored:
    """A tensor that fills a span, its last axis the fastest; or its first (Fortran's order)."""
    strides = [math.prod(shape[:axis] if columns_first else shape[axis + 1 :]) for axis in range(len(shape))]
    return Stored(span, 0, shape, tuple(strides))


def rebuilt(span: Any, offset: Any, shape: Any, strides: Any, *_rest: Any) -> Stored:
    """What torch's `_rebuild_tensor_v2` makes; gradients and hooks are left out. Raises `ValueError`."""
    if type(span) is not Span or type(shape) is not tuple or type(strides) is not tuple:
        raise ValueError("a tensor is not made of numbers")
    return Stored(span, offset, shape, strides)


def rebuilt_parameter(data: Any, *_rest: Any) -> Stored:
    """What torch's `_rebuild_parameter` makes. Raises `ValueError`."""
    if type(data) is not Stored:
        raise ValueError("a parameter is not made of a tensor")
    return data
