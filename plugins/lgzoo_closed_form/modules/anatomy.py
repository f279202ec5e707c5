"""Readers and writers of a block's residual stream, for timm's `VisionTransformer` and its `Eva`,
and for text models of transformers.

A block is two branches one after the other, attention and MLP, each

    x + gamma * writer(inner(norm(x)))

or, in a BERT,

    norm(x + writer(inner(x)))

where `inner` begins with the branch's readers: queries, keys and values, or the first layers of the
MLP. `Eva` turns queries and keys by rotary positions, keeps the biases of queries and values beside
their matrix, and has no bias of keys. Inputs of text models are ids, int64 (B, N), padded on
the right.

Shapes: B images or texts, N tokens, D width, I inputs of the writer (all heads together, or hidden
neurons).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from learngene_zoo.plugin import (
    BranchNames,
    Model,
    Table,
    compute_hidden,
    embed_tokens,
    find_table,
    get_blocks,
)


@dataclass(frozen=True)
class Linear:
    """Weight (outputs, inputs) and bias (outputs,) of some outputs of a layer.

    They share the model's memory.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, self.weight, self.bias)

    def select_outputs(self, outputs: Sequence[int]) -> Linear:
        """Return a copy with these outputs."""
        index = list(outputs)
        return Linear(self.weight[index], None if self.bias is None else self.bias[index])

    def split_outputs(self, parts: int) -> list[Linear]:
        """Return the same outputs as several layers."""
        biases = [None] * parts if self.bias is None else self.bias.chunk(parts)
        return [Linear(weight, bias) for weight, bias in zip(self.weight.chunk(parts), biases)]


