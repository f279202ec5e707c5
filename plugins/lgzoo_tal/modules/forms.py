"""The two forms of a hypernetwork, and of the positions of its nodes.

The form `centred` is the same hypernetwork, parameterised so that it learns more from few images. A
decoder's last layer is shared by all nodes. Its gradient is a sum over nodes m of (the gradient
of tensor m) x (the features of m), so a step moves tensor n along the gradients of all tensors,
each weighted with the similarity of the features of n and m. ReLU features have a positive mean and
are similar for all nodes: the gradients of fifty other tensors dominate those of the tensor itself.
Then all tensors shrink together, or the model ignores the image, and a short training ends on that
plateau. Therefore:

* hidden layers are tanh, with mean 0, and the layer of the factors has no ReLU before it;
* nodes of one model start with dissimilar features: their distance from the input, which identifies
  them within a model, has the largest weight;
* models of different sizes start with similar features: shapes have little weight, and the rows of
  q, k and v are interleaved, so that a narrow model is a corner of a wide one and the training of
  one width helps the others;
* the final norm and the layers that read it have separate positions for all depths: by their
  distance from the input, each depth would have a separate classifier, trained only in the steps
  with that depth, and close to another depth's blocks;
* tasks differ from the first step on: task layers do not start as the identity;
* tensors start as small as timm initialises them (standard deviation about 0.02), norms near 1
  and 0.

Tensors and their names are the published ones, but a checkpoint of the published form cannot be
read as this one. benchmarks/tal_forms.py compares the two forms. In benchmarks/tal_centred.py,
which removes the changes one at a time, the start and the positions of the last nodes help most,
and tanh with the low-rank decoder; the scales and the start of the task layers do not help.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from lgzoo_tal.hypernet_spec import INPUT_DISTANCES, Form
from lgzoo_tal.modules.graph import STEM, Graph

# The changes by form: the hidden layers, the initial values of nodes and tensors, the positions of
# the last nodes, the order of the rows of q, k and v, the scales of positions and vectors, and the
# start of task layers.
CHANGES: dict[str, frozenset[str]] = {
    "published": frozenset(),
    "centred": frozenset({"tanh", "start", "ends", "interleaved", "scales", "tasks"}),
}
# Factor of the position embedding, whose standard deviation starts at 0.02 to 0.04, as timm's.
POSITIONS = 0.15
VECTORS = 0.3  # factor of norms and biases before they are squashed
WRITERS = Graph.writers  # of a ViT
MIN_LAYERS, ANCHORS = 3, 12  # the fewest and the most layers of the papers' sets


def build_activation(form: Form) -> nn.Module:
    """Build the activation of a decoder's hidden layers."""
    return nn.Tanh() if "tanh" in CHANGES[form] else nn.ReLU()


def activate_factors(tensor: Tensor, form: Form) -> Tensor:
    """Return the input of the layer of the low-rank factors."""
    return tensor if "tanh" in CHANGES[form] else functional.relu(tensor)


def is_interleaved(name: str, form: Form, joint: str = Graph.joint) -> bool:
    """Return whether a tensor is predicted with interleaved rows of q, k and v.

    `joint` is in the names of the layers of all three.
    """
    return "interleaved" in CHANGES[form] and joint in name


def sort_rows(rows: Tensor) -> Tensor:
    """Copy interleaved rows (3 D, ...) into all rows of q, then of k, then of v."""
    return rows.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1)


def interleave_rows(rows: Tensor) -> Tensor:
    """Return rows (3 D, ...) of q, k and v interleaved, the inverse of `sort_rows`."""
    return rows.unflatten(0, (3, -1)).transpose(0, 1).flatten(0, 1)


# Position encodings of nodes in a ViT's graph, and scales that depend on the depth.
#
# Published (GHN-3): the embedding of a node's distance from the input. Block 5 is then the same in
# a model of six layers, where it is the last, and of twelve; and the tensors of blocks 3 and later
# are trained in deep models only. After a short meta-training only the first three blocks of a
# 12-layer descendant contribute (`python benchmarks/tal_depth.py`).
#
# `relative` makes a model of L layers L samples of one function of the depth. A node is embedded by
# its role (e.g. the query, key and value weight) and its block's position t = b / (L - 1) between
# the first and the last, by linear interpolation between `ANCHORS` embeddings of that role, so that
# every step, of any size, trains the embeddings of other depths. With `by_depth` the tensors that
# write to the residual stream are scaled by sqrt(3 / L), as independent terms add up: 3 is the
# papers' smallest depth.
#
# The embeddings are rows of the published table of distances, which has enough of them.


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


def compute_writer_scale(name: str, layers: int, writers: tuple[str, ...] = Graph.writers) -> float:
    """Return the factor of a predicted tensor of a model of so many layers.

    `writers` are the ends of the names of the tensors that write to the residual stream.
    """
    return math.sqrt(MIN_LAYERS / layers) if name.endswith(writers) else 1.0
