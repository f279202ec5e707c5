"""Narrower attention heads in closed form: queries and keys together, values and writer together.

Attention reads queries and keys by their products alone, and the stream reads values through the
writer alone. With n tokens, queries Q (n, C), keys K (n, C), outputs O (n, C) of a head and the
columns W (D, C) of the writer that read them, the best approximations of rank c are

    Q K'   ~ Q F' E K'     F = S^1/2 U' G_q^-1/2,  E = S^1/2 V' G_k^-1/2,  G_q^1/2 G_k^1/2 = U S V'
    O W'   ~ O A B'        A = G_o^-1/2 U,         B' = S V',              G_o^1/2 W'      = U S V'

each SVD cut to c values. G are the Gram matrices; those of keys and outputs are centred, because
softmax ignores what is the same for all keys, and the writer's bias takes the mean of the outputs.
All numbers come from matrices of size C. CORP (Zhang and Yang, arXiv 2602.05243) narrows queries
and keys towards the logits. MoDeGPT (Lin et al., arXiv 2408.09632) selects channels of queries and
keys, and factors values and writer.

Shapes: H heads, C channels of a head, c of a narrower one, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_SMALLEST = 1e-10  # eigenvalues below this share of the largest one count as 0


@dataclass(frozen=True)
class HeadMaps:
    """Maps of the channels of each head to fewer ones, float64."""

    queries: torch.Tensor  # (H, c, C)
    keys: torch.Tensor  # (H, c, C)
    values: torch.Tensor  # (H, c, C)
    writers: torch.Tensor  # (H, D, c), the writer's columns for the narrower heads


def narrow_heads(
    queries_HCC: torch.Tensor,
    keys_HCC: torch.Tensor,
    outputs_HCC: torch.Tensor,
    writer_HDC: torch.Tensor,
    channels: int,
) -> HeadMaps:
    """Return the maps to heads of fewer channels that change logits and updates least.

    Args:
        queries_HCC: the Gram matrix of the queries of each head.
        keys_HCC: of its keys, centred.
        outputs_HCC: of its outputs, centred.
        writer_HDC: the columns of the writer that read these outputs.
        channels: c.
    """
    queries, keys = factor_products(queries_HCC.double(), keys_HCC.double(), channels)
    # The logits are divided by the root of the number of channels, which changes.
    queries = queries * (channels / queries_HCC.shape[-1]) ** 0.5
    values, writers = factor_writer(outputs_HCC.double(), writer_HDC.double(), channels)
    return HeadMaps(queries, keys, values, writers)


def factor_products(
    queries_HCC: torch.Tensor, keys_HCC: torch.Tensor, channels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return F and E (H, c, C): the maps of queries and keys that keep their products best."""
    root_q, inverse_q = compute_roots(queries_HCC)
    root_k, inverse_k = compute_roots(keys_HCC)
    U, S, Vh = torch.linalg.svd(root_q @ root_k)
    scale = S[:, :channels, None].sqrt()
    left, right = U.mT[:, :channels], Vh[:, :channels]
    return scale * (left @ inverse_q), scale * (right @ inverse_k)


def factor_writer(
    outputs_HCC: torch.Tensor, writer_HDC: torch.Tensor, channels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A' (H, c, C) and B (H, D, c): the map of the values, and the columns that read it."""
    root, inverse = compute_roots(outputs_HCC)
    U, S, Vh = torch.linalg.svd(root @ writer_HDC.mT, full_matrices=False)
    down = U.mT[:, :channels] @ inverse
    return down, (S[:, :channels, None] * Vh[:, :channels]).mT


def compute_roots(gram_HCC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the square root of each Gram matrix, and its pseudo-inverse."""
    values, columns = torch.linalg.eigh(gram_HCC)
    largest = values[..., -1:].clamp_min(torch.finfo(values.dtype).tiny)
    is_present = values > _SMALLEST * largest
    roots = values.clamp_min(0).sqrt() * is_present
    inverses = torch.where(is_present, values, 1.0).rsqrt() * is_present
    return (columns * roots[..., None, :]) @ columns.mT, (
        columns * inverses[..., None, :]
    ) @ columns.mT
