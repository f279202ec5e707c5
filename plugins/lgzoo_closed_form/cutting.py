"""Heads and hidden neurons are cut out of a model, and what the rest can say of them goes into the layers that read them.

Of a block, `attn.proj` reads the outputs of its heads and `mlp.fc2` its hidden neurons. With the kept ones k and the removed ones r
of such a layer's inputs, over the tokens of some unlabelled images,

    a_r ~ B a_k + c                                        by weighted ridge regression on the whole model's own inputs
    W_k <- W_k + W_r B,    b <- b + W_r c                  if the layer has a bias; else a_r ~ B a_k

so that W_k a_k + b is the best that the kept inputs can say, as far as the ridge lets them. Only sums over the tokens are held
(ridge.py), never a layer's inputs as a whole. CORP (Zhang and Yang, arXiv 2602.05243)
does so with hidden neurons; whole heads, in its way, are ours.

Shapes: R recorded tokens, L blocks, H heads, A the width of all heads together, M hidden neurons, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import torch
from torch import nn

from learngene_zoo.plugin import Model, Spec, StateDict, mapped, only, progress, table_of
from lgzoo_closed_form.ridge import Sums
from lgzoo_closed_form.streams import Pictures, embedded, inputs_of, some


@dataclass(frozen=True)
class Kept:
    """The heads and the hidden neurons that each block keeps, ascending."""

    heads: list[list[int]]
    hidden: list[list[int]]

    def channels(self, block: int, head_width: int) -> list[int]:
        """The inputs of the block's projection that belong to its heads."""
        return [head * head_width + channel for head in self.heads[block] for channel in range(head_width)]


def best(scores_LN: torch.Tensor, counts: Sequence[int]) -> list[list[int]]:
    """The most important ones of each block, ascending; of equal ones the first."""
    orders = scores_LN.argsort(dim=1, descending=True, stable=True).tolist()
    return [sorted(order[:count]) for order, count in zip(orders, counts)]


def cut(state: StateDict, whole: Spec, kept: Kept) -> StateDict:
    """The model without what is not kept; all other numbers stay."""
    table, made = table_of(whole), dict(state)
    for block in range(whole.layers):
        own = only(state, lambda name, block=block: table.block_of(name) == block)  # type: ignore[misc]
        made |= mapped(own, whole, {"heads": kept.heads[block], "hidden": kept.hidden[block]})
    return made


@torch.no_grad()
def compensated(model: Model, state: StateDict, whole: Spec, kept: Kept, shown: Pictures, rho: float) -> StateDict:
    """The model cut, its layers that read heads and hidden neurons compensated; `model` is the whole one with this `state`."""
    table, made = table_of(whole), dict(cut(state, whole, kept))
    for number, parts in groupby(recordings(model, shown), key=attrgetter("block")):
        block = model.blocks[number]
        layers = {"attn.proj": block.attn.proj, "mlp.fc2": block.mlp.fc2}
        sums = [Sums(layer.in_features, centred=layer.bias is not None) for layer in layers.values()]
        for part in parts:
            for one, rows in zip(sums, (part.outputs, part.hidden)):
                one.add(rows, rows[:, :0], part.weights)
        chosen = (kept.channels(number, whole.head_width), kept.hidden[number])
        for (name, layer), one, inputs in zip(layers.items(), sums, chosen):
            weight, bias = absorbed(layer, one, inputs, rho)
            made[table.block_name(number, f"{name}.weight")] = weight
            if bias is not None:
                made[table.block_name(number, f"{name}.bias")] = bias
    return made


def absorbed(layer: nn.Linear, sums: Sums, kept: Sequence[int], rho: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight (O, kept inputs) and bias (O,) of a layer that lost its other inputs, from the sums over all of them.

    With all inputs kept they are its own. The sums are centred if the layer has a bias.
    """
    removed = sorted(set(range(layer.in_features)) - set(kept))
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    if not removed:
        return weight, bias
    k, gram = list(kept), sums.gram
    G_kk, G_kr = gram[k][:, k], gram[k][:, removed]
    G_kk.diagonal().add_(max(rho * float(G_kk.diagonal().mean()), torch.finfo(G_kk.dtype).tiny))
    B_rk = torch.cholesky_solve(G_kr, torch.linalg.cholesky(G_kk)).T
    c_r = sums.mean_I[removed] - B_rk @ sums.mean_I[k]
    written_Or = weight[:, removed].double()
    made = (weight[:, k] + written_Or @ B_rk).to(weight.dtype)
    return made, None if bias is None else (bias + written_Or @ c_r).to(bias.dtype)


@dataclass(frozen=True)
class Recorded:
    """What some recorded tokens are in a block, as the layers after it read them."""

    block: int
    outputs: torch.Tensor  # of its heads (R, A)
    hidden: torch.Tensor  # its hidden neurons (R, M)
    weights: torch.Tensor  # of these tokens (R,)


@torch.no_grad()
def recordings(model: Model, shown: Pictures) -> Iterator[Recorded]:
    """Of every block in turn, a few images at a time."""
    tokens_BND, weights_BK = embedded(model, shown.images), shown.weights.view_as(shown.tokens)
    for number, block in progress(enumerate(model.blocks), "passing through blocks", shown.bars):
        after = []
        for first, one_BND in some(tokens_BND):
            with inputs_of(block.attn.proj) as outputs, inputs_of(block.mlp.fc2) as hidden:
                after.append(block(one_BND))
            weights_R = weights_BK[first : first + len(one_BND)].flatten()
            yield Recorded(number, shown.rows(outputs[0], first), shown.rows(hidden[0], first), weights_R)
        tokens_BND = torch.cat(after)
