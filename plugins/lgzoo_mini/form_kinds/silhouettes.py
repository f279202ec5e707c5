"""`silhouettes`: bodies with wavy outlines and limbs, most of them mirror-symmetric, a family of
`forms`.

A class determines the waves of a body's outline, where its limbs sit, how they bend and taper, its
elongation, and whether it has a hole. Surface and light carry no information. Shapes as in
`canvas`; C classes.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from learngene_zoo.plugin import derive_seed
from lgzoo_mini.painting.canvas import Dice
from lgzoo_mini.painting.shapes import Frame, capsule, length, polar, wide
from lgzoo_mini.painting.views import develop_pictures, fill, scene, view
from lgzoo_mini.suite import Generator, Picture

CLASSES, WAVES, LIMBS = 300, 6, 3
BODY = 0.72 * 0.8  # mean radius, in the view's units


class Bodies(NamedTuple):
    """The features of C bodies, (C, ...) each."""

    height: np.ndarray  # of every wave (C, WAVES), whose lobes are 1 to WAVES
    phase: np.ndarray  # of every wave (C, WAVES)
    mirrored: np.ndarray  # 1 if the body is mirror-symmetric, else 0 (C,)
    limbs: np.ndarray  # the number of limbs, on each side if mirrored (C,)
    limb: np.ndarray  # angle, start, length, bend, radius, radius at the tip (C, LIMBS, 6)
    drawn_out: np.ndarray  # the elongation (C,)
    hole: np.ndarray  # x, y and radius; radius 0: no hole (C, 3)


@cache
def table() -> Bodies:
    """Draw the features of every class."""
    draws = np.random.Generator(np.random.PCG64(derive_seed(0, "silhouettes", "classes")))
    lobes = np.arange(1, WAVES + 1)
    height = np.abs(draws.normal(0, 0.28, (CLASSES, WAVES))) / lobes**0.7
    mirrored = draws.random(CLASSES) < 0.6
    symmetric = lobes * np.pi / 2 + np.pi * draws.integers(2, size=(CLASSES, WAVES))
    phase = np.where(mirrored[:, None], symmetric, draws.uniform(0, 2 * np.pi, (CLASSES, WAVES)))
    limbs = draws.choice([0, 1, 2, 3], CLASSES, p=[0.3, 0.35, 0.25, 0.1])
    limb = np.stack(
        [
            draws.uniform(-np.pi / 2, np.pi / 2, (CLASSES, LIMBS)),
            draws.uniform(0, 0.5, (CLASSES, LIMBS)),
            draws.uniform(0.5, 1.0, (CLASSES, LIMBS)),
            draws.normal(0, 0.5, (CLASSES, LIMBS)),
            draws.uniform(0.1, 0.3, (CLASSES, LIMBS)),
            draws.uniform(0.05, 0.25, (CLASSES, LIMBS)),
        ],
        axis=2,
    )
    drawn_out = np.exp(draws.normal(0, 0.3, CLASSES))
    place = draws.uniform(-0.2, 0.2, (CLASSES, 2))
    radius = draws.uniform(0.15, 0.35, CLASSES) * (draws.random(CLASSES) < 0.2)
    numbers = (height, phase, mirrored, limbs, limb, drawn_out, np.c_[place, radius])
    return Bodies(*(part.astype(np.float32) for part in numbers))


def body(dice: Dice, bodies: Bodies, place: Frame) -> np.ndarray:
    """Return the distance from the body without its limbs, NSS. Takes 12 draws."""
    rho, theta = polar(place)
    reach = np.ones_like(rho)
    for wave in range(WAVES):
        height = bodies.height[:, wave] * (1 + dice.around(0.25))
        reach += wide(height) * np.cos(
            np.float32(wave + 1) * theta + wide(bodies.phase[:, wave] + dice.around(0.14))
        )
    return rho - np.float32(BODY / 0.8) * np.maximum(reach, np.float32(0.2))


def limb(bodies: Bodies, number: int, angle: np.ndarray, place: Frame) -> np.ndarray:
    """Return the distance from one limb of these bodies, or from it and its mirror image, NSS."""
    _, start, far, bend, radius, tip = (
        np.ascontiguousarray(part) for part in bodies.limb[:, number].T
    )
    x0, y0, on = start * np.cos(angle), start * np.sin(angle), angle + bend
    x1, y1 = x0 + far * np.cos(on), y0 + far * np.sin(on)
    one = capsule(place, (x0, y0), (x1, y1), radius, tip)
    other = capsule(place, (-x0, y0), (-x1, y1), radius, tip)
    return np.where(wide(bodies.mirrored) > 0, np.minimum(one, other), one)


def outline(dice: Dice, bodies: Bodies, place: Frame) -> np.ndarray:
    """Return the distance from the body with its limbs and its hole, NSS. Takes 15 draws."""
    found = body(dice, bodies, place)
    for number in range(LIMBS):
        angle = bodies.limb[:, number, 0] + dice.around(0.2)
        some = np.flatnonzero(bodies.limbs > number)
        if len(some):
            inside, chosen = (
                Frame(*(part[some] for part in place)),
                Bodies(*(part[some] for part in bodies)),
            )
            found[some] = np.minimum(found[some], limb(chosen, number, angle[some], inside))
    x, y, radius = (wide(part) for part in bodies.hole.T)
    return np.where(radius > 0, np.maximum(found, radius - length(place.x - x, place.y - y)), found)


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these classes."""
    dice, bodies = Dice(draws_NK), Bodies(*(part[classes_N] for part in table()))
    seen, place = scene(dice), view(dice)
    stretch = wide(bodies.drawn_out * np.exp(dice.around(0.14)))
    x = place.x * wide(dice.side() * np.float32(1 / 0.8)) * stretch
    place = Frame(x, place.y * np.float32(1 / 0.8) / stretch, place.pixel * np.float32(1 / 0.8))
    picture = fill(dice, seen, outline(dice, bodies, place), place)
    return Picture(develop_pictures(dice, picture, grain))


SILHOUETTES = Generator(
    name="silhouettes",
    classes=(),
    held_out=tuple(f"silhouette {number}" for number in range(CLASSES)),
    streams=110,
    paint=paint,
)
