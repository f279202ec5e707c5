"""LoGAH's decoder: two factors per node, whose product is the tensor.

Zhou et al., 2024, section 3.1. Letters: h width of the encoder, r rank, C rows of a factor (the
paper's K, the code's ck), L nodes, (o, i) output and input channels of the tensor and (p, q) its
kernel.

    Y = Wc ReLU(MLP(node) as (2r, r))                       (2r, C)
    U = the first r rows of Y, viewed as (C, r); V = the last r rows, likewise
    tensor = U[: o p] V[: i q]^T, viewed as (o, p, i, q)

A vector of n numbers is half of a column of 2 m(n): norms' weights are the first half, biases the
second.

Only needed numbers are computed. Consecutive rows of U are consecutive numbers of Y. They lie in
few rows of Y (one or two of ninety for a ViT-Tiny), in a part of the outer two, and each row of Y
needs r of the MLP's 2 r^2 outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from learngene_zoo.plugin import WrongCall
from lgzoo_tal.hypernet_spec import Form, HypernetSpec, count_half
from lgzoo_tal.modules.forms import activate_factors, build_activation
from lgzoo_tal.modules.tensors import Blocks, Product, TensorGroup, get_kernel, is_vector


class Perceptron(nn.Module):
    """Three linear layers, the last of which computes parts of its outputs."""

    def __init__(self, hidden: int, outputs: int, form: Form = "published") -> None:
        super().__init__()
        first, second = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, 8 * hidden)
        self.fc = nn.Sequential(
            first,
            build_activation(form),
            second,
            build_activation(form),
            nn.Linear(8 * hidden, outputs),
        )

    def forward(self, nodes: Tensor) -> Tensor:
        """Return (N, 8h) the input of the last layer."""
        return self.fc[:-1](nodes)

    def slice_last_layer(self) -> LinearParts:
        """Return the last layer, which computes slices of its outputs."""
        layer = self.fc[-1]
        assert isinstance(layer, nn.Linear)
        return LinearParts(layer)


class LowRankDecoder(nn.Module):
    """Decode all tensors of a model."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        assert spec.rank is not None
        h, self.rank, self.chunk, self.widest = spec.hidden, spec.rank, spec.chunk, spec.widest
        self.spec, self.form = spec, spec.form
        self.mlp = Perceptron(h, 2 * self.rank**2, spec.form)
        self.l2 = nn.Linear(self.rank, self.chunk)

    def forward(
        self, nodes: Tensor, groups: Sequence[TensorGroup]
    ) -> Iterator[tuple[TensorGroup, Blocks]]:
        """Yield each group with its blocks, no larger than the tensors.

        Blocks are (L, o) for vectors, (L, o, i) for matrices, which are left as factors, (L, o, i,
        rows, columns) for kernels. `nodes` is (N, h). Raises `WrongCall` for a tensor that needs
        more rows than the factors have.
        """
        hidden, inner, outer = (
            self.mlp(nodes),
            self.mlp.slice_last_layer(),
            self.slice_outer_layer(),
        )
        for group in groups:
            chosen = hidden[list(group.nodes)]
            factors = Product(
                *(self.compute_factor(chosen, rows, inner, outer) for rows in self._get_rows(group))
            )
            yield group, self._multiply_factors(factors, group)

    def slice_outer_layer(self) -> LinearParts:
        """Return the layer of the factors, which computes slices of its outputs."""
        return LinearParts(self.l2)

    def transform_lines(self, lines: Tensor) -> Tensor:
        """Return the inputs (L, rows, ...) of the layer of the factors, from (L, rows, r)."""
        return lines

    def _get_rows(self, group: TensorGroup) -> tuple[FactorRows, FactorRows]:
        """Return the rows of U and of V that a tensor is made from."""
        if is_vector(group):
            half = count_half(self.spec, group.shape[0])
            start = 0 if group.role == "norm weight" else half
            left, right = FactorRows("U", start, min(group.shape[0], half)), FactorRows("V", 0, 1)
        else:
            (o, i), (p, q) = self.count_channels(group), get_kernel(group.shape)
            left, right = FactorRows("U", 0, o * p), FactorRows("V", 0, i * q)
        self.check_rows(group, left, right)
        return left, right

    def check_rows(self, group: TensorGroup, *factors: FactorRows) -> None:
        """Raise `WrongCall` for rows beyond those that the decoder makes."""
        for rows in factors:
            if rows.end > self.chunk:
                raise WrongCall(
                    f"{group.names[0]} of shape {group.shape} needs {rows.end} rows of a factor, "
                    "but the low-rank decoder "
                    f"makes {self.chunk}; choose a narrower model or another patch size"
                )

    def count_channels(self, group: TensorGroup) -> tuple[int, int]:
        """Return the output and input channels that are decoded for the tensors of a group."""
        o, i = group.shape[:2]
        return min(o, self.widest), i if group.role == "positions" else min(i, self.widest)

    def compute_factor(
        self, chosen: Tensor, rows: FactorRows, inner: LinearParts, outer: LinearParts
    ) -> Tensor:
        """Return (L, rows, r): consecutive rows of U or V.

        Args:
            chosen: the input of the MLP's last layer.
            rows: the rows to compute.
            inner: the MLP's last layer.
            outer: the layer of the factors.
        """
        outputs = inner(chosen, slice(*rows.get_outputs(self.rank, self.chunk)))
        lines = activate_factors(outputs, self.form).unflatten(1, (-1, self.rank))
        lines = self.transform_lines(lines)
        pieces = [
            outer(lines[:, part.lines].flatten(0, 1), part.columns).view(len(lines), -1)
            for part in rows.split_rectangles(self.rank, self.chunk)
        ]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)).unflatten(
            1, (-1, self.rank)
        )

    def _multiply_factors(self, factors: Product, group: TensorGroup) -> Blocks:
        if is_vector(group):
            return factors.multiply()[:, :, 0]
        (o, i), (p, q) = self.count_channels(group), get_kernel(group.shape)
        return (
            factors if (p, q) == (1, 1) else factors.multiply().view(-1, o, p, i, q).transpose(2, 3)
        )


