"""Decode stored images to RGB or to the classes of a mask.

The size in a file's header is checked before anything is decoded. Of an animation only the first
frame is used.
"""

from __future__ import annotations

import io
import math
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.task import Sample, Samples

if TYPE_CHECKING:
    import torch

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
MAX_ASPECT_RATIO = 100  # longer side / shorter side
ENDS = (0.5, 99.5)  # percentiles that become black and white if the bits in use are not known
MAX_COUNTED = 1_000_000  # values used for the percentiles, evenly spaced
ROWS_PER_BLOCK = 256  # rows that are scaled at a time
DEEP_NOTE = (
    "grey of more than 8 bits; such images are scaled by the bits in use, else by percentiles "
    "(docs/tasks.md)"
)
TRANSPARENT_NOTE = (
    "transparent parts, which become white; programs that only drop the transparency get other "
    "pixels and other predictions (docs/tasks.md)"
)
# Pillow's errors for broken files, which include those of its decoders.
UNREADABLE = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, AttributeError,
    OverflowError, RuntimeError, MemoryError, ZeroDivisionError, AssertionError, struct.error,
    zlib.error,
)  # fmt: skip
ORIENTATION = 0x0112  # EXIF's tag
# The EXIF orientation -> the number of PIL's transposition that undoes it
TURNS = {
    2: 0,
    3: 3,
    4: 1,
    5: 5,
    6: 4,
    7: 6,
    8: 2,
}


@dataclass(frozen=True)
class StoredImage:
    """An image as stored in a row of a table: its bytes, or the path of a file.

    A row must not choose which files of this machine are opened, so a path is used only if it leads
    to a file below one of `folders` after resolving links; a relative path is relative to them.
    """

    data: Any
    path: Any = None
    folders: tuple[Path, ...] = ()

    def open_source(self, where: str) -> bytes | Path | None:
        """Return the bytes, or the path of the file; None if the row has neither.

        Raises `BadData` that names `where`.
        """
        if self.data is not None:
            if isinstance(self.data, (bytes, bytearray, memoryview)):
                return bytes(self.data)
            raise BadData(f"{where}: its bytes are of type {type(self.data).__name__}; store bytes")
        if self.path is None:
            return None
        if isinstance(self.path, str) and not _is_address(self.path):
            for folder in self.folders:
                file = _resolve_below(folder, self.path)
                if file is not None:
                    return file
        below = (
            f"that lie below {self.folders[0]}" if self.folders else "whose bytes are in the row"
        )
        raise BadData(
            f"{where}: its image is the file {str(self.path)!r:.120}, and rows may only name "
            "images "
            f"{below}; store the bytes"
        )


def make_stored_image(stored: Any, folders: tuple[Path, ...] = ()) -> StoredImage:
    """Convert a value of an image column: bytes, a path, or {"bytes", "path"} of `datasets`."""
    if isinstance(stored, dict):
        return StoredImage(stored.get("bytes"), stored.get("path"), folders)
    return StoredImage(None, stored, folders) if isinstance(stored, str) else StoredImage(stored)


def _is_address(path: str) -> bool:
    """Return whether a path is a URL of any scheme, or a chained URL of fsspec."""
    return any(sign in path for sign in ("://", "::", "\0"))


def _resolve_below(folder: Path, path: str) -> Path | None:
    """Return the file at a path if it lies below a folder after resolving links, else None."""
    if ".." in Path(path).parts:
        return None
    try:
        top = folder.resolve(strict=True)
        file = (top / path).resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    return file if file.is_relative_to(top) else None


def decode_samples(samples: Iterable[Sample]) -> list[torch.Tensor] | Samples:
    """Return the images, uint8 (3, H, W) each, with masks uint8 (H, W) if there are any.

    Raises `BadData` that names the sample.
    """
    images, masks = [], []
    for sample in samples:
        images.append(decode_image(sample.image, sample.where))
        if sample.mask is not None:
            masks.append(decode_mask(sample.mask, sample.where))
    return Samples(images, masks) if masks else images


def decode_image(image: Any, where: str) -> torch.Tensor:
    """Decode a path, bytes, a `StoredImage` or an image of Pillow to uint8 (3, H, W).

    Raises `BadData` that names `where`.
    """
    import torch

    return torch.from_numpy(_read(image, where, _convert_to_rgb)).permute(2, 0, 1).contiguous()


def is_deep_grey(image: Any, where: str) -> bool:
    """Return whether an image stores grey of more than 8 bits, without decoding it.

    Raises `BadData`.
    """
    return bool(_read(image, where, lambda opened: _is_deep(opened.mode)))


