"""Graphs by closed form: equal to the traced ones, and right by their laws at every depth."""

from __future__ import annotations

import json
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models import VisionTransformer
from torchvision_names import to_torchvision

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.tensors import get_shapes
from learngene_zoo.families.vit.spec import ViTSpec
from lgzoo_tal.modules.graph import CUTOFF, NORM, SINK, TYPES, Graph, build_graph

TRACED = json.loads((Path(__file__).parents[1] / "data" / "tal" / "graphs.json").read_text())
TARGET = ViTSpec(layers=2, width=48, heads=3, patch_size=4, image_size=32, classes=10)
BOTH = pytest.mark.parametrize("msa", [True, False])


def build_spec(layers: int, **rest: Any) -> ViTSpec:
    return ViTSpec(
        **{
            "layers": layers,
            "width": 24,
            "heads": 3,
            "patch_size": 4,
            "image_size": 16,
            "classes": 5,
            **rest,
        }
    )


def list_edges(layers: int, msa: bool, sink: bool) -> list[tuple[int, int]]:
    """Return the edges, wired as a forward pass goes."""
    edges = [(0, 1), (1, 2), (2, 4), (3, 4)]
    node = 4
    for length in [6 if msa else 5, 5] * layers:
        chain = [node, *range(node + 1, node + length + 2)]
        edges += [*pairwise(chain), (node, chain[-1])]
        node = chain[-1]
    edges += [(node, node + 1), (node + 1, node + 2), (node + 2, node + 3)]
    return edges + ([(node + 1, node + 4), (node + 4, node + 5)] if sink else [])


def find_edges(graph: Graph) -> Tensor:
    """Return (E, 2) the direct edges: start and end."""
    return (graph.distances == 1).nonzero()


def search_distances(graph: Graph) -> Tensor:
    """Return the distances by breadth-first search along the direct edges."""
    following: list[list[int]] = [[] for _ in range(len(graph))]
    for start, end in find_edges(graph).tolist():
        following[start].append(end)
    distances = torch.zeros(len(graph), len(graph), dtype=torch.int64)
    for start in range(len(graph)):
        seen, queue = {start: 0}, deque([start])
        while queue:
            node = queue.popleft()
            for after in following[node]:
                if after not in seen:
                    seen[after] = seen[node] + 1
                    queue.append(after)
        for end, steps in seen.items():
            distances[start, end] = steps if steps <= CUTOFF else 0
    return distances


def test_the_names_of_the_traces_are_torchvisions() -> None:
    theirs = VisionTransformer(
        32, 4, TARGET.layers, TARGET.heads, TARGET.width, TARGET.hidden, num_classes=10
    )
    expected = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    assert {to_torchvision(name): shape for name, shape in get_shapes(TARGET).items()} == expected


@pytest.mark.parametrize("mode", ["msa", "nomsa"])
def test_the_graph_is_the_traced_one(mode: str) -> None:
    traced, graph = TRACED[mode], build_graph(TARGET, msa=mode == "msa")
    kinds, ids, names, node_shapes, following = zip(*traced["nodes"])
    assert graph.types.tolist() == list(ids)
    assert [TYPES[kind] for kind in graph.types] == list(kinds)
    assert [name and to_torchvision(name) for name in graph.names] == list(names)
    assert [shape and list(shape) for shape in graph.shapes] == list(node_shapes)
    assert graph.distances.tolist() == traced["distances"]
    assert [row.nonzero().flatten().tolist() for row in graph.distances == 1] == list(following)
    assert graph.out_degree.tolist() == [len(after) for after in following]
    assert to_torchvision(graph.class_weight) == traced["class_weight"]
    assert to_torchvision(graph.class_bias) == traced["class_bias"]


@pytest.mark.parametrize(
    ("msa", "nodes", "edges", "paths", "longest"),
    [(False, 152, 175, 11473, 32), (True, 164, 187, 13363, 33)],
)
def test_twelve_layers_have_the_counts_of_the_released_code(
    msa: bool, nodes: int, edges: int, paths: int, longest: int
) -> None:
    graph = build_graph(ViTSpec(layers=12, width=192, heads=3), msa=msa)
    assert (len(graph), len(find_edges(graph))) == (nodes, edges)
    assert (int((graph.distances > 0).sum()), int(graph.distances.max())) == (paths, longest)


@BOTH
@pytest.mark.parametrize("layers", range(1, 25))
def test_nodes_and_edges_of_any_depth(layers: int, msa: bool) -> None:
    for sink in (False, True):
        graph = build_graph(build_spec(layers), msa=msa, sink=(7, 24) if sink else None)
        assert (
            len(graph)
            == 8 + (13 if msa else 12) * layers + 2 * sink
            == len(graph.types)
            == len(graph.shapes)
        )
        assert sorted(map(tuple, find_edges(graph).tolist())) == sorted(
            list_edges(layers, msa, sink)
        )


@BOTH
@pytest.mark.parametrize("layers", [1, 5, 12, 22, 24])
def test_distances_are_those_of_a_search(layers: int, msa: bool) -> None:
    graph = build_graph(
        build_spec(layers), msa=msa, sink=(9, 24)
    )  # it contains the graph without a sink
    assert torch.equal(graph.distances, search_distances(graph))
    assert int(graph.distances.max()) <= CUTOFF


@BOTH
def test_every_path_is_one_edge_longer_than_the_best_one_to_a_node_before_its_end(
    msa: bool,
) -> None:
    graph = build_graph(build_spec(6), msa=msa, sink=(3, 24))
    assert torch.equal(graph.distances, graph.distances.triu(1))  # topological order
    for start, end in (graph.distances > 1).nonzero().tolist():
        before = (graph.distances[:, end] == 1).nonzero().flatten()
        through = [
            int(graph.distances[start, node]) for node in before if graph.distances[start, node]
        ]
        assert graph.distances[start, end] == 1 + min(through)


