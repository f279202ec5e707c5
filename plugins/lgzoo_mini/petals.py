"""`petals`: flowers, counterpart of Flowers-102: many classes, few images of each.

A class is the number of petals, the depth of the gaps between them, how pointed they are, whether
their tips are notched, a second ring of petals, the size of the eye, and two hues. Position,
rotation, tilt and the leaves behind the flower carry no information. Shapes as in `canvas`.
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from lgzoo_mini.painting.canvas import (
    Dice,
    any_colour,
    blur,
    finish,
    gradient,
    hsv,
    hues,
    middle,
    mix,
    over,
    shade,
    value_noise,
)
from lgzoo_mini.painting.shapes import Frame, cover, disc, ellipse, frame, polar, pose, wide
from lgzoo_mini.suite import Generator, Picture, varieties

TARGETS, HELD_OUT = 102, 24
LEAVES = 4  # behind the flower

# Levels of each feature: word and number.
COUNTS = {str(count): count for count in (3, 4, 5, 6, 7, 8, 10, 12)}  # of petals
PARTED = {"closed": 0.35, "parted": 0.75, "star": 1.0}  # depth of the gaps between petals
# Exponent of the petal's outline: below 1 broad, above 1 pointed
FORMS = {"round": 0.45, "lanced": 1.6}
TIPS = {"whole": 0.0, "notched": 0.28}  # depth of a notch in the tip
RINGS = {"single": 0.0, "double": 0.62}  # size of a second, inner ring of petals
EYES = {"small": 0.16, "large": 0.34}  # radius of the eye
# Hue, saturation and value of the petals, and of the eye.
HUES = {
    "red": (0.99, 0.85, 0.8),
    "orange": (0.07, 0.85, 0.95),
    "yellow": (0.14, 0.8, 0.97),
    "white": (0.15, 0.06, 0.97),
    "pink": (0.91, 0.45, 0.95),
    "purple": (0.79, 0.65, 0.7),
    "blue": (0.63, 0.65, 0.85),
}
EYE_HUES = {"golden": (0.13, 0.85, 0.95), "dark": (0.06, 0.6, 0.22), "pale": (0.2, 0.3, 0.9)}


class Flower(NamedTuple):
    """The features of N flowers, (N,) each; the colours (N, 3) are hue, saturation, value."""

    petals: np.ndarray
    parted: np.ndarray
    form: np.ndarray
    notch: np.ndarray
    ring: np.ndarray
    eye: np.ndarray
    colour: np.ndarray
    eye_colour: np.ndarray


FEATURES: tuple[Mapping[str, object], ...] = (
    COUNTS,
    PARTED,
    FORMS,
    TIPS,
    RINGS,
    EYES,
    HUES,
    EYE_HUES,
)


@cache
def table() -> np.ndarray:
    """Return the level of every feature for every class, int64 (classes, 8).

    Any two classes differ in at least three features.
    """
    return varieties(
        "petals", [len(feature) for feature in FEATURES], TARGETS + HELD_OUT, differing=3
    )


def class_names() -> tuple[str, ...]:
    """Return a description of every class, used as its name."""
    names = []
    for row in table():
        petals, parted, form, tip, ring, eye, hue, eye_hue = (
            list(words)[k] for words, k in zip(FEATURES, row)
        )
        names.append(
            f"{ring} {hue} flower of {petals} {parted} {form} {tip} petals, {eye} {eye_hue} eye"
        )
    return tuple(names)


@cache
def features() -> tuple[np.ndarray, ...]:
    """Return the features of every class, float32 (classes,) or, for colours, (classes, 3)."""
    return tuple(
        np.array(list(feature.values()), dtype=np.float32)[table()[:, k]]
        for k, feature in enumerate(FEATURES)
    )


def leaves(dice: Dice) -> np.ndarray:
    """Draw images N3SS of foliage. Takes 43 draws."""
    green = hsv(dice.between(0.18, 0.42), dice.between(0.15, 0.7), dice.between(0.15, 0.75))
    picture = gradient(green, mix(green, any_colour(dice), 0.3), dice.turn())
    for _ in range(LEAVES):
        place = frame(
            x=dice.around(1), y=dice.around(1), size=dice.between(0.35, 0.8), angle=dice.turn()
        )
        leaf = hsv(dice.between(0.16, 0.45), dice.between(0.2, 0.75), dice.between(0.15, 0.8))
        over(picture, leaf, cover(ellipse(place, 1.0, dice.between(0.2, 0.45)), place.pixel))
        vein = cover(np.abs(place.y) - 0.03, place.pixel) * cover(
            ellipse(place, 1.0, 0.2), place.pixel
        )
        over(picture, mix(leaf, np.ones_like(leaf), dice.around(0.3)), vein)
    return picture


def lay_ring(
    picture: np.ndarray,
    place: Frame,
    flower: Flower,
    form: np.ndarray,
    ink: np.ndarray,
    light: np.ndarray,
) -> None:
    """Lay a ring of petals over `picture`, in place; each is lightest along its middle.

    With c = |cos(petals theta / 2)|, the petals reach to 1 - parted (1 - c^form) - notch c^16.
    """
    rho, theta = polar(place)
    c = np.abs(np.cos(wide(flower.petals * np.float32(0.5)) * theta))
    c8 = np.square(np.square(np.square(c)))
    reach = 1 - wide(flower.parted) * (1 - np.power(c, wide(form))) - wide(flower.notch) * c8 * c8
    tone = 1 - wide(light) * (1 - c)
    over(picture, ink[:, :, None, None] * tone[:, None], cover(rho - reach, place.pixel, 1.3))


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these classes."""
    dice = Dice(draws_NK)
    flower = Flower(*(values[classes_N] for values in features()))
    picture = leaves(dice)
    paper = middle(picture)
    x, y, size, angle = dice.around(0.3), dice.around(0.3), dice.between(0.5, 0.85), dice.turn()
    stretch, tilt_x, tilt_y = dice.between(1.0, 1.25), dice.around(0.25), dice.around(0.25)
    place = frame(x=x, y=y, size=size, angle=angle, stretch=stretch, tilt_x=tilt_x, tilt_y=tilt_y)
    place = frame(angle=dice.turn(), inside=place)
    ink, eye = flower_colours(flower, dice)
    form, light = flower.form * dice.between(0.85, 1.15), dice.between(0.15, 0.5)
    lay_ring(picture, place, flower, form, ink, light)
    # The second ring lies on the first, its petals over the gaps; for single rings it is moved out
    # of the image.
    inner = frame(
        size=np.maximum(flower.ring, np.float32(0.05)),
        angle=np.float32(np.pi) / flower.petals,
        inside=place,
    )
    inner = inner._replace(x=inner.x + wide(100 * (flower.ring == 0)))
    lay_ring(picture, inner, flower, form, mix(ink, np.ones_like(ink), 0.3), light)
    over(picture, eye, cover(disc(place, flower.eye), place.pixel))
    shade(picture, 1 + value_noise(place, 9.0, dice.share()) * wide(dice.between(0, 0.2)))
    images = finish(blur(picture, dice.between(0, 0.35)), grain, dice.between(0.02, 0.12))
    return Picture(
        images, {"lobes": flower.petals, **hues(ink, paper), **pose(x, y, size, 2 * angle)}
    )


def flower_colours(flower: Flower, dice: Dice) -> tuple[np.ndarray, np.ndarray]:
    """Draw the colours of the petals and of the eye, (N, 3) each, under one light.

    Takes 5 draws.
    """
    light = dice.between(0.6, 1.05)

    def grown(colour_N3: np.ndarray, reach: float, palest: float) -> np.ndarray:
        hue, saturation, value = colour_N3.T
        return hsv(hue + dice.around(reach), saturation * dice.between(palest, 1.1), value * light)

    return grown(flower.colour, 0.035, 0.7), grown(flower.eye_colour, 0.03, 0.8)


PETALS = Generator(
    name="petals",
    classes=class_names()[:TARGETS],
    held_out=class_names()[TARGETS:],
    streams=62,
    paint=paint,
)
