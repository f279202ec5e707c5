"""`objects`: composite things, counterpart of CIFAR-100. A class is a body, parts of one shape,
their positions and a surface.

Each class has a typical hue, which other classes share; position, size, rotation and background
carry no information. Shapes as in `canvas`; T is the number of positions of parts.
"""

from functools import cache, partial, reduce

import numpy as np

from lgzoo_mini.painting import shapes
from lgzoo_mini.painting.canvas import (
    Dice,
    apart,
    backdrop,
    blur,
    clutter,
    finish,
    hsv,
    hues,
    middle,
    mix,
    over,
    stripes,
)
from lgzoo_mini.painting.shapes import (
    Frame,
    Number,
    Outline,
    cover,
    draw_mould,
    frame,
    length,
    moulds,
    pose,
    wide,
)
from lgzoo_mini.suite import Generator, Picture, varieties

TARGETS, HELD_OUT = 60, 24
THINGS = 3  # things of clutter in the background


def crescent(place: Frame) -> np.ndarray:
    """Return the outline of a disc without the disc to its upper right."""
    return np.maximum(
        shapes.disc(place), 0.85 - shapes.disc(frame(x=0.5, y=-0.4, inside=place), 0.0)
    )


def drop(place: Frame) -> np.ndarray:
    """Return the outline of a disc with a point at the top."""
    return shapes.capsule(place, (0.0, 0.35), (0.0, -1.0), 0.65, 0.02)


def cross(place: Frame) -> np.ndarray:
    """Return the outline of a plus sign."""
    return np.minimum(shapes.box(place, 1.0, 0.36), shapes.box(place, 0.36, 1.0))


def half(place: Frame) -> np.ndarray:
    """Return the outline of the upper half of a disc."""
    low = frame(y=0.4, size=1.05, inside=place)
    return np.maximum(shapes.disc(low), low.y)


def heart(place: Frame) -> np.ndarray:
    """Return the outline of two discs on a triangle."""
    point = shapes.convex(place, [(-0.93, -0.05), (0.0, -0.6), (0.93, -0.05), (0.0, 1.0)])
    lobes = [shapes.disc(frame(x=x, y=-0.35, inside=place), 0.53) for x in (-0.47, 0.47)]
    return np.minimum(point, np.minimum(*lobes))


def hourglass(place: Frame) -> np.ndarray:
    """Return the outline of two triangles, point to point."""
    return np.maximum(np.abs(place.y) - 1, np.abs(place.x) - 0.15 - 0.7 * np.abs(place.y))


def bracket(place: Frame) -> np.ndarray:
    """Return the outline of two bars at a right angle."""
    return np.minimum(
        shapes.capsule(place, (-0.7, -0.9), (-0.7, 0.7), 0.28),
        shapes.capsule(place, (-0.7, 0.7), (0.8, 0.7), 0.28),
    )


def ring(place: Frame) -> np.ndarray:
    """Return the outline of a disc with a hole."""
    return shapes.band(shapes.disc(place, 0.75), 0.5)


BODIES: dict[str, Outline] = {
    "disc": shapes.disc,
    "square": partial(shapes.box, across=0.85, down=0.85, corner=0.1),
    "triangle": lambda place: shapes.polygon(frame(y=0.15, size=1.15, inside=place), 3.0),
    "star": partial(shapes.polygon, sides=5.0, inner=0.55),
    "cross": cross,
    "crescent": crescent,
    "drop": drop,
    "half-disc": half,
    "egg": partial(shapes.ellipse, across=1.1, down=0.6),
}
UNSEEN: dict[str, Outline] = {
    "heart": heart,
    "hourglass": hourglass,
    "bracket": bracket,
    "ring": ring,
}
PARTS: dict[str, Outline] = {
    "discs": shapes.disc,
    "blocks": partial(shapes.box, across=0.85, down=0.85),
    "spikes": lambda place: shapes.polygon(frame(y=0.1, inside=place), 3.0, 0.8),
    "sticks": partial(shapes.box, across=0.3, down=1.25, corner=0.2),
}
# Positions and sizes of parts: (x, y, size) in the body's frame.
PLACES: dict[str, tuple[tuple[float, float, float], ...]] = {
    "ears": ((-0.65, -0.95, 0.42), (0.65, -0.95, 0.42)),
    "sides": ((-1.15, 0.1, 0.42), (1.15, 0.1, 0.42)),
    "feet": ((-0.75, 1.0, 0.34), (0.0, 1.1, 0.34), (0.75, 1.0, 0.34)),
    "tail": ((1.25, 0.35, 0.6),),
    "inside": ((0.0, 0.1, 0.42),),
    "corners": ((-0.85, -0.85, 0.33), (0.85, -0.85, 0.33), (-0.85, 0.85, 0.33), (0.85, 0.85, 0.33)),
}
SURFACES = ("plain", "striped", "dotted", "chequered", "rimmed")


@cache
def table() -> np.ndarray:
    """Return body, part, position and surface of every class, int64 (classes, 4).

    Any two target classes differ in at least two of them, and so do any two of the held-out
    classes, which follow the target classes and have other bodies.
    """
    shared = (len(PARTS), len(PLACES), len(SURFACES))
    targets = varieties("objects", (len(BODIES), *shared), TARGETS, differing=2)
    others = varieties("objects unseen", (len(UNSEEN), *shared), HELD_OUT, differing=2)
    return np.concatenate([targets, others + np.array([len(BODIES), 0, 0, 0])])


