"""Strokes, lines with a thickness at either end, of which the `figures` consist; they are moved,
rotated and drawn.

`THINGS` are drawn with ten strokes each: the held-out classes of `figures`, none of which walks
upright. Shapes: S strokes, N images; every field is float32 (S, N).
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from lgzoo_mini.painting.shapes import Frame, capsule


class Strokes(NamedTuple):
    """Middle, half (the vector from middle to end), and radii at start and end of strokes."""

    x: np.ndarray
    y: np.ndarray
    half_x: np.ndarray
    half_y: np.ndarray
    start: np.ndarray
    end: np.ndarray


Point = tuple[np.ndarray, np.ndarray]


def place_limb(joint: Point, length: float, angle: np.ndarray) -> Point:
    """Return the end of a limb that hangs from a joint.

    `angle` is in radians, from straight down towards the right.
    """
    return joint[0] + np.float32(length) * np.sin(angle), joint[1] + np.float32(length) * np.cos(
        angle
    )


def join_lines(lines: Sequence[tuple[Point, Point, float, float]]) -> Strokes:
    """Build strokes from lines: start, end, and the radius at either."""
    fields = []
    for (x0, y0), (x1, y1), start, end in lines:
        radii = (np.full_like(x0, start), np.full_like(x0, end))
        fields.append(((x0 + x1) / 2, (y0 + y1) / 2, (x1 - x0) / 2, (y1 - y0) / 2, *radii))
    return Strokes(*(np.stack(field) for field in zip(*fields)))


def turn_strokes(strokes: Strokes, angle: np.ndarray) -> Strokes:
    """Rotate every stroke about its middle."""
    cosine, sine = np.cos(angle), np.sin(angle)
    half_x = cosine * strokes.half_x - sine * strokes.half_y
    return strokes._replace(half_x=half_x, half_y=sine * strokes.half_x + cosine * strokes.half_y)


def rotate_strokes(strokes: Strokes, angle: np.ndarray) -> Strokes:
    """Rotate all strokes together about the centre."""
    cosine, sine = np.cos(angle), np.sin(angle)
    x, y = cosine * strokes.x - sine * strokes.y, sine * strokes.x + cosine * strokes.y
    return turn_strokes(strokes, np.broadcast_to(angle, strokes.x.shape))._replace(x=x, y=y)


def exchange_strokes(strokes: Strokes, steps_N: np.ndarray) -> Strokes:
    """Move every stroke to the position of the stroke `steps_N` further on, cyclically."""
    count = len(strokes.x)
    source = (np.arange(count)[:, None] + steps_N) % count
    return strokes._replace(
        x=np.take_along_axis(strokes.x, source, 0), y=np.take_along_axis(strokes.y, source, 0)
    )


def either(condition_N: np.ndarray, first: Strokes, second: Strokes) -> Strokes:
    """Select the first strokes where the condition holds, else the second."""
    return Strokes(*(np.where(condition_N, one, other) for one, other in zip(first, second)))


def outline(place: Frame, strokes: Strokes, chosen: Sequence[int]) -> np.ndarray:
    """Return the outline of the union of the chosen strokes, NSS."""
    distances = (
        capsule(place, (x - half_x, y - half_y), (x + half_x, y + half_y), start, end)
        for x, y, half_x, half_y, start, end in (
            tuple(field[i] for field in strokes) for i in chosen
        )
    )
    return reduce(np.minimum, distances)


# x and y of start and end, radius at start and end
Stroke = tuple[float, float, float, float, float, float]

THINGS: dict[str, tuple[Stroke, ...]] = {
    "quadruped": (
        (-0.85, -0.45, -0.7, -0.42, 0.13, 0.15), (-0.5, 0.0, 0.5, 0.0, 0.24, 0.22),
        (-0.5, -0.1, -0.72, -0.4, 0.13, 0.1), (0.6, -0.1, 0.85, 0.25, 0.06, 0.03),
        (-0.45, 0.1, -0.55, 0.45, 0.1, 0.07), (-0.55, 0.45, -0.5, 0.8, 0.07, 0.06),
        (-0.3, 0.1, -0.28, 0.8, 0.09, 0.06), (0.35, 0.1, 0.25, 0.45, 0.1, 0.07),
        (0.25, 0.45, 0.3, 0.8, 0.07, 0.06),
        (0.5, 0.1, 0.55, 0.8, 0.1, 0.06),
    ),
    "bird": (
        (-0.7, -0.15, -0.62, -0.12, 0.13, 0.15), (-0.5, 0.0, 0.35, 0.15, 0.2, 0.1),
        (-0.2, 0.0, 0.0, -0.6, 0.14, 0.1),
        (0.0, -0.6, 0.35, -0.9, 0.1, 0.03), (-0.05, 0.05, 0.3, -0.45, 0.12, 0.08),
        (0.3, -0.45, 0.75, -0.55, 0.08, 0.03), (0.35, 0.15, 0.85, 0.05, 0.08, 0.1),
        (0.35, 0.15, 0.85, 0.3, 0.08, 0.1),
        (-0.8, -0.12, -1.0, -0.05, 0.05, 0.02), (-0.1, 0.2, 0.15, 0.5, 0.05, 0.03),
    ),
    "spider": (
        (0.0, -0.35, 0.0, -0.3, 0.16, 0.16), (0.0, 0.1, 0.0, 0.3, 0.28, 0.25),
        (-0.1, -0.2, -0.8, -0.75, 0.06, 0.03),
        (0.1, -0.2, 0.8, -0.75, 0.06, 0.03), (-0.1, -0.1, -0.95, -0.2, 0.06, 0.03),
        (0.1, -0.1, 0.95, -0.2, 0.06, 0.03), (-0.1, 0.1, -0.95, 0.35, 0.06, 0.03),
        (0.1, 0.1, 0.95, 0.35, 0.06, 0.03),
        (-0.1, 0.2, -0.7, 0.9, 0.06, 0.03), (0.1, 0.2, 0.7, 0.9, 0.06, 0.03),
    ),
    "chair": (
        (-0.5, -0.85, -0.4, -0.85, 0.09, 0.09), (-0.5, 0.1, 0.5, 0.1, 0.1, 0.1),
        (-0.5, 0.1, -0.5, -0.9, 0.09, 0.09),
        (-0.35, 0.1, -0.35, -0.8, 0.06, 0.06), (-0.2, 0.1, 0.3, 0.0, 0.08, 0.08),
        (-0.5, -0.3, -0.3, -0.3, 0.06, 0.06),
        (-0.5, 0.1, -0.55, 0.95, 0.08, 0.06), (-0.3, 0.1, -0.3, 0.8, 0.06, 0.05),
        (0.5, 0.1, 0.55, 0.95, 0.08, 0.06),
        (0.3, 0.1, 0.3, 0.8, 0.06, 0.05),
    ),
    "table": (
        (-0.1, -0.5, 0.1, -0.5, 0.13, 0.13), (-0.9, -0.3, 0.9, -0.3, 0.1, 0.1),
        (-0.8, -0.2, 0.8, -0.2, 0.06, 0.06),
        (-0.6, -0.3, -0.4, -0.3, 0.12, 0.12), (0.4, -0.3, 0.6, -0.3, 0.12, 0.12),
        (-0.5, -0.1, 0.5, -0.1, 0.04, 0.04),
        (-0.8, -0.2, -0.9, 0.7, 0.08, 0.06), (-0.55, -0.2, -0.55, 0.5, 0.06, 0.05),
        (0.8, -0.2, 0.9, 0.7, 0.08, 0.06),
        (0.55, -0.2, 0.55, 0.5, 0.06, 0.05),
    ),
    "fish": (
        (-0.6, 0.0, -0.4, 0.0, 0.18, 0.26), (-0.4, 0.0, 0.2, 0.0, 0.3, 0.22),
        (0.2, 0.0, 0.6, 0.0, 0.2, 0.06),
        (0.6, 0.0, 0.95, -0.4, 0.06, 0.1), (0.6, 0.0, 0.95, 0.4, 0.06, 0.1),
        (-0.2, -0.2, 0.15, -0.5, 0.1, 0.04),
        (-0.1, 0.2, 0.2, 0.45, 0.08, 0.04), (-0.3, 0.1, -0.05, 0.2, 0.06, 0.04),
        (-0.8, 0.05, -0.7, 0.03, 0.05, 0.08),
        (0.1, -0.25, 0.3, -0.4, 0.06, 0.03),
    ),
    "snake": (
        (-0.95, -0.35, -0.85, -0.35, 0.1, 0.12), (-0.85, -0.35, -0.6, -0.2, 0.1, 0.11),
        (-0.6, -0.2, -0.55, 0.15, 0.11, 0.11), (-0.55, 0.15, -0.25, 0.35, 0.11, 0.12),
        (-0.25, 0.35, 0.0, 0.1, 0.12, 0.12), (0.0, 0.1, 0.05, -0.25, 0.12, 0.11),
        (0.05, -0.25, 0.35, -0.4, 0.11, 0.1),
        (0.35, -0.4, 0.55, -0.1, 0.1, 0.09), (0.55, -0.1, 0.6, 0.25, 0.09, 0.07),
        (0.6, 0.25, 0.95, 0.35, 0.07, 0.02),
    ),
    "hand": (
        (-0.1, 0.55, 0.1, 0.55, 0.22, 0.22), (-0.15, 0.35, 0.15, 0.35, 0.3, 0.3),
        (-0.35, 0.4, -0.8, -0.05, 0.12, 0.08), (-0.3, 0.15, -0.4, -0.65, 0.1, 0.07),
        (-0.1, 0.1, -0.1, -0.85, 0.1, 0.07), (0.12, 0.1, 0.2, -0.75, 0.1, 0.07),
        (0.32, 0.2, 0.5, -0.45, 0.09, 0.06),
        (-0.1, 0.6, -0.1, 0.95, 0.16, 0.16), (0.1, 0.6, 0.1, 0.95, 0.16, 0.16),
        (0.0, 0.2, 0.0, 0.6, 0.3, 0.25),
    ),
    "house": (
        (0.4, -0.75, 0.4, -0.55, 0.09, 0.09), (-0.75, -0.2, 0.75, -0.2, 0.07, 0.07),
        (-0.85, -0.2, 0.0, -0.85, 0.09, 0.09), (0.85, -0.2, 0.0, -0.85, 0.09, 0.09),
        (-0.35, 0.15, -0.25, 0.15, 0.12, 0.12), (0.4, 0.15, 0.5, 0.15, 0.12, 0.12),
        (-0.7, -0.2, -0.7, 0.8, 0.07, 0.07), (0.7, -0.2, 0.7, 0.8, 0.07, 0.07),
        (-0.7, 0.8, 0.7, 0.8, 0.07, 0.07),
        (0.05, 0.5, 0.05, 0.75, 0.12, 0.12),
    ),
    "umbrella": (
        (0.0, -0.95, 0.0, -0.8, 0.05, 0.05), (0.0, -0.7, 0.0, 0.75, 0.05, 0.05),
        (0.0, -0.75, -0.5, -0.6, 0.12, 0.14),
        (-0.5, -0.6, -0.9, -0.15, 0.14, 0.07), (0.0, -0.75, 0.5, -0.6, 0.12, 0.14),
        (0.5, -0.6, 0.9, -0.15, 0.14, 0.07), (-0.3, -0.6, -0.4, -0.15, 0.16, 0.05),
        (0.3, -0.6, 0.4, -0.15, 0.16, 0.05), (0.0, 0.75, 0.15, 0.9, 0.05, 0.05),
        (0.15, 0.9, 0.3, 0.75, 0.05, 0.05),
    ),
    "scissors": (
        (0.0, 0.0, 0.02, 0.02, 0.1, 0.1), (0.0, 0.0, -0.5, -0.95, 0.12, 0.03),
        (0.0, 0.0, 0.5, -0.95, 0.12, 0.03),
        (0.0, 0.0, 0.25, 0.4, 0.08, 0.08), (0.0, 0.0, -0.25, 0.4, 0.08, 0.08),
        (0.25, 0.4, 0.65, 0.5, 0.08, 0.07),
        (0.25, 0.4, 0.3, 0.85, 0.08, 0.07), (-0.25, 0.4, -0.65, 0.5, 0.08, 0.07),
        (-0.25, 0.4, -0.3, 0.85, 0.08, 0.07),
        (0.65, 0.5, 0.3, 0.85, 0.07, 0.07),
    ),
    "boat": (
        (0.05, -0.95, 0.2, -0.9, 0.04, 0.03), (-0.7, 0.5, 0.7, 0.5, 0.2, 0.2),
        (-0.95, 0.35, 0.95, 0.35, 0.06, 0.06),
        (0.0, -0.9, 0.0, 0.4, 0.05, 0.05), (0.1, -0.8, 0.65, 0.1, 0.04, 0.08),
        (0.1, 0.1, 0.65, 0.1, 0.08, 0.08),
        (0.1, -0.4, 0.3, 0.0, 0.12, 0.14), (-0.1, -0.7, -0.5, 0.1, 0.03, 0.06),
        (-0.1, 0.1, -0.5, 0.1, 0.07, 0.06),
        (-0.15, -0.2, -0.25, 0.0, 0.1, 0.1),
    ),
}  # fmt: skip
