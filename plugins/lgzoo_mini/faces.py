"""Draw the masks of `glyphs.npz` with matplotlib; `python -m lgzoo_mini.faces [FILE]` writes the
file.

Nothing else imports this module. The masks are stored in a file because their pixels depend on the
version of FreeType in matplotlib, and the images of a task must not change with it.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib import ft2font
from torch.nn import functional

from lgzoo_mini import motion, numbers, signs
from lgzoo_mini.glyphs import BOX, FACES, HELD_OUT, MARGIN, MASKS, TARGET, TASK_FACES, Drawing


def list_drawings() -> list[Drawing]:
    """Return all (face, text) pairs that the tasks of the suite draw, without duplicates."""
    sans = [*(sign.symbol for sign in signs.CLASSES), *motion.THINGS.values()]
    wanted = [
        *((face, letter) for letter in (*TARGET, *HELD_OUT) for face in TASK_FACES),
        *((face, mark) for mark in (*numbers.DIGITS, *numbers.LETTERS) for face in FACES),
        *(("Sans", text) for text in sans),
    ]
    return [
        (face, text) for face, text in dict.fromkeys(wanted) if _list_covered(face).issuperset(text)
    ]


def draw_mask(face: str, text: str) -> torch.Tensor:
    """Return the alpha mask of a short text, uint8 (BOX, BOX), scaled to fill the box.

    The mask is all zeros if the text has no ink.
    """
    font = _open_font(face)
    # Matplotlib warns of scripts it cannot shape; letters need no shaping
    with warnings.catch_warnings():
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
    size = tuple(max(1, round(side * scale)) for side in ink.shape)
    pixels = torch.from_numpy(ink.astype(np.float32))[None, None]
    fitted = functional.interpolate(
        pixels, size=size, mode="bilinear", antialias=True, align_corners=False
    )
    top, left = ((BOX - side) // 2 for side in size)
    inside = square[top : top + size[0], left : left + size[1]]
    inside.copy_(fitted[0, 0].round().clamp(0, 255).to(torch.uint8))
    return square


def write_masks(path: Path) -> None:
    """Write every mask with its face and text, and the version of FreeType that drew them."""
    drawings = list_drawings()
    np.savez_compressed(
        path,
        faces=np.array([face for face, _ in drawings]),
        texts=np.array([text for _, text in drawings]),
        masks=np.stack([draw_mask(*drawing).numpy() for drawing in drawings]),
        freetype=np.array(ft2font.__freetype_version__),
    )


@cache
def _open_font(face: str) -> Any:
    file = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{FACES[face]}.ttf")
    font = ft2font.FT2Font(str(file))
    font.set_size(BOX, 72)
    return font


@cache
def _list_covered(face: str) -> frozenset[str]:
    return frozenset(map(chr, _open_font(face).get_charmap()))


if __name__ == "__main__":
    write_masks(Path(sys.argv[1]) if len(sys.argv) > 1 else MASKS)
