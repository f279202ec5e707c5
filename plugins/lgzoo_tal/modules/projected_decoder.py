"""PITH's decoders: one for matrices of its own, one for projections of the ancestry model's.

Xu et al., CVPR 2026; the released code's names. Letters: r rank, L nodes, T the ancestry model's
tensor (m, n, ...), W the predicted one (o, i, ...), kernels (p, q).

    W_g = U V^T              of `decoder`, whose layer of factors has two more layers before it
    P   = U'[: o] V'[: m]^T  of `decoderpq`, which is LoGAH's decoder
    Q   = U'[: n] V'[: i]^T  of the same factors
    W   = (1 - a) W_g + a P T Q,   a = sigmoid(fusion_weight), which starts at sigmoid(-1.5) = 0.18

Only matrices, kernels and positions inherit; vectors and the head are W_g. P T Q has rank r, so it
remains a product of factors, with the core K = V'[: m]^T T U'[: n]:

    P T Q = (U'[: o] K) V'[: i]^T

With the start `projections`, P is P0 + U' V'^T and Q is Q0 + U' V'^T, where P0 and Q0 are fixed:

    P T Q = P0 T Q0 + U'[: o] (V'[: m]^T T Q0) + (P0 T U'[: n] + U'[: o] K) V'[: i]^T
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from learngene_zoo.plugin import Spec
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.forms import build_activation
from lgzoo_tal.modules.inheritance import Inheritance, Source
from lgzoo_tal.modules.low_rank_decoder import FactorRows, LinearParts, LowRankDecoder
from lgzoo_tal.modules.tensors import Blocks, Product, TensorGroup

FUSION_START = -1.5


class GradualDecoder(LowRankDecoder):
    """A low-rank decoder with two more layers, of 2 r and 4 r, before that of the factors."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__(spec)
        del self.l2
        self.l2_step1 = nn.Linear(self.rank, 2 * self.rank)
        self.l2_step2 = nn.Linear(2 * self.rank, 4 * self.rank)
        self.l2_step3 = nn.Linear(4 * self.rank, self.chunk)

    def slice_outer_layer(self) -> LinearParts:
        """Return the layer of the factors, which computes slices of its outputs."""
        return LinearParts(self.l2_step3)

    def transform_lines(self, lines: Tensor) -> Tensor:
        """Return the inputs (L, rows, 4 r) of the layer of the factors, from (L, rows, r)."""
        activation = build_activation(self.form)
        hidden: Tensor = activation(self.l2_step1(lines))
        outputs: Tensor = activation(self.l2_step2(hidden))
        return outputs


class ProjectionDecoder(LowRankDecoder):
    """Decode P and Q, and project the ancestry model's tensors with them."""

    def project(
        self, nodes: Tensor, groups: Sequence[TensorGroup], inheritance: Inheritance, spec: Spec
    ) -> Iterator[Blocks | None]:
        """Yield P T Q for each group; None for one that inherits nothing.

        Args:
            nodes: (N, h) the embeddings of the nodes.
            groups: of the tensors.
            inheritance: the ancestry model's tensors.
            spec: of the predicted model.

        Raises:
            WrongCall: for a tensor that needs more rows than the factors have.
        """
        hidden, inner, outer = (
            self.mlp(nodes),
            self.mlp.slice_last_layer(),
            self.slice_outer_layer(),
        )
        for group in groups:
            source = inheritance.find_source(group, spec, nodes.device)
            if source is None:
                yield None
                continue
            (o, i), (m, n) = self.count_channels(group), source.tensors.shape[1:3]
            left, right = FactorRows("U", 0, max(o, n)), FactorRows("V", 0, max(m, i))
            self.check_rows(group, left, right)
            chosen = hidden[list(group.nodes)]
            U, V = (self.compute_factor(chosen, rows, inner, outer) for rows in (left, right))
            yield project_source(source, U, V, o, i)


def project_source(source: Source, U: Tensor, V: Tensor, o: int, i: int) -> Blocks:
    """Return P T Q: factors for linear layers without a start, else tensors (L, o, i, p, q).

    Args:
        source: T, and the fixed parts of a start.
        U: (L, max(o, n), r) the left factors.
        V: (L, max(m, i), r) the right factors.
        o: the output channels.
        i: the input channels.
    """
    T = source.tensors
    m, n = T.shape[1:3]
    left = torch.einsum("bmr,bmnpq,bns->brspq", V[:, :m], T, U[:, :n])
    left = torch.einsum("bor,brspq->bospq", U[:, :o], left)
    if source.start is None and T.shape[3:] == (1, 1):
        return Product(left[..., 0, 0], V[:, :i])
    if source.start is None:
        return torch.einsum("bospq,bis->boipq", left, V[:, :i])
    PT, TQ, PTQ = source.start
    left = left + torch.einsum("bonpq,bns->bospq", PT[:, :o], U[:, :n])
    right = torch.einsum("bmr,bmipq->bripq", V[:, :m], TQ[:, :, :i])
    product = torch.einsum("bospq,bis->boipq", left, V[:, :i])
    product = product + torch.einsum("bor,bripq->boipq", U[:, :o], right) + PTQ[:, :o, :i]
    return product[..., 0, 0] if T.shape[3:] == (1, 1) else product


def mix_blocks(generated: Blocks, inherited: Blocks | None, alpha: Tensor) -> Blocks:
    """Return (1 - a) W_g + a P T Q; W_g for a tensor that inherits nothing.

    Args:
        generated: W_g.
        inherited: P T Q.
        alpha: a, a scalar.
    """
    if inherited is None:
        return generated
    if isinstance(generated, Product) and isinstance(inherited, Product):
        left = torch.cat(((1 - alpha) * generated.left, alpha * inherited.left), dim=2)
        return Product(left, torch.cat((generated.right, inherited.right), dim=2))
    dense, other = (
        blocks.multiply() if isinstance(blocks, Product) else blocks
        for blocks in (generated, inherited)
    )
    return (1 - alpha) * dense + alpha * other
