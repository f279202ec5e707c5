"""Parts of a large layer, whose gradients are summed into one buffer.

A decoder's last layers have hundreds of millions of numbers, and a model needs a dozen overlapping
parts of them. Autograd would allocate a gradient for each part, as large as the part or even the
layer, and add them up. `LinearParts` computes slices of a linear layer's outputs, `cut_weight`
returns slices of a weight; both allocate the gradient once.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Use(NamedTuple):
    """The facts of one call that the backward pass needs.

    The outputs from `start` to `end`, their gradient and the inputs.
    """

    start: int
    end: int
    inputs: Tensor  # (K, I)
    gradient: Tensor  # (K, O)


class LinearParts:
    """A linear layer in one forward pass, which is called for several slices of its outputs."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self.uses: dict[
            int, Use
        ] = {}  # by number, so that a second backward pass replaces what the first one left
        self.count = 0
        is_trained = (
            torch.is_grad_enabled() and layer.weight.requires_grad and layer.bias.requires_grad
        )
        self.gathered: Tensor | None = (
            _Gather.apply(layer.weight, layer.bias, self.uses) if is_trained else None
        )

    def __call__(self, inputs_KI: Tensor, outputs: slice) -> Tensor:
        """Return (K, O) the outputs of a slice with step 1."""
        weight, bias = self.layer.weight[outputs], self.layer.bias[outputs]
        if self.gathered is None:
            return functional.linear(inputs_KI, weight, bias)
        self.count += 1
        call = (self.count, outputs.start, outputs.stop)
        outputs_KO: Tensor = _Part.apply(
            inputs_KI, self.gathered, weight.detach(), bias.detach(), call, self.uses
        )
        return outputs_KO


class _Part(torch.autograd.Function):
    """One call: its backward pass stores the tensors that the weight's gradient is made from."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs_KI: Tensor,
        gathered: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor,
        call: tuple[int, int, int],
        uses: dict[int, Use],
    ) -> Tensor:
        ctx.save_for_backward(inputs_KI, weight_OI)
        ctx.call, ctx.uses = call, uses
        return functional.linear(inputs_KI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_KO: Tensor) -> tuple[Tensor | None, ...]:
        inputs_KI, weight_OI = ctx.saved_tensors
        number, start, end = ctx.call
        ctx.uses[number] = Use(start, end, inputs_KI, gradient_KO)
        return gradient_KO @ weight_OI, gradient_KO.new_zeros(()), None, None, None, None


class _Gather(torch.autograd.Function):
    """An input of all calls, so that its backward pass runs after theirs."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, uses: dict[int, Use]) -> Tensor:
        ctx.uses = uses
        ctx.save_for_backward(weight, bias)
        return weight.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, bias = ctx.saved_tensors
        gradients = torch.empty_like(weight), torch.empty_like(bias)
        _sum_gradients([ctx.uses[number] for number in sorted(ctx.uses)], *gradients)
        ctx.uses.clear()
        return *gradients, None


def _sum_gradients(uses: list[Use], weight_OI: Tensor, bias_O: Tensor) -> None:
    """Write the gradients of a layer.

    Between two neighbouring bounds it is one product for all calls that cover the interval.
    """
    for start, end in pairwise(
        sorted({0, len(bias_O), *(n for use in uses for n in (use.start, use.end))})
    ):
        covering = [use for use in uses if use.start <= start and use.end >= end]
        if covering:
            gradient_KO = torch.cat(
                [use.gradient[:, start - use.start : end - use.start] for use in covering]
            )
            torch.mm(
                gradient_KO.T, torch.cat([use.inputs for use in covering]), out=weight_OI[start:end]
            )
            torch.sum(gradient_KO, 0, out=bias_O[start:end])
        else:
            weight_OI[start:end].zero_()
            bias_O[start:end].zero_()


Cut = slice | tuple[slice, ...]


def cut_weight(weight: Tensor, slices: Sequence[Cut]) -> tuple[Tensor, ...]:
    """Return `weight[cut]` for each cut, without copies. Cuts may overlap."""
    if not weight.requires_grad or not torch.is_grad_enabled():
        return tuple(weight[cut] for cut in slices)
    return _Cuts.apply(weight, tuple(slices))


class _Cuts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, slices: tuple[Cut, ...]) -> tuple[Tensor, ...]:
        ctx.slices, ctx.shape = slices, weight.shape
        ctx.set_materialize_grads(False)
        return tuple(weight[cut] for cut in slices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        present = [
            (cut, gradient) for cut, gradient in zip(ctx.slices, gradients) if gradient is not None
        ]
        if not present:
            return None, None
        total = present[0][1].new_zeros(ctx.shape)
        for cut, gradient in present:
            total[cut] += gradient
        return total, None
