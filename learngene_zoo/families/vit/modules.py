"""Modules that timm lacks: Vision Transformers that are dense, or whose blocks have several sizes.

The dense head predicts a class for every pixel (see families/dense.py).

A stitch is a linear layer between two segments of different width (Learngene Pool, equation 4;
SN-Net, equation 2). It belongs to the first block of the later segment, as `blocks.3.stitch`, and
precedes all layers of that block; everything outside the blocks is timm's code. The stem has the
size of the first segment, the final norm and the head have that of the last one. If both segments
have the same width, as in an unevenly pruned model, the stitch is optional.

Importing this module registers the models with timm, as importing timm's modules does.

Shapes: B images, N tokens, D width, K classes, H x W pixels.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from timm.layers import Attention, LayerNorm, Mlp, RmsNorm, SwiGLU, SwiGLUPacked
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import (
    Block,
    ResPostBlock,
    VisionTransformer,
    checkpoint_filter_fn,
)
from torch import nn

from learngene_zoo.families.dense import apply_dense_head, forward_dense
from learngene_zoo.families.vit.names import LAYER_FIELDS, OURS

Built = TypeVar("Built", bound=VisionTransformer)
# For each segment except the last: layers, width, heads; then optionally attention width, MLP ratio
# and whether a stitch follows.
Front = Sequence[Sequence[Any]]


class DenseVisionTransformer(VisionTransformer):
    """A Vision Transformer from images (B, C, H, W) to logits (B, K, H, W)."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.attn_pool = None  # patches are classified separately

    forward_head = apply_dense_head
    forward = forward_dense


class StitchedBlock(Block):
    """The first block of a later segment with the stitch before it.

    It maps tokens (B, N, `before`) to (B, N, D).
    """

    def __init__(self, dim: int, *, before: int, **settings: Any) -> None:
        super().__init__(dim, **settings)
        self.stitch = nn.Linear(
            before, dim, device=settings.get("device"), dtype=settings.get("dtype")
        )

    def forward(
        self, x: torch.Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False
    ) -> torch.Tensor:
        """Apply the stitch, then the block."""
        tokens_BND: torch.Tensor = super().forward(self.stitch(x), attn_mask, is_causal)
        return tokens_BND


class StitchedVisionTransformer(VisionTransformer):
    """A Vision Transformer with segments `front` before the last one; `depth` counts all blocks.

    `attention_width` is that of the blocks of the last segment; None: their width. `pool_heads` and
    `pool_mlp_ratio` are those of the pooling by attention; None: those of the last segment.
    """

    def __init__(
        self,
        front: Front = (),
        attention_width: int | None = None,
        pool_heads: int | None = None,
        pool_mlp_ratio: float | None = None,
        **settings: Any,
    ) -> None:
        last = (settings.get("num_heads", 12), settings.get("mlp_ratio", 4.0))
        # timm builds the pooling with the arguments that are those of the blocks elsewhere.
        settings |= {"num_heads": pool_heads or last[0], "mlp_ratio": pool_mlp_ratio or last[1]}
        super().__init__(block_fn=partial(_build_block, front, attention_width, last), **settings)
        _take_stem(self, front, settings)


class StitchedDenseVisionTransformer(DenseVisionTransformer):
    """A stitched Vision Transformer with the dense head."""

    def __init__(
        self,
        front: Front = (),
        attention_width: int | None = None,
        pool_heads: int | None = None,
        pool_mlp_ratio: float | None = None,
        **settings: Any,
    ) -> None:
        last = (settings.get("num_heads", 12), settings.get("mlp_ratio", 4.0))
        super().__init__(block_fn=partial(_build_block, front, attention_width, last), **settings)
        _take_stem(self, front, settings)


