"""The importance of each head and each hidden neuron of a model, with mean 1 over a block or model.

    magnitude    sum |w|^2           over the entries of all matrices that belong to it: rows that
                                     write it, columns that read it
    taylor       sum |w dL/dw|       over the same entries; L is the cross-entropy with the model's
                                     most likely class, its gradients summed over batches
    energy       sum_d Var(w_d a)    of its update of the D channels of the stream, over the tokens
                                     of some images

    influence    1 - E cos(x, y)     of a block that reads the stream x and leaves y, at each token;
                                     ShortGPT's criterion for blocks (Men et al., 2024, section 3)

The first two are those of Torch-Pruning (Fang, Ma, Song, Bi Mi, Wang, DepGraph, CVPR 2023):
matrices only, no biases; all entries of a group count alike, and scores are divided by their mean.
There the labels are in L. `energy` is ours: the variance, because a layer's bias takes the constant
part.

Shapes: R recorded tokens, L blocks, H heads, A the width of all heads together, M hidden neurons,
D width, C width of a head.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional

from learngene_zoo.plugin import (
    Model,
    Spec,
    StateDict,
    WrongCall,
    build_model,
    compute_logits,
    get_state_dict,
    get_table,
)
from lgzoo_closed_form.modules.anatomy import split_block
from lgzoo_closed_form.modules.cutting import record_blocks
from lgzoo_closed_form.modules.ridge import Sums
from lgzoo_closed_form.modules.streams import Pictures, iterate_batches, trace_streams

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry

Criterion = Literal["energy", "magnitude", "taylor"]
Group = Literal["block", "model"]
Scores = tuple[torch.Tensor, torch.Tensor]  # of heads (L, H) and of hidden neurons (L, M)


def measure_importances(
    criterion: Criterion, ancestry: Ancestry, pictures: Pictures, group: Group = "block"
) -> Scores:
    """Return the importances of heads and of hidden neurons, with mean 1 over each group.

    Args:
        criterion: see above.
        ancestry: the ancestry model.
        pictures: the images, and which of their tokens are recorded.
        group: the heads, or neurons, of each block, or of all blocks.

    Raises:
        WrongCall: for `taylor` and a model without classes.
    """
    spec, model = ancestry.spec, build_model(ancestry.spec, ancestry.state)
    if criterion == "energy":
        heads_LH, hidden_LM = measure_energies(model, spec, pictures)
    else:
        if criterion == "magnitude":
            weights = get_state_dict(model)
            masses = {name: weights[name].square() for name in weights}
        else:
            slopes = compute_slopes(model, spec, pictures.images)
            masses = {name: slopes[name].abs() for name in slopes}
        heads_LH, hidden_LM = (sum_by_index(masses, spec, axis) for axis in ("heads", "hidden"))
    return normalise_scores(heads_LH, group), normalise_scores(hidden_LM, group)


def normalise_scores(scores_LN: torch.Tensor, group: Group = "block") -> torch.Tensor:
    """Return the scores divided by the mean of each block, or of all blocks."""
    dimensions = 1 if group == "block" else (0, 1)
    means_L1 = scores_LN.mean(dim=dimensions, keepdim=True)
    return scores_LN / means_L1.clamp_min(torch.finfo(scores_LN.dtype).tiny)


def compute_slopes(model: Model, spec: Spec, images_BCHW: torch.Tensor) -> StateDict:
    """Return w dL/dw of every tensor, the gradients summed over batches.

    Raises `WrongCall` for a model without classes.
    """
    if not spec.classes:
        raise WrongCall(
            "the criterion taylor needs an ancestry model with classes; choose energy or magnitude"
        )
    for _, batch in iterate_batches(images_BCHW):
        logits = compute_logits(model, batch)
        labels = logits.detach().argmax(dim=1)
        torch.nn.functional.cross_entropy(logits, labels).backward()
    return {
        name: (parameter * parameter.grad).detach()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def sum_by_index(masses: StateDict, spec: Spec, axis: str) -> torch.Tensor:
    """Return the sum over all entries of the blocks' matrices that belong to an index of an axis.

    Args:
        masses: of each entry of each tensor.
        spec: the shape of the model.
        axis: "heads" or "hidden".

    Returns:
        The sums (L, size of the axis).
    """
    table, sizes = get_table(spec), get_table(spec).sizes(spec)
    sums = torch.zeros(spec.layers, sizes[axis], dtype=torch.float64)
    for name in masses:
        block, kind = table.block_of(name), table.find(name)
        if block is None or kind is None or len(kind.axes) < 2:
            continue
        for dimension, parts in enumerate(kind.axes):
            if axis in parts:
                # A dimension can be the product of several axes, as rows of queries are heads
                # times channels of a head.
                factors = (
                    masses[name].double().unflatten(dimension, [sizes[part] for part in parts])
                )
                factors = factors.movedim(dimension + parts.index(axis), 0)
                sums[block] += factors.flatten(1).sum(dim=1)
    return sums


def measure_energies(model: Model, spec: Spec, pictures: Pictures) -> Scores:
    """Return the variance of the stream's update by every head and hidden neuron.

    It is summed over the channels of the stream.
    """
    heads, hidden = [], []
    for number, recordings in groupby(record_blocks(model, pictures), key=attrgetter("block")):
        proj, fc2 = (branch.stream_weight for branch in split_block(model, number))
        output_sums, hidden_sums = Sums(proj.shape[1]), Sums(0, fc2.shape[1])
        for recording in recordings:
            outputs, neurons = recording.outputs, recording.hidden
            output_sums.add(outputs, outputs[:, :0], recording.weights)
            hidden_sums.add(neurons[:, :0], neurons, recording.weights)
        # Var(w a) = w Cov(a) w': of a head with the block of the Gram matrix for its channels.
        gram_AA, width = output_sums.gram, spec.head_width
        starts = range(0, proj.shape[1], width)
        moment_HCC = torch.stack([gram_AA[i : i + width, i : i + width] for i in starts])
        writer_DHC = proj.double().unflatten(1, (spec.heads, -1))
        heads.append(torch.einsum("dhc,hce,dhe->h", writer_DHC, moment_HCC, writer_DHC))
        hidden.append(hidden_sums.square_O * fc2.double().square().sum(dim=0))
    return torch.stack(heads), torch.stack(hidden)


@torch.no_grad()
def measure_influences(model: Model, pictures: Pictures) -> torch.Tensor:
    """Return 1 minus the mean cosine of the stream before and after each block, (L,)."""
    sums_L: torch.Tensor | float = 0.0
    weights_BK = pictures.weights.view_as(pictures.tokens)
    for first, batch in iterate_batches(pictures.images):
        streams = [
            pictures.select_rows(tokens_BND, first).double()
            for kind, _, tokens_BND in trace_streams(model, batch)
            if kind == "before"
        ]
        weights_R = weights_BK[first : first + len(batch)].flatten()
        cosines = [functional.cosine_similarity(*pair, dim=1) for pair in pairwise(streams)]
        sums_L = sums_L + torch.stack([weights_R @ (1 - cosine_R) for cosine_R in cosines])
    return torch.as_tensor(sums_L / pictures.weights.sum())
