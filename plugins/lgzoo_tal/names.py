"""What a plain ViT's parameters are called: timm's names and torchvision's, both ways. Cold.

Only the names differ. Shapes and layouts are the same in both: the query, key and value projections are one tensor of
(3d, d) in that order, and the position embedding is (1, 1 + patches, d) with the class token's row first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from learngene_zoo.plugin import WrongCall, block_of, inner_name

Value = TypeVar("Value")

_OUTSIDE = {
    "cls_token": "class_token",
    "pos_embed": "encoder.pos_embedding",
    "patch_embed.proj.weight": "conv_proj.weight",
    "patch_embed.proj.bias": "conv_proj.bias",
    "norm.weight": "encoder.ln.weight",
    "norm.bias": "encoder.ln.bias",
    "head.weight": "heads.head.weight",
    "head.bias": "heads.head.bias",
}
_INSIDE = {
    "norm1.weight": "ln_1.weight",
    "norm1.bias": "ln_1.bias",
    "attn.qkv.weight": "self_attention.in_proj_weight",
    "attn.qkv.bias": "self_attention.in_proj_bias",
    "attn.proj.weight": "self_attention.out_proj.weight",
    "attn.proj.bias": "self_attention.out_proj.bias",
    "norm2.weight": "ln_2.weight",
    "norm2.bias": "ln_2.bias",
    "mlp.fc1.weight": "mlp.0.weight",
    "mlp.fc1.bias": "mlp.0.bias",
    "mlp.fc2.weight": "mlp.3.weight",
    "mlp.fc2.bias": "mlp.3.bias",
}
_OUTSIDE_BACK = {torchvision: timm for timm, torchvision in _OUTSIDE.items()}
_INSIDE_BACK = {torchvision: timm for timm, torchvision in _INSIDE.items()}
_LAYER = "encoder.layers.encoder_layer_"


def to_torchvision(name: str) -> str:
    """torchvision's name of a parameter that timm calls `name`; raises `WrongCall` if a plain ViT has no such one."""
    block = block_of(name)
    if block is None:
        found = _OUTSIDE.get(name)
    else:
        inner = _INSIDE.get(inner_name(name))
        found = inner and f"{_LAYER}{block}.{inner}"
    return _known(found, name, "timm")


def to_timm(name: str) -> str:
    """timm's name of a parameter that torchvision calls `name`; raises `WrongCall` if a plain ViT has no such one."""
    if name.startswith(_LAYER):
        block, _, rest = name.removeprefix(_LAYER).partition(".")
        inner = _INSIDE_BACK.get(rest) if block.isdecimal() else None
        found = inner and f"blocks.{int(block)}.{inner}"
    else:
        found = _OUTSIDE_BACK.get(name)
    return _known(found, name, "torchvision")


def with_torchvision_names(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """The same values under torchvision's names, in the same order."""
    return {to_torchvision(name): value for name, value in tensors.items()}


def with_timm_names(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """The same values under timm's names, in the same order."""
    return {to_timm(name): value for name, value in tensors.items()}


def _known(found: str | None, name: str, library: str) -> str:
    if not found:
        raise WrongCall(f"{name!r} is no parameter of a plain ViT in {library}'s naming")
    return found
