"""GHN-3's decoder: a small image per node, whose positions become those of a kernel.

Knyazev et al., 2023, section 3.3. Letters: h width of the encoder, K channels it makes (the papers' max_shape), S rows and
columns of the image, P positions of a tensor's kernel, L nodes, o and i its output and input channels.

    F = ReLU(Wf node)             (4h, S, S), cropped to the centre, as large as the kernel
    M = W2 ReLU(W1 F)             (K, K) at each position, cropped to the first rows and columns

Only what is kept is computed: Wf is read at the rows of the kept positions (one in 256 for a linear layer), W2 at the rows of
the kept channels. Tensors with kernels of one size are decoded together, so that W2, nine tenths of all parameters, is read
once for all linear layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from lgzoo_tal.centred import activation
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.partial_linear import Cut, cuts
from lgzoo_tal.tensors import TensorGroup, kernel

FEW_COLUMNS = 32  # fewer are faster copied and multiplied at once than row by row
Size = tuple[int, int]
Made = Iterator[tuple[TensorGroup, Tensor]]


class MatrixDecoder(nn.Module):
    """Makes matrices, convolutions and the position embedding."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        h, self.widest, self.side = spec.hidden, spec.widest, spec.spatial
        self.fc = nn.Sequential(nn.Linear(h, 4 * h * self.side**2))
        self.activation = activation(spec.form)
        self.conv = nn.Sequential(nn.Linear(4 * h, 8 * h), activation(spec.form), nn.Linear(8 * h, self.widest**2))
        self.class_layer_predictor = nn.Sequential(activation(spec.form), nn.Linear(self.widest, spec.classes))

    def forward(self, nodes: Tensor, groups: Sequence[TensorGroup]) -> Made:
        """Blocks (L, o, i), for kernels (L, o, i, rows, columns), no larger than the tensors. `nodes` is (N, h)."""
        by_kernel: dict[Size, list[TensorGroup]] = defaultdict(list)
        for group in groups:
            by_kernel[kernel(group.shape)].append(group)
        plans = [regions([self._extent(group) for group in same]) for same in by_kernel.values()]
        parts = self._parts([region for plan in plans for region in plan])
        images = self._images(nodes, by_kernel)
        for (size, same), plan in zip(by_kernel.items(), plans):
            features = self.conv[1](self.conv[0](images.pop(size)))
            counts = [len(group.nodes) * features.shape[1] for group in same]
            split = features.flatten(0, 1).split(counts)
            made = assembled(split, plan, [next(parts) for _ in plan])
            for group, blocks_QOI in zip(same, made):
                yield group, self._finished(group, blocks_QOI)

    def _extent(self, group: TensorGroup) -> Size:
        """The rows and columns that are decoded. The class predictor needs all rows."""
        rows, columns = group.shape[:2]
        return self.widest if group.role == "class weight" else min(rows, self.widest), min(columns, self.widest)

    def _parts(self, plan: Sequence[Region]) -> Iterator[tuple[Tensor, Tensor]]:
        """The weights (o, i, 8h) and biases (o, i) of each region."""
        last, grid = self.conv[2], (self.widest, self.widest)
        assert isinstance(last, nn.Linear)
        where = [region.cut for region in plan]
        return zip(cuts(last.weight.view(*grid, -1), where), cuts(last.bias.view(grid), where))

    def _images(self, nodes: Tensor, by_kernel: dict[Size, list[TensorGroup]]) -> dict[Size, Tensor]:
        """By kernel size (L, P, 4h): the kept positions of the images of all nodes with such a kernel."""
        side, fc = self.side, self.fc[0]
        assert isinstance(fc, nn.Linear)
        members = {size: [node for group in same for node in group.nodes] for size, same in by_kernel.items()}
        # For kernels that keep more than half an image all of it is computed, once: selecting rows would cost as much.
        large = [size for size in by_kernel if size[0] * size[1] * 2 > side * side]
        small = [size for size in by_kernel if size not in large]
        where: list[Cut] = [slice(None)] if large else []
        where += [(slice(None), *self._window(size)) for size in small]
        image = fc.weight.view(-1, side, side, nodes.shape[1])
        parts = list(zip(cuts(image, where), cuts(fc.bias.view(-1, side, side), where)))
        found = {}
        if large:
            weight, bias = parts.pop(0)
            chosen = nodes[[node for size in large for node in members[size]]]
            whole = functional.linear(chosen, weight.flatten(0, 2), bias.flatten()).view(len(chosen), -1, side, side)
            for size, share in zip(large, whole.split([len(members[size]) for size in large])):
                rows, columns = self._window(size)
                found[size] = self.activation(share[:, :, rows, columns].flatten(2).transpose(1, 2))
        for size, (weight, bias) in zip(small, parts):
            made = functional.linear(nodes[members[size]], weight.reshape(-1, nodes.shape[1]), bias.flatten())
            found[size] = self.activation(made.view(len(made), bias.shape[0], -1).transpose(1, 2))
        return found

    def _window(self, size: Size) -> tuple[slice, slice]:
        """The centre of the image, as large as a kernel."""
        middle = self.side // 2
        low, high = (slice(max(0, middle - n // 2), middle + -(-n // 2)) for n in size)
        return low, high

    def _finished(self, group: TensorGroup, blocks_QOI: Tensor) -> Tensor:
        """From (L P, o, i) to blocks: the class predictor's output, or positions as the last axes, interpolated if need be."""
        if group.role == "class weight":
            return self.class_layer_predictor(blocks_QOI.transpose(1, 2)).transpose(1, 2)
        size = kernel(group.shape)
        if size == (1, 1):
            return blocks_QOI
        rows, columns = (min(n, self.side) for n in size)
        blocks = blocks_QOI.view(-1, rows, columns, *blocks_QOI.shape[1:]).permute(0, 3, 4, 1, 2)
        if max(size) <= self.side:
            return blocks
        smooth = functional.interpolate(blocks.flatten(0, 1), size, mode="bilinear", align_corners=False)
        return smooth.unflatten(0, blocks.shape[:2])


class VectorDecoder(nn.Module):
    """Makes norms and biases: two rows of K numbers per node, the first for weights, the second for biases."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        h, self.widest = spec.hidden, spec.widest
        self.fc = nn.Sequential(nn.Linear(h, 2 * h), activation(spec.form), nn.Linear(2 * h, 2 * self.widest))

    def forward(self, nodes: Tensor, groups: Sequence[TensorGroup], bias_class: nn.Module) -> Made:
        """Blocks (L, o). A norm's weight and bias come from one node, a head's bias from the row of biases."""
        both = self.fc(nodes[[node for group in groups for node in group.nodes]]).unflatten(1, (2, self.widest))
        for group, share in zip(groups, both.split([len(group.nodes) for group in groups])):
            row = share[:, 0 if group.role == "norm weight" else 1]
            yield group, bias_class(row) if group.role == "class bias" else row[:, : group.shape[0]]


@dataclass(frozen=True)
class Region:
    """A rectangle of (K, K), and the indices of the groups that contain all of it."""

    cut: tuple[slice, slice]
    members: tuple[int, ...]


def regions(extents: Sequence[Size]) -> list[Region]:
    """Rectangles, row by row, each inside or outside of the first o rows and i columns of every group, which they cover."""
    found = []
    rows_of, columns_of = ([0, *sorted(set(ends))] for ends in zip(*extents))
    for low, high in pairwise(rows_of):
        for left, right in pairwise(columns_of):
            members = tuple(k for k, (rows, columns) in enumerate(extents) if rows >= high and columns >= right)
            if members:
                found.append(Region((slice(low, high), slice(left, right)), members))
    return found


def assembled(
    features: Sequence[Tensor], plan: Sequence[Region], parts: Sequence[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    """(Q, o, i) for each group from its features (Q, 8h), region by region."""
    rows: list[dict[int, list[Tensor]]] = [defaultdict(list) for _ in features]
    for region, (weight, bias) in zip(plan, parts):
        chosen = [features[member] for member in region.members]
        made = product(torch.cat(chosen) if len(chosen) > 1 else chosen[0], weight, bias)
        for member, share in zip(region.members, made.split([len(part) for part in chosen])):
            rows[member][region.cut[0].start].append(share)
    return [_joined([_joined(pieces, 2) for pieces in strips.values()], 1) for strips in rows]


def _joined(pieces: Sequence[Tensor], axis: int) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), axis)


def product(features_QC: Tensor, weight_OIC: Tensor, bias_OI: Tensor) -> Tensor:
    """(Q, o, i). A slice of columns is multiplied row by row if that saves copying the weight."""
    rows, columns, _ = weight_OIC.shape
    if weight_OIC.is_contiguous() or rows == 1 or columns < FEW_COLUMNS:
        made = functional.linear(features_QC, weight_OIC.flatten(0, 1), bias_OI.flatten())
        return made.unflatten(1, (rows, columns))
    spread = features_QC.expand(rows, -1, -1)
    return torch.baddbmm(bias_OI[:, None], spread, weight_OIC.transpose(1, 2)).transpose(0, 1)