def test_degrees_count_direct_edges() -> None:
    graph = build_graph(build_spec(4), sink=(3, 24))
    assert (
        graph.in_degree.tolist()
        == torch.bincount(find_edges(graph)[:, 1], minlength=len(graph)).tolist()
    )
    assert (
        graph.out_degree.tolist()
        == torch.bincount(find_edges(graph)[:, 0], minlength=len(graph)).tolist()
    )
    assert graph.in_degree.sum() == graph.out_degree.sum() == len(find_edges(graph))


def test_the_class_head_is_marked_by_name_and_a_sink_leaves_all_else_as_it_was() -> None:
    plain, graph = build_graph(build_spec(3)), build_graph(build_spec(3), sink=(48, 24))
    count = len(plain)
    assert graph.names[count:] == SINK
    assert graph.shapes[count:] == ((48, 24), (48,))
    assert graph.names[:count] == plain.names
    assert graph.shapes[:count] == plain.shapes
    assert torch.equal(graph.distances[:count, :count], plain.distances)
    for marked, shape in ((graph.class_weight, (5, 24)), (graph.class_bias, (5,))):
        assert marked == plain.class_weight.replace("weight", marked.rsplit(".")[-1])
        assert graph.shapes[graph.sources[marked]] == shape
    norm, head, sink = (
        graph.sources[name] for name in ("norm.weight", "head.weight", "sink.weight")
    )
    assert graph.distances[norm, head] == graph.distances[norm, sink] == 1
    assert not graph.distances[head : head + 2, sink:].any()
    assert not graph.distances[sink:, head : head + 2].any()


@BOTH
def test_every_parameter_has_a_node_but_the_class_token(msa: bool) -> None:
    spec = build_spec(3, mlp_ratio=2.5, channels=1)
    graph, expected_shapes = build_graph(spec, msa=msa), get_shapes(spec)
    assert set(graph.sources) == set(expected_shapes) - {"cls_token"}
    for name, node in graph.sources.items():
        if name == "pos_embed":  # a grid here; its row for the class token is not on it
            assert graph.shapes[node] == (1, 24, 4, 4)
        else:
            assert graph.shapes[node] == expected_shapes[name]
    owners = {node: name for name, node in graph.sources.items() if name.endswith("weight")}
    biases = {name: node for name, node in graph.sources.items() if name.endswith("bias")}
    shared = {
        name for name, node in biases.items() if owners.get(node) == name.replace("bias", "weight")
    }
    assert shared == {name for name in expected_shapes if "norm" in name and name.endswith("bias")}
    assert all(graph.types[graph.sources[name]] == NORM for name in shared)


def test_shapes_follow_the_spec_while_graphs_of_one_depth_share_their_paths() -> None:
    first, second = (
        build_graph(build_spec(3)),
        build_graph(build_spec(3, classes=100, image_size=32, mlp_ratio=2)),
    )
    assert first.distances is second.distances
    assert first.shapes[first.sources["head.weight"]] == (5, 24)
    assert second.shapes[second.sources["head.weight"]] == (100, 24)
    assert second.shapes[second.sources["pos_embed"]] == (1, 24, 8, 8)
    assert second.shapes[second.sources["blocks.2.mlp.fc1.weight"]] == (48, 24)
    heads = build_graph(build_spec(3).with_(heads=6))
    assert heads.shapes == first.shapes  # heads leave no trace


def test_a_graph_first_made_in_inference_mode_serves_training() -> None:
    with torch.inference_mode(), torch.device("meta"):
        graph = build_graph(build_spec(23))
    embedding = torch.nn.Embedding(CUTOFF + 1, 2)
    embedding(graph.distances).sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad[0, 0] == (graph.distances == 0).sum()
    moved = graph.to("meta")
    assert moved.distances.device.type == "meta"
    assert moved.names == graph.names


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer_scale": 1e-6}, "layer scale"),
        ({"registers": 2}, "register tokens"),
        ({"dense": True}, "a dense head"),
        ({"classes": 0}, "no classes"),
        ({"qk_norm": True}, "norms of queries and keys"),
        ({"qkv_bias": False}, "no bias of queries, keys and values"),
        ({"proj_bias": False}, "no bias of its projections"),
        ({"pre_norm": True}, "a norm before its blocks"),
        ({"pool": "avg"}, "another pooling than the class token"),
        ({"pool": "avg", "class_token": False}, "another pooling than the class token"),
        ({"no_embed_class": True}, "no position of its class token"),
        ({"final_norm": False}, "no norm before its head"),
        ({"fc_norm": True}, "no norm before its head"),
        ({"mlp": "swiglu"}, "another MLP than two layers"),
        ({"activation": "quick_gelu"}, "another activation than GELU"),
        ({"norm_eps": 1e-5}, "other norms than LayerNorm with an epsilon of 1e-06"),
        ({"norm": "rms"}, "other norms than LayerNorm with an epsilon of 1e-06"),
        ({"scale_norms": True}, "further norms"),
        ({"post_norm": True}, "norms after attention and MLP"),
        ({"front": (Segment(layers=1, width=12, heads=3),)}, "blocks of several sizes"),
    ],
)
def test_what_no_hypernetwork_makes_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(
        WrongCall, match=f"has {named}, which hypernetworks do not predict"
    ) as caught:
        build_graph(build_spec(3, **changes))
    assert "\n" not in str(caught.value)


def test_a_sink_that_does_not_read_the_last_norm_is_refused() -> None:
    for sink in ((48, 25), (0, 24)):
        with pytest.raises(WrongCall, match=r"must be \(out, 24\)"):
            build_graph(build_spec(2), sink=sink)
