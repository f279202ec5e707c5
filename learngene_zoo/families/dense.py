"""The dense head, which predicts a class for every pixel instead of one for the image.

It is the simplest such head (LSAMD does not describe the head of its segmentation tasks). Class
token and registers are dropped. The other tokens are normalised if the model has a final norm,
arranged on the patch grid, passed through a 1x1 convolution, and upsampled to the image. The
tensors have the names and shapes of those of the class head, so that code for one also works for
the other.

Shapes: B images, N tokens, D width, K classes, H x W pixels, h x w patches.
"""

from typing import Any

import torch
from torch.nn import functional


def apply_dense_head(
    model: Any, x: torch.Tensor, pre_logits: bool = False, size: tuple[int, int] | None = None
) -> torch.Tensor:
    """Return logits (B, K, H, W) for the tokens after the last block.

    Dense models use this function as their method `forward_head`.

    Args:
        model: the dense model.
        x: all tokens after the last block, (B, N, D).
        pre_logits: return the input of the head, (B, patches, D), instead of the logits.
        size: height and width of the images in pixels, if they differ from the size that the timm
            model was built for.
    """
    height, width = size or model.patch_embed.img_size
    patch_height, patch_width = model.patch_embed.patch_size
    read_BND: torch.Tensor = model.head_drop(model.fc_norm(x[:, model.num_prefix_tokens :]))
    if pre_logits:
        return read_BND
    # A 1x1 convolution is a linear layer on every patch.
    grid = (height // patch_height, width // patch_width)
    logits_BKhw = model.head(read_BND).transpose(1, 2).unflatten(2, grid)
    return functional.interpolate(
        logits_BKhw, size=(height, width), mode="bilinear", align_corners=False
    )


def forward_dense(
    model: Any, x: torch.Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False
) -> torch.Tensor:
    """Return logits (B, K, H, W) for images (B, C, H, W).

    Dense models use this function as their method `forward`.
    """
    height, width = x.shape[-2:]
    logits_BKHW: torch.Tensor = model.forward_head(
        model.forward_features(x, attn_mask, is_causal), size=(height, width)
    )
    return logits_BKHW
