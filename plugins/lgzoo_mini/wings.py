"""`wings`: silhouettes of aeroplanes from the side, counterpart of FGVC-Aircraft. Classes differ in
small details.

A class is a set of measures: the thickness of the fuselage, the sweep of the wings, the position of
the engines, the form of the tail. The measures of every plane vary slightly around those of its
class. Colours, sky and heading carry no information. Shapes as in `canvas`.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from lgzoo_mini.painting.canvas import (
    Dice,
    any_colour,
    apart,
    blur,
    finish,
    gradient,
    hills,
    hsv,
    hues,
    middle,
    mix,
    over,
)
from lgzoo_mini.painting.shapes import (
    PICTURE,
    Frame,
    capsule,
    convex,
    cover,
    frame,
    half_plane,
    pose,
    wide,
)
from lgzoo_mini.suite import Generator, Picture, varieties

TARGETS, HELD_OUT = 40, 16
JITTER = 0.12  # variation of a measure within a class, as a share of the step between two levels

# Measures in lengths of half a fuselage; the nose is at -1, the tail at 1.
MEASURES: dict[str, dict[str, float]] = {
    "body": {"slim": 0.085, "round": 0.125, "stout": 0.17},  # radius of the fuselage
    "nose": {"blunt": 0.8, "pointed": 0.1},  # radius of the nose, in radii of the fuselage
    "wing": {"straight": 0.0, "swept": 0.35, "delta": 0.7},  # distance of the tip behind the root
    "root": {"forward": -0.3, "aft": 0.0},  # position of the wing's front edge
    "side": {"low": 1.0, "high": -1.0},  # the wing points down or up in the image
    "fin": {"short": 0.3, "tall": 0.48},  # height of the vertical tail
    "rake": {"upright": 0.05, "raked": 0.3},  # distance of the fin's top behind its foot
    "tailplane": {"cross": 0.0, "T": 1.0},  # at the foot of the fin or on its top
}
ENGINES = ("glider", "propeller", "twin", "quad", "rear")
WINDOWS = ("blind", "windowed")
CHORD = 0.42  # of the wing at its root


class Plane(NamedTuple):
    """The measures of N planes, (N,) each."""

    body: np.ndarray
    nose: np.ndarray
    wing: np.ndarray
    root: np.ndarray
    side: np.ndarray
    fin: np.ndarray
    rake: np.ndarray
    tailplane: np.ndarray


@cache
def table() -> np.ndarray:
    """Return for each class the level of every measure, engines and windows, int64 (classes, 10).

    Any two classes differ in at least three of them.
    """
    choices = [*(len(levels) for levels in MEASURES.values()), len(ENGINES), len(WINDOWS)]
    return varieties("wings", choices, TARGETS + HELD_OUT, differing=3)


@cache
def measure_table() -> tuple[np.ndarray, np.ndarray]:
    """Return the measures of every class and their variation, float32 (8, classes) and (8, 1)."""
    levels = [np.array(list(row.values()), dtype=np.float32) for row in MEASURES.values()]
    values = np.stack([row[table()[:, column]] for column, row in enumerate(levels)])
    free = [
        JITTER * abs(row[1] - row[0]) * (name not in ("side", "tailplane"))
        for name, row in zip(MEASURES, levels)
    ]
    return values, np.array(free, dtype=np.float32)[:, None]


def class_names() -> tuple[str, ...]:
    """Return a description of every class, used as its name."""
    words = [list(levels) for levels in MEASURES.values()]
    names = []
    for row in table():
        body, nose, wing, root, side, fin, rake, tailplane = (
            word[level] for word, level in zip(words, row)
        )
        engines, windows = ENGINES[row[-2]], WINDOWS[row[-1]]
        names.append(
            f"{body} {nose} {windows} {engines}, {side} {root} {wing} wing, {fin} {rake}"
            f" {tailplane} tail"
        )
    return tuple(names)


def fuselage(place: Frame, plane: Plane) -> np.ndarray:
    """Return the outline of a tube with a nose and a tail that rises to a point."""
    radius = plane.body
    tube = capsule(place, (-0.68, 0.0), (0.4, 0.0), radius)
    nose = capsule(
        place, (-0.68, 0.0), (plane.nose * radius - 1, 0.12 * radius), radius, plane.nose * radius
    )
    tail = capsule(place, (0.4, 0.0), (0.97, -0.55 * radius), radius, 0.03)
    return np.minimum(tube, np.minimum(nose, tail))


def main_wing(place: Frame, plane: Plane) -> np.ndarray:
    """Return the outline of the wing towards the viewer, foreshortened: a swept quadrangle."""
    foot, span = plane.side * plane.body * 0.4, 0.5 * plane.side
    tip = plane.root + plane.wing
    # Mirrored for a high wing, so that the corners stay in clockwise order
    flipped = Frame(place.x, place.y * wide(plane.side), place.pixel)
    top, end = foot * plane.side, (foot + span) * plane.side
    return convex(
        flipped, [(plane.root, top), (plane.root + CHORD, top), (tip + 0.16, end), (tip, end)]
    )


def tail(place: Frame, plane: Plane) -> np.ndarray:
    """Return the outline of the fin, and of the tailplane seen edge-on."""
    foot, top = -0.4 * plane.body, -0.7 * plane.body - plane.fin
    fin = convex(
        place, [(0.62 + plane.rake, top), (0.8 + plane.rake, top), (0.97, foot), (0.58, foot)]
    )
    height = -0.5 * plane.body * (1 - plane.tailplane) + top * plane.tailplane
    back = 0.66 + plane.rake * plane.tailplane
    return np.minimum(fin, capsule(place, (back, height), (back + 0.34, height), 0.045, 0.03))


def engines(place: Frame, plane: Plane, kinds_N: np.ndarray) -> np.ndarray:
    """Return the outline of pods under the wing or at the tail, or of a propeller at the nose."""

    def pod(
        x: np.ndarray, y: np.ndarray, kinds: tuple[str, ...], radius: float = 0.07
    ) -> np.ndarray:
        absent = ~np.isin(kinds_N, [ENGINES.index(kind) for kind in kinds])
        return capsule(place, (x, y), (x + 0.17, y), radius) + wide(100 * absent)

    def under_wing(share: float, kinds: tuple[str, ...]) -> np.ndarray:
        y = plane.side * (plane.body * 0.4 + 0.5 * share)
        return pod(plane.root + plane.wing * share - 0.17, y + 0.05, kinds)

    rear = pod(np.full_like(plane.body, 0.42), -0.75 * plane.body, ("rear",), 0.085)
    spinning = capsule(place, (-1.02, -0.3), (-1.02, 0.3), 0.035) + wide(
        100 * (kinds_N != ENGINES.index("propeller"))
    )
    inner, outer = under_wing(0.4, ("twin", "quad")), under_wing(0.78, ("quad",))
    return np.minimum(np.minimum(inner, outer), np.minimum(rear, spinning))


def windows(place: Frame, plane: Plane, shown_N: np.ndarray) -> np.ndarray:
    """Return the coverage of the cockpit's window, which all planes have, and of cabin windows."""
    cockpit = capsule(place, (-0.8, -0.35 * plane.body), (-0.72, -0.35 * plane.body), 0.045)
    row = capsule(place, (-0.55, -0.2 * plane.body), (0.42, -0.2 * plane.body), 0.035)
    glass = (
        cover(row, place.pixel)
        * wide(shown_N)
        * np.clip(0.75 + 0.5 * np.sin(place.x * np.float32(22)), 0, 1)
    )
    return np.maximum(cover(cockpit, place.pixel), glass)


