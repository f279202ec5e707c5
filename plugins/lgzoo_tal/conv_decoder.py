"""GHN-3's decoder: a small image per node, of which each position becomes one position of a kernel.

Knyazev et al., 2023, section 3.3. Letters: h width of the encoder, K channels it makes (the papers' max_shape), S rows and
columns of the image, P positions of a target's kernel, L nodes, o and i the channels that are kept.

    F = ReLU(Wf node)             (4h, S, S), of which the centre, as large as the kernel, is kept
    M = W2 ReLU(W1 F)             (K, K) at each position, of which the first rows and columns are kept

What is not kept is not computed: of Wf only the rows of the kept positions are read, one in 256 for a linear layer, and of
W2 only the rows of the kept channels. Targets with kernels of one size are decoded together, so that W2, nine tenths of all
parameters, is read once for all linear layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from lgzoo_tal.centred import activation
from lgzoo_tal.cuts import Cut, cuts
from lgzoo_tal.requests import Request, kernel
from lgzoo_tal.variants import HypernetSpec

FEW_COLUMNS = 32  # fewer are cheaper gathered and multiplied at once than row by row

Size = tuple[int, int]
Made = Iterator[tuple[Request, Tensor]]


class MatrixDecoder(nn.Module):
    """Matrices, convolutions and the position embedding."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        h, self.widest, self.side = spec.hidden, spec.widest, spec.spatial
        self.fc = nn.Sequential(nn.Linear(h, 4 * h * self.side**2))
        self.activation = activation(spec.form)
        self.conv = nn.Sequential(nn.Linear(4 * h, 8 * h), activation(spec.form), nn.Linear(8 * h, self.widest**2))
        self.class_layer_predictor = nn.Sequential(activation(spec.form), nn.Linear(self.widest, spec.classes))

    def forward(self, nodes: Tensor, wanted: Sequence[Request]) -> Made:
        """Blocks (L, o, i), of a kernel (L, o, i, rows, columns), no larger than their targets. `nodes` is (N, h)."""
        groups: dict[Size, list[Request]] = defaultdict(list)
        for request in wanted:
            groups[kernel(request.shape)].append(request)
        plans = [tiles([self._extent(request) for request in group]) for group in groups.values()]
        parts = self._parts([tile for plan in plans for tile in plan])
        images = self._images(nodes, groups)
        for (size, group), plan in zip(groups.items(), plans):
            features = self.conv[1](self.conv[0](images.pop(size)))
            counts = [len(request.nodes) * features.shape[1] for request in group]
            split = features.flatten(0, 1).split(counts)
            made = assembled(split, plan, [next(parts) for _ in plan])
            for request, blocks_QOI in zip(group, made):
                yield request, self._finished(request, blocks_QOI)

    def _extent(self, request: Request) -> Size:
        """Rows and columns that are decoded. The class predictor reads all rows."""
        rows, columns = request.shape[:2]
        return self.widest if request.role == "class weight" else min(rows, self.widest), min(columns, self.widest)

    def _parts(self, plan: Sequence[Tile]) -> Iterator[tuple[Tensor, Tensor]]:
        """The weights (o, i, 8h) and biases (o, i) of each tile."""
        last, grid = self.conv[2], (self.widest, self.widest)
        assert isinstance(last, nn.Linear)
        where = [tile.cut for tile in plan]
        return zip(cuts(last.weight.view(*grid, -1), where), cuts(last.bias.view(grid), where))

    def _images(self, nodes: Tensor, groups: dict[Size, list[Request]]) -> dict[Size, Tensor]:
        """By kernel (L, P, 4h), the kept positions of the images of all nodes that want such a kernel."""
        side, fc = self.side, self.fc[0]
        assert isinstance(fc, nn.Linear)
        members = {size: [node for request in group for node in request.nodes] for size, group in groups.items()}
        # Of kernels that keep more than half an image the whole is computed, once: picking the rows would cost as much.
        large = [size for size in groups if size[0] * size[1] * 2 > side * side]
        small = [size for size in groups if size not in large]
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

    def _finished(self, request: Request, blocks_QOI: Tensor) -> Tensor:
        """From positions and channels to blocks: the class predictor, or the positions behind the channels."""
        if request.role == "class weight":
            return self.class_layer_predictor(blocks_QOI.transpose(1, 2)).transpose(1, 2)
        size = kernel(request.shape)
        if size == (1, 1):
            return blocks_QOI
        rows, columns = (min(n, self.side) for n in size)
        blocks = blocks_QOI.view(-1, rows, columns, *blocks_QOI.shape[1:]).permute(0, 3, 4, 1, 2)
        if max(size) <= self.side:
            return blocks
        smooth = functional.interpolate(blocks.flatten(0, 1), size, mode="bilinear", align_corners=False)
        return smooth.unflatten(0, blocks.shape[:2])


