"""What a Vision Transformer costs, by closed form: parameters, and FLOPs of one image. Cold.

Three conventions, because the papers differ (one FLOP is one multiply-add in all of them):

`exact`   (the default) convolutions, linear layers and attention's two matrix products; 5 per element of every
          LayerNorm, 4 per number of a bilinear enlargement; nothing for softmax, GELU and additions. Every parameter
          of the built model counts.
`fvcore`  the same, as Learngene Pool and SN-Net published it: their code counts of stitched models neither class token
          and positions among the parameters, nor the last norm, which it leaves out, among the FLOPs; the last norm's
          parameters it counts.
`thop`    (LSAMD) convolutions and linear layers; 4 per element of every LayerNorm; attention's two products are not
          seen, nor are enlargements. Nor are bare parameters: class token, registers, position embedding, layer scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from learngene_zoo.families.vit.spec import ViTSpec

Convention = Literal["exact", "fvcore", "thop"]
_NORM = {"exact": 5, "fvcore": 5, "thop": 4}
_ENLARGED = {"exact": 4, "fvcore": 4, "thop": 0}


@dataclass(frozen=True, order=True)
class Cost:
    """Parameters of a model and FLOPs of one forward pass over one image."""

    params: int
    flops: int


def cost(spec: ViTSpec, convention: Convention = "exact") -> Cost:
    """Parameters and FLOPs of the model `spec` describes."""
    return Cost(params(spec, convention), flops(spec, convention))


def params(spec: ViTSpec, convention: Convention = "exact") -> int:
    """Parameters of the whole model; under `thop` without class token, registers, position embedding, layer scales."""
    segments = spec.segments
    blocks = sum(segment.layers * block_params(segment) for segment in segments)
    stitches = sum(stitch_params(*two) for two in pairwise(segments))
    whole = stem_params(spec.first) + blocks + stitches + tail_params(spec)
    if convention == "fvcore" and spec.front:
        return whole - _token_params(spec.first) + (0 if spec.final_norm else 2 * spec.width)
    if convention == "thop":
        scales = sum(segment.layers * _scale_params(segment) for segment in segments)
        return whole - _token_params(spec.first) - scales
    return whole


def flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """Multiply-adds of one image through the whole model."""
    segments = spec.segments
    blocks = sum(segment.layers * block_flops(segment, convention) for segment in segments)
    stitches = sum(stitch_flops(*two) for two in pairwise(segments))
    normed = spec.with_(final_norm=False) if convention == "fvcore" and spec.front else spec
    return stem_flops(spec.first, convention) + blocks + stitches + tail_flops(normed, convention)


def _token_params(spec: ViTSpec) -> int:
    return (spec.prefix_tokens + spec.positions) * spec.width


def _scale_params(spec: ViTSpec) -> int:
    return 2 * spec.width if spec.layer_scale is not None else 0


def stem_params(spec: ViTSpec) -> int:
    """Patch embedding, class token, registers, position embedding and the norm before the blocks, if there is one."""
    d, patch = spec.width, spec.channels * spec.patch_size**2
    bias = 0 if spec.pre_norm else d
    return patch * d + bias + _token_params(spec) + (2 * d if spec.pre_norm else 0)


def block_params(spec: ViTSpec) -> int:
    """One block: two norms, attention, MLP; 12 d^2 + 13 d at an MLP ratio of 4 with biases everywhere."""
    d, hidden = spec.width, spec.hidden
    attention = 3 * d * d + (3 * d if spec.qkv_bias else 0) + d * d + (d if spec.proj_bias else 0)
    mlp = 2 * d * hidden + (hidden + d if spec.proj_bias else 0)
    qk_norm = 4 * spec.head_width if spec.qk_norm else 0
    return 4 * d + attention + mlp + qk_norm + _scale_params(spec)


def stitch_params(before: ViTSpec, after: ViTSpec) -> int:
    """A linear layer with bias from one segment's width to the next one's."""
    return before.width * after.width + after.width


def tail_params(spec: ViTSpec) -> int:
    """The final norm and the head."""
    d = spec.width
    return (2 * d if spec.final_norm else 0) + (d * spec.classes + spec.classes if spec.classes else 0)


def stem_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """The patch embedding, and the norm before the blocks if there is one."""
    embed = spec.patches * spec.channels * spec.patch_size**2 * spec.width
    return embed + (_NORM[convention] * spec.tokens * spec.width if spec.pre_norm else 0)


def block_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """One block over all tokens."""
    n, d = spec.tokens, spec.width
    linear = n * (4 * d * d + 2 * d * spec.hidden)
    attention = 0 if convention == "thop" else 2 * n * n * d
    norms = _NORM[convention] * n * d * (4 if spec.qk_norm else 2)
    return linear + attention + norms


def stitch_flops(before: ViTSpec, after: ViTSpec) -> int:
    """A stitch over all tokens."""
    return after.tokens * before.width * after.width


def tail_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """The final norm, over all tokens or over what the head sees, and the head.

    The head sees the pooled token; if the model is dense every patch, and its answers are then enlarged to the image.
    """
    seen = spec.patches if spec.dense else 1
    normed = spec.tokens if spec.norms_before_pool else seen if spec.norms_after_pool else 0
    enlarged = (spec.classes or spec.width) * spec.image_size**2 if spec.dense else 0
    return _NORM[convention] * normed * spec.width + seen * spec.classes * spec.width + _ENLARGED[convention] * enlarged