@dataclass(frozen=True)
class Branch:
    """The attention or the MLP of a block."""

    norm: nn.Module
    readers: tuple[Linear, ...]  # all with as many outputs as the writer has inputs
    # From the norm's outputs (B, N, D) to the writer's inputs (B, N, I). The inputs are consecutive
    # ones of all, and the number is that of the first.
    inner: Callable[[torch.Tensor, int], torch.Tensor]
    writer: Linear
    gamma: torch.Tensor | None  # (D,), the layer scale
    mixes: bool  # whether an output depends on several tokens, as in attention only
    norm_after: nn.Module | None = None  # the norm of the sum

    @property
    def stream_weight(self) -> torch.Tensor:
        """The weight (D, I) from the writer's inputs to the stream, layer scale included."""
        weight_DI = self.writer.weight.detach()
        return weight_DI if self.gamma is None else self.gamma.detach()[:, None] * weight_DI

    def compute_inputs(self, tokens_BND: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return the writer's inputs (B, N, I); `first` is the number of the first image."""
        return self.inner(self.norm(tokens_BND), first)

    def compute_update(self, inputs_BNI: torch.Tensor) -> torch.Tensor:
        """Return the update (B, N, D) of the stream from the writer's inputs."""
        update_BND = self.writer(inputs_BNI)
        return update_BND if self.gamma is None else update_BND * self.gamma

    def add(self, tokens_BND: torch.Tensor, inputs_BNI: torch.Tensor) -> torch.Tensor:
        """Return the stream after the branch, from the writer's inputs."""
        sum_BND = tokens_BND + self.compute_update(inputs_BNI)
        return sum_BND if self.norm_after is None else self.norm_after(sum_BND)

    def __call__(self, tokens_BND: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return the stream after the branch."""
        return self.add(tokens_BND, self.compute_inputs(tokens_BND, first))


def run_stem(model: Model, images_BCHW: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
    """Return the tokens (B, N, D) that the first block reads, and the rotary turn of each block.

    A turn of None leaves queries and keys as they are. Of a text model it is the mask (B, N) of
    the texts, which is 0 for padding.
    """
    if find_table(model) is not None:
        pad = model.config.pad_token_id
        mask_BN = torch.ones_like(images_BCHW) if pad is None else (images_BCHW != pad).long()
        return embed_tokens(model, images_BCHW), [mask_BN] * len(get_blocks(model))
    outputs = model._pos_embed(model.patch_embed(images_BCHW))
    tokens, turn = outputs if isinstance(outputs, tuple) else (outputs, None)
    is_per_block = turn is not None and getattr(model, "rope_mixed", False)
    turns = list(turn) if is_per_block else [turn] * len(model.blocks)
    return model.norm_pre(tokens), turns


def split_block(
    model: Model, number: int, turn: torch.Tensor | None = None
) -> tuple[Branch, Branch]:
    """Return attention and MLP of a block, which turns queries and keys by `turn`.

    Of a text model `turn` is the mask; without one no token may be padding.
    """
    table = find_table(model)
    if table is not None:
        attention, mlp_branch = (
            _split_branch(model, number, table, names, turn) for names in table.branches(None)
        )
        return attention, mlp_branch
    block: Model = model.blocks[number]
    options: dict[str, Any] = {} if turn is None else {"rope": turn}
    attn, mlp = block.attn, block.mlp
    return (
        Branch(
            norm=block.norm1,
            readers=_list_qkv(attn),
            inner=partial(_run_until, attn, "proj", **options),
            writer=Linear(attn.proj.weight, attn.proj.bias),
            gamma=_find_layer_scale(block, 1),
            mixes=True,
        ),
        Branch(
            norm=block.norm2,
            readers=_list_first_layers(mlp),
            inner=partial(_run_until, mlp, "fc2"),
            writer=Linear(mlp.fc2.weight, mlp.fc2.bias),
            gamma=_find_layer_scale(block, 2),
            mixes=False,
        ),
    )


def _split_branch(
    model: Model, number: int, table: Table, names: BranchNames, mask_BN: torch.Tensor | None
) -> Branch:
    """Return a branch of a text model, by the names in the table of its family."""
    block: Any = get_blocks(model)[number]
    readers = [_read_linear(block, number, table, name) for name in names.readers]
    writer = _read_linear(block, number, table, names.writer)
    parts = [
        reader.split_outputs(len(reader.weight) // writer.weight.shape[1]) for reader in readers
    ]

    def inner(tokens_BND: torch.Tensor, first: int) -> torch.Tensor:
        if mask_BN is None:
            mask = torch.ones(tokens_BND.shape[:2])
        else:
            mask = mask_BN[first : first + len(tokens_BND)]
        return compute_hidden(model, number, names.mixes, tokens_BND, mask)

    norm = block.get_submodule(names.norm)
    is_after = table.norms_after(None)
    return Branch(
        norm=nn.Identity() if is_after else norm,
        readers=tuple(layer for layers in parts for layer in layers),
        inner=inner,
        writer=writer,
        gamma=None,
        mixes=names.mixes,
        norm_after=norm if is_after else None,
    )


def _read_linear(block: nn.Module, number: int, table: Table, name: str) -> Linear:
    """Return a layer of a block; the matrix of transformers' `Conv1D` has its inputs first."""
    layer: Any = block.get_submodule(name)
    kind = table.find(table.block_name(number, f"{name}.weight"))
    assert kind is not None, name
    return Linear(layer.weight if kind.reads else layer.weight.T, layer.bias)


def _run_until(
    layers: nn.Module, last: str, inputs: torch.Tensor, first: int, **options: Any
) -> torch.Tensor:
    """Return the inputs of the layer named `last`, which is not computed itself."""
    layer = getattr(layers, last)
    setattr(layers, last, nn.Identity())
    try:
        return layers(inputs, **options)  # type: ignore[no-any-return]
    finally:
        setattr(layers, last, layer)


def _list_qkv(attn: Model) -> tuple[Linear, ...]:
    """Return queries, keys and values as three layers."""
    if getattr(attn, "qkv", None) is None:
        layers = (attn.q_proj, attn.k_proj, attn.v_proj)
        return tuple(Linear(layer.weight, layer.bias) for layer in layers)
    if getattr(attn, "q_bias", None) is None:
        return tuple(Linear(attn.qkv.weight, attn.qkv.bias).split_outputs(3))
    biases = (attn.q_bias, None, attn.v_bias)
    return tuple(Linear(weight, bias) for weight, bias in zip(attn.qkv.weight.chunk(3), biases))


def _list_first_layers(mlp: Model) -> tuple[Linear, ...]:
    """Return the layers before the activation: one, or gate and values, in one matrix or two."""
    layers = [layer for name, layer in mlp.named_children() if name.startswith("fc1")]
    parts = [
        Linear(layer.weight, layer.bias).split_outputs(layer.out_features // mlp.fc2.in_features)
        for layer in layers
    ]
    return tuple(layer for part in parts for layer in part)


def _find_layer_scale(block: Model, number: int) -> torch.Tensor | None:
    """Return the layer scale.

    It is a layer of a `VisionTransformer`'s block, and a parameter of an `Eva`'s.
    """
    gamma = getattr(block, f"gamma_{number}", None)
    return getattr(getattr(block, f"ls{number}", None), "gamma", gamma)
