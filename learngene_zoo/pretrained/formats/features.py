"""Features by which models differ, in words, so that each layout lists those that it allows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from learngene_zoo.families.spec import Spec

TOKEN, NO_TOKEN = "a class token", "no class token"
REGISTERS, NO_REGISTERS = "registers", "no registers"
LAYER_SCALE, GATED = "layer scales", "SwiGLU MLPs with one matrix for gate and values"
PRE_NORM, NO_PRE_NORM = "a norm before the first block", "no norm before the first block"
ATTENTION_POOL, NORM_AFTER_POOL = "pooling by attention", "its final norm after the pooling"
GATED_MLP, NO_LAYER_SCALE = "SwiGLU MLPs", "no layer scales"

_OF_VIT: Mapping[str, Callable[[Any], bool]] = {
    "RMSNorm": lambda spec: spec.norm != "layer",
    "SwiGLU MLPs with separate matrices": lambda spec: spec.mlp == "swiglu",
    GATED: lambda spec: spec.mlp == "swiglu_packed",
    "norms of queries and keys": lambda spec: spec.qk_norm,
    "norms within attention and MLPs": lambda spec: spec.scale_norms,
    "norms after attention and MLPs": lambda spec: spec.post_norm,
    "a norm of the patch embedding": lambda spec: spec.embed_norm,
    "no final norm": lambda spec: not spec.final_norm,
    NORM_AFTER_POOL: lambda spec: spec.norms_after_pool,
    PRE_NORM: lambda spec: spec.pre_norm,
    NO_PRE_NORM: lambda spec: not spec.pre_norm,
    REGISTERS: lambda spec: spec.registers > 0,
    NO_REGISTERS: lambda spec: not spec.registers,
    LAYER_SCALE: lambda spec: spec.layer_scale is not None,
    TOKEN: lambda spec: spec.class_token,
    NO_TOKEN: lambda spec: not spec.class_token,
    ATTENTION_POOL: lambda spec: spec.pools_by_attention,
}
_OF_EVA: Mapping[str, Callable[[Any], bool]] = {
    "learned positions": lambda spec: spec.absolute,
    "other rotary positions than DINOv3": lambda spec: (
        not spec.rotary or spec.rope_type != "dinov3" or not spec.rope_half
    ),
    "norms within attention": lambda spec: spec.attention_norm,
    "norms within MLPs": lambda spec: spec.mlp_norm,
    "norms after attention and MLPs": lambda spec: spec.post_norm,
    PRE_NORM: lambda spec: spec.pre_norm,
    "no final norm": lambda spec: not spec.final_norm,
    NORM_AFTER_POOL: lambda spec: spec.fc_norm,
    "separate matrices of queries, keys and values": lambda spec: not spec.qkv_fused,
    NO_TOKEN: lambda spec: not spec.class_token,
    ATTENTION_POOL: lambda spec: spec.pools_by_attention,
    GATED_MLP: lambda spec: spec.swiglu,
    NO_LAYER_SCALE: lambda spec: not spec.scaled,
    REGISTERS: lambda spec: spec.registers > 0,
}
# A plain ViT, with the features that say that something else is absent.
PLAIN = frozenset([TOKEN, NO_REGISTERS, NO_PRE_NORM])


def find_feature(spec: Spec, allowed: Collection[str]) -> str:
    """Return the first feature of a model that is not allowed; "" if there is none."""
    features = _OF_EVA if spec.family == "eva" else _OF_VIT
    return next((name for name, has in features.items() if has(spec) and name not in allowed), "")
