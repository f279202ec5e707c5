"""`gestures`: one to four curved pen strokes, a family of `forms`.

A class determines where its strokes start and end and how they curve; each may continue where the
previous one ended or branch off from it. Thickness and, slightly, every point vary between images.
Shapes as in `canvas`; C classes.
"""

from functools import cache

import numpy as np

from learngene_zoo.plugin import derive_seed
from lgzoo_mini.painting.canvas import Dice, over
from lgzoo_mini.painting.shapes import Frame, capsule, cover
from lgzoo_mini.painting.views import develop_pictures, scene, view
from lgzoo_mini.suite import Generator, Picture

CLASSES, STROKES = 400, 4
PIECES = 5  # straight pieces that approximate a curve


@cache
def table() -> tuple[np.ndarray, np.ndarray]:
    """Draw the strokes of every class.

    Returns their numbers, int64 (C,), and their starts, handles and ends (x, y), float32 (C,
    STROKES, 3, 2).
    """
    draws = np.random.Generator(np.random.PCG64(derive_seed(0, "gestures", "classes")))
    counts = draws.choice([1, 2, 3, 4], CLASSES, p=[0.15, 0.35, 0.33, 0.17])
    points = np.zeros((CLASSES, STROKES, 3, 2), dtype=np.float32)
    for strokes in points:
        start = draws.uniform(-0.85, 0.85, 2)
        for stroke in strokes:
            stroke[:] = bow(draws, start)
            on, branch = stroke[2], (stroke[0] + 2 * stroke[1] + stroke[2]) / 4
            start = (on, branch, draws.uniform(-0.85, 0.85, 2), draws.uniform(-0.85, 0.85, 2))[
                draws.integers(4)
            ]
    return counts, points


def bow(draws: np.random.Generator, start: np.ndarray) -> np.ndarray:
    """Draw start, handle and end (3, 2) of a stroke of some length; 3 in 10 are straight."""
    end = draws.uniform(-0.85, 0.85, 2)
    while np.abs(end - start).max() < 0.55:
        end = draws.uniform(-0.85, 0.85, 2)
    bent = draws.normal(0, 0.45, 2) * (draws.random() < 0.7)
    return np.stack([start, (start + end) / 2 + bent, end])


def draw_strokes(dice: Dice, classes_N: np.ndarray, place: Frame) -> np.ndarray:
    """Return the distance of every pixel from the strokes, NSS. Takes 26 draws."""
    counts, points = (part[classes_N] for part in table())
    moved = np.stack([dice.around(0.11) for _ in range(STROKES * 6)], axis=1).reshape(points.shape)
    points = points + moved
    thick = dice.between(0.05, 0.19)
    thin = thick * dice.between(0.5, 1.1)
    found = np.full(place.x.shape, 9, dtype=np.float32)
    for stroke in range(STROKES):
        some = np.flatnonzero(counts > stroke)
        if len(some):
            inside = Frame(*(part[some] for part in place))
            ends = np.ascontiguousarray(points[some, stroke].transpose(1, 2, 0))
            found[some] = np.minimum(found[some], draw_curve(inside, ends, thick[some], thin[some]))
    return found


def draw_curve(
    place: Frame, points_32N: np.ndarray, thick: np.ndarray, thin: np.ndarray
) -> np.ndarray:
    """Return the distance from a quadratic Bezier curve, cut into straight, tapering pieces."""
    start, handle, end = points_32N
    steps = [np.float32(step / PIECES) for step in range(PIECES + 1)]
    path = [(1 - t) * (1 - t) * start + 2 * t * (1 - t) * handle + t * t * end for t in steps]
    width = [thick + (thin - thick) * t for t in steps]
    found = [
        capsule(place, (a[0], a[1]), (b[0], b[1]), u, v)
        for a, b, u, v in zip(path, path[1:], width, width[1:])
    ]
    return np.minimum.reduce(found)


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these classes."""
    dice = Dice(draws_NK)
    seen, place = scene(dice), view(dice)
    distance = draw_strokes(dice, classes_N, place)
    picture = over(
        seen.picture, seen.ink, cover(distance, place.pixel, np.exp(dice.between(0, 0.7)))
    )
    return Picture(develop_pictures(dice, picture, grain))


GESTURES = Generator(
    name="gestures",
    classes=(),
    held_out=tuple(f"gesture {number}" for number in range(CLASSES)),
    streams=100,
    paint=paint,
)
