"""A linear layer that is asked for some of its outputs at a time, and whose gradient is made once, of all askings together.

A decoder's last layers are large, and a target reads parts of them, which overlap, a dozen times. Left to itself autograd
makes a gradient of each part's size for each, and adds them up: many times the layer's memory is written.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Asked(NamedTuple):
    """One asking, as backward meets it: for the outputs from `start` to `end`."""

    start: int
    end: int
    inputs: Tensor  # (K, I)
    gradient: Tensor  # (K, O)


class LinearParts:
    """The layer for one forward pass."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self.asked: dict[int, Asked] = {}  # by number, so that a second backward replaces what a first one left
        self.count = 0
        trained = torch.is_grad_enabled() and layer.weight.requires_grad and layer.bias.requires_grad
        self.gathered: Tensor | None = _Gather.apply(layer.weight, layer.bias, self.asked) if trained else None

    def __call__(self, inputs_KI: Tensor, outputs: slice) -> Tensor:
        """(K, O) the outputs of a slice without a step."""
        weight, bias = self.layer.weight[outputs], self.layer.bias[outputs]
        if self.gathered is None:
            return functional.linear(inputs_KI, weight, bias)
        self.count += 1
        place = (self.count, outputs.start, outputs.stop)
        made: Tensor = _Part.apply(inputs_KI, self.gathered, weight.detach(), bias.detach(), place, self.asked)
        return made


class _Part(torch.autograd.Function):
    """Notes what the weight's gradient will be made of."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs_KI: Tensor,
        gathered: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor,
        place: tuple[int, int, int],
        asked: dict[int, Asked],
    ) -> Tensor:
        ctx.save_for_backward(inputs_KI, weight_OI)
        ctx.place, ctx.asked = place, asked
        return functional.linear(inputs_KI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_KO: Tensor) -> tuple[Tensor | None, ...]:
        inputs_KI, weight_OI = ctx.saved_tensors
        number, start, end = ctx.place
        ctx.asked[number] = Asked(start, end, inputs_KI, gradient_KO)
        return gradient_KO @ weight_OI, gradient_KO.new_zeros(()), None, None, None, None


class _Gather(torch.autograd.Function):
    """Stands before all parts, so that backwards it comes after them."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, asked: dict[int, Asked]) -> Tensor:
        ctx.asked = asked
        ctx.save_for_backward(weight, bias)
        return weight.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, bias = ctx.saved_tensors
        gradients = torch.empty_like(weight), torch.empty_like(bias)
        _sum([ctx.asked[number] for number in sorted(ctx.asked)], *gradients)
        ctx.asked.clear()
        return *gradients, None


def _sum(asked: list[Asked], weight_OI: Tensor, bias_O: Tensor) -> None:
    """Write the gradients: between two neighbouring bounds one product, of all that reaches over both."""
    for start, end in pairwise(sorted({0, len(bias_O), *(n for part in asked for n in (part.start, part.end))})):
        here = [part for part in asked if part.start <= start and part.end >= end]
        if here:
            gradient_KO = torch.cat([part.gradient[:, start - part.start : end - part.start] for part in here])
            torch.mm(gradient_KO.T, torch.cat([part.inputs for part in here]), out=weight_OI[start:end])
            torch.sum(gradient_KO, 0, out=bias_O[start:end])
        else:
            weight_OI[start:end].zero_()
            bias_O[start:end].zero_()
