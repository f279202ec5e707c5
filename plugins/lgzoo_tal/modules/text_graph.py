"""Build the graph of a text model from the table of its family.

LoGAH (Zhou et al., 2024) traces a forward pass of GPT-2. All traces of one depth have the same
nodes and edges; this module writes them down. Letters: N nodes, L blocks, d width.

    input ┬─ embedding of words ───── sum ┬─ norm ─ c_attn w ─ b ─ [msa] ─ c_proj w ─ b ─ sum ┬─ …
          ├─ embedding of positions ─┘    └──────────────────────────────────────────────┘    └─ …
          └─ head
    … ─ sum ┬─ norm ─ c_fc w ─ b ─ c_proj w ─ b ─ sum ┬─ … ─ sum ─ norm ─ sink w ─ sink b
            └──────────────────────────────────────────┘                only with a sink

6 + 12 L nodes and 6 + 14 L edges, 6 + 13 L and 6 + 15 L with `msa`. The head follows the input and
nothing follows it, as in the traces: it has no bias, and their rules join it to no other node.

Published hypernetworks read a matrix by its stored shape, so that the inputs of a `Conv1D` are its
output channels. Here the matrices can also be predicted as (outputs, inputs) and transposed
(`Graph.transposed`), so that a channel has one meaning in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from learngene_zoo.plugin import Spec, WrongCall, get_shapes, get_table
from lgzoo_tal.modules.graph import (
    BIAS,
    CONV,
    INPUT,
    MSA,
    NORM,
    POSITIONS,
    SINK,
    SUM,
    Graph,
    Shape,
    check_sink,
)


@dataclass(frozen=True)
class _TextNode:
    """A node with the nodes that precede it directly."""

    kind: int
    name: str | None
    before: tuple[int, ...]


def build_text_graph(
    spec: Spec,
    *,
    msa: bool = True,
    sink: tuple[int, int] | None = None,
    cutoff: int,
    transposed: bool = True,
    head: tuple[str, Shape] | None = None,
) -> Graph:
    """Build the graph of a text model.

    Args:
        spec: of the model.
        msa: whether the attention of every block has a node.
        sink: the shape (out, in) of one more linear layer, which reads the final norm.
        cutoff: the longest path that counts.
        transposed: whether matrices (inputs, outputs) are predicted as (outputs, inputs).
        head: name and shape of another head than the classifier, such as that of a language model.

    Raises:
        WrongCall: for a model that hypernetworks do not predict, and for a sink that does not fit.
    """
    check_text_spec(spec)
    check_sink(spec, sink)
    table = get_table(spec)
    heads = [kind.name for kind in table.head if kind.present(spec)]
    classifier = heads[0] if heads and head is None else ""
    name = head[0] if head else classifier
    topology = _build_topology(_list_nodes(spec, name, msa, sink is not None), cutoff)
    reversed_names = {
        full for full, kind, _ in table.parameters(spec) if transposed and kind.reads == 0
    }
    known = get_shapes(spec) | ({head[0]: head[1]} if head else {})
    known |= {full: known[full][::-1] for full in reversed_names if len(known[full]) == 2}
    if sink is not None:
        known |= {SINK[0]: sink, SINK[1]: sink[:1]}
    attention, *_ = (branch for branch in table.branches(spec) if branch.mixes)
    return Graph(
        spec=spec,
        shapes=tuple(None if node is None else known[node] for node in topology["names"]),
        sink=sink is not None,
        class_weight=classifier,
        class_bias="",
        last=1,
        transposed=frozenset(full for full in reversed_names if len(known[full]) == 2),
        joint=f".{attention.readers[0]}.",
        writers=tuple(f"{branch.writer}.weight" for branch in table.branches(spec)),
        **topology,
    )


def check_text_spec(spec: Spec) -> None:
    """Raise `WrongCall` for a model that hypernetworks do not predict."""
    table = get_table(spec)
    if table.norms_after(spec) or any(len(part.readers) > 1 for part in table.branches(spec)):
        raise WrongCall(
            f"hypernetworks do not predict models of the family {spec.family!r}: its norms come "
            "after attention and MLP; use a GPT-2"
        )
    if not spec.plain:
        raise WrongCall("hypernetworks do not predict blocks of several sizes; use a plain model")


def _list_nodes(spec: Spec, head: str, msa: bool, sink: bool) -> tuple[_TextNode, ...]:
    """Return all nodes in the order of the released code."""
    table = get_table(spec)
    nodes = [_TextNode(INPUT, None, ())]
    nodes += [_TextNode(POSITIONS, kind.name, (0,)) for kind in table.stem]
    embeddings = tuple(range(1, len(nodes)))
    if head:
        nodes.append(_TextNode(CONV, head, (0,)))
    nodes.append(_TextNode(SUM, None, embeddings))
    for block in range(spec.layers):
        for branch in table.branches(spec):
            start = len(nodes) - 1
            inner = _list_branch(branch, msa)
            for kind, name in inner:
                full = None if name is None else table.block_name(block, name)
                nodes.append(_TextNode(kind, full, (len(nodes) - 1,)))
            nodes.append(_TextNode(SUM, None, (len(nodes) - 1, start)))
    nodes.append(_TextNode(NORM, table.final_norm[0].name, (len(nodes) - 1,)))
    if sink:
        nodes.append(_TextNode(CONV, SINK[0], (len(nodes) - 1,)))
        nodes.append(_TextNode(BIAS, SINK[1], (len(nodes) - 1,)))
    return tuple(nodes)


def _list_branch(branch: Any, msa: bool) -> Iterator[tuple[int, str | None]]:
    """Yield kind and name of the nodes between two sums."""
    reader = branch.readers[0]
    yield NORM, f"{branch.norm}.weight"
    yield CONV, f"{reader}.weight"
    yield BIAS, f"{reader}.bias"
    if branch.mixes and msa:
        yield MSA, None
    yield CONV, f"{branch.writer}.weight"
    yield BIAS, f"{branch.writer}.bias"


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # the tensors are cached, and a later caller may need gradients
def _build_topology(nodes: tuple[_TextNode, ...], cutoff: int) -> dict[str, Any]:
    """Return the fields of a graph that all graphs with these nodes share."""
    paths = _compute_paths(nodes)
    paths.masked_fill_(paths > cutoff, 0)
    direct = paths == 1
    return {
        "types": torch.tensor([node.kind for node in nodes], device="cpu"),
        "names": tuple(node.name for node in nodes),
        "distances": paths,
        "in_degree": direct.sum(dim=0),
        "out_degree": direct.sum(dim=1),
    }


def _compute_paths(nodes: Sequence[_TextNode]) -> Tensor:
    """Return (N, N) the lengths of the shortest paths; 0 without one.

    The shortest path to a node is one edge longer than the shortest to any node before it.
    """
    far = 2**30
    paths = torch.full((len(nodes), len(nodes)), far, dtype=torch.int64, device="cpu")
    for number, node in enumerate(nodes):
        for before in node.before:
            torch.minimum(paths[:, number], paths[:, before] + 1, out=paths[:, number])
            paths[before, number] = 1
    return paths.masked_fill_(paths >= far, 0)
