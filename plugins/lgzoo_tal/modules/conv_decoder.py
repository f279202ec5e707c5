"""GHN-3's decoder: a small image per node, whose positions become those of a kernel.

Knyazev et al., 2023. Letters: h width of the encoder, K channels it makes (the code's max_shape),
S rows and columns of the image, P positions of a tensor's kernel, L nodes, o and i its output and
input channels.

    F = ReLU(Wf node)             (4h, S, S), cropped to the centre, as large as the kernel
    M = W2 ReLU(W1 F)             (K, K) at each position, cropped to the first rows and columns

Only needed numbers are computed: Wf is read at the rows of the needed positions (one in 256 for a
linear layer), W2 at the rows of the needed channels. Tensors with kernels of one size are decoded
together, so that W2, 30 % of all parameters in GHN-3-T and 69 % in GHN-3-XL, is read once for all
linear layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.forms import build_activation
from lgzoo_tal.modules.tensors import TensorGroup, get_kernel

FEW_COLUMNS = 32  # fewer are faster copied and multiplied at once than row by row
Size = tuple[int, int]
Cut = slice | tuple[slice, ...]
DecodedTensors = Iterator[tuple[TensorGroup, Tensor]]


class MatrixDecoder(nn.Module):
    """Decode matrices, convolutions and the position embedding."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        h, self.widest, self.side = spec.hidden, spec.widest, spec.spatial
        self.fc = nn.Sequential(nn.Linear(h, 4 * h * self.side**2))
        self.activation = build_activation(spec.form)
        self.conv = nn.Sequential(
            nn.Linear(4 * h, 8 * h), build_activation(spec.form), nn.Linear(8 * h, self.widest**2)
        )
        self.class_layer_predictor = nn.Sequential(
            build_activation(spec.form), nn.Linear(self.widest, spec.classes)
        )

    def forward(self, nodes: Tensor, groups: Sequence[TensorGroup]) -> DecodedTensors:
        """Yield each group with its blocks, no larger than the tensors.

        Blocks are (L, o, i), for kernels (L, o, i, rows, columns). `nodes` is (N, h).
        """
        by_kernel: dict[Size, list[TensorGroup]] = defaultdict(list)
        for group in groups:
            by_kernel[get_kernel(group.shape)].append(group)
        plans = [
            partition_regions([self._get_extent(group) for group in same])
            for same in by_kernel.values()
        ]
        parts = self._slice_last_layer([region for plan in plans for region in plan])
        images = self._compute_images(nodes, by_kernel)
        for (size, same), plan in zip(by_kernel.items(), plans):
            features = self.conv[1](self.conv[0](images.pop(size)))
            counts = [len(group.nodes) * features.shape[1] for group in same]
            split = features.flatten(0, 1).split(counts)
            blocks = assemble_blocks(split, plan, [next(parts) for _ in plan])
            for group, blocks_QOI in zip(same, blocks):
                yield group, self._finish_blocks(group, blocks_QOI)

    def _get_extent(self, group: TensorGroup) -> Size:
        """Return the rows and columns that are decoded. The class predictor needs all rows."""
        rows, columns = group.shape[:2]
        rows = self.widest if group.role == "class weight" else min(rows, self.widest)
        return rows, min(columns, self.widest)

    def _slice_last_layer(self, plan: Sequence[Region]) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the weights (o, i, 8h) and biases (o, i) of each region."""
        last, grid = self.conv[2], (self.widest, self.widest)
        assert isinstance(last, nn.Linear)
        slices = [region.cut for region in plan]
        return zip(
            cut_weight(last.weight.view(*grid, -1), slices),
            cut_weight(last.bias.view(grid), slices),
        )

    def _compute_images(
        self, nodes: Tensor, by_kernel: dict[Size, list[TensorGroup]]
    ) -> dict[Size, Tensor]:
        """Return by kernel size (L, P, 4h) the needed positions of the images of its nodes."""
        side, fc = self.side, self.fc[0]
        assert isinstance(fc, nn.Linear)
        members = {
            size: [node for group in same for node in group.nodes]
            for size, same in by_kernel.items()
        }
        # For kernels larger than half an image all of it is computed, once: selecting rows would
        # cost as much.
        large = [size for size in by_kernel if size[0] * size[1] * 2 > side * side]
        small = [size for size in by_kernel if size not in large]
        slices: list[Cut] = [slice(None)] if large else []
        slices += [(slice(None), *self._get_window(size)) for size in small]
        image = fc.weight.view(-1, side, side, nodes.shape[1])
        parts = list(
            zip(cut_weight(image, slices), cut_weight(fc.bias.view(-1, side, side), slices))
        )
        images = {}
        if large:
            weight, bias = parts.pop(0)
            chosen = nodes[[node for size in large for node in members[size]]]
            outputs = functional.linear(chosen, weight.flatten(0, 2), bias.flatten())
            outputs = outputs.view(len(chosen), -1, side, side)
            for size, share in zip(large, outputs.split([len(members[size]) for size in large])):
                rows, columns = self._get_window(size)
                images[size] = self.activation(
                    share[:, :, rows, columns].flatten(2).transpose(1, 2)
                )
        for size, (weight, bias) in zip(small, parts):
            outputs = functional.linear(
                nodes[members[size]], weight.reshape(-1, nodes.shape[1]), bias.flatten()
            )
            images[size] = self.activation(
                outputs.view(len(outputs), bias.shape[0], -1).transpose(1, 2)
            )
        return images

    def _get_window(self, size: Size) -> tuple[slice, slice]:
        """Return the centre of the image, as large as a kernel."""
        middle = self.side // 2
        low, high = (slice(max(0, middle - n // 2), middle + -(-n // 2)) for n in size)
        return low, high

    def _finish_blocks(self, group: TensorGroup, blocks_QOI: Tensor) -> Tensor:
        """Bring (L P, o, i) into the form of blocks.

        The class predictor is applied; positions become the last axes, interpolated if need be.
        """
        if group.role == "class weight":
            return self.class_layer_predictor(blocks_QOI.transpose(1, 2)).transpose(1, 2)
        size = get_kernel(group.shape)
        if size == (1, 1):
            return blocks_QOI
        rows, columns = (min(n, self.side) for n in size)
        blocks = blocks_QOI.view(-1, rows, columns, *blocks_QOI.shape[1:]).permute(0, 3, 4, 1, 2)
        if max(size) <= self.side:
            return blocks
        smooth = functional.interpolate(
            blocks.flatten(0, 1), size, mode="bilinear", align_corners=False
        )
        return smooth.unflatten(0, blocks.shape[:2])


class VectorDecoder(nn.Module):
    """Decode norms and biases: two rows of K numbers per node, for weights and for biases."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        h, self.widest = spec.hidden, spec.widest
        self.fc = nn.Sequential(
            nn.Linear(h, 2 * h), build_activation(spec.form), nn.Linear(2 * h, 2 * self.widest)
        )

    def forward(
        self, nodes: Tensor, groups: Sequence[TensorGroup], bias_class: nn.Module
    ) -> DecodedTensors:
        """Yield each group with its blocks (L, o).

        A norm's weight and bias come from one node, a head's bias from the row of biases.

        Args:
            nodes: (N, h) the node embeddings.
            groups: the vectors to decode.
            bias_class: the predictor of the head's bias.
        """
        vectors = self.fc(nodes[[node for group in groups for node in group.nodes]])
        vectors = vectors.unflatten(1, (2, self.widest))
        for group, share in zip(groups, vectors.split([len(group.nodes) for group in groups])):
            row = share[:, 0 if group.role == "norm weight" else 1]
            yield group, bias_class(row) if group.role == "class bias" else row[:, : group.shape[0]]


