"""Group the tensors that a decoder makes, and turn its blocks into them: normalise, tile, crop.

GHN-3 (Knyazev et al., 2023): a decoder makes a limited number of channels, and a wider tensor
consists of copies along its output and its input channels. All copies of a number have the same
scale, so the small block is normalised first, and the tensor is written once.

A block is (o, i, ...), its tensor (O, I, ...); there are L of both.

`process_tensors` changes the finished tensors of a model before they are fine-tuned, as the authors
of GHN-3 do, by setting.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from learngene_zoo.plugin import Spec, StateDict, Table, derive_seed, get_table
from lgzoo_tal.hypernet_spec import Post
from lgzoo_tal.modules.graph import NORM, POSITIONS, Graph, Shape

Role = Literal[
    "matrix", "class weight", "positions", "embedding", "norm weight", "bias", "class bias"
]
TEXT_STD = 0.02  # the standard deviation of GPT-2's initial matrices


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one shape and one role, each from one node.

    Positions have the shape (1, d, rows, columns), without class token; embeddings of a text
    model (words, d) or (positions, d).
    """

    role: Role
    shape: Shape
    names: tuple[str, ...]
    nodes: tuple[int, ...]


def group_tensors(
    graph: Graph, head: bool = True, find_origin: Callable[[str], Hashable] | None = None
) -> list[TensorGroup]:
    """Return the groups of all parameters of the graph's nodes.

    Args:
        graph: of the model.
        head: False leaves the head's out.
        find_origin: returns what the tensors of a group have in common besides shape and role.
    """
    groups: dict[tuple[Role, Shape, Hashable], list[tuple[str, int]]] = defaultdict(list)
    kinds = graph.types.tolist()
    for name, node in graph.sources.items():
        shape, role = graph.shapes[node], _get_role(graph, name, kinds[node])
        assert shape is not None
        if head or role not in ("class weight", "class bias"):
            origin = find_origin(name) if find_origin is not None else None
            groups[role, shape, origin].append((name, node))
    return [
        TensorGroup(role, shape, tuple(name for name, _ in group), tuple(node for _, node in group))
        for (role, shape, _), group in groups.items()
    ]


def _get_role(graph: Graph, name: str, kind: int) -> Role:
    if name == graph.class_weight:
        return "class weight"
    if name == graph.class_bias:
        return "class bias"
    if kind == POSITIONS:
        return "positions" if name == "pos_embed" else "embedding"
    if name.endswith("bias"):
        return "bias"
    return "norm weight" if kind == NORM else "matrix"


def is_vector(group: TensorGroup) -> bool:
    """Return whether the tensors have one axis."""
    return len(group.shape) == 1


def get_kernel(shape: Sequence[int]) -> tuple[int, int]:
    """Return height and width of a matrix's kernel; 1 and 1 for a linear layer."""
    return (shape[2], shape[3]) if len(shape) == 4 else (1, 1)


def compute_scale(shape: tuple[int, ...]) -> float:
    """Return the scale of a matrix or a convolution: sqrt(2 / fan in), as for ReLU.

    For a convolution with one input channel, which counts as depthwise, it is sqrt(1 / fan in).
    Position embeddings are not scaled.
    """
    gain = 1 if len(shape) > 2 and (shape[1] == 1 or shape[2] < shape[3]) else 2
    return math.sqrt(gain / math.prod(shape[1:]))


def fix_std(tensor: Tensor) -> Tensor:
    """Return a matrix with the standard deviation `TEXT_STD`, as LoGAH's code for GPT-2 does."""
    return tensor / tensor.std() * TEXT_STD


def squash_vectors(vectors: Tensor, role: Role) -> Tensor:
    """Return norms' weights in (0, 2), around 1; biases in (-1, 1), around 0."""
    return 2 * torch.sigmoid(0.5 * vectors) if role == "norm weight" else torch.tanh(0.2 * vectors)


@dataclass(frozen=True)
class Product:
    """Blocks as factors, left (L, o, r) times right (L, i, r); or one block, without L."""

    left: Tensor
    right: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the blocks."""
        return (*self.left.shape[:-1], self.right.shape[-2])

    def __iter__(self) -> Iterator[Product]:
        return map(Product, self.left, self.right)

    def __mul__(self, scale: float) -> Product:
        """Scale one factor, which is cheaper than scaling the product."""
        return Product(self.left, self.right * scale)

    def multiply(self) -> Tensor:
        """Return the blocks (L, o, i)."""
        return self.left @ self.right.mT


Blocks = Tensor | Product


def tile_blocks(blocks: Blocks, rows: int, columns: int, scale: float = 1) -> tuple[Tensor, ...]:
    """Tile the scaled blocks (L, o, i, ...) to L separate tensors (O, I, ...).

    Args:
        blocks: the blocks.
        rows: O.
        columns: I.
        scale: the factor of the blocks.
    """
    scaled = blocks * scale if scale != 1 else blocks
    tensors = scaled.multiply() if isinstance(scaled, Product) else scaled
    if tensors.shape[1] == rows and tensors.shape[2] == columns:
        return tensors.contiguous().unbind(0)
    return _Fit.apply(tensors, rows, columns)


def fill(target: Tensor, block: Blocks, scale: float = 1) -> None:
    """Fill the target with scaled copies of the block (o, i, ...), the last ones cropped.

    Args:
        target: (O, I, ...), written in place.
        block: the block.
        scale: its factor.
    """
    rows, columns = min(block.shape[0], target.shape[0]), min(block.shape[1], target.shape[1])
    first = target[:rows, :columns]
    if isinstance(block, Product):
        torch.mm(block.left[:rows], (block.right[:columns] * scale).mT, out=first)
    else:
        torch.mul(block[:rows, :columns], scale, out=first)
    _repeat_first(target[:rows], 1, columns)
    _repeat_first(target, 0, rows)


def _repeat_first(target: Tensor, axis: int, size: int) -> None:
    """Fill an axis with copies of its first `size` entries."""
    for start, copies, length in _split_copies(target.shape[axis] - size, size):
        part = target.narrow(axis, size + start, copies * length).unflatten(axis, (copies, length))
        part.copy_(target.narrow(axis, 0, length).unsqueeze(axis))


def _split_copies(total: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield how `total` entries are covered by copies of `size` entries.

    Each is the start, number and length of equal copies.
    """
    count, rest = divmod(total, size)
    if count:
        yield 0, count, size
    if rest:
        yield count * size, 1, rest