def describe_deep_grey(samples: Iterable[Sample]) -> str:
    """Return a note about the first image that stores grey of more than 8 bits, else ""."""
    for sample in samples:
        with suppress(BadData):  # the error is raised when the image is read
            if is_deep_grey(sample.image, sample.where):
                return f"{sample.where} is {DEEP_NOTE}"
    return ""


def describe_transparency(samples: Sequence[Sample]) -> str:
    """Return a note about the images with transparent parts, which names the first; else ""."""
    names = [sample.where for sample in samples if _has_transparency(sample)]
    if not names:
        return ""
    if len(names) == 1:
        return f"{names[0]} has {TRANSPARENT_NOTE}"
    return (
        f"{len(names)} of {len(samples)} images looked at, among them {names[0]}, have "
        f"{TRANSPARENT_NOTE}"
    )


def _has_transparency(sample: Sample) -> bool:
    with suppress(BadData):  # the error is raised when the image is read
        return bool(_read(sample.image, sample.where, _is_transparent))
    return False


def _is_transparent(image: Any) -> bool:
    """Return whether any pixel of an opened image is transparent; opaque ones are not decoded."""
    if _is_deep(image.mode) or not _has_alpha(image):
        return False
    if image.mode == "La":
        image = image.convert("LA")
    return bool(image.convert("RGBA").getextrema()[3][0] < 255)


def _has_alpha(image: Any) -> bool:
    """Return whether an image has an alpha channel, or a transparent colour."""
    return image.mode in ("RGBA", "RGBa", "LA", "PA") or "transparency" in image.info


def _is_deep(mode: str) -> bool:
    return mode == "F" or mode.startswith("I")


def read_size(image: Any, where: str) -> tuple[int, int]:
    """Return the width and height in the file's header, without decoding the image.

    Raises `BadData` that names `where`.
    """
    width, height = _read(image, where, lambda opened: opened.size)
    return int(width), int(height)


def decode_indices(image: Any, where: str) -> np.ndarray:
    """Return the stored values of a grey or palette image, int64 (H, W).

    Of a colour image they are int64 (H, W, 3). Raises `BadData` that names `where`.
    """
    return _read(image, where, _keep_mode).astype(np.int64)


def decode_mask(image: Any, where: str) -> torch.Tensor:
    """Return the classes in a grey or palette image, uint8 (H, W).

    Raises `BadData` that names `where`.
    """
    import torch

    values_HW = decode_indices(image, where)
    if values_HW.ndim == 3 or values_HW.max(initial=0) > 255:
        raise BadData(
            f"{where}: the mask is an image in colour or of 16 bits; store one class per pixel, "
            "in grey or a palette"
        )
    return torch.from_numpy(values_HW.astype(np.uint8))


def _read(image: Any, where: str, convert: Callable[[Any], Any]) -> np.ndarray:
    from PIL import Image

    source = open_source(image, where)
    if source is None:
        raise BadData(f"{where}: there is no image; remove the row")
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    if isinstance(source, Path) and not source.is_file():  # opening a pipe would block
        raise BadData(f"{where}: it is missing or not a file; replace or remove it")
    try:
        with warnings.catch_warnings():
            # 89 megapixels; raised before decoding
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)  # about metadata that PIL cannot read
            with (
                nullcontext(source) if isinstance(source, Image.Image) else Image.open(source)
            ) as opened:
                _check_sides(opened.size, where)
                return np.array(convert(opened))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        size = next((int(word) for word in re.findall(r"\d+", str(error))), 0)
        raise BadData(
            f"{where}: the image is too large ({size / 1e6:.0f} million pixels by its header, at "
            "most 89 are read); make it smaller or remove it"
        ) from None
    except UNREADABLE as error:
        message = str(error).replace(f" {source!r}", "")  # for bytes: an address in memory
        reason = " ".join(message.split())[:120] or type(error).__name__
        raise BadData(
            f"{where}: the image cannot be read ({reason}); replace or remove it"
        ) from None


def _check_sides(size: tuple[int, int], where: str) -> None:
    """Check that an image is not a very long strip, which would take gigabytes when resized."""
    width, height = size
    if max(size) > MAX_ASPECT_RATIO * max(1, min(size)):
        raise BadData(
            f"{where}: the image is {width} x {height} pixels, and one side may be at most "
            f"{MAX_ASPECT_RATIO} times the "
            "other; crop it or remove it"
        )


def _keep_mode(image: Any) -> Any:
    """Return palette indices and grey values unchanged; anything else as RGB."""
    image = _apply_orientation(image)
    return image if image.mode in ("P", "L", "1") or _is_deep(image.mode) else image.convert("RGB")


