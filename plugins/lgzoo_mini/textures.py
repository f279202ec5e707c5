"""`textures`: classify 24 textures. Counterpart of DTD.

A texture has a kind (stripes, dots, cells, marble …) and a manner: how wide its marks are, how
long, how bent, how irregular. The class determines both; position, two colours, contrast and light
vary freely, and the scale varies within two thirds of an octave. Target textures look like
photographs: nearly upright, the lighter colour as ink, and with high contrast. The held-out classes
are the same kinds in other manners, in every direction and with contrasts down to faint ones.
"""

from typing import NamedTuple

import numpy as np

from lgzoo_mini.painting import surfaces
from lgzoo_mini.painting.canvas import (
    Dice,
    blur,
    finish,
    hues,
    ink_and_paper,
    lightness,
    mix,
    over,
    plain,
    shade,
)
from lgzoo_mini.painting.shapes import PICTURE, frame, wide
from lgzoo_mini.painting.surfaces import Manner, surface
from lgzoo_mini.suite import Generator, Picture

KINDS = tuple(kind.__name__ for kind in surfaces.KINDS)


class Texture(NamedTuple):
    """A class.

    `repeats` is the smallest number of repeats across an image; `stretch` squared is a repeat's
    width over its height.
    """

    kind: str
    repeats: float
    width: float
    stretch: float = 1.0
    bend: float = 0.0
    rough: float = 0.0


TARGET = {
    "broad stripes": Texture("stripes", 3.0, 0.5),
    "wavy lines": Texture("stripes", 3.5, 0.25, bend=0.6),
    "checks": Texture("checks", 4.0, 0.5),
    "long checks": Texture("checks", 4.0, 0.5, stretch=1.6),
    "small dots": Texture("dots", 4.5, 0.45),
    "strewn dots": Texture("dots", 4.0, 0.5, rough=0.5),
    "pebbles": Texture("cells", 4.0, 1.0, rough=0.9),
    "cracks": Texture("cells", 3.0, 0.1, rough=0.9),
    "clouds": Texture("noise", 2.5, 1.0, rough=0.1),
    "grit": Texture("noise", 4.0, 1.0, rough=0.8),
    "veins": Texture("marble", 2.5, 0.15, bend=0.9),
    "currents": Texture("marble", 3.5, 0.5, bend=0.5),
    "dense weave": Texture("weave", 4.0, 0.95),
    "open weave": Texture("weave", 3.0, 0.5),
    "rings": Texture("rings", 3.0, 0.5),
    "thin rings": Texture("rings", 5.0, 0.25),
    "shallow zigzag": Texture("zigzag", 3.5, 0.5, bend=0.3),
    "steep zigzag": Texture("zigzag", 3.0, 0.5, bend=1.0),
    "shaded scales": Texture("scales", 3.5, 1.0),
    "outlined scales": Texture("scales", 3.0, 0.12),
    "bricks": Texture("bricks", 3.0, 0.15, stretch=1.4, bend=0.5, rough=0.8),
    "tiles": Texture("bricks", 3.0, 0.15, rough=0.8),
    "plus signs": Texture("crosses", 3.5, 0.25, bend=0.38),
    "strewn crosses": Texture("crosses", 3.0, 0.16, bend=0.25, rough=0.5),
}
HELD_OUT = {
    "fine lines": Texture("stripes", 6.0, 0.3),
    "bowed stripes": Texture("stripes", 2.0, 0.5, bend=1.2),
    "bent checks": Texture("checks", 3.0, 0.5, stretch=1.25, bend=0.8),
    "large dots": Texture("dots", 2.2, 0.75),
    "oval dots": Texture("dots", 3.5, 0.6, stretch=1.5),
    "long cells": Texture("cells", 3.5, 1.0, stretch=1.7, rough=0.9),
    "honeycombs": Texture("cells", 4.0, 0.3, rough=0.7),
    "brushed metal": Texture("noise", 4.0, 1.0, stretch=2.2, rough=0.4),
    "fine marble": Texture("marble", 5.0, 0.3, bend=0.2),
    "ribbon weave": Texture("weave", 3.5, 0.7, stretch=1.4),
    "oval rings": Texture("rings", 3.5, 0.35, stretch=1.5),
    "zigzag lines": Texture("zigzag", 3.5, 0.25, bend=0.6),
    "wide zigzag": Texture("zigzag", 2.2, 0.5, stretch=0.7, bend=0.5),
    "long scales": Texture("scales", 3.0, 1.0, stretch=0.7),
    "thick scales": Texture("scales", 2.2, 0.25, stretch=1.3),
    "courses": Texture("bricks", 4.0, 0.3, stretch=1.8, bend=0.33, rough=0.2),
    "long crosses": Texture("crosses", 3.0, 0.2, stretch=1.4, bend=0.44),
    "fat crosses": Texture("crosses", 2.2, 0.4, bend=0.42, rough=0.1),
}
CLASSES = (*TARGET.values(), *HELD_OUT.values())
_KIND = np.array([KINDS.index(texture.kind) for texture in CLASSES])
_SETTINGS = np.array([texture[1:] for texture in CLASSES], dtype=np.float32)
OCTAVES = 2 / 3  # range of the scale within a class
LEANING = 0.35  # maximal rotation of a target texture, in radians
CLEAR = 0.65  # minimal contrast of a target texture
CALM = 0.5  # factor on the grain of a target texture


