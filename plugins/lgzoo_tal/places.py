"""What tells a node of a ViT's graph its place, and what a block's place changes.

Published (GHN-3, section 3.2): the embedding of a node's distance from the input. Block 5 then is the same in a model of six layers, whose
last it is, and of twelve; and the tensors of blocks 3 and later are trained in deep models only. In short meta-trainings the network
then learns to do without them: of a 12-layer descendant only the first three blocks count (`python benchmarks/tal_depth.py`).

`relative` makes a model of L layers L samples of one function of the depth. A node is embedded by its role (the query, key and value
weight, say) and its block's place t = b / (L - 1) between the first and the last, by linear interpolation between `ANCHORS`
embeddings of that role, so that every step, of any size, trains what other depths use. With `by_depth` what a block adds to the residual stream is scaled
by sqrt(3 / L), as independent terms add up: 3 is the papers' smallest depth.

The embeddings are rows of the published table of distances, which has enough of them.
"""

import math

import torch
from torch import Tensor

from lgzoo_tal.centred import CHANGES
from lgzoo_tal.graph import STEM, Graph
from lgzoo_tal.hypernet_spec import INPUT_DISTANCES, Form

LEAST_LAYERS, ANCHORS = 3, 12  # the fewest and the most layers of the papers' sets
WRITERS = ("attn.proj.weight", "mlp.fc2.weight")  # what a block adds to the residual stream


def distances(graph: Graph, form: Form) -> Tensor:
    """(N,) the distance of each node from the input; in the form `centred` the last nodes count from the table's end."""
    found = graph.distances[0]
    if "ends" not in CHANGES[form]:
        return found
    return torch.cat((found[: -graph.tail], _ends(graph)))


def relative(graph: Graph, table: Tensor) -> Tensor:
    """(N, h) rows of the table (R, h): of their own before the blocks and after them, interpolated in between."""
    inside, layers = len(graph) - STEM - graph.tail, graph.spec.layers
    node = torch.arange(inside, device=table.device)
    block, role = node * layers // inside, node % (inside // layers)
    place = block * (ANCHORS - 1) / max(layers - 1, 1)
    before = place.floor().clamp(max=ANCHORS - 2).long()
    share = (place - before)[:, None].to(table)
    first = STEM + role * ANCHORS + before
    blocks = torch.lerp(table[first], table[first + 1], share)
    return torch.cat((table[:STEM], blocks, table[_ends(graph)]))


def _ends(graph: Graph) -> Tensor:
    """The rows of the final norm and of what reads it, the same in every depth."""
    return INPUT_DISTANCES - 1 - torch.arange(graph.tail, device=graph.distances.device)


def writer_scale(name: str, layers: int) -> float:
    """What a predicted tensor of a model of so many layers is multiplied by."""
    return math.sqrt(LEAST_LAYERS / layers) if name.endswith(WRITERS) else 1.0
