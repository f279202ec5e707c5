"""From an encoded image or a PIL image of any mode to uint8 (3, H, W).

From images of any size to what a model expects: square, of the view's size and channels, and normalised.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.spec import InputFormat

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def decoded(image: Any, where: str) -> torch.Tensor:
    """uint8 (3, H, W) of a path, bytes or {"bytes", "path"} as `datasets` stores them. Raises `BadData` naming `where`."""
    return torch.from_numpy(_read(image, where, _colour)).permute(2, 0, 1).contiguous()


def decoded_indices(image: Any, where: str) -> np.ndarray:
    """The stored values, int64 (H, W), of a grey or palette picture; int64 (H, W, 3) of a coloured one. Raises `BadData`."""
    return _read(image, where, _stored).astype(np.int64)


def _read(image: Any, where: str, convert: Callable[[Any], Any]) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    source = _source(image)
    if source is None:
        raise BadData(f"{where}: there is no image; remove the row")
    try:
        with Image.open(source) as opened:
            return np.array(convert(opened))
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadData(f"{where}: the image cannot be read ({_short(error)}); replace or remove it") from None


def _stored(image: Any) -> Any:
    """Palette indices and grey values as they are; anything else in colour."""
    return image if image.mode in ("P", "L", "1", "I", "I;16") else image.convert("RGB")


def _source(image: Any) -> Any:
    if isinstance(image, dict):
        image = image["bytes"] if image.get("bytes") is not None else image.get("path")
    return io.BytesIO(image) if isinstance(image, bytes) else Path(image) if isinstance(image, str) else image


def _colour(image: Any) -> Any:
    """RGB. Sixteen-bit grey keeps its high byte (PIL would clip it); what is transparent becomes white."""
    from PIL import Image

    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64)
        return Image.fromarray((grey >> 8 if grey.max() > 255 else grey).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, image).convert("RGB")
    return image.convert("RGB")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


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


def normalised(images_NCHW: torch.Tensor, input_format: InputFormat) -> torch.Tensor:
    """float32 (N, view.channels, H, W): values 0 to 1, grey or colour as the view wants it, (value - mean) / std."""
    images = _with_channels(images_NCHW, input_format.channels)
    mean = torch.tensor(input_format.mean, dtype=torch.float32)[:, None, None] * 255
    std = torch.tensor(input_format.std, dtype=torch.float32)[:, None, None] * 255
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