def _build_block(
    front: Front,
    attention_width: int | None,
    last: tuple[int, float],
    dim: int,
    *,
    depth: int,
    num_heads: int,
    mlp_ratio: float,
    **settings: Any,
) -> Block:
    """Build block number `depth`.

    Args:
        front: the segments before the last one.
        attention_width: attention width of the last segment; None: its width.
        last: heads and MLP ratio of the last segment.
        dim: width of the last segment.
        depth: number of the block, from 0.
        num_heads: heads of the pooling, as timm passes them on.
        mlp_ratio: MLP ratio of the pooling.
        settings: further arguments of timm's block.
    """
    start, before = 0, None
    num_heads, mlp_ratio = last
    for layers, width, heads, *rest in front:
        attention, ratio, stitched = rest or (None, None, True)
        if depth < start + layers:
            dim, num_heads, attention_width = width, heads, attention
            mlp_ratio = mlp_ratio if ratio is None else ratio
            break
        start, before = start + layers, width if stitched else None
    own_attention = attention_width is not None and attention_width != dim
    # Where the attention is replaced below, build the block with one head, which always fits.
    heads_of_block = 1 if own_attention else num_heads
    settings |= {"num_heads": heads_of_block, "depth": depth, "mlp_ratio": mlp_ratio}
    block = (
        StitchedBlock(dim, before=before, **settings)
        if before and depth == start
        else Block(dim, **settings)
    )
    if attention_width is not None and own_attention:
        block.attn = _build_attention(dim, num_heads, attention_width // num_heads, settings)
    return block


def _build_attention(dim: int, heads: int, head_width: int, settings: dict[str, Any]) -> Attention:
    """Build timm's attention with `heads` heads of `head_width` channels.

    `settings` are the arguments of the block, `dim` its width.
    """
    same = (
        "qkv_bias",
        "qk_norm",
        "proj_bias",
        "attn_drop",
        "proj_drop",
        "norm_layer",
        "device",
        "dtype",
    )
    layer_settings = {name: settings[name] for name in same if name in settings}
    return Attention(
        dim,
        heads,
        attn_head_dim=head_width,
        scale_norm=settings.get("scale_attn_norm", False),
        **layer_settings,
    )


def _take_stem(model: VisionTransformer, front: Front, settings: dict[str, Any]) -> None:
    """Replace the stem of the model by one with the size of its first segment."""
    if not front:
        return
    _, width, heads, *_ = front[0]
    stem = VisionTransformer(
        **{
            **settings,
            **{"embed_dim": width, "num_heads": heads, "depth": 0, "num_classes": 0},
            # No pooling, which would need heads that divide the width.
            "global_pool": "token" if settings.get("class_token", True) else "avg",
        }
    )
    for name in ("patch_embed", "cls_token", "reg_token", "pos_embed", "norm_pre"):
        setattr(model, name, getattr(stem, name))
    widths = [width for layers, width, *_ in front for _ in range(layers)]
    for info, width in zip(model.feature_info, widths):
        info["num_chs"] = width


default_cfgs = generate_default_cfgs(
    {
        name: {"input_size": (3, 224, 224), "first_conv": "patch_embed.proj", "classifier": "head"}
        for name in OURS
    }
)


@register_model
def learngene_dense_vit(pretrained: bool = False, **settings: Any) -> DenseVisionTransformer:
    """Build a Vision Transformer with the dense head.

    It is by default of base size for 224-pixel images.
    """
    return _build_module(DenseVisionTransformer, "learngene_dense_vit", pretrained, settings)


@register_model
def learngene_stitched_vit(pretrained: bool = False, **settings: Any) -> StitchedVisionTransformer:
    """Build a stitched Vision Transformer.

    The last segment is by default of base size for 224-pixel images.
    """
    return _build_module(StitchedVisionTransformer, "learngene_stitched_vit", pretrained, settings)


@register_model
def learngene_stitched_dense_vit(
    pretrained: bool = False, **settings: Any
) -> StitchedDenseVisionTransformer:
    """Build a stitched Vision Transformer with the dense head."""
    return _build_module(
        StitchedDenseVisionTransformer, "learngene_stitched_dense_vit", pretrained, settings
    )


_MLPS = {"mlp": Mlp, "swiglu": SwiGLU, "swiglu_packed": SwiGLUPacked}
_NORMS = {"layer": LayerNorm, "rms": RmsNorm}


def list_timm_layers(
    norm: str = "layer",
    norm_eps: float = 1e-6,
    activation: str = "gelu",
    mlp: str = "mlp",
    embed_norm: bool = False,
    scale_norms: bool = False,
    post_norm: bool = False,
    pool_prefix: bool = False,
) -> dict[str, Any]:
    """Return timm's arguments for the kinds of layers of a `ViTSpec`, given its fields."""
    normed = partial(_NORMS[norm], eps=norm_eps)
    return {
        "norm_layer": normed,
        "embed_norm_layer": normed if embed_norm else None,
        "act_layer": activation,
        "mlp_layer": _MLPS[mlp],
        **({"block_fn": ResPostBlock} if post_norm else {}),
        "scale_attn_norm": scale_norms,
        "scale_mlp_norm": scale_norms,
        "pool_include_prefix": pool_prefix,
    }


# Fields of layers that our modules take as they are.
_SIZES = ("attention_width", "pool_heads", "pool_mlp_ratio")


def _build_module(
    kind: type[Built], architecture: str, pretrained: bool, settings: dict[str, Any]
) -> Built:
    base = {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    layers = {
        name: settings.pop(name) for name in LAYER_FIELDS if name in settings and name not in _SIZES
    }
    model: Built = build_model_with_cfg(
        kind,
        architecture,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        **{**base, **settings, **list_timm_layers(**layers)},
    )
    return model
