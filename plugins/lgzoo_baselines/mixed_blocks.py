"""Blocks that are sums of stored ones: as tensors, and as the layers of a model whose stored blocks are trained; and models whose tensors
are given before each pass.

`rows` has a row for each layer: the share of every stored block in it. B images, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import nn
from torch.func import functional_call

from learngene_zoo.plugin import Model, Spec, StateDict, initial, table_of

Rows = Sequence[Sequence[float]]
Layers = Callable[[Mapping[str, torch.Tensor]], Iterator[StateDict]]


def weighted(row: Sequence[float], blocks: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The sum of the blocks' tensors, each times its share; shared, not copied, where it is one whole block."""
    (share, block), *others = [pair for pair in zip(row, blocks, strict=True) if pair[0]]
    total = {name: tensor if share == 1 else share * tensor for name, tensor in block.items()}
    for share, block in others:
        total = {name: tensor + share * block[name] for name, tensor in total.items()}
    return total


def mixed(state: StateDict, spec: Spec, rows: Rows) -> StateDict:
    """A state with a block for each row, made of the blocks of `state`, a model of `spec`; other tensors as they are."""
    table = table_of(spec)
    inner = [table.inner_name(name) for name in state if table.block_of(name) == 0]
    blocks = [{name: state[table.block_name(k, name)] for name in inner} for k in range(spec.layers)]
    made = {
        table.block_name(i, name): tensor
        for i, row in enumerate(rows)
        for name, tensor in weighted(row, blocks).items()
    }
    return {**{name: state[name] for name in state if table.block_of(name) is None}, **made}


class MadeBlocks(nn.Module):
    """In a timm ViT's `blocks`: layers whose tensors are made in every pass from the parameters below this module.

    `layers` gives the tensors of one block after the other, under their names within a block, from all parameters by name; `block` is
    any block, whose own tensors are not used. Not a sequence of blocks, so that stochastic depth refuses it: what is stored has no depth.
    """

    def __init__(self, block: nn.Module, stored: nn.Module, layers: Layers) -> None:
        super().__init__()
        self._block, self.layers = (block,), layers  # a tuple hides the block's parameters
        for name, child in stored.named_children():
            self.add_module(name, child)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """The tokens after the last layer."""
        for tensors in self.layers(dict(self.named_parameters())):
            tokens_BND = functional_call(self._block[0], dict(tensors), (tokens_BND,))
        return tokens_BND


def auxiliary(model: Model, rows: Rows) -> Model:
    """`model` with a layer for each row instead of its blocks, which are the stored ones; its tensors stay, with their names."""
    names = [name for name, _ in model.blocks.named_children()]

    def layers(own: Mapping[str, torch.Tensor]) -> Iterator[StateDict]:
        blocks = [below(own, name) for name in names]
        return (weighted(row, blocks) for row in rows)

    model.blocks = MadeBlocks(model.blocks[0], model.blocks, layers)
    return model


def below(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `prefix` and a dot, without both."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def started(spec: Spec, slopes: Sequence[int], seed: int, init: Literal["timm", "fan_in"]) -> StateDict:
    """Fresh tensors of the stored blocks and of all others.

    The blocks in `slopes` are added to another: what is not a matrix starts at 0 there, so that the norms of every sum start at 1.
    """
    table = table_of(spec)
    return {
        name: torch.zeros_like(tensor) if table.block_of(name) in slopes and tensor.dim() < 2 else tensor
        for name, tensor in initial(spec, seed, init).items()
    }


def bare(module: nn.Module, keep: Callable[[str], bool] = lambda name: False) -> nn.Module:
    """The same module without the parameters that are not to be kept: `give` puts tensors in their place."""
    for name in [name for name, _ in module.named_parameters() if not keep(name)]:
        path, _, leaf = name.rpartition(".")
        delattr(module.get_submodule(path), leaf)
    return module


def give(module: nn.Module, tensors: StateDict) -> None:
    """Let a bare module compute with these tensors, which stay what they are: gradients reach what they were made of."""
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(path), leaf, tensor)
