"""The tensors of a Vision Transformer by timm's names, in the order of timm's state_dict, and its FLOPs by closed form."""

from __future__ import annotations

from itertools import pairwise

from learngene_zoo.families.family import (
    NORM_FLOPS,
    UPSAMPLING_FLOPS,
    Condition,
    Convention,
    ParameterSpec,
    Start,
    Table,
    parameter,
)
from learngene_zoo.families.vit.spec import ViTSpec


def axis_sizes(spec: ViTSpec) -> dict[str, int]:
    """The size of each axis in the plain model that `spec` describes."""
    return {
        "one": 1,
        "kv": 2,
        "qkv": 3,
        "halves": 2 if spec.mlp == "swiglu_packed" else 1,
        "width": spec.width,
        "heads": spec.heads,
        "head_width": spec.head_width,
        "hidden": spec.hidden,
        "positions": spec.positions,
        "registers": spec.registers,
        "channels": spec.channels,
        "patch": spec.patch_size,
        "classes": spec.classes,
    }


def norm(name: str, axis: str, present: Condition = lambda spec: True) -> tuple[ParameterSpec, ParameterSpec]:
    """The rows of a norm: LayerNorm has both, RMSNorm only the first."""
    return (
        parameter(f"{name}.weight", axis, "one", present),
        parameter(f"{name}.bias", axis, "zero", lambda spec: spec.norm == "layer" and present(spec)),
    )


def _layer(name: str, axes: str, present: Condition, start: Start = "zero") -> tuple[ParameterSpec, ParameterSpec]:
    """The rows of a linear layer of an MLP; `start` is that of its bias."""
    return (
        parameter(f"{name}.weight", axes, "matrix", present),
        parameter(f"{name}.bias", axes.partition(",")[0], start, lambda spec: spec.proj_bias and present(spec)),
    )


def _attention_pool() -> tuple[ParameterSpec, ...]:
    """The rows of the attention layer that pools; its biases do not depend on those of the blocks."""
    layers = {
        "q": "heads head_width, width",
        "kv": "kv heads head_width, width",
        "proj": "width, heads head_width",
        "mlp.fc1": "hidden, width",
        "mlp.fc2": "width, hidden",
    }
    found = [parameter("attn_pool.latent", "one, one, width", "latent", lambda spec: spec.pools_by_attention)]
    for name, axes in layers.items():
        if name == "mlp.fc1":
            found += norm("attn_pool.norm", "width", lambda spec: spec.pools_by_attention)
        found += [
            parameter(f"attn_pool.{name}.weight", axes, "matrix", lambda spec: spec.pools_by_attention),
            parameter(f"attn_pool.{name}.bias", axes.partition(",")[0], "zero", lambda spec: spec.pools_by_attention),
        ]
    return tuple(found)


def _scaled(spec: ViTSpec) -> bool:
    return spec.layer_scale is not None


def _scale(spec: ViTSpec) -> float:
    return spec.layer_scale or 0.0