@cache
def hue_table() -> np.ndarray:
    """Return the hue of each class's body and the offset of its parts' hue, (classes, 2)."""
    numbers = np.arange(TARGETS + HELD_OUT)
    return np.stack([numbers * 0.618 % 1, 0.25 + numbers * 0.414 % 0.5], axis=1).astype(np.float32)


@cache
def place_table() -> np.ndarray:
    """Return (x, y, size) of every part for each way to place them, float32 (ways, T, 3).

    Ways with fewer than T parts are padded with size 0.
    """
    most = max(len(places) for places in PLACES.values())
    rows = [[*places, *[(0.0, 0.0, 0.0)] * (most - len(places))] for places in PLACES.values()]
    return np.array(rows, dtype=np.float32)


def class_names() -> tuple[str, ...]:
    """Return a description of every class, used as its name."""
    bodies, parts, places = [*BODIES, *UNSEEN], list(PARTS), list(PLACES)
    return tuple(f"{SURFACES[s]} {bodies[b]}, {places[w]} {parts[p]}" for b, p, w, s in table())


def part_outline(
    place: Frame, parts_N: np.ndarray, ways_N: np.ndarray, grown_N: np.ndarray
) -> np.ndarray:
    """Return the outline of all parts of each thing, NSS."""
    distances = []
    for x, y, size in np.moveaxis(place_table()[ways_N], 0, -1):
        spot = frame(x=x, y=y, size=np.maximum(size * grown_N, np.float32(0.01)), inside=place)
        # Scale back to the body's units; absent parts (size 0) are moved out of the image
        distance = draw_mould(moulds(*PARTS.values()), parts_N, spot)
        distances.append(distance * wide(size * grown_N) + wide(100 * (size == 0)))
    return reduce(np.minimum, distances)


def checks(place: Frame, frequency: Number) -> np.ndarray:
    """Return a checkerboard of light and dark fields with soft edges."""
    pace = wide(frequency) * np.float32(np.pi)
    return np.sin(place.x * pace) * np.sin(place.y * pace)


def dots(place: Frame, frequency: Number, radius: Number = 0.3) -> np.ndarray:
    """Return dots on a square lattice; `radius` in lattice steps."""
    x, y = place.x * (wide(frequency) / 2), place.y * (wide(frequency) / 2)
    far = length(x - np.rint(x), y - np.rint(y))
    return np.clip((wide(radius) - far) / (wide(frequency) * place.pixel / 2), -1, 1)


def surface(place: Frame, body: np.ndarray, kinds_N: np.ndarray, dice: Dice) -> np.ndarray:
    """Return the opacity of the second colour, 0 to 1, NSS. Takes 3 draws."""
    frequency, angle, phase = dice.between(2.4, 3.4), dice.around(0.5), dice.turn()
    patterns = {
        "striped": np.clip(2 * stripes(place, frequency * 1.2, angle, phase) + 0.5, 0, 1),
        "dotted": np.clip(dots(place, frequency, 0.3) + 0.5, 0, 1),
        "chequered": np.clip(3 * checks(place, frequency * np.float32(0.6)) + 0.5, 0, 1),
        "rimmed": cover(-0.22 - body, place.pixel),
    }
    total = np.zeros_like(body)
    for name, pattern in patterns.items():
        total += pattern * wide(kinds_N == SURFACES.index(name))
    return total


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these classes."""
    dice = Dice(draws_NK)
    bodies, parts, ways, kinds = table()[classes_N].T
    picture = backdrop(dice)
    paper = middle(picture)
    clutter(picture, dice, THINGS)
    x, y, size, angle = (
        dice.around(0.3),
        dice.around(0.3),
        dice.between(0.38, 0.6),
        dice.around(0.45),
    )
    place = frame(
        x=x,
        y=y,
        size=size,
        angle=angle,
        stretch=dice.between(0.87, 1.15),
        shear=dice.around(0.15),
        mirror=dice.side(),
    )
    ink, second, limbs = thing_colours(hue_table()[classes_N], paper, dice)
    body = draw_mould(moulds(*BODIES.values(), *UNSEEN.values()), bodies, place)
    over(picture, ink, cover(body, place.pixel))
    over(picture, second, cover(body, place.pixel) * surface(place, body, kinds, dice))
    over(
        picture,
        limbs,
        cover(part_outline(place, parts, ways, dice.between(0.9, 1.15)), place.pixel),
    )
    images = finish(blur(picture, dice.between(0, 0.4)), grain, dice.between(0.02, 0.15))
    return Picture(images, {**hues(ink, paper), **pose(x, y, size, angle)})


def thing_colours(
    hues_N2: np.ndarray, paper: np.ndarray, dice: Dice
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the colours of the body, of its surface's second colour, and of its parts, (N, 3) each.

    Takes 7 draws.
    """
    hue = hues_N2[:, 0] + dice.around(0.15)
    ink = apart(hsv(hue, dice.between(0.15, 0.8), dice.between(0.3, 0.95)), paper, 0.2)
    second = apart(mix(ink, hsv(hue + np.float32(0.5), 0.3, 0.5), 0.3), ink, 0.3)
    limbs = hsv(
        hue + hues_N2[:, 1] + dice.around(0.1), dice.between(0.15, 0.8), dice.between(0.3, 0.95)
    )
    return ink, second, apart(limbs, mix(ink, paper, dice.between(0.3, 0.7)), 0.25)


OBJECTS = Generator(
    name="objects",
    classes=class_names()[:TARGETS],
    held_out=class_names()[TARGETS:],
    streams=62,
    paint=paint,
)
