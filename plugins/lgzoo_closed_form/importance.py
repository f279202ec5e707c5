"""How important each head and each hidden neuron of a model is, in the mean over those of its block 1.

    magnitude    sum |w|^2           over the entries of all matrices that belong to it: rows of what writes it, columns of what reads it
    taylor       sum |w dL/dw|       over the same entries; L is the cross-entropy with the class that the model finds most likely,
                                     and its gradients are summed over batches
    energy       sum_d Var(w_d a)    of what it adds to the D channels of the stream, over the tokens of some images

The first two are those of Torch-Pruning (Fang, Ma, Song, Bi Mi, Wang, DepGraph, CVPR 2023): matrices only, no biases; all entries of a
group count alike, and scores are divided by their mean. There the labels are in L. `energy` is ours: the variance, because a
layer's bias takes what is constant.

Shapes: R recorded tokens, L blocks, H heads, A the width of all heads together, M hidden neurons, D width.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

import torch

from learngene_zoo.plugin import Model, Spec, StateDict, WrongCall, model_of, state_of, table_of
from lgzoo_closed_form.cutting import recordings
from lgzoo_closed_form.ridge import Sums
from lgzoo_closed_form.streams import Pictures, some

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry

Criterion = Literal["energy", "magnitude", "taylor"]
Scores = tuple[torch.Tensor, torch.Tensor]  # of heads (L, H) and of hidden neurons (L, M)


def importances(criterion: Criterion, ancestry: Ancestry, shown: Pictures) -> Scores:
    """Each in the mean over its block 1. Raises `WrongCall` for `taylor` and a model without classes."""
    spec, model = ancestry.spec, model_of(ancestry.spec, ancestry.state)
    if criterion == "energy":
        heads_LH, hidden_LM = energies(model, spec, shown)
    else:
        masses = state_of(model) if criterion == "magnitude" else slopes(model, spec, shown.images)
        masses = {name: masses[name].square() if criterion == "magnitude" else masses[name].abs() for name in masses}
        heads_LH, hidden_LM = (summed(masses, spec, axis) for axis in ("heads", "hidden"))
    return of_mean_one(heads_LH), of_mean_one(hidden_LM)


def of_mean_one(scores_LN: torch.Tensor) -> torch.Tensor:
    """Divided by the mean of each block."""
    return scores_LN / scores_LN.mean(dim=1, keepdim=True).clamp_min(torch.finfo(scores_LN.dtype).tiny)


def slopes(model: Model, spec: Spec, images_BCHW: torch.Tensor) -> StateDict:
    """w dL/dw of every tensor, the gradients summed over batches."""
    if not spec.classes:
        raise WrongCall("the criterion taylor needs an ancestry model with classes; choose energy or magnitude")
    for _, one in some(images_BCHW):
        logits = model(one)
        torch.nn.functional.cross_entropy(logits, logits.detach().argmax(dim=1)).backward()
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {name: (parameter * parameter.grad).detach() for name, parameter in found.items()}


def summed(masses: StateDict, spec: Spec, axis: str) -> torch.Tensor:
    """(L, size of the axis): the sum over all entries of the blocks' matrices that belong to each index of an axis."""
    table, sizes = table_of(spec), table_of(spec).sizes(spec)
    found = torch.zeros(spec.layers, sizes[axis], dtype=torch.float64)
    for name in masses:
        block, kind = table.block_of(name), table.find(name)
        if block is None or kind is None or len(kind.axes) < 2:
            continue
        for dimension, parts in enumerate(kind.axes):
            if axis in parts:
                apart = masses[name].double().unflatten(dimension, [sizes[part] for part in parts])
                found[block] += apart.movedim(dimension + parts.index(axis), 0).flatten(1).sum(dim=1)
    return found


def energies(model: Model, spec: Spec, shown: Pictures) -> Scores:
    """The variance of what every head and every hidden neuron adds to the stream, summed over its channels."""
    of_heads, of_hidden = [], []
    for number, parts in groupby(recordings(model, shown), key=attrgetter("block")):
        proj, fc2 = model.blocks[number].attn.proj, model.blocks[number].mlp.fc2
        outputs, hidden = Sums(proj.in_features), Sums(0, fc2.in_features)
        for part in parts:
            outputs.add(part.outputs, part.outputs[:, :0], part.weights)
            hidden.add(part.hidden[:, :0], part.hidden, part.weights)
        gram_AA, width = outputs.gram, spec.head_width
        moment_HCC = torch.stack(
            [gram_AA[at : at + width, at : at + width] for at in range(0, proj.in_features, width)]
        )
        writer_DHC = proj.weight.detach().double().unflatten(1, (spec.heads, -1))
        of_heads.append(torch.einsum("dhc,hce,dhe->h", writer_DHC, moment_HCC, writer_DHC))
        of_hidden.append(hidden.square_O * fc2.weight.detach().double().square().sum(dim=0))
    return torch.stack(of_heads), torch.stack(of_hidden)
