"""Time the building of a ViT's graph from its spec against a search over the same edges.

The search is networkx's, from every node over the edges of our graph, with its distances written
into a matrix; the time to find these edges by tracing a forward pass is not counted. Both matrices
are equal (checked). Uncached means that neither the paths of that depth nor the shapes of that
spec were computed before. One thread, a few seconds. Exits with 1 if 12 layers take more than 5 ms
uncached.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator

import networkx
import torch

from learngene_zoo.families.tensors import _get_shapes
from learngene_zoo.families.vit.spec import ViTSpec
from lgzoo_tal.modules import graph
from lgzoo_tal.modules.graph import CUTOFF, Graph, build_graph
from timings.case import Case, Row, measure_medians

MAX_MILLISECONDS = 5.0
LAYERS = (12, 24)
REPEATS = 9


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time the graph of each depth, uncached and cached, and the search."""
    torch.set_num_threads(1)
    for layers in LAYERS:
        spec = ViTSpec(layers=layers, width=192, heads=3)
        ours = build_graph(spec)
        edges = networkx.DiGraph((ours.distances == 1).nonzero().tolist())
        if not torch.equal(ours.distances, search_paths(edges)):
            sys.exit(f"{layers} layers: the closed form and the search differ")
        functions = {
            "uncached": lambda spec=spec: build_uncached_graph(spec),
            "search": lambda edges=edges: search_paths(edges),
            "cached": lambda spec=spec: build_graph(spec),
        }
        seconds = measure_medians(functions, REPEATS)
        first, search, again = (1000 * seconds[name] for name in functions)
        row = {
            "layers": layers,
            "nodes": len(ours),
            "uncached": first,
            "cached": again,
            "search": search,
        }
        yield (
            row,
            f"{layers:3} layers, {len(ours)} nodes: {first:.2f} ms, cached {again:.3f} ms, by"
            f" search {search:.1f} ms",
        )


def build_uncached_graph(spec: ViTSpec) -> Graph:
    """Build a graph as if it were the first of this process."""
    graph._build_topology.cache_clear()
    _get_shapes.cache_clear()
    return build_graph(spec)


def search_paths(edges: networkx.DiGraph) -> torch.Tensor:
    """Return the lengths of all shortest paths by search."""
    distances = [[0] * len(edges) for _ in range(len(edges))]
    for start, lengths in networkx.all_pairs_shortest_path_length(edges):
        row = distances[start]
        for end, steps in lengths.items():
            row[end] = steps if steps <= CUTOFF else 0
    return torch.tensor(distances)


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if the graph of 12 layers takes too long."""
    is_late = numbers["milliseconds"][0]["uncached"] > MAX_MILLISECONDS
    return f"a graph of 12 layers takes more than {MAX_MILLISECONDS} ms" if is_late else ""


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {"milliseconds": rows, "most": MAX_MILLISECONDS},
    find_problem=find_problem,
)
