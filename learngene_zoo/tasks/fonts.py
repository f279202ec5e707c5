"""Glyphs of matplotlib's DejaVu faces as alpha masks: real outlines, on every machine the zoo runs on.

Masks are square and every glyph fills its mask, so size tells nothing: what is left is the shape.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

Drawing = tuple[str, str]  # a face and a text

BOX = 48  # pixels of a mask's side
MARGIN = 3

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