def colours(dice: Dice, photographed_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw ink (blended with the paper by the contrast), paper, (N, 3) each, and the contrast.

    Takes 7 draws.
    """
    first, second = ink_and_paper(dice, 0.25)
    swapped = (photographed_N & (lightness(first) < lightness(second)))[:, None]
    ink, paper = np.where(swapped, second, first), np.where(swapped, first, second)
    contrast = np.maximum(
        dice.between(0.4, 1.0), np.where(photographed_N, np.float32(CLEAR), np.float32(0))
    )
    return mix(paper, ink, contrast), paper, contrast


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these textures."""
    dice = Dice(draws_NK)
    photographed_N = classes_N < len(TARGET)
    repeats, width, stretch, bend, rough = _SETTINGS[classes_N].T
    repeats = repeats * np.exp2(dice.between(0, OCTAVES))
    turn = dice.share()
    angle = np.where(
        photographed_N,
        (turn - np.float32(0.5)) * np.float32(2 * LEANING),
        turn * np.float32(2 * np.pi),
    )
    place = frame(
        x=dice.around(0.6),
        y=dice.around(0.6),
        size=2 / repeats,
        angle=angle,
        stretch=stretch,
        shear=dice.around(0.1),
    )
    manner = Manner(
        wide(width * dice.between(0.85, 1.15)), wide(bend * dice.between(0.85, 1.15)), wide(rough)
    )
    field = surface(_KIND[classes_N], place, manner, dice.share())
    ink, paper, contrast = colours(dice, photographed_N)
    picture = over(plain(paper), ink, field * np.float32(0.5) + np.float32(0.5))
    direction, slope = dice.turn(), dice.between(0.0, 0.4)
    light = PICTURE.x * wide(slope * np.cos(direction)) + PICTURE.y * wide(
        slope * np.sin(direction)
    )
    picture = blur(shade(picture, 1 + light), dice.between(0.0, 0.3))
    attributes = {
        "frequency": ((np.log2(repeats) - 1.5) / 2.5).astype(np.float32),
        "amplitude": 2 * contrast - 1,
        **hues(ink, paper),
        "angle_x": np.cos(2 * angle),
        "angle_y": np.sin(2 * angle),
        "texture": _KIND[classes_N].astype(np.float32),
    }
    strength = dice.between(0.02, 0.25) * np.where(photographed_N, np.float32(CALM), np.float32(1))
    return Picture(finish(picture, grain, strength), attributes)


TEXTURES = Generator(
    name="textures", classes=tuple(TARGET), held_out=tuple(HELD_OUT), streams=19, paint=paint
)
