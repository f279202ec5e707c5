"""Stamps: masks that are drawn beforehand, among them glyphs of matplotlib's DejaVu faces, and put into the frames of N pictures.

The faces give real outlines on every machine. A mask is square and its glyph fills it, so that the size gives nothing away: what
is left is the shape. Shapes: N pictures, M masks, C layers of a mask, B pixels of its side; the rest as in `canvas`.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch.nn import functional

from lgzoo_mini.canvas import Frame, pose
from lgzoo_mini.generator import SIZE

Drawing = tuple[str, str]  # a face and a text
BOX = 48  # pixels of a glyph's mask, before it is resized
MARGIN = 3  # empty pixels around the glyph
RIM = 2  # of which these are cut off before it is resized
SANS, SERIF, MONO = "DejaVuSans", "DejaVuSerif", "DejaVuSansMono"

FACES = {
    "Sans": SANS,
    "Sans Bold": f"{SANS}-Bold",
    "Sans Oblique": f"{SANS}-Oblique",
    "Sans Bold Oblique": f"{SANS}-BoldOblique",
    "Serif": SERIF,
    "Serif Bold": f"{SERIF}-Bold",
    "Serif Italic": f"{SERIF}-Italic",
    "Serif Bold Italic": f"{SERIF}-BoldItalic",
    "Mono": MONO,
    "Mono Bold": f"{MONO}-Bold",
    "Mono Oblique": f"{MONO}-Oblique",
    "Mono Bold Oblique": f"{MONO}-BoldOblique",
}


@cache
def _font(face: str) -> Any:
    import matplotlib
    from matplotlib.ft2font import FT2Font

    font = FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{FACES[face]}.ttf")))
    font.set_size(BOX, 72)
    return font


@cache
def covered(face: str) -> frozenset[str]:
    """The characters this face has a glyph for."""
    return frozenset(map(chr, _font(face).get_charmap()))


def in_faces(text: str, faces: Sequence[str]) -> list[Drawing]:
    """The text in each face that has all its characters."""
    return [(face, text) for face in faces if covered(face).issuperset(text)]


def mask(face: str, text: str) -> torch.Tensor:
    """The alpha mask of a short text, uint8 (BOX, BOX), as large as fits. All zero if nothing is drawn."""
    font = _font(face)
    with warnings.catch_warnings():  # matplotlib warns of scripts it cannot shape; single letters need no shaping
        warnings.simplefilter("ignore")
        font.set_text(text)
    font.draw_glyphs_to_bitmap(antialiased=True)
    ink = np.asarray(font.get_image())
    rows, columns = np.nonzero(ink)
    square = torch.zeros(BOX, BOX, dtype=torch.uint8)
    if not len(rows):
        return square
    ink = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    scale = (BOX - 2 * MARGIN) / max(ink.shape)
    height, width = (max(1, round(side * scale)) for side in ink.shape)
    pixels = torch.from_numpy(ink.astype(np.float32))[None, None]
    fitted = functional.interpolate(pixels, size=(height, width), mode="bilinear", antialias=True, align_corners=False)[
        0, 0
    ]
    top, left = (BOX - height) // 2, (BOX - width) // 2
    square[top : top + height, left : left + width] = fitted.round().clamp(0, 255).to(torch.uint8)
    return square


class Placed(TypedDict):
    """Where a thing lies, float32 (N,) each: settings of `canvas.frame`."""

    x: np.ndarray
    y: np.ndarray
    size: np.ndarray
    angle: np.ndarray


class Pose(Placed, total=False):
    """And how it is deformed."""

    stretch: np.ndarray
    shear: np.ndarray
    tilt_x: np.ndarray
    tilt_y: np.ndarray


def attributes_of(where: Placed) -> dict[str, np.ndarray]:
    """The attributes that say where a thing with a head lies."""
    return pose(where["x"], where["y"], where["size"], where["angle"])


def drawn(drawing: Drawing, side: int) -> torch.Tensor:
    """The mask of one text in one face, uint8 (side, side)."""
    ink = mask(*drawing)[RIM : BOX - RIM, RIM : BOX - RIM].float()[None, None]
    small = functional.interpolate(ink, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
    return small[0, 0].round_().clamp_(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Stamps:
    """Masks uint8 (M, B, B), a few of every class; for each class its first mask and how many it has."""

    masks: torch.Tensor
    first: np.ndarray
    counts: np.ndarray

    def chosen(self, classes_N: np.ndarray, shares_N: np.ndarray) -> torch.Tensor:
        """A mask of each class, float32 (N, 1, B, B); the share, 0 to 1, chooses among them."""
        places_N = self.first[classes_N] + (shares_N * self.counts[classes_N]).astype(np.int64)
        return self.masks[torch.from_numpy(places_N)][:, None].float().mul_(1 / 255)


def stamps(drawings: Sequence[Sequence[Drawing]], side: int) -> Stamps:
    """The masks of what each class may be drawn as."""
    counts = np.array([len(row) for row in drawings])
    masks = torch.stack([drawn(drawing, side) for row in drawings for drawing in row])
    return Stamps(masks, np.cumsum(counts) - counts, counts)


def stamped(masks: torch.Tensor, place: Frame) -> np.ndarray:
    """The coverage of each pixel, float32 (N, C, SIZE, SIZE), by masks (N, C, B, B) that fill their frames."""
    grid = np.empty((len(masks), SIZE, SIZE, 2), dtype=np.float32)
    grid[..., 0], grid[..., 1] = place.x, place.y
    return functional.grid_sample(
        masks, torch.from_numpy(grid), mode="bilinear", padding_mode="zeros", align_corners=False
    ).numpy()
