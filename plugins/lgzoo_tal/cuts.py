"""Parts of one weight, whose gradients meet in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Cut = slice | tuple[slice, ...]


def cuts(weight: Tensor, wanted: Sequence[Cut]) -> tuple[Tensor, ...]:
    """`weight[cut]` of each, without a copy. They may overlap.

    Plain indexing gives every part a gradient as large as the whole weight. A decoder's last weights have hundreds of
    millions of numbers, of which a target reads a few, in a dozen parts.
    """
    if not weight.requires_grad or not torch.is_grad_enabled():
        return tuple(weight[cut] for cut in wanted)
    return _Cuts.apply(weight, tuple(wanted))


class _Cuts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, wanted: tuple[Cut, ...]) -> tuple[Tensor, ...]:
        ctx.wanted, ctx.shape = wanted, weight.shape
        ctx.set_materialize_grads(False)
        return tuple(weight[cut] for cut in wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        present = [(cut, gradient) for cut, gradient in zip(ctx.wanted, gradients) if gradient is not None]
        if not present:
            return None, None
        whole = present[0][1].new_zeros(ctx.shape)
        for cut, gradient in present:
            whole[cut] += gradient
        return whole, None