@dataclass(frozen=True)
class Rectangle:
    """Consecutive rows of Y and the columns needed of all of them.

    Rows are counted from the first one needed.
    """

    lines: slice
    columns: slice


@dataclass(frozen=True)
class FactorRows:
    """Consecutive rows of a factor."""

    factor: Literal["U", "V"]
    start: int
    count: int

    @property
    def end(self) -> int:
        """Return the row after the last one."""
        return self.start + self.count

    def get_lines(self, rank: int, chunk: int) -> tuple[int, int]:
        """Return the rows of the factor's half of Y that they lie in.

        These are the first one and that after the last.
        """
        return self.start * rank // chunk, -(-self.end * rank // chunk)

    def get_outputs(self, rank: int, chunk: int) -> tuple[int, int]:
        """Return the outputs of the MLP that those rows of Y are made from.

        These are the first one and that after the last.
        """
        half = 0 if self.factor == "U" else rank
        low, high = self.get_lines(rank, chunk)
        return (half + low) * rank, (half + high) * rank

    def split_rectangles(self, rank: int, chunk: int) -> list[Rectangle]:
        """Return the parts of Y that their numbers lie in, in order.

        They are a part of a row, whole rows, a part of a row.
        """
        low, high = self.get_lines(rank, chunk)
        start, end = self.start * rank - low * chunk, self.end * rank - (high - 1) * chunk
        if high - low == 1:
            return [Rectangle(slice(0, 1), slice(start, end))]
        middle_rows = slice(int(start > 0), high - low - int(end < chunk))
        first = [Rectangle(slice(0, 1), slice(start, chunk))] if start else []
        last = [Rectangle(slice(high - low - 1, high - low), slice(0, end))] if end < chunk else []
        middle = (
            [Rectangle(middle_rows, slice(0, chunk))]
            if middle_rows.stop > middle_rows.start
            else []
        )
        return [*first, *middle, *last]


# A decoder's last layers have hundreds of millions of numbers, and a model needs a dozen
# overlapping parts of them. Autograd would allocate a gradient for each part, as large as the part
# or even the layer, and add them up. `LinearParts` allocates the gradient once.


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
