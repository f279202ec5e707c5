"""The tensors that a decoder makes together, those of one shape and one role, with the nodes they are made from."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lgzoo_tal.graph import NORM, POSITIONS, Graph, Shape

Role = Literal["matrix", "class weight", "positions", "norm weight", "bias", "class bias"]


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one shape and one role, each from one node. Positions have the shape (1, d, rows, columns), without class token."""

    role: Role
    shape: Shape
    names: tuple[str, ...]
    nodes: tuple[int, ...]


def groups_of(graph: Graph, head: bool = True) -> list[TensorGroup]:
    """All parameters of the graph's nodes, without the head's if `head` is False."""
    found: dict[tuple[Role, Shape], list[tuple[str, int]]] = defaultdict(list)
    kinds = graph.types.tolist()
    for name, node in graph.sources.items():
        shape, role = graph.shapes[node], _role(graph, name, kinds[node])
        assert shape is not None
        if head or role not in ("class weight", "class bias"):
            found[role, shape].append((name, node))
    return [
        TensorGroup(role, shape, tuple(name for name, _ in group), tuple(node for _, node in group))
        for (role, shape), group in found.items()
    ]


def _role(graph: Graph, name: str, kind: int) -> Role:
    if name == graph.class_weight:
        return "class weight"
    if name == graph.class_bias:
        return "class bias"
    if kind == POSITIONS:
        return "positions"
    if name.endswith("bias"):
        return "bias"
    return "norm weight" if kind == NORM else "matrix"


def is_vector(group: TensorGroup) -> bool:
    """Whether the tensors have one axis."""
    return len(group.shape) == 1


def kernel(shape: Sequence[int]) -> tuple[int, int]:
    """Height and width of a matrix's kernel; 1 and 1 for a linear layer."""
    return (shape[2], shape[3]) if len(shape) == 4 else (1, 1)
