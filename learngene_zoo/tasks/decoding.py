"""From an encoded image or a PIL image of any mode to uint8 (3, H, W)."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learngene_zoo.errors import BadData

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
