"""`glyphs`: which of 300 letters of seven alphabets, as if written on paper. Omniglot's counterpart.

Outlines of up to seven DejaVu faces, turned, stretched, sheared and shifted; mostly dark ink on light paper. The
held-out letters are of other alphabets, so nothing the source task shows is a letter to be learnt here.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np

from learngene_zoo.tasks.fonts import in_faces
from learngene_zoo.tasks.mini.alphabets import HELD_OUT, TARGET
from learngene_zoo.tasks.mini.canvas import blur, finish, frame, over
from learngene_zoo.tasks.mini.colours import hsv, hue_of
from learngene_zoo.tasks.mini.dice import Dice
from learngene_zoo.tasks.mini.fills import gradient
from learngene_zoo.tasks.mini.generator import Generator, Picture
from learngene_zoo.tasks.mini.stamps import Pose, Stamps, attributes_of, stamped, stamps

FACES = ("Sans", "Sans Bold", "Sans Oblique", "Serif", "Serif Bold", "Mono", "Mono Bold")
SIDE = 32  # pixels of a mask: about as large as it is painted
CALM = 0.6  # by how much target letters move less


@cache
def letters() -> Stamps:
    """The masks of all letters, target classes first. Made once in a process."""
    return stamps([in_faces(letter, FACES) for letter in (*TARGET, *HELD_OUT)], SIDE)


def pose(classes_N: np.ndarray, dice: Dice) -> Pose:
    """Where a letter lies; target letters move less than held-out ones, as few of each are seen. Takes 6 draws."""
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
    """Pictures of these letters."""
    dice = Dice(draws_NK)
    where = pose(classes_N, dice)
    alpha = stamped(letters().chosen(classes_N, dice.share()), frame(**where))[:, 0]
    dark = dice.happens(0.85) > 0
    ink_value, paper_value = dice.between(0.05, 0.4), dice.between(0.7, 1.0)
    ink = hsv(dice.share(), dice.between(0.3, 0.9), np.where(dark, ink_value, paper_value))
    paper_hue, pale = dice.share(), dice.between(0.1, 0.45)
    paper, corner = (
        hsv(paper_hue, pale, np.where(dark, paper_value, ink_value) * light)
        for light in (np.float32(1), dice.between(0.6, 1.2))
    )
    picture = over(gradient(paper, corner, dice.turn()), ink, alpha * dice.between(0.6, 1.0)[:, None, None])
    picture = blur(picture, dice.between(0.0, 0.35))
    ink_hue, paper_hue_of = hue_of(ink), hue_of(paper)
    attributes = {
        "ink_hue_x": ink_hue[0],
        "ink_hue_y": ink_hue[1],
        "paper_hue_x": paper_hue_of[0],
        "paper_hue_y": paper_hue_of[1],
        **attributes_of(where),
        "glyph": glyph_index(classes_N, len(TARGET)),
    }
    return Picture(finish(picture, grain, dice.between(0.02, 0.2)), attributes)


def glyph_index(classes_N: np.ndarray, targets: int) -> np.ndarray:
    """Which held-out letter it is, float32 (N,); NaN for a target class."""
    return np.where(classes_N < targets, np.nan, classes_N - targets).astype(np.float32)


def _name(letter: str) -> str:
    return f"{letter} {unicodedata.name(letter).lower()}"


GLYPHS = Generator(
    name="glyphs",
    classes=tuple(map(_name, TARGET)),
    held_out=tuple(map(_name, HELD_OUT)),
    streams=19,
    paint=paint,
)
