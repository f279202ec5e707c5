"""The table of an `EvaSpec`'s tensors, how timm initialises them, and FLOPs in closed form.

Tensors have timm's names and the order of timm's state_dict.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from learngene_zoo.families.eva.spec import EvaSpec
from learngene_zoo.families.family import (
    NORM_FLOPS,
    UPSAMPLING_FLOPS,
    BranchNames,
    Convention,
    ParameterSpec,
    Table,
    make_norm_rows,
    make_row,
)

if TYPE_CHECKING:
    import torch


def list_axis_sizes(spec: EvaSpec) -> dict[str, int]:
    """Return the size of each axis in the model of `spec`."""
    return {
        "one": 1,
        "two": 2,
        "qkv": 3,
        "layers": spec.layers,
        "width": spec.width,
        "heads": spec.heads,
        "head_width": spec.head_width,
        "pairs": spec.head_width // 2,
        "hidden": spec.hidden,
        "gates": 2 if spec.swiglu else 1,  # if they share a matrix, the gate comes first
        "pool_heads": spec.heads_of_pool,
        "pool_head_width": spec.width // spec.heads_of_pool,
        "pool_hidden": spec.hidden_of_pool,
        "positions": spec.positions,
        "registers": spec.registers,
        "channels": spec.channels,
        "patch": spec.patch_size,
        "classes": spec.classes,
    }


def _make_projection_rows(name: str, key: bool = False) -> tuple[ParameterSpec, ParameterSpec]:
    """Return the rows of queries, keys or values in models that have a separate matrix for each."""

    def is_biased(spec: EvaSpec) -> bool:
        return not spec.qkv_fused and spec.qkv_bias and not (key and spec.attention == "eva")

    return (
        make_row(
            f"attn.{name}.weight",
            "heads head_width, width",
            "matrix",
            lambda spec: not spec.qkv_fused,
        ),
        make_row(f"attn.{name}.bias", "heads head_width", "zero", is_biased),
    )


def _has_eva_bias(spec: EvaSpec) -> bool:
    return spec.attention == "eva" and spec.qkv_fused and spec.qkv_bias


def _has_pool(spec: EvaSpec) -> bool:
    return spec.pools_by_attention


def _scale(spec: EvaSpec) -> float:
    return spec.layer_scale or 0.0


def _make_linear_rows(
    name: str, outputs: str, inputs: str, start: Any = "matrix", present: Any = lambda spec: True
) -> tuple[ParameterSpec, ParameterSpec]:
    """Return the two rows of a linear layer."""
    return (
        make_row(f"{name}.weight", f"{outputs}, {inputs}", start, present),
        make_row(f"{name}.bias", outputs, "zero", present),
    )


_STEM = (
    make_row("cls_token", "one, one, width", "token", lambda spec: spec.class_token),
    make_row("reg_token", "one, registers, width", "token", lambda spec: spec.registers > 0),
    make_row("pos_embed", "one, positions, width", "positions", lambda spec: spec.absolute),
    make_row("patch_embed.proj.weight", "width, channels, patch, patch", "patches"),
    make_row("patch_embed.proj.bias", "width", "patches", lambda spec: not spec.pre_norm),
    make_row(
        "rope.freqs", "two, layers, heads, pairs", "frequencies", lambda spec: spec.frequencies
    ),
    *make_norm_rows("norm_pre", "width", lambda spec: spec.pre_norm),
)
_ATTENTION = (
    make_row("attn.q_bias", "heads head_width", "zero", _has_eva_bias),
    make_row("attn.v_bias", "heads head_width", "zero", _has_eva_bias),
    make_row(
        "attn.qkv.weight", "qkv heads head_width, width", "matrix", lambda spec: spec.qkv_fused
    ),
    make_row(
        "attn.qkv.bias",
        "qkv heads head_width",
        "zero",
        lambda spec: spec.attention == "rope" and spec.qkv_fused and spec.qkv_bias,
    ),
    *_make_projection_rows("q_proj"),
    *_make_projection_rows("k_proj", key=True),
    *_make_projection_rows("v_proj"),
    *make_norm_rows("attn.norm", "heads head_width", lambda spec: spec.attention_norm),
    *_make_linear_rows("attn.proj", "width", "heads head_width", "deep"),
)
_MLP = (
    *_make_linear_rows("mlp.fc1_g", "hidden", "width", present=lambda spec: spec.swiglu_split),
    *_make_linear_rows("mlp.fc1_x", "hidden", "width", present=lambda spec: spec.swiglu_split),
    *_make_linear_rows(
        "mlp.fc1", "gates hidden", "width", present=lambda spec: not spec.swiglu_split
    ),
    *make_norm_rows("mlp.norm", "hidden", lambda spec: spec.mlp_norm),
    *_make_linear_rows("mlp.fc2", "width", "hidden", "deep"),
)
_BLOCK = (
    make_row("gamma_1", "width", _scale, lambda spec: spec.scaled),
    make_row("gamma_2", "width", _scale, lambda spec: spec.scaled),
    *make_norm_rows("norm1", "width", lambda spec: not spec.post_norm),
    *_ATTENTION,
    *make_norm_rows("norm1", "width", lambda spec: spec.post_norm),
    *make_norm_rows("norm2", "width", lambda spec: not spec.post_norm),
    *_MLP,
    *make_norm_rows("norm2", "width", lambda spec: spec.post_norm),
)
_TAIL = (
    *make_norm_rows("norm", "width", lambda spec: spec.final_norm),
    make_row("attn_pool.latent", "one, one, width", "latent", _has_pool),
    *_make_linear_rows("attn_pool.q", "pool_heads pool_head_width", "width", present=_has_pool),
    *_make_linear_rows(
        "attn_pool.kv", "two pool_heads pool_head_width", "width", present=_has_pool
    ),
    *_make_linear_rows("attn_pool.proj", "width", "pool_heads pool_head_width", present=_has_pool),
    *make_norm_rows("attn_pool.norm", "width", _has_pool),
    *_make_linear_rows("attn_pool.mlp.fc1", "pool_hidden", "width", present=_has_pool),
    *_make_linear_rows("attn_pool.mlp.fc2", "width", "pool_hidden", present=_has_pool),
    *make_norm_rows("fc_norm", "width", lambda spec: spec.fc_norm),
)


def _draw_token(
    spec: EvaSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None
) -> torch.Tensor:
    return tensor.normal_(std=0.02, generator=generator)


def _draw_deep(
    spec: EvaSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None
) -> torch.Tensor:
    """Draw N(0, 0.02 / sqrt(2 i)) for block i, counted from 1."""
    return tensor.normal_(std=0.02 / math.sqrt(2 * ((block or 0) + 1)), generator=generator)


def _draw_head(
    spec: EvaSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None
) -> torch.Tensor:
    """Draw values near zero, as timm's `head_init_scale` gives."""
    return tensor.normal_(std=0.02 * 0.001, generator=generator)


