"""The decoders' formulas as printed: one node at a time, everything computed, then cropped."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lgzoo_tal.hypernet_spec import count_decoded_channels
from lgzoo_tal.modules.conv_decoder import MatrixDecoder
from lgzoo_tal.modules.low_rank_decoder import LowRankDecoder
from lgzoo_tal.modules.tensors import TensorGroup, get_kernel


def compute_conv_block(decoder: MatrixDecoder, node: Tensor, group: TensorGroup) -> Tensor:
    """Return (o, i) or (o, i, rows, columns) of one node."""
    side, wide, (rows, columns) = decoder.side, decoder.widest, get_kernel(group.shape)
    image = decoder.activation(decoder.fc(node)).view(-1, side * side).T
    kernels = decoder.conv(image).view(side, side, wide, wide).permute(2, 3, 0, 1)
    low, left = max(0, side // 2 - rows // 2), max(0, side // 2 - columns // 2)
    window = kernels[:, :, low : side // 2 + (rows + 1) // 2, left : side // 2 + (columns + 1) // 2]
    if max(rows, columns) > side:
        window = functional.interpolate(window, (rows, columns), mode="bilinear")
    if group.role == "class weight":
        window = decoder.class_layer_predictor(window.transpose(0, 3)).transpose(0, 3)
    block = window[: group.shape[0], : group.shape[1]]
    if group.role == "class weight":
        block = window[:, : group.shape[1]]
    return block[:, :, 0, 0] if (rows, columns) == (1, 1) else block


def compute_low_rank_block(decoder: LowRankDecoder, node: Tensor, group: TensorGroup) -> Tensor:
    """Return (o,) or (o, i) or (o, i, rows, columns) of one node."""
    r, c, wide = decoder.rank, decoder.chunk, decoder.widest
    y = decoder.l2(functional.relu(decoder.mlp.fc(node)).view(2 * r, r))
    u, v = y[:r].reshape(c, r), y[r:].reshape(c, r)
    if len(group.shape) == 1:
        half = count_decoded_channels(group.shape[0], wide)
        vectors = (u[: 2 * half] @ v[:1].T).view(2, half)
        return vectors[0 if group.role == "norm weight" else 1, : group.shape[0]]
    (o, i), (p, q) = group.shape[:2], get_kernel(group.shape)
    o, i = (o, i) if group.role == "positions" else (min(o, wide), min(i, wide))
    block = (u[: o * p] @ v[: i * q].T).view(o, p, i, q).transpose(1, 2)
    return block[:, :, 0, 0] if (p, q) == (1, 1) else block


def repeat_block(block: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return copies of a block along its first axes, cropped to the shape."""
    for axis, size in enumerate(shape):
        times = [1] * block.dim()
        times[axis] = -(-size // block.shape[axis])
        block = torch.narrow(block.repeat(times), axis, 0, size)
    return block
