"""FLOPs of one image through a Vision Transformer, by closed form. The conventions are those of `families.cost`."""

from itertools import pairwise

from learngene_zoo.families.cost import NORM_FLOPS, UPSAMPLING_FLOPS, Convention
from learngene_zoo.families.vit.spec import ViTSpec


def flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """Multiply-adds of one image through the whole model."""
    segments = spec.segments
    blocks = sum(segment.layers * block_flops(segment, convention) for segment in segments)
    stitches = sum(after.tokens * before.width * after.width for before, after in pairwise(segments))
    normed = spec.with_(final_norm=False) if convention == "fvcore" and spec.stitched else spec
    return stem_flops(spec.first, convention) + blocks + stitches + tail_flops(normed, convention)


def stem_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """The patch embedding, and the norm before the blocks if there is one."""
    embed = spec.patches * spec.channels * spec.patch_size**2 * spec.width
    return embed + (NORM_FLOPS[convention] * spec.tokens * spec.width if spec.pre_norm else 0)


def block_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """One block over all tokens."""
    n, d = spec.tokens, spec.width
    linear = n * (4 * d * d + 2 * d * spec.hidden)
    attention = 0 if convention == "thop" else 2 * n * n * d
    norms = NORM_FLOPS[convention] * n * d * (4 if spec.qk_norm else 2)
    return linear + attention + norms


def tail_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """The final norm, over all tokens or over what the head sees, and the head.

    The head sees the pooled token; in a dense model every patch, and its logits are then upsampled to the image.
    """
    seen = spec.patches if spec.dense else 1
    normed = spec.tokens if spec.norms_before_pool else seen if spec.norms_after_pool else 0
    upsampled = (spec.classes or spec.width) * spec.image_size**2 if spec.dense else 0
    head = seen * spec.classes * spec.width
    return NORM_FLOPS[convention] * normed * spec.width + head + UPSAMPLING_FLOPS[convention] * upsampled
