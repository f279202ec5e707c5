"""A copy of a plain ViT with a narrower residual stream and fewer heads and hidden neurons.

PITH's P0 and Q0 with the start `projections`. As in the method `closed_form`, the stream is
projected by P (d, D) with which LayerNorm stays exact, the layers that read the stream take over
its norms and the factor sqrt(D / d), and heads and neurons are selected. Shapes: D width, d narrow
width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learngene_zoo.plugin import Along, Spec, StateDict, WrongCall, map_axes

READERS = ("attn.qkv", "mlp.fc1")
WRITERS = ("attn.proj", "mlp.fc2")


def check_narrower(spec: Spec, ancestry: Spec) -> None:
    """Raise `WrongCall` for a model with more channels, heads or neurons, or other heads."""
    if spec.head_width != ancestry.head_width or not (
        spec.width <= ancestry.width and spec.hidden <= ancestry.hidden
    ):
        raise WrongCall(
            f"with the start projections models are at most as wide as the ancestry model, of "
            f"{ancestry.width} channels and {ancestry.hidden} hidden neurons, with heads of "
            f"{ancestry.head_width}; got {spec.width}, {spec.hidden} and {spec.head_width}"
        )


def project_stream(
    state: StateDict, spec: Spec, P_dD: Tensor, heads: int, neurons: int
) -> tuple[StateDict, StateDict, StateDict]:
    """Return the model with a narrower stream, with fewer heads and neurons, and with both.

    Norms are merged into the layers that read them. Of each block the heads and neurons with the
    largest products of norms of their writing and reading weights remain, in order.

    Args:
        state: a plain ViT's tensors without its head.
        spec: its shape.
        P_dD: the projection of the stream.
        heads: the number of heads to keep.
        neurons: the number of hidden neurons to keep.
    """
    factor = (spec.width / len(P_dD)) ** 0.5
    stream = Along(write=P_dD, read=factor * P_dD, scale=torch.full_like(P_dD, 1 / spec.width))
    outer: dict[str, Tensor] = {}
    inner: dict[str, Tensor] = {}
    narrow_model: dict[str, Tensor] = {}
    stem = {name: state[name] for name in state if not name.startswith(("blocks.", "norm."))}
    outer |= map_axes(stem, spec, {"width": stream})
    inner |= stem
    narrow_model |= outer
    for layer in range(spec.layers):
        block = merge_norms(state, f"blocks.{layer}.")
        selection = {
            "heads": select_heads(block, f"blocks.{layer}.", spec, heads),
            "hidden": select_neurons(block, f"blocks.{layer}.", neurons),
        }
        outer |= map_axes(block, spec, {"width": stream})
        inner |= map_axes(block, spec, selection)
        narrow_model |= map_axes(block, spec, {"width": stream, **selection})
    return outer, inner, narrow_model


def merge_norms(state: StateDict, prefix: str) -> StateDict:
    """Return a block's linear layers, with the gains and shifts of the norms before them."""
    block: dict[str, Tensor] = {}
    for norm, reader, writer in (("norm1", *_pair(0)), ("norm2", *_pair(1))):
        gain, shift = (state[f"{prefix}{norm}.{part}"] for part in ("weight", "bias"))
        weight, bias = (state[f"{prefix}{reader}.{part}"] for part in ("weight", "bias"))
        block[f"{prefix}{reader}.weight"] = weight * gain
        block[f"{prefix}{reader}.bias"] = bias + weight @ shift
        for part in ("weight", "bias"):
            block[f"{prefix}{writer}.{part}"] = state[f"{prefix}{writer}.{part}"]
    return block


def _pair(index: int) -> tuple[str, str]:
    return READERS[index], WRITERS[index]


def select_heads(block: StateDict, prefix: str, spec: Spec, count: int) -> list[int]:
    """Return the heads with the largest norms of values times those of their projections."""
    values = block[f"{prefix}attn.qkv.weight"].chunk(3)[2].unflatten(0, (spec.heads, -1))
    outputs = block[f"{prefix}attn.proj.weight"].unflatten(1, (spec.heads, -1))
    scores = values.flatten(1).norm(dim=1) * outputs.transpose(0, 1).flatten(1).norm(dim=1)
    return sorted(scores.topk(count).indices.tolist())


def select_neurons(block: StateDict, prefix: str, count: int) -> list[int]:
    """Return the neurons with the largest norms of their two layers' weights."""
    scores = block[f"{prefix}mlp.fc1.weight"].norm(dim=1)
    scores = scores * block[f"{prefix}mlp.fc2.weight"].norm(dim=0)
    return sorted(scores.topk(count).indices.tolist())


def build_projection(directions_DD: Tensor, narrow: int) -> Tensor:
    """Return P (d, D) with which LayerNorm stays exact within the first d - 1 directions.

    Both streams have mean 0 over their channels: P = V U^T, where U (D, d - 1) are directions that
    are orthogonal to the ones, and V (d, d - 1) is a basis of all vectors of sum 0. The identity if
    the width stays.

    Args:
        directions_DD: a column for each direction, by falling variance.
        narrow: d.
    """
    width = len(directions_DD)
    if narrow == width:
        return torch.eye(width)
    columns = directions_DD[:, : narrow - 1].double()
    exact, triangle = torch.linalg.qr(columns - columns.mean(dim=0))
    ones = torch.eye(narrow, dtype=torch.float64) - 1 / narrow
    basis = torch.linalg.eigh(ones).eigenvectors[:, 1:]  # the eigenvalue of the ones is 0
    return (basis @ (exact * triangle.diagonal().sign()).T).float()