def _sum_copies(gradient: Tensor, axis: int, size: int) -> Tensor:
    """Return the sum over all copies of a block that has `size` entries along this axis."""
    total = gradient.shape[axis]
    if total == size:
        return gradient
    shape = list(gradient.shape)
    shape[axis] = size
    result = gradient.new_zeros(shape)
    for start, copies, length in _split_copies(total, size):
        part = gradient.narrow(axis, start, copies * length).unflatten(axis, (copies, length))
        result.narrow(axis, 0, length).add_(part.sum(axis))
    return result


class _Fit(torch.autograd.Function):
    """`fill` into new tensors; backward, the sum over the copies.

    Neither direction allocates a tensor of all L targets.
    """

    @staticmethod
    def forward(ctx: Any, blocks: Tensor, rows: int, columns: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.dtype, ctx.device = blocks.shape, blocks.dtype, blocks.device
        targets = []
        for block in blocks:
            target = block.new_empty((rows, columns, *block.shape[2:]))
            fill(target, block)
            targets.append(target)
        return tuple(targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None, None]:
        total = torch.zeros(ctx.shape, dtype=ctx.dtype, device=ctx.device)
        for block, gradient in zip(total, gradients):
            if gradient is not None:
                block.copy_(
                    _sum_copies(_sum_copies(gradient, 0, block.shape[0]), 1, block.shape[1])
                )
        return total, None, None


# Knyazev, "Pretraining a Neural Network before Knowing Its Architecture" (2022), with the scale
# 1e-5 of the released code of GHN-3. Predicted rows are nearly alike, so that neurons
# would remain alike: conditional noise is larger the more alike they are, and orthogonal matrices
# have rows that are not alike at all. Every matrix and kernel but the classifier's changes.
#
# A matrix W is (long, short): the tensor (out, ...) flattened to two axes, transposed if wide.
#
#     noise         W + 1e-5 std(corr(rows of W)) N(0, 1)
#     orthogonal    Q of W' = Q R, where W' has that noise, with columns' signs such that R's
#                   diagonal is not negative
#
# A constant row has no correlation, and with the released code the whole matrix becomes NaN. Here
# the deviation is that of the other rows. If there are not two others, all rows are alike, and it
# is 1, the largest that correlations can have.

NOISE_SCALE = 1e-5


def process_tensors(tensors: StateDict, post: Post, seed: int, spec: Spec) -> StateDict:
    """Return the tensors of a model after `post`.

    Args:
        tensors: by their names.
        post: the process.
        seed: each tensor is a function of it and of the tensor's name.
        spec: of the model.
    """
    if post == "none":
        return tensors
    table = get_table(spec)
    return {
        name: _process_tensor(tensor, name, post, seed)
        if _is_processed(name, tensor, table)
        else tensor
        for name, tensor in tensors.items()
    }


def _is_processed(name: str, tensor: torch.Tensor, table: Table) -> bool:
    kind = table.find(name)
    is_embedding = kind is not None and kind.start in ("embedding", "positions")
    is_matrix = name.endswith(".weight") and tensor.dim() > 1
    return is_matrix and not is_embedding and not table.is_head(name)


def _process_tensor(tensor: torch.Tensor, name: str, post: Post, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "post", name))
    deviation = measure_correlations(_flatten_long(tensor))
    noisy = tensor + NOISE_SCALE * deviation * torch.randn(tensor.shape, generator=generator)
    return noisy if post == "noise" else orthogonalise(noisy)


def measure_correlations(long: torch.Tensor) -> torch.Tensor | float:
    """Return the standard deviation of the correlations of the rows that are not constant.

    Args:
        long: a matrix (long, short). With fewer than two such rows the result is 1.
    """
    is_constant = long.amax(dim=1) == long.amin(dim=1)
    if is_constant.any():
        long = long[~is_constant]
    return torch.corrcoef(long).std() if len(long) > 1 else 1.0


def orthogonalise(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with orthonormal columns, in its shape.

    It has orthonormal rows where it has fewer of them than columns.
    """
    long = _flatten_long(tensor)
    q, r = torch.linalg.qr(long)
    q = torch.where(r.diagonal() < 0, -q, q)  # not sign(): it is 0 for dependent columns
    return (q if long.shape[0] == tensor.shape[0] else q.mT).reshape(tensor.shape)


def _flatten_long(tensor: torch.Tensor) -> torch.Tensor:
    """Return (long, short), a view."""
    flat = tensor.flatten(1)
    return flat.mT if flat.shape[0] < flat.shape[1] else flat
