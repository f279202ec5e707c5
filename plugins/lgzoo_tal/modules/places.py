"""Position encodings of nodes in a ViT's graph, and scales that depend on the depth.

Published (GHN-3, section 3.2): the embedding of a node's distance from the input. Block 5 is then
the same in a model of six layers, where it is the last, and of twelve; and the tensors of blocks 3
and later are trained in deep models only. After a short meta-training only the first three blocks
of a 12-layer descendant contribute (`python benchmarks/tal_depth.py`).

`relative` makes a model of L layers L samples of one function of the depth. A node is embedded by
its role (e.g. the query, key and value weight) and its block's position t = b / (L - 1) between the
first and the last, by linear interpolation between `ANCHORS` embeddings of that role, so that every
step, of any size, trains the embeddings of other depths. With `by_depth` the tensors that write to
the residual stream are scaled by sqrt(3 / L), as independent terms add up: 3 is the papers'
smallest depth.

The embeddings are rows of the published table of distances, which has enough of them.
"""

import math

import torch
from torch import Tensor

from lgzoo_tal.hypernet_spec import INPUT_DISTANCES, Form
from lgzoo_tal.modules.centred import CHANGES
from lgzoo_tal.modules.graph import STEM, Graph

MIN_LAYERS, ANCHORS = 3, 12  # the fewest and the most layers of the papers' sets
WRITERS = ("attn.proj.weight", "mlp.fc2.weight")  # what a block adds to the residual stream


def compute_distances(graph: Graph, form: Form) -> Tensor:
    """Return (N,) the distance of each node from the input.

    In the form `centred` the last nodes count from the table's end.
    """
    from_input = graph.distances[0]
    if "ends" not in CHANGES[form]:
        return from_input
    return torch.cat((from_input[: -graph.tail], _list_end_rows(graph)))


def interpolate_places(graph: Graph, table: Tensor) -> Tensor:
    """Return (N, h) rows of the table (R, h), interpolated for the nodes of blocks.

    The nodes before the blocks and after them have rows of their own.
    """
    inside, layers = len(graph) - STEM - graph.tail, graph.spec.layers
    node = torch.arange(inside, device=table.device)
    block, role = node * layers // inside, node % (inside // layers)
    position = block * (ANCHORS - 1) / max(layers - 1, 1)
    before = position.floor().clamp(max=ANCHORS - 2).long()
    fraction = (position - before)[:, None].to(table)
    first = STEM + role * ANCHORS + before
    blocks = torch.lerp(table[first], table[first + 1], fraction)
    return torch.cat((table[:STEM], blocks, table[_list_end_rows(graph)]))


def _list_end_rows(graph: Graph) -> Tensor:
    """Return the rows of the final norm and of its readers, the same in every depth."""
    return INPUT_DISTANCES - 1 - torch.arange(graph.tail, device=graph.distances.device)


def compute_writer_scale(name: str, layers: int) -> float:
    """Return the factor of a predicted tensor of a model of so many layers."""
    return math.sqrt(MIN_LAYERS / layers) if name.endswith(WRITERS) else 1.0
