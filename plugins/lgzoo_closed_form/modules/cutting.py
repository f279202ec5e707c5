"""Cut heads and hidden neurons out of a model, and let the layers that read them absorb the loss.

Of a block, `attn.proj` reads the outputs of its heads and `mlp.fc2` its hidden neurons. With the
kept inputs k and the removed inputs r of such a layer, over the tokens of some unlabelled images,

    a_r ~ B a_k + c                         by weighted ridge regression on the whole model's inputs
    W_k <- W_k + W_r B,   b <- b + W_r c    if the layer has a bias; else a_r ~ B a_k

so that W_k a_k + b is the best estimate from the kept inputs, as far as the ridge allows. Only sums
over the tokens are in memory (ridge.py), never all inputs of a layer. CORP (Zhang and Yang, arXiv
2602.05243) does so with hidden neurons; the same with whole heads is ours.

Shapes: R recorded tokens, L blocks, H heads, A the width of all heads together, M hidden neurons,
D width, O outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import torch
from torch import nn

from learngene_zoo.plugin import Model, Spec, StateDict, map_axes, only, progress, table_of
from lgzoo_closed_form.modules.ridge import Sums
from lgzoo_closed_form.modules.streams import Pictures, embed_images, iterate_batches, record_inputs


@dataclass(frozen=True)
class Selection:
    """The heads and the hidden neurons that each block keeps, ascending."""

    heads: list[list[int]]
    hidden: list[list[int]]

    def list_channels(self, block: int, head_width: int) -> list[int]:
        """Return the inputs of the block's projection that belong to its heads."""
        return [
            head * head_width + channel
            for head in self.heads[block]
            for channel in range(head_width)
        ]


def select_best(scores_LN: torch.Tensor, counts: Sequence[int]) -> list[list[int]]:
    """Return the most important indices of each block, ascending; of equal ones the first."""
    orders = scores_LN.argsort(dim=1, descending=True, stable=True).tolist()
    return [sorted(order[:count]) for order, count in zip(orders, counts)]


def cut_model(state: StateDict, spec: Spec, selection: Selection) -> StateDict:
    """Return the model's tensors without the heads and neurons that are not selected."""
    table, parts = table_of(spec), dict(state)
    for number in range(spec.layers):
        names = {name for name in state if table.block_of(name) == number}
        block = only(state, names.__contains__)
        axes = {"heads": selection.heads[number], "hidden": selection.hidden[number]}
        parts |= map_axes(block, spec, axes)
    return parts


@torch.no_grad()
def compensate_model(
    model: Model,
    state: StateDict,
    spec: Spec,
    selection: Selection,
    pictures: Pictures,
    rho: float,
) -> StateDict:
    """Return the model's tensors, cut, with compensated layers behind the cuts.

    Args:
        model: the whole model.
        state: its tensors.
        spec: its shape.
        selection: the heads and neurons to keep.
        pictures: the images, and which of their tokens are recorded.
        rho: the penalty relative to the mean square of the inputs.
    """
    table, parts = table_of(spec), dict(cut_model(state, spec, selection))
    for number, recordings in groupby(record_blocks(model, pictures), key=attrgetter("block")):
        block = model.blocks[number]
        layers = {"attn.proj": block.attn.proj, "mlp.fc2": block.mlp.fc2}
        sums = [
            Sums(layer.in_features, centred=layer.bias is not None) for layer in layers.values()
        ]
        for recording in recordings:
            for layer_sums, rows in zip(sums, (recording.outputs, recording.hidden)):
                layer_sums.add(rows, rows[:, :0], recording.weights)
        inputs = (selection.list_channels(number, spec.head_width), selection.hidden[number])
        for (name, layer), layer_sums, indices in zip(layers.items(), sums, inputs):
            weight, bias = absorb_inputs(layer, layer_sums, indices, rho)
            parts[table.block_name(number, f"{name}.weight")] = weight
            if bias is not None:
                parts[table.block_name(number, f"{name}.bias")] = bias
    return parts


def absorb_inputs(
    layer: nn.Linear, sums: Sums, indices: Sequence[int], rho: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return weight (O, kept inputs) and bias (O,) of a layer that lost its other inputs.

    Args:
        layer: the layer with all inputs. With all of them kept it stays as it is.
        sums: over all its inputs; centred if the layer has a bias.
        indices: the inputs to keep.
        rho: the relative penalty.
    """
    removed = sorted(set(range(layer.in_features)) - set(indices))
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    if not removed:
        return weight, bias
    k, gram = list(indices), sums.gram
    G_kk, G_kr = gram[k][:, k], gram[k][:, removed]
    G_kk.diagonal().add_(max(rho * float(G_kk.diagonal().mean()), torch.finfo(G_kk.dtype).tiny))
    B_rk = torch.cholesky_solve(G_kr, torch.linalg.cholesky(G_kk)).T
    c_r = sums.mean_I[removed] - B_rk @ sums.mean_I[k]
    W_Or = weight[:, removed].double()
    W_Ok = (weight[:, k] + W_Or @ B_rk).to(weight.dtype)
    return W_Ok, None if bias is None else (bias + W_Or @ c_r).to(bias.dtype)


@dataclass(frozen=True)
class BlockRecording:
    """Inputs of a block's `attn.proj` and `mlp.fc2` at some recorded tokens."""

    block: int
    outputs: torch.Tensor  # of its heads (R, A)
    hidden: torch.Tensor  # its hidden neurons (R, M)
    weights: torch.Tensor  # of these tokens (R,)


@torch.no_grad()
def record_blocks(model: Model, pictures: Pictures) -> Iterator[BlockRecording]:
    """Yield recordings of every block in turn, a few images at a time."""
    tokens_BND = embed_images(model, pictures.images)
    weights_BK = pictures.weights.view_as(pictures.tokens)
    blocks = progress(enumerate(model.blocks), "passing through blocks", pictures.has_progress)
    for number, block in blocks:
        after = []
        for first, batch_BND in iterate_batches(tokens_BND):
            with record_inputs(block.attn.proj) as outputs, record_inputs(block.mlp.fc2) as hidden:
                after.append(block(batch_BND))
            yield BlockRecording(
                number,
                pictures.select_rows(outputs[0], first),
                pictures.select_rows(hidden[0], first),
                weights_BK[first : first + len(batch_BND)].flatten(),
            )
        tokens_BND = torch.cat(after)
