"""Strokes: lines with a thickness at either end, of which the `figures` are made. They are moved, turned and drawn.

Shapes: S strokes, N pictures; every field is float32 (S, N).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from learngene_zoo.tasks.mini.canvas import Frame
from learngene_zoo.tasks.mini.outlines import capsule


class Strokes(NamedTuple):
    """A stroke's middle, its half (the way from the middle to its end), and its radius at start and end."""

    x: np.ndarray
    y: np.ndarray
    half_x: np.ndarray
    half_y: np.ndarray
    start: np.ndarray
    end: np.ndarray


Point = tuple[np.ndarray, np.ndarray]


def hanging(joint: Point, length: float, angle: np.ndarray) -> Point:
    """Where a limb ends that hangs from a joint, `angle` radians from straight down towards the right."""
    return joint[0] + np.float32(length) * np.sin(angle), joint[1] + np.float32(length) * np.cos(angle)


def joined(lines: Sequence[tuple[Point, Point, float, float]]) -> Strokes:
    """Strokes from start to end, with a radius at either."""
    fields = []
    for (x0, y0), (x1, y1), start, end in lines:
        radii = (np.full_like(x0, start), np.full_like(x0, end))
        fields.append(((x0 + x1) / 2, (y0 + y1) / 2, (x1 - x0) / 2, (y1 - y0) / 2, *radii))
    return Strokes(*(np.stack(field) for field in zip(*fields)))


def turned(strokes: Strokes, angle: np.ndarray) -> Strokes:
    """Every stroke turned about its own middle."""
    cosine, sine = np.cos(angle), np.sin(angle)
    half_x = cosine * strokes.half_x - sine * strokes.half_y
    return strokes._replace(half_x=half_x, half_y=sine * strokes.half_x + cosine * strokes.half_y)


def whirled(strokes: Strokes, angle: np.ndarray) -> Strokes:
    """All strokes turned together about the centre."""
    cosine, sine = np.cos(angle), np.sin(angle)
    x, y = cosine * strokes.x - sine * strokes.y, sine * strokes.x + cosine * strokes.y
    return turned(strokes, np.broadcast_to(angle, strokes.x.shape))._replace(x=x, y=y)


def exchanged(strokes: Strokes, steps_N: np.ndarray) -> Strokes:
    """Every stroke at the place of the one so many steps further on."""
    count = len(strokes.x)
    source = (np.arange(count)[:, None] + steps_N) % count
    return strokes._replace(x=np.take_along_axis(strokes.x, source, 0), y=np.take_along_axis(strokes.y, source, 0))


def either(condition_N: np.ndarray, first: Strokes, second: Strokes) -> Strokes:
    """The first where the condition holds, else the second."""
    return Strokes(*(np.where(condition_N, one, other) for one, other in zip(first, second)))


def outline(place: Frame, strokes: Strokes, chosen: Sequence[int]) -> np.ndarray:
    """The union of the chosen strokes, a distance NSS."""
    nearest: np.ndarray | None = None
    for x, y, half_x, half_y, start, end in (tuple(field[i] for field in strokes) for i in chosen):
        distance = capsule(place, (x - half_x, y - half_y), (x + half_x, y + half_y), start, end)
        nearest = distance if nearest is None else np.minimum(nearest, distance)
    assert nearest is not None
    return nearest
