"""The dense head: a class for every pixel instead of one for the image.

It is the plainest there is (LSAMD's segmentation tasks name none): class token and registers are
dropped, the other tokens normed where the model has its final norm, put back on the patch grid,
read by a 1x1 convolution, and upsampled to the image. Its tensors are those of the class head, by
the same names, so that whatever handles a model's tensors handles these.

Shapes: B images, N tokens, D width, K classes, H x W pixels, h x w patches.
"""

from typing import Any

import torch
from torch.nn import functional


def dense_head(
    model: Any, x: torch.Tensor, pre_logits: bool = False, size: tuple[int, int] | None = None
) -> torch.Tensor:
    """Logits (B, K, H, W) of all tokens after the last block, (B, N, D); with `pre_logits` what the
    head reads, (B, N, D).

    `size` are the image's pixels (H, W), where they are not those that the timm model was made for.
    It is the method `forward_head` of dense models.
    """
    height, width = size or model.patch_embed.img_size
    patch_height, patch_width = model.patch_embed.patch_size
    read_BND: torch.Tensor = model.head_drop(model.fc_norm(x[:, model.num_prefix_tokens :]))
    if pre_logits:
        return read_BND
    # A 1x1 convolution, written as the linear layer that it is.
    grid = (height // patch_height, width // patch_width)
    logits_BKhw = model.head(read_BND).transpose(1, 2).unflatten(2, grid)
    return functional.interpolate(
        logits_BKhw, size=(height, width), mode="bilinear", align_corners=False
    )


def dense_forward(
    model: Any, x: torch.Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False
) -> torch.Tensor:
    """From images (B, C, H, W) to logits (B, K, H, W): the method `forward` of dense models."""
    height, width = x.shape[-2:]
    logits_BKHW: torch.Tensor = model.forward_head(
        model.forward_features(x, attn_mask, is_causal), size=(height, width)
    )
    return logits_BKHW