def sky(dice: Dice) -> np.ndarray:
    """Draw images N3SS of a sky with clouds, and sometimes ground below. Takes 15 draws."""
    hue = np.float32(0.55) + dice.around(0.08) - dice.happens(0.2) * np.float32(0.45)
    high = hsv(hue, dice.between(0.05, 0.65), dice.between(0.35, 1.0))
    low = mix(high, hsv(hue + dice.around(0.1), 0.15, 0.95), dice.between(0.2, 0.9))
    picture = gradient(high, low, dice.between(1.2, 1.9))
    clouds = np.clip(hills(PICTURE, dice.between(1.5, 3.5), dice.share()) * 1.2, 0, 1) * wide(
        dice.between(0, 0.7)
    )
    over(picture, np.ones_like(high), clouds)
    ground = -half_plane(PICTURE, np.float32(np.pi / 2) + dice.around(0.1), dice.between(0.55, 1.4))
    earth = hsv(dice.between(0.05, 0.35), dice.between(0.1, 0.5), dice.between(0.25, 0.6))
    return over(picture, earth, cover(ground, PICTURE.pixel))


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these classes."""
    dice = Dice(draws_NK)
    levels = table()[classes_N]
    measures, free = measure_table()
    plane = Plane(*(row[classes_N] + reach * dice.around(1) for row, reach in zip(measures, free)))
    picture = sky(dice)
    paper = middle(picture)
    x, y, size = dice.around(0.14), dice.around(0.2), dice.between(0.72, 0.92)
    angle, heading = dice.around(0.25), dice.side()
    place = frame(x=x, y=y, size=size, angle=angle, shear=dice.around(0.1), mirror=heading)
    ink = apart(any_colour(dice, (0.0, 0.35), (0.15, 1.0)), paper, 0.3)
    livery = apart(any_colour(dice), paper, 0.2)
    over(picture, mix(ink, livery, dice.happens(0.5)), cover(tail(place, plane), place.pixel))
    over(picture, ink, cover(fuselage(place, plane), place.pixel))
    over(picture, apart(ink, ink, 0.3), windows(place, plane, levels[:, -1]))
    shadow = apart(mix(ink, paper, 0.1), ink, 0.15)
    over(picture, shadow, cover(main_wing(place, plane), place.pixel))
    over(picture, apart(ink, shadow, 0.2), cover(engines(place, plane, levels[:, -2]), place.pixel))
    images = finish(blur(picture, dice.between(0, 0.25)), grain, dice.between(0.02, 0.1))
    return Picture(images, {**hues(ink, paper), **pose(x, y, size, angle)})


WINGS = Generator(
    name="wings",
    classes=class_names()[:TARGETS],
    held_out=class_names()[TARGETS:],
    streams=38,
    paint=paint,
)
