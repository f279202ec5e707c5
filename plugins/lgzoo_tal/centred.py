"""The form `centred`: the same hypernetwork, arranged so that a small budget teaches it more.

Why. A decoder's last layer is shared by all nodes. Its gradient is a sum over nodes m of (what tensor m wants) x (m's features),
so a step moves tensor n by what every m wants, weighed with how alike the features of n and m are. ReLU features have a
positive mean and are alike for all nodes: what fifty other tensors want drowns what a tensor itself wants. Then all tensors
shrink, or lose the image, together; a small budget ends on that plateau. So here:

* hidden layers are tanh, whose mean is 0, and the factors' layer reads its input as it is, without a ReLU;
* nodes start far from each other: their distance from the input, which names them within a model, weighs most;
* models start close to each other: shapes weigh little, and the rows of q, k and v take turns, so that a narrow model is a
  corner of a wide one, as everywhere else, and what one width learns serves the others;
* the last norm and the layers that read it have places of their own, whatever the depth before them: by their distance from
  the input each depth would have a classifier apart, to be learnt from its own steps alone, and close to another depth's blocks;
* tasks differ from the first step on: task layers do not start as the identity;
* tensors start as small as timm draws them (standard deviation about 0.02), norms near 1 and 0.

Tensors and their names are the published ones; only a checkpoint of the published form cannot be read as this one.
benchmarks/tal_forms.py measures what it is worth.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lgzoo_tal.graph import Graph
from lgzoo_tal.variants import INPUT_DISTANCES, Form

POSITIONS = 0.15  # what the position embedding is multiplied by: it starts at 0.02 to 0.04, as timm's
VECTORS = 0.3  # what norms and biases are multiplied by before they are squashed


def activation(form: Form) -> nn.Module:
    """Of a decoder's hidden layers."""
    return nn.ReLU() if form == "published" else nn.Tanh()


def read(tensor: Tensor, form: Form) -> Tensor:
    """What the layer of the low-rank factors reads."""
    return functional.relu(tensor) if form == "published" else tensor


def places(graph: Graph, form: Form) -> Tensor:
    """(N,) the place of each node: its distance from the input; in the form `centred` the last ones count from the table's end."""
    distances = graph.distances[0]
    if form == "published":
        return distances
    ends = INPUT_DISTANCES - 1 - torch.arange(graph.tail, device=distances.device)
    return torch.cat((distances[: -graph.tail], ends))


def is_interleaved(name: str, form: Form) -> bool:
    """Whether this tensor is made with the rows of q, k and v taking turns."""
    return form == "centred" and ".qkv." in name


def sorted_rows(made: Tensor) -> Tensor:
    """(3 D, ...) first all rows of q, then of k, then of v, from rows that take turns. A copy."""
    return made.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1)
