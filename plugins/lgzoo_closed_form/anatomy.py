"""What reads the residual stream of a block and what writes into it, for timm's `VisionTransformer` and its `Eva`.

A block is two branches one after the other, attention and MLP, each

    x + gamma * writer(inner(norm(x)))

where `inner` begins with the branch's readers: queries, keys and values, or the first layers of the MLP. `Eva` turns queries and
keys by rotary positions, keeps the biases of queries and values beside their matrix, and has no bias of keys.

Shapes: B images, N tokens, D width, I what the writer reads (all heads together, or hidden neurons).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from learngene_zoo.plugin import Model


@dataclass(frozen=True)
class Linear:
    """Weight (outputs, inputs) and bias (outputs,) of a layer or of some of its outputs, sharing the model's memory."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, self.weight, self.bias)

    def only(self, outputs: Sequence[int]) -> Linear:
        """A copy with these outputs."""
        index = list(outputs)
        return Linear(self.weight[index], None if self.bias is None else self.bias[index])

    def apart(self, parts: int) -> list[Linear]:
        """The same outputs as several layers."""
        biases = [None] * parts if self.bias is None else self.bias.chunk(parts)
        return [Linear(weight, bias) for weight, bias in zip(self.weight.chunk(parts), biases)]


@dataclass(frozen=True)
class Branch:
    """The attention or the MLP of a block."""

    norm: nn.Module
    readers: tuple[Linear, ...]  # all with as many outputs as the writer has inputs
    inner: Callable[
        [torch.Tensor], torch.Tensor
    ]  # from what the norm gives (B, N, D) to what the writer reads (B, N, I)
    writer: Linear
    gamma: torch.Tensor | None  # (D,), the layer scale
    mixes: bool  # whether tokens see one another, as they do in attention only

    def read(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """What the writer reads (B, N, I)."""
        return self.inner(self.norm(tokens_BND))

    def added(self, read_BNI: torch.Tensor) -> torch.Tensor:
        """What the branch adds to the stream (B, N, D)."""
        written = self.writer(read_BNI)
        return written if self.gamma is None else written * self.gamma

    def __call__(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """The stream after the branch."""
        return tokens_BND + self.added(self.read(tokens_BND))


def stem(model: Model, images_BCHW: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
    """The tokens (B, N, D) that the first block reads, and by what each block turns queries and keys (None: not)."""
    found = model._pos_embed(model.patch_embed(images_BCHW))
    tokens, turn = found if isinstance(found, tuple) else (found, None)
    layers = len(model.blocks)
    turns = list(turn) if turn is not None and getattr(model, "rope_mixed", False) else [turn] * layers
    return model.norm_pre(tokens), turns


def branches(block: Model, turn: torch.Tensor | None = None) -> tuple[Branch, Branch]:
    """Attention and MLP of a block, which turns queries and keys by `turn`."""
    options = {} if turn is None else {"rope": turn}
    attn, mlp = block.attn, block.mlp
    return (
        Branch(
            block.norm1,
            _queries_keys_values(attn),
            partial(_until, attn, "proj", **options),
            Linear(attn.proj.weight, attn.proj.bias),
            _scale(block, 1),
            mixes=True,
        ),
        Branch(
            block.norm2,
            _first(mlp),
            partial(_until, mlp, "fc2"),
            Linear(mlp.fc2.weight, mlp.fc2.bias),
            _scale(block, 2),
            False,
        ),
    )


def _until(layers: nn.Module, last: str, inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    """What the layer named `last` reads; it computes nothing itself."""
    layer = getattr(layers, last)
    setattr(layers, last, nn.Identity())
    try:
        return layers(inputs, **options)  # type: ignore[no-any-return]
    finally:
        setattr(layers, last, layer)


def _queries_keys_values(attn: Model) -> tuple[Linear, ...]:
    if getattr(attn, "qkv", None) is None:
        return tuple(Linear(layer.weight, layer.bias) for layer in (attn.q_proj, attn.k_proj, attn.v_proj))
    if getattr(attn, "q_bias", None) is None:
        return tuple(Linear(attn.qkv.weight, attn.qkv.bias).apart(3))
    biases = (attn.q_bias, None, attn.v_bias)
    return tuple(Linear(weight, bias) for weight, bias in zip(attn.qkv.weight.chunk(3), biases))


def _first(mlp: Model) -> tuple[Linear, ...]:
    """The layers before the activation: one, or gate and values, in one matrix or two."""
    layers = [layer for name, layer in mlp.named_children() if name.startswith("fc1")]
    parts = [Linear(layer.weight, layer.bias).apart(layer.out_features // mlp.fc2.in_features) for layer in layers]
    return tuple(part for one in parts for part in one)


def _scale(block: Model, number: int) -> torch.Tensor | None:
    """The layer scale, which is a layer of a `VisionTransformer`'s block and a parameter of an `Eva`'s."""
    return getattr(getattr(block, f"ls{number}", None), "gamma", getattr(block, f"gamma_{number}", None))
