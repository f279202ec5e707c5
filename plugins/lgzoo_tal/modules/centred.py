"""The form `centred`: the same hypernetwork, parameterised so that it learns more from few images.

A decoder's last layer is shared by all nodes. Its gradient is a sum over nodes m of (the gradient
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

from torch import Tensor, nn
from torch.nn import functional

from lgzoo_tal.hypernet_spec import Form

# The changes by form: the hidden layers, the initial values of nodes and tensors, the places of the
# last nodes, the order of the rows
# of q, k and v, the scales of positions and vectors, and where task layers start.
CHANGES: dict[str, frozenset[str]] = {
    "published": frozenset(),
    "centred": frozenset({"tanh", "start", "ends", "interleaved", "scales", "tasks"}),
}
# Factor of the position embedding, whose standard deviation starts at 0.02 to 0.04, as timm's.
POSITIONS = 0.15
VECTORS = 0.3  # factor of norms and biases before they are squashed


def build_activation(form: Form) -> nn.Module:
    """Build the activation of a decoder's hidden layers."""
    return nn.Tanh() if "tanh" in CHANGES[form] else nn.ReLU()


def activate_factors(tensor: Tensor, form: Form) -> Tensor:
    """Return the input of the layer of the low-rank factors."""
    return tensor if "tanh" in CHANGES[form] else functional.relu(tensor)


def is_interleaved(name: str, form: Form) -> bool:
    """Return whether a tensor is predicted with interleaved rows of q, k and v."""
    return "interleaved" in CHANGES[form] and ".qkv." in name


def sort_rows(rows: Tensor) -> Tensor:
    """Copy interleaved rows (3 D, ...) into all rows of q, then of k, then of v."""
    return rows.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1)
