"""Stitched models: timm's Vision Transformer whose first blocks have other widths than its last ones.

A stitch is a linear layer between two segments (Learngene Pool, equation 4; SN-Net, equation 2). It belongs to the first block
of the later segment, as `blocks.3.stitch`, and comes before all else that this block does; everything outside the blocks is timm's own code.
The stem is the first segment's, the last norm and the head are the last one's.

Importing this module makes the architectures known to timm, as importing timm's own modules does theirs.

Shapes: B images, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import nn

from learngene_zoo.families.vit.dense import DenseVisionTransformer
from learngene_zoo.families.vit.timm_config import STITCHED_ARCHITECTURE, STITCHED_DENSE_ARCHITECTURE

Front = Sequence[Sequence[int]]  # layers, width and heads of each segment but the last


class StitchedBlock(Block):
    """The first block of a later segment, after the stitch that leads to it: from (B, N, `before`) to (B, N, D)."""

    def __init__(self, dim: int, *, before: int, **settings: Any) -> None:
        super().__init__(dim, **settings)
        self.stitch = nn.Linear(before, dim, device=settings.get("device"), dtype=settings.get("dtype"))

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        """The stitch, then the block."""
        tokens_BND: torch.Tensor = super().forward(self.stitch(x), attn_mask, is_causal)
        return tokens_BND


class StitchedVisionTransformer(VisionTransformer):
    """A Vision Transformer with the segments `front` before its last; `depth` counts all blocks."""

    def __init__(self, front: Front = (), **settings: Any) -> None:
        super().__init__(block_fn=partial(_block, front), **settings)
        _take_stem(self, front, settings)


class StitchedDenseVisionTransformer(DenseVisionTransformer):
    """The same with the dense head."""

    def __init__(self, front: Front = (), **settings: Any) -> None:
        super().__init__(block_fn=partial(_block, front), **settings)
        _take_stem(self, front, settings)


def _block(front: Front, dim: int, *, depth: int, num_heads: int, **settings: Any) -> Block:
    """Block number `depth` of a stitched model whose last segment has width `dim` and so many heads."""
    start, before = 0, None
    for layers, width, heads in front:
        if depth < start + layers:
            dim, num_heads = width, heads
            break
        start, before = start + layers, width
    settings = {**settings, "num_heads": num_heads, "depth": depth}
    return StitchedBlock(dim, before=before, **settings) if before and depth == start else Block(dim, **settings)


def _take_stem(model: VisionTransformer, front: Front, settings: dict[str, Any]) -> None:
    """Give the model the stem of its first segment."""
    if not front:
        return
    _, width, heads = front[0]
    stem = VisionTransformer(**{**settings, "embed_dim": width, "num_heads": heads, "depth": 0, "num_classes": 0})
    for name in ("patch_embed", "cls_token", "reg_token", "pos_embed", "norm_pre"):
        setattr(model, name, getattr(stem, name))
    widths = [width for layers, width, _ in front for _ in range(layers)]
    for place, width in zip(model.feature_info, widths):
        place["num_chs"] = width


_FACTS = {"input_size": (3, 224, 224), "first_conv": "patch_embed.proj", "classifier": "head"}
default_cfgs = generate_default_cfgs({STITCHED_ARCHITECTURE: _FACTS, STITCHED_DENSE_ARCHITECTURE: _FACTS})


@register_model
def learngene_stitched_vit(pretrained: bool = False, **settings: Any) -> StitchedVisionTransformer:
    """A stitched Vision Transformer; its last segment is of base size at 224 pixels where the settings do not say otherwise."""
    made: StitchedVisionTransformer = _built(StitchedVisionTransformer, STITCHED_ARCHITECTURE, pretrained, settings)
    return made


@register_model
def learngene_stitched_dense_vit(pretrained: bool = False, **settings: Any) -> StitchedDenseVisionTransformer:
    """The same with the dense head."""
    made: StitchedDenseVisionTransformer = _built(
        StitchedDenseVisionTransformer, STITCHED_DENSE_ARCHITECTURE, pretrained, settings
    )
    return made


def _built(kind: type[VisionTransformer], architecture: str, pretrained: bool, settings: dict[str, Any]) -> Any:
    base = {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return build_model_with_cfg(
        kind, architecture, pretrained, pretrained_filter_fn=checkpoint_filter_fn, **{**base, **settings}
    )
