"""Blocks that are sums of stored ones: as tensors, and as the layers of a model in training.

Also models whose tensors are computed before each pass. `rows` has a row for each layer: the share
of every stored block in it. Shapes: B images, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.func import functional_call

from learngene_zoo.plugin import Model, Spec, StateDict, get_blocks, get_table, initialise

Rows = Sequence[Sequence[float]]
ComputeBlocks = Callable[[Mapping[str, torch.Tensor]], Iterator[StateDict]]


def add_blocks(
    row: Sequence[float], blocks: Sequence[Mapping[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the sum of the blocks' tensors, each times its share in `row`.

    Tensors are shared, not copied, where the sum is a single block with a share of 1.
    """
    (share, block), *further = [pair for pair in zip(row, blocks, strict=True) if pair[0]]
    total = {name: tensor if share == 1 else share * tensor for name, tensor in block.items()}
    for share, block in further:
        total = {name: tensor + share * block[name] for name, tensor in total.items()}
    return total


def mix_blocks(state: StateDict, spec: Spec, rows: Rows) -> StateDict:
    """Return the state of a model with a block for each row: a sum of the blocks of `state`.

    Args:
        state: tensors of a model of shape `spec`; those outside of the blocks stay as they are.
        spec: the shape of the model with the stored blocks.
        rows: for each block of the new model the shares of the stored blocks.
    """
    table = get_table(spec)
    inner = [table.inner_name(name) for name in state if table.block_of(name) == 0]
    blocks = [
        {name: state[table.block_name(k, name)] for name in inner} for k in range(spec.layers)
    ]
    mixed = {
        table.block_name(i, name): tensor
        for i, row in enumerate(rows)
        for name, tensor in add_blocks(row, blocks).items()
    }
    return {**{name: state[name] for name in state if table.block_of(name) is None}, **mixed}


class ComputedBlocks(nn.Module):
    """Replace a model's blocks by layers whose tensors are computed in every pass.

    timm's models call it, and those of transformers call its layers one by one. It is not a
    sequence of blocks, so that stochastic depth refuses it: stored blocks have no depth.

    Args:
        block: any block of the model; its tensors are not used.
        stored: the module whose children, and their parameters, become those of this module.
        compute_blocks: yields the tensors of one block after the other, under their names within
            a block, from all parameters of this module by name.
    """

    def __init__(self, block: nn.Module, stored: nn.Module, compute_blocks: ComputeBlocks) -> None:
        super().__init__()
        self._block = (block,)  # a tuple hides the block's parameters
        self.compute_blocks = compute_blocks
        for name, child in stored.named_children():
            self.add_module(name, child)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the tokens after the last layer."""
        for compute_layer in self:
            tokens_BND = compute_layer(tokens_BND)
        return tokens_BND

    def __iter__(self) -> Iterator[Callable[..., torch.Tensor]]:
        """Yield each layer as a function of the arguments of a block."""
        for tensors in self.compute_blocks(dict(self.named_parameters())):
            yield partial(self._compute_layer, dict(tensors))

    def _compute_layer(
        self, tensors: dict[str, torch.Tensor], *inputs: Any, **options: Any
    ) -> torch.Tensor:
        tokens_BND: torch.Tensor = functional_call(self._block[0], tensors, inputs, options)
        return tokens_BND


def install_mixed_blocks(model: Model, rows: Rows) -> Model:
    """Return `model` with a layer for each row in place of its blocks, which are the stored ones.

    The model's tensors, and their names, stay as they are.
    """
    stored: Any = get_blocks(model)
    names = [name for name, _ in stored.named_children()]

    def compute_blocks(parameters: Mapping[str, torch.Tensor]) -> Iterator[StateDict]:
        blocks = [select_below(parameters, name) for name in names]
        return (add_blocks(row, blocks) for row in rows)

    path = next(name for name, module in model.named_modules() if module is stored)
    parent, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(parent), leaf, ComputedBlocks(stored[0], stored, compute_blocks))
    return model


def select_below(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors whose names begin with `prefix` and a dot, by the rest of their names."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): tensor
        for name, tensor in tensors.items()
        if name.startswith(start)
    }


def initialise_stored_blocks(
    spec: Spec, slopes: Sequence[int], seed: int, init: Literal["timm", "fan_in"]
) -> StateDict:
    """Return fresh tensors of the stored blocks and of all other parts of a model.

    Args:
        spec: the model whose blocks are the stored ones.
        slopes: the blocks that are added to another one. Their tensors other than matrices start
            at 0, so that the norms of every sum start at 1.
        seed: of the draws.
        init: the scheme of the matrices.
    """
    table = get_table(spec)
    return {
        name: torch.zeros_like(tensor)
        if table.block_of(name) in slopes and tensor.dim() < 2
        else tensor
        for name, tensor in initialise(spec, seed, init).items()
    }


def remove_parameters(
    module: nn.Module, keep: Callable[[str], bool] = lambda name: False
) -> nn.Module:
    """Return the same module without the parameters that `keep` refuses by name.

    `assign_tensors` puts tensors in their place.
    """
    for name in [name for name, _ in module.named_parameters() if not keep(name)]:
        path, _, leaf = name.rpartition(".")
        delattr(module.get_submodule(path), leaf)
    return module


def assign_tensors(module: nn.Module, tensors: StateDict) -> None:
    """Let a module without these parameters compute with these tensors.

    They do not become parameters of the module, so that gradients reach the tensors they were
    computed from. Neither do parameters of another module.
    """
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        # nn.Module would register a parameter, and checkpoints would contain it twice.
        object.__setattr__(module.get_submodule(path), leaf, tensor)
