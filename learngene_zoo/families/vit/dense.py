"""The dense head: timm's Vision Transformer, asked for a class of every pixel instead of one of the image.

The plainest there is (LSAMD's segmentation tasks name none): class token and registers are dropped, the other tokens
normed where the model norms last, put back in their places, read by a 1x1 convolution, and enlarged to the image. Its
tensors are those of the class head, by the same names, so that whatever handles a ViT's tensors handles these.

Importing this module makes the architecture known to timm, as importing timm's own modules does theirs.

Shapes: B images, N patches, D width, K classes, H x W pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch.nn import functional

from learngene_zoo.families.vit.timm_config import DENSE_ARCHITECTURE


class DenseVisionTransformer(VisionTransformer):
    """From images (B, C, H, W) to logits (B, K, H, W)."""

    def forward_head(
        self, x: torch.Tensor, pre_logits: bool = False, size: tuple[int, int] | None = None
    ) -> torch.Tensor:
        """Logits (B, K, H, W) of all tokens after the last block; with `pre_logits` what the head reads, (B, N, D).

        `size` are the image's pixels (H, W), where they are not those that the model was made for.
        """
        height, width = size or self.patch_embed.img_size
        patch_height, patch_width = self.patch_embed.patch_size
        x_BND = self.head_drop(self.fc_norm(x[:, self.num_prefix_tokens :]))
        if pre_logits:
            return x_BND
        # A 1x1 convolution, written as the linear layer that it is.
        grid = (height // patch_height, width // patch_width)
        logits_BKhw = self.head(x_BND).transpose(1, 2).unflatten(2, grid)
        return functional.interpolate(logits_BKhw, size=(height, width), mode="bilinear", align_corners=False)

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        """Logits (B, K, H, W)."""
        height, width = x.shape[-2:]
        return self.forward_head(self.forward_features(x, attn_mask, is_causal), size=(height, width))


default_cfgs = generate_default_cfgs(
    {DENSE_ARCHITECTURE: {"input_size": (3, 224, 224), "first_conv": "patch_embed.proj", "classifier": "head"}}
)


@register_model
def learngene_dense_vit(pretrained: bool = False, **settings: Any) -> DenseVisionTransformer:
    """A Vision Transformer with the dense head; of base size at 224 pixels where the settings do not say otherwise."""
    base = {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    made: DenseVisionTransformer = build_model_with_cfg(
        DenseVisionTransformer,
        DENSE_ARCHITECTURE,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        **{**base, **settings},
    )
    return made
