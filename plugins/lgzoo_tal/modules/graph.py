"""Build the computational graph of a ViT, the input of a hypernetwork, from its spec alone.

text_graph.py builds those of text models.

GHN-3 (Knyazev et al., 2023) traces a forward pass. All traces of plain ViTs of one depth have the
same nodes and edges, and the shortest paths have a closed form, so no model is built or traced
here. Letters: N nodes, L blocks, d width.

    input ─ patch weight ─ patch bias ─ sum ┬─ norm1 ─ qkv w ─ qkv b ─ [msa] ─ proj w ─ proj b ─ …
                           positions ───────┘└──────────────────────────────────────────────────…
    … ─ sum ┬─ norm2 ─ fc1 w ─ fc1 b ─ fc2 w ─ fc2 b ─ sum ┬─ …
    ────────┘└─────────────────────────────────────────────┘└─ …
    … ─ sum ─ norm ┬─ head w ─ head b
                   └─ sink w ─ sink b            only with a sink

8 + 12L nodes, 8 + 13L with `msa`. Operations without parameters have no node, except for sums; a
norm is one node for its weight and bias; the class token, heads and everything else that only
reshapes have none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from learngene_zoo.plugin import Spec, ViTSpec, WrongCall, get_shapes, require_pictures
from lgzoo_tal.hypernet_spec import CUTOFF, list_obstacles

Shape = tuple[int, ...]

# The node types of GHN-3, in the order of its type embedding. A linear layer's weight is a `conv`.
TYPES = (
    "max_pool", "avg_pool", "sep_conv", "dil_conv", "conv", "msa", "cse", "sum", "concat", "input",
    "bias", "bn", "ln", "pos_enc", "glob_avg",
)  # fmt: skip
TEXT_TYPES = (*TYPES, "rmsnorm", "rot_emb", "gate")  # of LoGAH's hypernetwork for texts
CONV, MSA, SUM, INPUT, BIAS, NORM, POSITIONS = (
    TYPES.index(name) for name in ("conv", "msa", "sum", "input", "bias", "ln", "pos_enc")
)

SINK = ("sink.weight", "sink.bias")
STEM = 5  # nodes before the first block

_ATTENTION = (
    (NORM, "norm1.weight"),
    (CONV, "attn.qkv.weight"),
    (BIAS, "attn.qkv.bias"),
    (MSA, None),
    (CONV, "attn.proj.weight"),
    (BIAS, "attn.proj.bias"),
)
_MLP = (
    (NORM, "norm2.weight"),
    (CONV, "mlp.fc1.weight"),
    (BIAS, "mlp.fc1.bias"),
    (CONV, "mlp.fc2.weight"),
    (BIAS, "mlp.fc2.bias"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """A model's nodes in topological order and the shortest paths between them.

    Tensors are int64 and shared by all graphs of one depth: do not write into them. Node 0 is the
    input.
    """

    spec: Spec
    types: Tensor  # (N,) indices into `TYPES`
    names: tuple[str | None, ...]  # name of the node's parameter; None without one
    # Of that parameter; the position embedding's is (1, d, rows, columns).
    shapes: tuple[Shape | None, ...]
    # (N, N) length of the shortest path from row to column; 0 without one, and on the diagonal
    distances: Tensor
    in_degree: Tensor  # (N,)
    out_degree: Tensor  # (N,)
    sink: bool = False
    class_weight: str = "head.weight"
    class_bias: str = "head.bias"
    last: int = 3  # the number of nodes after the last block, without the sink's
    # The matrices that are predicted as (outputs, inputs), as in `get_shapes`, and transposed.
    transposed: frozenset[str] = frozenset()
    joint: str = ".qkv."  # in the names of the layers of queries, keys and values
    # The ends of the names of the tensors that write to the residual stream.
    writers: tuple[str, ...] = ("attn.proj.weight", "mlp.fc2.weight")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def tail(self) -> int:
        """Return the number of nodes after the last block: norm, sink, and a ViT's head."""
        return self.last + (len(SINK) if self.sink else 0)

    @cached_property
    def sources(self) -> dict[str, int]:
        """Return the node that each parameter is made from.

        A norm's bias is made from the node of its weight.
        """
        nodes: dict[str, int] = {}
        for node, (kind, name) in enumerate(zip(self.types.tolist(), self.names)):
            if name is not None:
                nodes[name] = node
                if kind == NORM:
                    nodes[name.removesuffix("weight") + "bias"] = node
        return nodes

    def to(self, device: torch.device | str) -> Graph:
        """Return the same graph with its tensors on a device."""
        tensors = ("types", "distances", "in_degree", "out_degree")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})


