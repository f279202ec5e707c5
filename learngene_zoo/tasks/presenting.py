"""From images of any size to what a model expects: square, of the view's size and channels, and normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from learngene_zoo.errors import WrongCall
from learngene_zoo.view import View

LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601


def fitted(images: torch.Tensor | Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """uint8 (N, C, size, size): the shorter side resized to `size` (bicubic, antialiased), then the centre cut out."""
    if not isinstance(images, torch.Tensor):
        return torch.cat([fitted(image[None], size) for image in images])
    shape = _resized(images, size)
    if shape != images.shape[-2:]:
        # Image by image: a resized image must not depend on which others it came with.
        pieces = [
            functional.interpolate(image[None].float(), size=shape, mode="bicubic", antialias=True, align_corners=False)
            for image in images
        ]
        images = torch.cat(pieces).round_().clamp_(0, 255).to(torch.uint8) if pieces else images
    return _centre(images, size)


def fitted_masks(masks: torch.Tensor | Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """uint8 (N, size, size): resized and cut as their images are; each pixel takes the class of the nearest one."""
    if not isinstance(masks, torch.Tensor):
        return torch.cat([fitted_masks(mask[None], size) for mask in masks])
    shape = _resized(masks, size)
    if shape != masks.shape[-2:]:
        masks = functional.interpolate(masks[:, None], size=shape, mode="nearest-exact")[:, 0]
    return _centre(masks, size)


def _resized(images: torch.Tensor, size: int) -> tuple[int, int]:
    """Height and width once the shorter side is `size`."""
    height, width = images.shape[-2:]
    scale = size / min(height, width)
    return max(size, round(height * scale)), max(size, round(width * scale))


def _centre(images: torch.Tensor, size: int) -> torch.Tensor:
    height, width = images.shape[-2:]
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]


def normalised(images_NCHW: torch.Tensor, view: View) -> torch.Tensor:
    """float32 (N, view.channels, H, W): values 0 to 1, grey or colour as the view wants it, (value - mean) / std."""
    images = _with_channels(images_NCHW, view.channels)
    mean = torch.tensor(view.mean, dtype=torch.float32)[:, None, None] * 255
    std = torch.tensor(view.std, dtype=torch.float32)[:, None, None] * 255
    return images.to(torch.float32).sub_(mean).div_(std)


def _with_channels(images_NCHW: torch.Tensor, channels: int) -> torch.Tensor:
    got = images_NCHW.shape[1]
    if got == channels:
        return images_NCHW
    if got == 1:
        return images_NCHW.expand(-1, channels, -1, -1)
    if channels == 1 and got == 3:
        weights = torch.tensor(LUMINANCE)[:, None, None]
        return (images_NCHW.float() * weights).sum(dim=1, keepdim=True)
    raise WrongCall(
        f"images have {got} channels and the model wants {channels}; only 1 and 3 can be made of each other"
    )
