"""Heads and hidden neurons are cut out of a model, and what the rest can say of them goes into the layers that read them.

Of a block, `attn.proj` reads the outputs of its heads and `mlp.fc2` its hidden neurons. With the kept ones k and the removed ones r
of such a layer's inputs, over the tokens of some unlabelled images,

    a_r ~ B a_k + c                                        by weighted ridge regression (ridge.py) on the whole model's own inputs
    W_k <- W_k + W_r B,    b <- b + W_r c                  if the layer has a bias; else a_r ~ B a_k

so that W_k a_k + b is the best that the kept inputs can say, as far as the ridge lets them. CORP (Zhang and Yang, arXiv 2602.05243)
does so with hidden neurons; whole heads, in its way, are ours.

Shapes: R recorded tokens, L blocks, H heads, A the width of all heads together, M hidden neurons, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from learngene_zoo.plugin import Model, Spec, StateDict, mapped, only, table_of
from lgzoo_closed_form.ridge import Ridge
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
    for number, (block, outputs_RA, hidden_RM) in enumerate(recordings(model, shown)):
        places = {
            "attn.proj": (block.attn.proj, outputs_RA, kept.channels(number, whole.head_width)),
            "mlp.fc2": (block.mlp.fc2, hidden_RM, kept.hidden[number]),
        }
        for name, (layer, inputs_RI, chosen) in places.items():
            weight, bias = absorbed(layer, inputs_RI, chosen, shown.weights, rho)
            made[table.block_name(number, f"{name}.weight")] = weight
            if bias is not None:
                made[table.block_name(number, f"{name}.bias")] = bias
    return made


def absorbed(
    layer: nn.Linear, inputs_RI: torch.Tensor, kept: Sequence[int], weights_R: torch.Tensor, rho: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight (O, kept inputs) and bias (O,) of a layer that lost its other inputs. With all inputs kept they are its own."""
    removed = sorted(set(range(layer.in_features)) - set(kept))
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    if not removed:
        return weight, bias
    ridge = Ridge.on(inputs_RI[:, list(kept)], weights_R, rho, centred=bias is not None)
    nothing = None if bias is None else torch.zeros(len(removed))
    B_rk, c_r = ridge.solve(inputs_RI[:, removed], torch.zeros(len(removed), len(kept)), nothing)
    written_Or = weight[:, removed].double()
    made = (weight[:, list(kept)] + written_Or @ B_rk).to(weight.dtype)
    return made, None if bias is None or c_r is None else (bias + written_Or @ c_r).to(bias.dtype)


@torch.no_grad()
def recordings(model: Model, shown: Pictures) -> Iterator[tuple[Model, torch.Tensor, torch.Tensor]]:
    """Every block with the outputs of its heads (R, A) and its hidden neurons (R, M), as the layers after them read them."""
    tokens_BND = embedded(model, shown.images)
    for block in model.blocks:
        after, outputs, hidden = [], [], []
        for first, one_BND in some(tokens_BND):
            with inputs_of(block.attn.proj) as of_heads, inputs_of(block.mlp.fc2) as of_hidden:
                after.append(block(one_BND))
            outputs.append(shown.rows(of_heads[0], first))
            hidden.append(shown.rows(of_hidden[0], first))
        tokens_BND = torch.cat(after)
        yield block, torch.cat(outputs), torch.cat(hidden)