@dataclass(frozen=True)
class Region:
    """A rectangle of (K, K), and the indices of the groups that contain all of it."""

    cut: tuple[slice, slice]
    members: tuple[int, ...]


def partition_regions(extents: Sequence[Size]) -> list[Region]:
    """Return rectangles, row by row, that cover the first o rows and i columns of every group.

    Each lies either inside or outside of a group.
    """
    regions = []
    rows_of, columns_of = ([0, *sorted(set(ends))] for ends in zip(*extents))
    for low, high in pairwise(rows_of):
        for start, end in pairwise(columns_of):
            members = tuple(
                k for k, (rows, columns) in enumerate(extents) if rows >= high and columns >= end
            )
            if members:
                regions.append(Region((slice(low, high), slice(start, end)), members))
    return regions


def assemble_blocks(
    features: Sequence[Tensor], plan: Sequence[Region], parts: Sequence[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    """Return (Q, o, i) for each group, computed region by region.

    Args:
        features: (Q, 8h) of each group.
        plan: the regions.
        parts: weight and bias of each region.
    """
    rows: list[dict[int, list[Tensor]]] = [defaultdict(list) for _ in features]
    for region, (weight, bias) in zip(plan, parts):
        chosen = [features[member] for member in region.members]
        outputs = compute_region(torch.cat(chosen) if len(chosen) > 1 else chosen[0], weight, bias)
        for member, share in zip(region.members, outputs.split([len(part) for part in chosen])):
            rows[member][region.cut[0].start].append(share)
    return [
        _concatenate([_concatenate(pieces, 2) for pieces in strips.values()], 1) for strips in rows
    ]


def _concatenate(pieces: Sequence[Tensor], axis: int) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), axis)


def compute_region(features_QC: Tensor, weight_OIC: Tensor, bias_OI: Tensor) -> Tensor:
    """Return (Q, o, i), the outputs of a region.

    A slice of columns is multiplied row by row if that saves copying the weight.

    Args:
        features_QC: the features.
        weight_OIC: the weights of the region.
        bias_OI: its biases.
    """
    rows, columns, _ = weight_OIC.shape
    if weight_OIC.is_contiguous() or rows == 1 or columns < FEW_COLUMNS:
        outputs = functional.linear(features_QC, weight_OIC.flatten(0, 1), bias_OI.flatten())
        return outputs.unflatten(1, (rows, columns))
    spread = features_QC.expand(rows, -1, -1)
    return torch.baddbmm(bias_OI[:, None], spread, weight_OIC.transpose(1, 2)).transpose(0, 1)


def cut_weight(weight: Tensor, slices: Sequence[Cut]) -> tuple[Tensor, ...]:
    """Return `weight[cut]` for each cut, without copies. Cuts may overlap.

    Their gradients are summed into one buffer: autograd would allocate one for each cut, as large
    as the weight.
    """
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
