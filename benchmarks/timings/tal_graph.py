"""Milliseconds to build a ViT's graph from its spec, against a search over the same edges.

    python benchmarks/tal_graph.py     one thread, a few seconds

The search is networkx's, from every node over the edges of our graph, with its distances written
into a matrix; the time to find these edges by tracing a forward pass is not counted. Both matrices
are the same (checked). Uncached means that neither the paths of that depth nor the shapes of that
spec were computed before. Target: at most 5 ms uncached for 12 layers.
"""

from __future__ import annotations

import sys
from functools import partial

import networkx
import torch

from learngene_zoo.families.tensors import _shapes
from learngene_zoo.families.vit.spec import ViTSpec
from lgzoo_tal.modules import graph
from lgzoo_tal.modules.graph import CUTOFF, Graph, build_graph
from machine import medians, write

MOST_MILLISECONDS = 5.0
LAYERS = (12, 24)


def cached(spec: ViTSpec) -> Graph:
    """Its depth was met before."""
    return build_graph(spec)


def uncached(spec: ViTSpec) -> Graph:
    """As if it were the first one of this process."""
    graph._build_topology.cache_clear()
    _shapes.cache_clear()
    return cached(spec)


def searched(edges: networkx.DiGraph) -> torch.Tensor:
    """All shortest paths by search."""
    found = [[0] * len(edges) for _ in range(len(edges))]
    for start, reached in networkx.all_pairs_shortest_path_length(edges):
        row = found[start]
        for end, steps in reached.items():
            row[end] = steps if steps <= CUTOFF else 0
    return torch.tensor(found)


def main() -> None:
    """Measure, print, keep the numbers; exit 1 if the limit is exceeded or the paths differ."""
    torch.set_num_threads(1)
    rows = []
    for layers in LAYERS:
        spec = ViTSpec(layers=layers, width=192, heads=3)
        ours = cached(spec)
        edges = networkx.DiGraph((ours.distances == 1).nonzero().tolist())
        if not torch.equal(ours.distances, searched(edges)):
            sys.exit(f"{layers} layers: the closed form and the search differ")
        seconds = medians(
            [partial(uncached, spec), partial(searched, edges), partial(cached, spec)],
            repeats=9,
        )
        first, search, again = (1000 * value for value in seconds)
        rows.append(
            {
                "layers": layers,
                "nodes": len(ours),
                "uncached": first,
                "cached": again,
                "search": search,
            }
        )
        print(
            f"{layers:3} layers, {len(ours)} nodes: {first:.2f} ms, cached {again:.3f} ms, by"
            f" search {search:.1f} ms"
        )
    print(write("tal_graph", {"milliseconds": rows, "most": MOST_MILLISECONDS}))
    if rows[0]["uncached"] > MOST_MILLISECONDS:
        sys.exit("a graph of 12 layers takes longer than it may")


if __name__ == "__main__":
    main()