def _fill_frequencies(
    spec: EvaSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None
) -> torch.Tensor:
    """Fill in geometric magnitudes, rotated by a random angle for each head of each block.

    Source: Heo et al., 2024, section 3.2.
    """
    turn = tensor.new_empty(spec.layers, spec.heads, 1).uniform_(
        0, 2 * math.pi, generator=generator
    )
    exponents = [4 * i / spec.head_width for i in range(spec.head_width // 4)]
    magnitudes = tensor.new_tensor([spec.rope_temperature**-exponent for exponent in exponents])
    half = len(exponents)
    for axis, shift in ((0, 0.0), (1, -math.pi / 2)):  # cos and sin of the angle
        tensor[axis, :, :, :half] = magnitudes * (turn + shift).cos()
        tensor[axis, :, :, half:] = magnitudes * (turn + shift + math.pi / 2).cos()
    return tensor


def _list_branches(spec: EvaSpec) -> tuple[BranchNames, ...]:
    """Return attention and MLP of a block."""
    apart = tuple(f"attn.{name}_proj" for name in "qkv")
    scales = ("gamma_1", "gamma_2") if spec.scaled else (None, None)
    return (
        BranchNames(
            norm="norm1",
            readers=("attn.qkv",) if spec.qkv_fused else apart,
            writer="attn.proj",
            scale=scales[0],
            mixes=True,
        ),
        BranchNames(
            norm="norm2",
            readers=("mlp.fc1_g", "mlp.fc1_x") if spec.swiglu_split else ("mlp.fc1",),
            writer="mlp.fc2",
            scale=scales[1],
            mixes=False,
        ),
    )


TABLE = Table(
    prefix="blocks.",
    sizes=list_axis_sizes,
    stem=_STEM,
    block=_BLOCK,
    final_norm=_TAIL,
    head=_make_linear_rows("head", "classes", "width", "head", lambda spec: spec.classes > 0),
    branches=_list_branches,
    norms_after=lambda spec: spec.post_norm,
    draws={
        "token": _draw_token,
        "deep": _draw_deep,
        "head": _draw_head,
        "frequencies": _fill_frequencies,
    },
)


def count_flops(spec: EvaSpec, convention: Convention = "exact") -> int:
    """Return the multiply-adds of the model for one image.

    The rotation of queries and keys does not count, like all elementwise products.
    """
    embed = spec.patches * spec.channels * spec.patch_size**2 * spec.width
    before = NORM_FLOPS[convention] * spec.tokens * spec.width if spec.pre_norm else 0
    blocks = sum(part.layers * count_block_flops(part, convention) for part in spec.segments)
    return embed + before + blocks + count_tail_flops(spec, convention)


def count_block_flops(spec: EvaSpec, convention: Convention = "exact") -> int:
    """Return the multiply-adds of one block for all tokens."""
    n, d, a, hidden = spec.tokens, spec.width, spec.heads_width, spec.hidden
    linear = n * (4 * d * a + (3 if spec.swiglu else 2) * d * hidden)
    attention = 0 if convention == "thop" else 2 * n * n * a
    normed = n * (2 * d + (a if spec.attention_norm else 0) + (hidden if spec.mlp_norm else 0))
    return linear + attention + NORM_FLOPS[convention] * normed


def count_tail_flops(spec: EvaSpec, convention: Convention = "exact") -> int:
    """Return the multiply-adds of the final norms, the pooling and the head.

    The head reads the pooled token; in a dense model it reads every patch, and its logits are
    upsampled to the image.
    """
    n, d = spec.tokens, spec.width
    positions = spec.patches if spec.dense else 1
    normed = (n * d if spec.final_norm else 0) + (positions * d if spec.fc_norm else 0)
    upsampled = (spec.classes or d) * spec.image_size**2 if spec.dense else 0
    pooling = 0
    if spec.pools_by_attention:
        pooling = 2 * n * d * d + 2 * d * d + 2 * d * spec.hidden_of_pool
        pooling += 0 if convention == "thop" else 2 * n * d
        normed += d
    head = positions * spec.classes * d
    return (
        NORM_FLOPS[convention] * normed + pooling + head + UPSAMPLING_FLOPS[convention] * upsampled
    )
