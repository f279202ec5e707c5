"""LoGAH's decoder: two factors per node, whose product is the tensor.

Zhou et al., 2024, section 3. Letters: h width of the encoder, r rank, C rows of a factor (the paper's ck), L nodes, (o, i)
the channels that are made and (p, q) their kernel.

    Y = Wc ReLU(MLP(node) as (2r, r))                       (2r, C)
    U = the first r rows of Y, all their numbers read as (C, r); V = the last r rows, likewise
    tensor = U[: o p] V[: i q]^T, read as (o, p, i, q)

A vector of n numbers is a column of 2 m(n): a norm's weights come from its first half, biases from its second.

What is not read is not computed. A run of rows of U is a run of numbers of Y. It lies in few rows of Y (one or two of ninety
for a ViT-Tiny), of the outer two in a part, and each row of Y needs r of the MLP's 2 r^2 outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from learngene_zoo.plugin import WrongCall
from lgzoo_tal.centred import activation, read
from lgzoo_tal.fitting import Blocks, Product
from lgzoo_tal.linear_parts import LinearParts
from lgzoo_tal.requests import Request, is_vector, kernel
from lgzoo_tal.variants import Form, HypernetSpec, reach

Made = Iterator[tuple[Request, Blocks]]


class Perceptron(nn.Module):
    """Three linear layers, of which the last is run in parts."""

    def __init__(self, hidden: int, outputs: int, form: Form = "published") -> None:
        super().__init__()
        first, second = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, 8 * hidden)
        self.fc = nn.Sequential(first, activation(form), second, activation(form), nn.Linear(8 * hidden, outputs))

    def forward(self, nodes: Tensor) -> Tensor:
        """(N, 8h) what the last layer reads."""
        return self.fc[:-1](nodes)

    def last(self) -> LinearParts:
        """The last layer."""
        layer = self.fc[-1]
        assert isinstance(layer, nn.Linear)
        return LinearParts(layer)


class LowRankDecoder(nn.Module):
    """Tensors of every kind."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        assert spec.rank is not None
        h, self.rank, self.chunk, self.widest = spec.hidden, spec.rank, spec.chunk, spec.widest
        self.form = spec.form
        self.mlp = Perceptron(h, 2 * self.rank**2, spec.form)
        self.l2 = nn.Linear(self.rank, self.chunk)

    def forward(self, nodes: Tensor, wanted: Sequence[Request]) -> Made:
        """Blocks (L, o) of vectors, (L, o, i) of matrices, (L, o, i, rows, columns) of kernels, no larger than their targets.

        Matrices are left unmultiplied. `nodes` is (N, h). Raises `WrongCall` for a target that needs more rows than the
        factors have.
        """
        hidden, inner, outer = self.mlp(nodes), self.mlp.last(), LinearParts(self.l2)
        for request in wanted:
            chosen = hidden[list(request.nodes)]
            factors = Product(*(self._factor(chosen, run, inner, outer) for run in self._runs(request)))
            yield request, self._blocks(factors, request)

    def _runs(self, request: Request) -> tuple[Run, Run]:
        """The rows that a tensor reads of U and of V."""
        if is_vector(request):
            made = reach(request.shape[0], self.widest)
            start = 0 if request.role == "norm weight" else made
            left, right = Run("U", start, min(request.shape[0], made)), Run("V", 0, 1)
        else:
            (o, i), (p, q) = self._channels(request), kernel(request.shape)
            left, right = Run("U", 0, o * p), Run("V", 0, i * q)
        for run in (left, right):
            if run.end > self.chunk:
                raise WrongCall(
                    f"{request.names[0]} of shape {request.shape} needs {run.end} rows of a factor; the low-rank decoder "
                    f"has {self.chunk}: take a narrower model or other patches"
                )
        return left, right

    def _channels(self, request: Request) -> tuple[int, int]:
        o, i = request.shape[:2]
        return min(o, self.widest), i if request.role == "positions" else min(i, self.widest)

    def _factor(self, chosen: Tensor, run: Run, inner: LinearParts, outer: LinearParts) -> Tensor:
        """(L, rows, r): a run of rows of U or V, from the MLP's last but one layer."""
        made = inner(chosen, slice(*run.outputs(self.rank, self.chunk)))
        lines = read(made, self.form).unflatten(1, (-1, self.rank))
        pieces = [
            outer(lines[:, segment.lines].flatten(0, 1), segment.columns).view(len(lines), -1)
            for segment in run.segments(self.rank, self.chunk)
        ]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)).unflatten(1, (-1, self.rank))

    def _blocks(self, factors: Product, request: Request) -> Blocks:
        if is_vector(request):
            return factors.multiplied()[:, :, 0]
        (o, i), (p, q) = self._channels(request), kernel(request.shape)
        return factors if (p, q) == (1, 1) else factors.multiplied().view(-1, o, p, i, q).transpose(2, 3)


@dataclass(frozen=True)
class Segment:
    """Neighbouring rows of Y, counted from the first one of their run, and the columns that are read of all of them."""

    lines: slice
    columns: slice


@dataclass(frozen=True)
class Run:
    """Neighbouring rows of a factor."""

    factor: Literal["U", "V"]
    start: int
    rows: int

    @property
    def end(self) -> int:
        """The row behind the last one."""
        return self.start + self.rows

    def lines(self, rank: int, chunk: int) -> tuple[int, int]:
        """The rows of the factor's half of Y that it lies in, from and to."""
        return self.start * rank // chunk, -(-self.end * rank // chunk)

    def outputs(self, rank: int, chunk: int) -> tuple[int, int]:
        """The MLP's outputs that those rows of Y are made from, from and to."""
        half = 0 if self.factor == "U" else rank
        low, high = self.lines(rank, chunk)
        return (half + low) * rank, (half + high) * rank

    def segments(self, rank: int, chunk: int) -> list[Segment]:
        """The rectangles of Y that its numbers lie in, in order: a part of a row, whole rows, a part of a row."""
        low, high = self.lines(rank, chunk)
        skipped, kept = self.start * rank - low * chunk, self.end * rank - (high - 1) * chunk
        if high - low == 1:
            return [Segment(slice(0, 1), slice(skipped, kept))]
        whole = slice(int(skipped > 0), high - low - int(kept < chunk))
        first = [Segment(slice(0, 1), slice(skipped, chunk))] if skipped else []
        last = [Segment(slice(high - low - 1, high - low), slice(0, kept))] if kept < chunk else []
        middle = [Segment(whole, slice(0, chunk))] if whole.stop > whole.start else []
        return [*first, *middle, *last]
