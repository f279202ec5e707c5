"""torchvision's names of a plain ViT's parameters, which the official graphs were traced with.
Shapes and layouts are timm's.
"""

from __future__ import annotations

from learngene_zoo.families.vit.spec import TABLE

_OUTSIDE = {
    "cls_token": "class_token",
    "pos_embed": "encoder.pos_embedding",
    "patch_embed.proj": "conv_proj",
    "norm": "encoder.ln",
    "head": "heads.head",
}
_INSIDE = {
    "norm1": "ln_1",
    "attn.qkv.weight": "self_attention.in_proj_weight",
    "attn.qkv.bias": "self_attention.in_proj_bias",
    "attn.proj": "self_attention.out_proj",
    "norm2": "ln_2",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.3",
}


def to_torchvision(name: str) -> str:
    """What torchvision calls the parameter that timm calls `name`."""
    block = TABLE.block_of(name)
    if block is None:
        return _rename(name, _OUTSIDE)
    return f"encoder.layers.encoder_layer_{block}.{_rename(TABLE.inner_name(name), _INSIDE)}"


def _rename(name: str, names: dict[str, str]) -> str:
    module, _, kind = name.rpartition(".")
    return names[name] if name in names else f"{names[module]}.{kind}"
