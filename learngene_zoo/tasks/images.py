"""Images as they are stored, decoded: in colour, or the classes of a mask."""

import io
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.task import Sample, Samples

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def read(samples: Iterable[Sample]) -> list[torch.Tensor] | Samples:
    """uint8 (3, H, W) each, with uint8 (H, W) masks if they have some. Raises `BadData` that names the sample."""
    images, masks = [], []
    for sample in samples:
        images.append(decoded(sample.image, sample.where))
        if sample.mask is not None:
            masks.append(decoded_mask(sample.mask, sample.where))
    return Samples(images, masks) if masks else images


def decoded(image: Any, where: str) -> torch.Tensor:
    """uint8 (3, H, W) of a path, bytes, or {"bytes", "path"} as `datasets` stores it. Raises `BadData` naming `where`."""
    return torch.from_numpy(_read(image, where, _colour)).permute(2, 0, 1).contiguous()


def decoded_indices(image: Any, where: str) -> np.ndarray:
    """The stored values of a grey or palette picture, int64 (H, W); of one in colour, int64 (H, W, 3). Raises `BadData`."""
    return _read(image, where, _stored).astype(np.int64)


def decoded_mask(image: Any, where: str) -> torch.Tensor:
    """The classes in a grey or palette picture, uint8 (H, W). Raises `BadData` naming `where`."""
    values_HW = decoded_indices(image, where)
    if values_HW.ndim == 3 or values_HW.max(initial=0) > 255:
        raise BadData(
            f"{where}: the mask is a picture in colour or 16 bits; store one class a pixel, in grey or a palette"
        )
    return torch.from_numpy(values_HW.astype(np.uint8))


def _read(image: Any, where: str, convert: Callable[[Any], Any]) -> np.ndarray:
    from PIL import Image

    source = _source(image)
    if source is None:
        raise BadData(f"{where}: there is no image; remove the row")
    if isinstance(source, Path) and not source.is_file():  # a pipe would be waited for
        raise BadData(f"{where}: it is missing or not a file; replace or remove it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)  # 89 megapixels; raised before decoding
            with Image.open(source) as opened:
                return np.array(convert(opened))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise BadData(f"{where}: the image cannot be read ({reason}); replace or remove it") from None


def _stored(image: Any) -> Any:
    """Palette indices and grey values as they are; anything else in colour."""
    return image if image.mode in ("P", "L", "1", "I", "I;16") else image.convert("RGB")


def _source(image: Any) -> Any:
    if isinstance(image, dict):
        image = image["bytes"] if image.get("bytes") is not None else image.get("path")
    return io.BytesIO(image) if isinstance(image, bytes) else Path(image) if isinstance(image, str) else image


def _colour(image: Any) -> Any:
    """RGB. Sixteen-bit grey keeps its high byte (PIL would clip it); transparent pixels become white."""
    from PIL import Image

    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64)
        return Image.fromarray((grey >> 8 if grey.max() > 255 else grey).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, image).convert("RGB")
    return image.convert("RGB")
