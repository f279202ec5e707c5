"""From a stored image to what a model expects: decoded, checked against its task, resized to a square, and normalised."""

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.spec import InputFormat
from learngene_zoo.tasks.task import Attribute, Samples, Task

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
IGNORED = 255  # in a mask: a pixel that counts neither in training nor in evaluation
LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601


# Decoding.


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
    from PIL import Image, UnidentifiedImageError

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
    except (
        OSError,
        UnidentifiedImageError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
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


# Checking.


def checked(got: Any, task: Task, indices: Sequence[int]) -> Samples:
    """What a split of `task` returned for `indices`, as `Samples`.

    Raises `BadData` that names the image whose mask or attributes do not fit the task.
    """
    samples = got if isinstance(got, Samples) else Samples(got)
    if task.dense:
        _check_masks(samples, task, indices)
    if task.attributes:
        _check_attributes(samples.attributes, task, indices)
    return samples


def _check_masks(samples: Samples, task: Task, indices: Sequence[int]) -> None:
    masks = samples.masks
    if masks is None:
        raise BadData(f"{task.name} is a segmentation task, but its images come without masks")
    if isinstance(masks, torch.Tensor) and isinstance(samples.images, torch.Tensor):
        # All at once: one by one is slow for many small images.
        sized = masks.shape == (len(indices), *samples.images.shape[-2:])
        if sized and not _wrong(masks, task.classes).any():
            return
    for image, mask_HW, index in zip(samples.images, masks, indices, strict=True):
        where = f"image {index} of {task.name}"
        if mask_HW.shape != image.shape[-2:]:
            raise BadData(f"{where} has {_pixels(image.shape[-2:])} pixels and its mask {_pixels(mask_HW.shape)}")
        wrong = mask_HW[_wrong(mask_HW, task.classes)]
        if len(wrong):
            raise BadData(
                f"the mask of {where} holds {int(wrong[0])}; expected 0 to {task.classes - 1}, or {IGNORED} where a pixel "
                "does not count"
            )


def _wrong(masks: torch.Tensor, classes: int) -> torch.Tensor:
    return (masks >= classes) & (masks != IGNORED)


def _pixels(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _check_attributes(attributes_NA: torch.Tensor | None, task: Task, indices: Sequence[int]) -> None:
    expected = (len(indices), len(task.attributes))
    if attributes_NA is None or tuple(attributes_NA.shape) != expected:
        got = "none" if attributes_NA is None else f"a table of shape {tuple(attributes_NA.shape)}"
        raise BadData(f"{task.name} promises attributes of shape {expected}, got {got}")
    for attribute, values_N in zip(task.attributes, attributes_NA.unbind(dim=1)):
        wrong_N = _impossible(attribute, values_N)
        if wrong_N.any():
            first = int(wrong_N.nonzero()[0])
            value = f"one of 0 to {attribute.classes - 1}" if attribute.classes else "a finite number"
            raise BadData(
                f"image {indices[first]} of {task.name} has {attribute.name} {float(values_N[first])}; "
                f"expected {value}, or NaN"
            )


def _impossible(attribute: Attribute, values_N: torch.Tensor) -> torch.Tensor:
    """Which values an attribute cannot have: bool (N,)."""
    if attribute.classes is None:
        return values_N.isinf()
    known_N = values_N.nan_to_num()
    return (known_N < 0) | (known_N >= attribute.classes) | (known_N != known_N.floor())


# Resizing and normalising.


def fitted(images: torch.Tensor | Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """uint8 (N, C, size, size): the shorter side resized to `size` (bicubic, antialiased), then the centre cropped."""
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
    """uint8 (N, size, size): resized and cropped as their images are; each pixel takes the class of the nearest one."""
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
    """float32 (N, channels, H, W): values scaled to 0 to 1, in grey or colour as the format says, then (value - mean) / std."""
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
    raise WrongCall(f"the images have {got} channels and the model expects {channels}; only 1 and 3 can be converted")
