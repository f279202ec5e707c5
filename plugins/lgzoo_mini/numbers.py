"""`numbers`: classify the digit in the middle, as on a house number. Counterpart of SVHN; the
suite's other generated tasks contain no digits.

Images show a digit in any face on a coloured wall; its neighbours have the same face and colour and
are cut off at the image's sides. The held-out classes are letters of the held-out alphabets in the
same style, with such letters as neighbours.
"""

from functools import cache

import numpy as np

from lgzoo_mini.glyphs import FACES, HELD_OUT, Stamps, glyph_index, in_faces, stamps
from lgzoo_mini.painting.canvas import (
    Dice,
    any_colour,
    apart,
    backdrop,
    blur,
    clutter,
    finish,
    hues,
    over,
)
from lgzoo_mini.painting.shapes import Frame, Pose, frame, pose, stamp_masks
from lgzoo_mini.suite import Generator, Picture

DIGITS = tuple("0123456789")
LETTERS = HELD_OUT[::5]
SIDE = 24  # side of a mask in pixels, about the size at which it is painted


@cache
def marks() -> Stamps:
    """Return the masks of the digits, then of the held-out letters. Cached per process."""
    return stamps([in_faces(mark, tuple(FACES)) for mark in (*DIGITS, *LETTERS)], SIDE)


def neighbours(classes_N: np.ndarray, dice: Dice) -> np.ndarray:
    """Draw two marks of the same kind (digits or letters) as the middle one, int64 (2, N).

    Takes 2 draws.
    """
    digit = classes_N < len(DIGITS)
    counts_N = np.where(digit, len(DIGITS), len(LETTERS))
    both = np.stack([(dice.share() * counts_N).astype(np.int64) for _ in range(2)])
    return both + np.where(digit, 0, len(DIGITS))


def row(where: Pose, step_N: np.ndarray) -> tuple[Frame, Frame, Frame]:
    """Return the frames of the mark and of its left and right neighbour.

    The neighbours are `step_N` half sizes away along the baseline.
    """
    reach = where["size"] * step_N
    across, down = np.cos(where["angle"]) * reach, np.sin(where["angle"]) * reach
    left: Pose = {**where, "x": where["x"] - across, "y": where["y"] - down}
    right: Pose = {**where, "x": where["x"] + across, "y": where["y"] + down}
    return frame(**where), frame(**left), frame(**right)


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these digits or letters."""
    dice = Dice(draws_NK)
    where: Pose = {
        "x": dice.around(0.1),
        "y": dice.around(0.1),
        "size": dice.between(0.65, 0.9),
        "angle": dice.around(0.15),
        "stretch": dice.between(0.8, 1.05),
        "shear": dice.around(0.15),
    }
    middle, left, right = row(where, dice.between(1.5, 2.1))
    face_N = dice.share()
    before, after = neighbours(classes_N, dice)
    picture = clutter(backdrop(dice), dice, 2, strength=0.4)
    ink = apart(any_colour(dice), picture[:, :, 16, 16], 0.4)
    strength = dice.between(0.75, 1.0)[:, None, None]
    for marks_N, place in ((before, left), (after, right), (classes_N, middle)):
        over(picture, ink, stamp_masks(marks().chosen(marks_N, face_N), place)[:, 0] * strength)
    picture = blur(picture, dice.between(0.0, 0.4))
    attributes = {**hues(ink), **pose(**where), "glyph": 5 * glyph_index(classes_N, len(DIGITS))}
    return Picture(finish(picture, grain, dice.between(0.02, 0.15)), attributes)


NUMBERS = Generator(name="numbers", classes=DIGITS, held_out=LETTERS, streams=47, paint=paint)