def open_source(image: Any, where: str) -> Any:
    """Return the argument for Pillow: bytes, or a path.

    Raises `BadData` for a row that names a file outside its folders.
    """
    if isinstance(image, dict):
        image = make_stored_image(image)
    if isinstance(image, StoredImage):
        return image.open_source(where)
    return Path(image) if isinstance(image, str) else image


def _convert_to_rgb(image: Any) -> Any:
    """Return RGB with EXIF orientation applied and transparency composited on white."""
    from PIL import Image

    image = _apply_orientation(image)
    if _is_deep(image.mode):
        return _convert_deep_grey(image)
    if image.mode == "CMYK":
        return _convert_cmyk(image)
    if image.mode == "La":
        image = image.convert("LA")
    if _has_alpha(image):
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, image).convert("RGB")
    return image.convert("RGB")


def _apply_orientation(image: Any) -> Any:
    """Return the image rotated by its EXIF orientation; unchanged if the EXIF data is broken."""
    from PIL import Image

    image.load()  # also rotates a TIFF
    try:
        orientation = image.getexif().get(ORIENTATION)
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error):
        return image
    return image.transpose(Image.Transpose(TURNS[orientation])) if orientation in TURNS else image


def _convert_deep_grey(image: Any) -> Any:
    """Convert grey of more than 8 bits to RGB by `scale_grey`; transparent pixels are white."""
    from PIL import Image

    grey_HW = np.asarray(image)
    levels_HW = scale_grey(grey_HW)
    clear = image.info.get("transparency") if image.mode != "F" else None
    if isinstance(clear, int):  # the value of transparent pixels
        levels_HW[grey_HW == clear] = 255
    return Image.fromarray(levels_HW).convert("RGB")


def scale_grey(grey_HW: np.ndarray) -> np.ndarray:
    """Scale grey of more than 8 bits to uint8 (H, W), as a function of this image alone.

    Integers from 0 to 65,535 are scaled by the bits in use: the 8 highest of the bits of the
    largest value are kept, so that 12-bit values in a 16-bit file use the full range, and 8-bit
    values are unchanged. Fractions from 0 to 1 are scaled to 255, and fractions up to 255 are
    unchanged. If values are negative, larger, or fractions whose largest is below 1/16 or from 1 to
    16, the percentiles `ENDS` become 0 and 255. NaN and -inf count as the smallest value, inf as
    the largest.
    """
    finite_N = grey_HW[np.isfinite(grey_HW)]
    levels_HW = np.zeros(grey_HW.shape, dtype=np.uint8)
    if not finite_N.size:
        return levels_HW
    low, high = float(finite_N.min()), float(finite_N.max())
    black, white = _find_ends(finite_N, low, high)
    scale = 255 / ((white - black) or 1.0)
    # Some rows at a time, as float64 takes eight bytes for each value
    for first in range(0, len(grey_HW), ROWS_PER_BLOCK):
        rows_RW = grey_HW[first : first + ROWS_PER_BLOCK].astype(np.float64)
        rows_RW = np.nan_to_num(rows_RW, nan=low, posinf=high, neginf=low) - black
        scaled_RW = rows_RW * scale
        whole_RW = np.floor(scaled_RW) if grey_HW.dtype.kind in "iu" else np.round(scaled_RW)
        levels_HW[first : first + ROWS_PER_BLOCK] = whole_RW.clip(0, 255)
    return levels_HW


def _find_ends(values_N: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Return the values that become the levels 0 and 255, as described in `scale_grey`."""
    if low >= 0 and values_N.dtype.kind in "iu" and high <= 65_535:
        return 0.0, 255.0 * 2 ** max(int(high).bit_length() - 8, 0)
    if low >= 0 and 1 / 16 <= high <= 1:
        return 0.0, 1.0
    if low >= 0 and 16 <= high <= 255:
        return 0.0, 255.0
    sampled_N = values_N[:: math.ceil(len(values_N) / MAX_COUNTED)].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        black, white = map(float, np.percentile(sampled_N, ENDS))
    return (black, white) if black < white < math.inf else (low, high)  # nearly constant image


def _convert_cmyk(image: Any) -> Any:
    """Convert CMYK to RGB with the image's colour profile, or by PIL's formula without one."""
    from PIL import ImageCms

    profile = image.info.get("icc_profile")
    if profile:
        # A profile that cannot be read, or is not for CMYK, is ignored
        with suppress(ImageCms.PyCMSError, OSError):
            inks = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            return ImageCms.profileToProfile(
                image, inks, ImageCms.createProfile("sRGB"), outputMode="RGB"
            )
    return image.convert("RGB")
