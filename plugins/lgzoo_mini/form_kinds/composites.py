"""`composites`: two or three simple shapes in a fixed arrangement, a family of `forms`.

A class determines the shapes, their sizes, rotations and positions, and which of them are hollow.
Colours and surfaces carry no information. Shapes as in `canvas`; C classes.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from learngene_zoo.plugin import derive_seed
from lgzoo_mini.painting.canvas import Dice, any_colour, apart, over
from lgzoo_mini.painting.shapes import Frame, band, box, cover, disc, frame, polygon, wide
from lgzoo_mini.painting.views import Scene, develop_pictures, scene, sometimes, surface, view
from lgzoo_mini.suite import Generator, Picture

CLASSES, PARTS = 150, 3

OUTLINES: tuple[Callable[[Frame], np.ndarray], ...] = (
    lambda place: disc(place, 0.8),
    lambda place: box(place, 0.7, 0.7),
    lambda place: polygon(place, 3.0),
    lambda place: polygon(place, 5.0, 0.5),
    lambda place: box(place, 0.9, 0.3, 0.1),
    lambda place: band(disc(place, 0.7), 0.4),
    lambda place: np.minimum(box(place, 0.9, 0.22), box(place, 0.22, 0.9)),
    lambda place: np.maximum(
        disc(place, 0.9), -disc(Frame(place.x - np.float32(0.45), place.y, place.pixel), 0.8)
    ),
)


class Arrangements(NamedTuple):
    """The features of C classes, (C, PARTS) each except `parts`."""

    parts: np.ndarray  # the number of parts (C,)
    outline: np.ndarray  # the index in `OUTLINES`
    x: np.ndarray
    y: np.ndarray
    size: np.ndarray
    angle: np.ndarray
    hollow: np.ndarray


@cache
def table() -> Arrangements:
    """Draw the arrangement of every class. The parts of a class do not overlap much."""
    draws = np.random.Generator(np.random.PCG64(derive_seed(0, "composites", "classes")))
    shape = (CLASSES, PARTS)
    places = np.stack([arrange_parts(draws) for _ in range(CLASSES)])
    return Arrangements(
        draws.choice([2, 3], CLASSES),
        draws.integers(0, len(OUTLINES), shape),
        places[:, :, 0],
        places[:, :, 1],
        draws.uniform(0.34, 0.58, shape).astype(np.float32),
        draws.uniform(0, 2 * np.pi, shape).astype(np.float32),
        draws.random(shape) < 0.3,
    )


def arrange_parts(draws: np.random.Generator) -> np.ndarray:
    """Draw positions, float32 (PARTS, 2), until no two are close to each other."""
    while True:
        places = draws.uniform(-0.6, 0.6, (PARTS, 2))
        if min(np.abs(places[i] - places[j]).max() for i, j in ((0, 1), (0, 2), (1, 2))) > 0.5:
            return places.astype(np.float32)


def draw_outline(numbers_N: np.ndarray, place: Frame) -> np.ndarray:
    """Return the distance from each image's outline, NSS."""
    found = np.zeros(place.x.shape, dtype=np.float32)
    for number, outline in enumerate(OUTLINES):
        some = np.flatnonzero(numbers_N == number)
        if len(some):
            found[some] = outline(Frame(*(part[some] for part in place)))
    return found


def lay(dice: Dice, seen: Scene, these: Arrangements, part: int, whole: Frame) -> None:
    """Lay one of the parts over the image, in the scene's ink or in a random colour.

    Takes 17 draws.
    """
    place = frame(
        x=these.x[:, part] + dice.around(0.09),
        y=these.y[:, part] + dice.around(0.09),
        size=these.size[:, part] * np.exp(dice.around(0.15)),
        angle=these.angle[:, part] + dice.around(0.25),
        inside=whole,
    )
    distance = draw_outline(these.outline[:, part], place)
    distance = np.where(
        wide(these.hollow[:, part]) > 0, np.abs(distance) - np.float32(0.13), distance
    )
    own = apart(any_colour(dice), seen.paper, 0.35)
    ink = np.where(dice.happens(0.5)[:, None] > 0, seen.ink, own)
    tone = 1 + wide(sometimes(dice, 0.4, 0.5)) * surface(dice, place)
    there = wide(these.parts > part)
    over(seen.picture, ink[:, :, None, None] * tone[:, None], cover(distance, place.pixel) * there)


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these classes."""
    dice, these = Dice(draws_NK), Arrangements(*(part[classes_N] for part in table()))
    seen, whole = scene(dice), view(dice)
    for part in range(PARTS):
        lay(dice, seen, these, part, whole)
    return Picture(develop_pictures(dice, seen.picture, grain))


COMPOSITES = Generator(
    name="composites",
    classes=(),
    held_out=tuple(f"composite {number}" for number in range(CLASSES)),
    streams=120,
    paint=paint,
)
