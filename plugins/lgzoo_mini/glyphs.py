"""Glyphs as masks, and the task `glyphs`: classify 300 letters of seven alphabets, as if written on
paper. Counterpart of Omniglot.

Each mask was drawn with one of the DejaVu faces in matplotlib (`faces.py`) and is stored in
`glyphs.npz` (`glyphs.LICENSE.txt`). Masks are square and filled by their glyph, so that only the
shape, not the size, tells the classes apart. `signs`, `numbers` and `motion` use masks too.

The task has up to seven faces, rotated, stretched, sheared and shifted; mostly dark ink on light
paper. The 116 held-out letters are of six other alphabets, so that `source` contains no letter of
the target task.

The letters were chosen from those of DejaVu Sans, in a shuffled order, so that at 32 pixels no two
look alike. On masks of 16 x 16 pixels the cosine of two target letters is below 0.8; of a held-out
letter and any other below 0.86, and of a held-out and a target letter also when both are stretched
to fill their box; of a held-out letter and a digit of any face, turned and stretched or not, below
0.83. Held-out letters that still resemble a digit or a Latin letter were removed by eye. The choice
is written in this file, not computed, so that the classes never change.

Shapes: N images, M masks, B pixels of a mask's side; the rest as in `canvas`.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from lgzoo_mini.painting.canvas import Dice, blur, finish, gradient, hsv, hues, over
from lgzoo_mini.painting.shapes import Pose, frame, pose, stamp_masks
from lgzoo_mini.suite import Generator, Picture

Drawing = tuple[str, str]  # a face and a text
BOX = 48  # side of a glyph's mask in pixels, before it is resized
MARGIN = 3  # empty pixels around the glyph
RIM = 2  # of these, the pixels that are cut off before resizing
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
TASK_FACES = ("Sans", "Sans Bold", "Sans Oblique", "Serif", "Serif Bold", "Mono", "Mono Bold")
SIDE = 32  # side of a letter's mask in pixels, about the size at which it is painted
CALM = 0.6  # factor on the variation of the pose of target letters
MASKS = Path(__file__).with_suffix(".npz")


@cache
def _masks() -> dict[Drawing, torch.Tensor]:
    """Load the masks of all (face, text) pairs that the suite draws, uint8 (BOX, BOX) each."""
    with np.load(MASKS, allow_pickle=False) as stored:
        drawings = zip(stored["faces"].tolist(), stored["texts"].tolist(), strict=True)
        return dict(zip(drawings, torch.from_numpy(stored["masks"]), strict=True))


def in_faces(text: str, faces: Sequence[str]) -> list[Drawing]:
    """Return the text paired with each face that has all its characters."""
    return [(face, text) for face in faces if (face, text) in _masks()]


def mask(face: str, text: str) -> torch.Tensor:
    """Return the alpha mask of a short text, uint8 (BOX, BOX), scaled to fill the box.

    Raises `KeyError` for a text that no task of the suite draws in that face; such a text is added
    in `faces.list_drawings`.
    """
    return _masks()[face, text]


def draw_glyph(drawing: Drawing, side: int) -> torch.Tensor:
    """Return the mask of a text in a face, uint8 (side, side)."""
    ink = mask(*drawing)[RIM : BOX - RIM, RIM : BOX - RIM].float()[None, None]
    small = functional.interpolate(
        ink, size=(side, side), mode="bilinear", antialias=True, align_corners=False
    )
    return small[0, 0].round_().clamp_(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Stamps:
    """Masks uint8 (M, B, B), a few for every class.

    `first` holds the index of the first mask of each class, `counts` the number of its masks.
    """

    masks: torch.Tensor
    first: np.ndarray
    counts: np.ndarray

    def chosen(self, classes_N: np.ndarray, shares_N: np.ndarray) -> torch.Tensor:
        """Return a mask of each class, float32 (N, 1, B, B), selected by the shares, 0 to 1."""
        places_N = self.first[classes_N] + (shares_N * self.counts[classes_N]).astype(np.int64)
        return self.masks[torch.from_numpy(places_N)][:, None].float().mul_(1 / 255)


def stamps(drawings: Sequence[Sequence[Drawing]], side: int) -> Stamps:
    """Build the masks of every class from its drawings."""
    counts = np.array([len(row) for row in drawings])
    masks = torch.stack([draw_glyph(drawing, side) for row in drawings for drawing in row])
    return Stamps(masks, np.cumsum(counts) - counts, counts)


@cache
def letters() -> Stamps:
    """Return the masks of all letters, target classes first. Cached per process."""
    return stamps([in_faces(letter, TASK_FACES) for letter in (*TARGET, *HELD_OUT)], SIDE)


def letter_pose(classes_N: np.ndarray, dice: Dice) -> Pose:
    """Draw the pose of a letter.

    Target letters vary less than held-out ones, as there are few images of each. Takes 6 draws.
    """
    calm = np.where(classes_N < len(TARGET), np.float32(CALM), np.float32(1))
    return {
        "x": dice.around(0.25) * calm,
        "y": dice.around(0.25) * calm,
        "size": np.float32(0.95) - dice.between(0.4, 0.0) * calm,
        "angle": dice.around(0.35) * calm,
        "stretch": dice.between(0.8, 1.2),
        "shear": dice.around(0.25) * calm,
    }


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these letters."""
    dice = Dice(draws_NK)
    where = letter_pose(classes_N, dice)
    alpha = stamp_masks(letters().chosen(classes_N, dice.share()), frame(**where))[:, 0]
    dark = dice.happens(0.85) > 0
    ink_value, paper_value = dice.between(0.05, 0.4), dice.between(0.7, 1.0)
    ink = hsv(dice.share(), dice.between(0.3, 0.9), np.where(dark, ink_value, paper_value))
    paper_hue, pale = dice.share(), dice.between(0.1, 0.45)
    paper, corner = (
        hsv(paper_hue, pale, np.where(dark, paper_value, ink_value) * light)
        for light in (np.float32(1), dice.between(0.6, 1.2))
    )
    picture = over(
        gradient(paper, corner, dice.turn()), ink, alpha * dice.between(0.6, 1.0)[:, None, None]
    )
    picture = blur(picture, dice.between(0.0, 0.35))
    attributes = {**hues(ink, paper), **pose(**where), "glyph": glyph_index(classes_N, len(TARGET))}
    return Picture(finish(picture, grain, dice.between(0.02, 0.2)), attributes)


