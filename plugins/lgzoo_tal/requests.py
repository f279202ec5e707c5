"""What a decoder is asked for: the tensors of a target that are made alike, with the nodes they are made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lgzoo_tal.graph import NORM, POSITIONS, Graph, Shape

Role = Literal["matrix", "class weight", "positions", "norm weight", "bias", "class bias"]


@dataclass(frozen=True)
class Request:
    """Tensors of one shape and one role, one per node. The shape has no class token: positions are (1, d, rows, columns)."""

    role: Role
    shape: Shape
    names: tuple[str, ...]
    nodes: tuple[int, ...]


def requests_for(graph: Graph, head: bool = True) -> list[Request]:
    """Everything the graph's nodes stand for, without the head's tensors if `head` is not set."""
    found: dict[tuple[Role, Shape], list[tuple[str, int]]] = defaultdict(list)
    kinds = graph.types.tolist()
    for name, node in graph.sources.items():
        shape, role = graph.shapes[node], _role(graph, name, kinds[node])
        assert shape is not None
        if head or role not in ("class weight", "class bias"):
            found[role, shape].append((name, node))
    return [
        Request(role, shape, tuple(name for name, _ in group), tuple(node for _, node in group))
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


def is_vector(request: Request) -> bool:
    """Whether its tensors have one axis."""
    return len(request.shape) == 1


def kernel(shape: Sequence[int]) -> tuple[int, int]:
    """Height and width of a matrix's kernel; of a linear layer 1 and 1."""
    return (shape[2], shape[3]) if len(shape) == 4 else (1, 1)