class VectorDecoder(nn.Module):
    """Norms and biases: two rows of K numbers per node, the first for weights, the second for biases."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        h, self.widest = spec.hidden, spec.widest
        self.fc = nn.Sequential(nn.Linear(h, 2 * h), activation(spec.form), nn.Linear(2 * h, 2 * self.widest))

    def forward(self, nodes: Tensor, wanted: Sequence[Request], bias_class: nn.Module) -> Made:
        """Blocks (L, o). A norm's weight and bias come from one node, a head's bias from the row of biases."""
        both = self.fc(nodes[[node for request in wanted for node in request.nodes]]).unflatten(1, (2, self.widest))
        for request, share in zip(wanted, both.split([len(request.nodes) for request in wanted])):
            row = share[:, 0 if request.role == "norm weight" else 1]
            yield request, bias_class(row) if request.role == "class bias" else row[:, : request.shape[0]]


@dataclass(frozen=True)
class Tile:
    """A rectangle of (K, K) and which requests read all of it."""

    cut: tuple[slice, slice]
    members: tuple[int, ...]


def tiles(extents: Sequence[Size]) -> list[Tile]:
    """Rectangles, row by row, that cover the first o rows and i columns of every request, none partly."""
    found = []
    for low, high in _steps(rows for rows, _ in extents):
        for left, right in _steps(columns for _, columns in extents):
            members = tuple(k for k, (rows, columns) in enumerate(extents) if rows >= high and columns >= right)
            if members:
                found.append(Tile((slice(low, high), slice(left, right)), members))
    return found


def _steps(ends: Iterable[int]) -> list[Size]:
    """From 0 to the largest end, with a step at every other."""
    marks = [0, *sorted(set(ends))]
    return list(pairwise(marks))


def assembled(features: Sequence[Tensor], plan: Sequence[Tile], parts: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """(Q, o, i) of each request from its features (Q, 8h), tile by tile."""
    rows: list[dict[int, list[Tensor]]] = [defaultdict(list) for _ in features]
    for tile, (weight, bias) in zip(plan, parts):
        chosen = [features[member] for member in tile.members]
        made = product(torch.cat(chosen) if len(chosen) > 1 else chosen[0], weight, bias)
        for member, share in zip(tile.members, made.split([len(part) for part in chosen])):
            rows[member][tile.cut[0].start].append(share)
    return [_joined([_joined(pieces, 2) for pieces in strips.values()], 1) for strips in rows]


def _joined(pieces: Sequence[Tensor], axis: int) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), axis)


def product(features_QC: Tensor, weight_OIC: Tensor, bias_OI: Tensor) -> Tensor:
    """(Q, o, i). A cut through the columns is multiplied row by row where that saves copying the weight."""
    rows, columns, _ = weight_OIC.shape
    if weight_OIC.is_contiguous() or rows == 1 or columns < FEW_COLUMNS:
        made = functional.linear(features_QC, weight_OIC.flatten(0, 1), bias_OI.flatten())
        return made.unflatten(1, (rows, columns))
    spread = features_QC.expand(rows, -1, -1)
    return torch.baddbmm(bias_OI[:, None], spread, weight_OIC.transpose(1, 2)).transpose(0, 1)