def glyph_index(classes_N: np.ndarray, targets: int) -> np.ndarray:
    """Return the index among the held-out letters, float32 (N,); NaN for a target class."""
    return np.where(classes_N < targets, np.nan, classes_N - targets).astype(np.float32)


def _name(letter: str) -> str:
    return f"{letter} {unicodedata.name(letter).lower()}"


def _letters(code_points: str) -> tuple[str, ...]:
    found: list[str] = []
    for item in code_points.split():
        first, _, last = item.partition("-")
        found.extend(map(chr, range(int(first, 16), int(last or first, 16) + 1)))
    return tuple(found)


# Latin, Greek, Coptic, Cyrillic, Armenian, Arabic, Canadian syllabics
TARGET = _letters(
    "44 4E 52 54 62 65 74 79 7A DE F0 FE 132 152 153 189 195 1A3 1A6 1A9 1AA 1B9 1C7 1CA 1CC 1F1"
    " 223 241 242 254 263 265 279 281 289 28D 295-297 29E 2A3 2A7 2A9-2AD 370 373 377 393 39E 3A5"
    " 3A8 3B2 3BA 3BC 3BD 3C2 3C6 3C9 3CF 3D5-3D7 3DA 3DD 3E0 3E1 3E3 3E6 3E7 3EF-3F1 3FA 3FB"
    " 401-403 40B 41B 41F 421 428 42B 434 436 439 43C 449 44E 453 457 45C 45E 462 463 465 46B 46E"
    " 474 478 479 47E 48C 48D 4A1 4A4 4A9 4BA 4BC 4CB 4D8 504 505 508 50A 50F 511 514 516 517 51C"
    " 531 535 539-53B 53E 542 544 546 547 549 54A 54E 554 556 566 567 56F 574 579-57C 57E-580 582"
    " 583 586 587 62B 630 631 633 63A 641 642 646 648 64A 66E 66F 674 67E 684 688 68D 698 6A4 6AA"
    " 6C8 6CC 1409 140C 1411 1412 1414 1417 141A 1421 142B 142C 1430 1439 1445 1449 1451 1457 145A"
    " 145C 145D 1462 1469 1470 1478 1479 147B 147E 1494 149A 149B 149F 14A0 14A2 14A7 14A9 14AD"
    " 14AE 14B6 14B7 14C7 14C9 14CF 14D2 14D3 14D8 14DE 14E1 14E4 14E7 14E8 14ED 14EF 14F5"
    " 14F9-14FC 1503 1504 1510 1511 1514 1517-1519 151D-1520 1525 1526 1528 1529 152E 1536 1538"
    " 153A 1543 1549 154E 1550 1552 1555 1556 1558 155B 1562 1566 1568 157A 157D 157F 1581 1584"
    " 158B 1593 15A2 15A4 15AC 166F 1673 1D01 1D16 1D18 1D1A 1D1D 1D1E 1D27 1EFA 2C6F 2C77 A64C"
    " A664 A666 A725 A726 A729 A736-A739 A780 A782 A78D A7FF"
)

# Hebrew, NKo, Lao, Georgian, Ogham, Tifinagh
HELD_OUT = _letters(
    "5D0 5D1 5D3 5D4 5DC 5DE 5E2 5E3 5E6 5E7 5E9 7CE 7D0-7D2 7D4 7D8 7DD-7DF 7E6 E81 E84 E8D E96"
    " E97 E99 E9B-E9E EA5 EAB EB0 EBD EC1 EC3 EDC 10A1-10A3 10A5 10A7 10AA 10AC 10B5 10BB 10C5 10D3"
    " 10DA 10DD 10E0 10E2 10E4 10E6 10EF 10F6 10FA 1682-1684 1687-168B 168D-168F 1691-1694"
    " 1697-169A 2D00 2D03 2D06 2D08 2D09 2D0E-2D15 2D17 2D19 2D1B-2D1D 2D1F-2D22 2D24 2D25"
    " 2D3C-2D3F 2D44 2D46 2D4B 2D4C 2D56 2D58 2D5C 2D5F 2D62 2D64 2D65"
)


GLYPHS = Generator(
    name="glyphs",
    classes=tuple(map(_name, TARGET)),
    held_out=tuple(map(_name, HELD_OUT)),
    streams=19,
    paint=paint,
)