TABLE = Table(
    prefix="blocks.",
    sizes=axis_sizes,
    stem=(
        parameter("cls_token", "one, one, width", "token", lambda spec: spec.class_token),
        parameter("reg_token", "one, registers, width", "token", lambda spec: spec.registers > 0),
        parameter("pos_embed", "one, positions, width", "positions"),
        parameter("patch_embed.proj.weight", "width, channels, patch, patch", "patches"),
        parameter("patch_embed.proj.bias", "width", "patches", lambda spec: not spec.pre_norm),
        *norm("patch_embed.norm", "width", lambda spec: spec.embed_norm),
        *norm("norm_pre", "width", lambda spec: spec.pre_norm),
    ),
    block=(
        *norm("norm1", "width", lambda spec: not spec.post_norm),
        parameter("attn.qkv.weight", "qkv heads head_width, width", "matrix"),
        parameter("attn.qkv.bias", "qkv heads head_width", "zero", lambda spec: spec.qkv_bias),
        *norm("attn.q_norm", "head_width", lambda spec: spec.qk_norm),
        *norm("attn.k_norm", "head_width", lambda spec: spec.qk_norm),
        *norm("attn.norm", "heads head_width", lambda spec: spec.scale_norms),
        parameter("attn.proj.weight", "width, heads head_width", "matrix"),
        parameter("attn.proj.bias", "width", "zero", lambda spec: spec.proj_bias),
        parameter("ls1.gamma", "width", _scale, _scaled),
        *norm("norm1", "width", lambda spec: spec.post_norm),
        *norm("norm2", "width", lambda spec: not spec.post_norm),
        *_layer("mlp.fc1", "halves hidden, width", lambda spec: spec.mlp != "swiglu"),
        *_layer("mlp.fc1_g", "hidden, width", lambda spec: spec.mlp == "swiglu", "one"),
        *_layer("mlp.fc1_x", "hidden, width", lambda spec: spec.mlp == "swiglu"),
        *norm("mlp.norm", "hidden", lambda spec: spec.scale_norms),
        *_layer("mlp.fc2", "width, hidden", lambda spec: True),
        parameter("ls2.gamma", "width", _scale, _scaled),
        *norm("norm2", "width", lambda spec: spec.post_norm),
    ),
    stitch=(parameter("stitch.weight", "width, before", "matrix"), parameter("stitch.bias", "width", "zero")),
    final_norm=(
        *norm("norm", "width", lambda spec: spec.norms_before_pool),
        *_attention_pool(),
        *norm("fc_norm", "width", lambda spec: spec.norms_after_pool),
    ),
    head=(
        parameter("head.weight", "classes, width", "matrix", lambda spec: spec.classes > 0),
        parameter("head.bias", "classes", "zero", lambda spec: spec.classes > 0),
    ),
)


def flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """Multiply-adds of one image through the whole model."""
    segments = spec.segments
    blocks = sum(segment.layers * block_flops(segment, convention) for segment in segments)
    stitches = sum(after.tokens * before.width * after.width for before, after in pairwise(segments))
    normed = spec.with_(final_norm=False) if convention == "fvcore" and spec.stitched else spec
    return stem_flops(spec.first, convention) + blocks + stitches + tail_flops(normed, convention)


def stem_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """The patch embedding, and the norms before the blocks."""
    embed = spec.patches * spec.channels * spec.patch_size**2 * spec.width
    normed = spec.patches * spec.embed_norm + spec.tokens * spec.pre_norm
    return embed + NORM_FLOPS[convention] * normed * spec.width


def block_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """One block over all tokens."""
    n, d = spec.tokens, spec.width
    layers = 2 if spec.mlp == "mlp" else 3  # a gated MLP's first layer is two
    linear = n * (4 * d * d + layers * d * spec.hidden)
    attention = 0 if convention == "thop" else 2 * n * n * d
    norms = n * (d * (4 if spec.qk_norm else 2) + (d + spec.hidden) * spec.scale_norms)
    return linear + attention + NORM_FLOPS[convention] * norms


def tail_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """The final norm, over all tokens or over what the head sees, pooling by attention, and the head.

    The head sees the pooled token; in a dense model every patch, and its logits are then upsampled to the image.
    """
    seen = spec.patches if spec.dense else 1
    normed = spec.tokens if spec.norms_before_pool else seen if spec.norms_after_pool else 0
    upsampled = (spec.classes or spec.width) * spec.image_size**2 if spec.dense else 0
    head = seen * spec.classes * spec.width
    pool = _pool_flops(spec, convention) if spec.pools_by_attention else 0
    return NORM_FLOPS[convention] * normed * spec.width + pool + head + UPSAMPLING_FLOPS[convention] * upsampled


def _pool_flops(spec: ViTSpec, convention: Convention) -> int:
    """One query, projected, over the keys and values of the tokens, then a projection, a norm and an MLP of one token."""
    n, d = spec.tokens if spec.pool_prefix else spec.patches, spec.width
    linear = 2 * n * d * d + 2 * d * d + 2 * d * spec.hidden
    attention = 0 if convention == "thop" else 2 * n * d
    return linear + attention + NORM_FLOPS[convention] * d