def build_graph(
    spec: Spec, *, msa: bool = True, sink: tuple[int, int] | None = None, cutoff: int = CUTOFF
) -> Graph:
    """Build the graph of the model that `spec` describes.

    Args:
        spec: of a plain ViT.
        msa: whether every block has a node for its softmax, as in traces by torch 1 and so
            presumably in the training of the released checkpoints; traces of fused attention by
            torch 2 have none.
        sink: the shape (out, in) of one more linear layer, called `SINK`, that reads the final norm
            beside the head.
        cutoff: the longest path that counts; ViTs of up to 20 blocks have none of more than 50.

    Raises:
        WrongCall: for a spec with tensors that hypernetworks do not predict, and for a sink that
            does not fit.
    """
    check_spec(spec)
    check_sink(spec, sink)
    topology = _build_topology(spec.layers, msa, sink is not None, cutoff)
    side = isqrt(require_pictures(spec).patches)
    known_shapes = {**get_shapes(spec), "pos_embed": (1, spec.width, side, side)}
    if sink is not None:
        known_shapes |= {SINK[0]: sink, SINK[1]: sink[:1]}
    return Graph(
        spec=spec,
        shapes=tuple(None if name is None else known_shapes[name] for name in topology["names"]),
        sink=sink is not None,
        **topology,
    )


def check_sink(spec: Spec, sink: tuple[int, int] | None) -> None:
    """Raise `WrongCall` for the shape of a sink that does not read the final norm."""
    if sink is not None and (sink[0] < 1 or sink[1] != spec.width):
        raise WrongCall(
            f"the sink's shape is {sink}; it must be (out, {spec.width}), since its input is the "
            "final norm"
        )


def check_spec(spec: Spec) -> None:
    """Check that `spec` is a plain ViT, as torchvision's are.

    Raises `WrongCall`, whose message names the first obstacle.
    """
    if not isinstance(spec, ViTSpec):
        raise WrongCall(
            f"hypernetworks do not predict models of the family {spec.family!r}; expected a plain "
            "ViT"
        )
    first = next(iter(list_obstacles(spec)), None)
    if first is not None:
        raise WrongCall(
            f"this ViT has {first}, which hypernetworks do not predict; expected a plain ViT with "
            "a class token and at least one class"
        )


@dataclass(frozen=True)
class _Node:
    """The place of a node: its branch between two sums, and its distance from either.

    Branch 0 is the stem; branch k leads from sum k - 1 to sum k, which is part of it; the last one
    is the tail.
    """

    kind: int
    name: str | None
    branch: int
    lead: int  # edges from the sum before
    rest: int  # edges to the sum after it; in the tail to an imaginary end


def _list_nodes(layers: int, msa: bool, sink: bool) -> list[_Node]:
    """Return all nodes in the released code's topological order."""
    nodes = [
        _Node(INPUT, None, 0, 0, 3),
        _Node(CONV, "patch_embed.proj.weight", 0, 0, 2),
        _Node(BIAS, "patch_embed.proj.bias", 0, 0, 1),
        _Node(POSITIONS, "pos_embed", 0, 0, 1),
        _Node(SUM, None, 0, 0, 0),
    ]
    attention = tuple((kind, name) for kind, name in _ATTENTION if msa or kind != MSA)
    for branch in range(1, 2 * layers + 1):
        block, within = divmod(branch - 1, 2)
        chain = _MLP if within else attention
        for lead, (kind, name) in enumerate(chain, start=1):
            nodes.append(
                _Node(kind, name and f"blocks.{block}.{name}", branch, lead, len(chain) + 1 - lead)
            )
        nodes.append(_Node(SUM, None, branch, 1, 0))
    tail = 2 * layers + 1
    nodes.append(_Node(NORM, "norm.weight", tail, 1, 3))
    for weight, bias in (("head.weight", "head.bias"), SINK)[: 2 if sink else 1]:
        nodes += [_Node(CONV, weight, tail, 2, 2), _Node(BIAS, bias, tail, 3, 1)]
    return nodes


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # the tensors are cached, and a later caller may need gradients
def _build_topology(layers: int, msa: bool, sink: bool, cutoff: int) -> dict[str, Any]:
    """Return the fields of a graph that all graphs of one depth share."""
    nodes = _list_nodes(layers, msa, sink)
    names = tuple(node.name for node in nodes)
    paths = _compute_paths(nodes)
    paths[:, names.index("pos_embed")] = 0  # nothing leads to the positions
    if sink:  # head and sink are parallel
        paths[-4:-2, -2:] = 0
        paths[-2:, -4:-2] = 0
    paths.masked_fill_(paths > cutoff, 0)
    direct = paths == 1
    return {
        "types": torch.tensor([node.kind for node in nodes], device="cpu"),
        "names": names,
        "distances": paths.long(),
        "in_degree": direct.sum(dim=0),
        "out_degree": direct.sum(dim=1),
    }


def _compute_paths(nodes: list[_Node]) -> Tensor:
    """Return (N, N) shortest paths as if all nodes of one branch were on one chain.

    From one branch to a later one the path goes to the next sum, from sum to sum along the residual
    stream past every branch in between, and from the last of these sums to its end. Short integers
    take a quarter of the memory.
    """
    where_N3 = torch.tensor(
        [(node.branch, node.lead, node.rest) for node in nodes], dtype=torch.int16, device="cpu"
    )
    branch, lead, rest = where_N3.unbind(dim=1)
    apart = branch[None, :] - branch[:, None]
    along = (rest - branch - 1)[:, None] + (branch + lead)[None, :]
    inside = (rest[:, None] - rest[None, :]).clamp_(min=0).mul_(apart == 0)
    return torch.where(apart > 0, along, inside)
