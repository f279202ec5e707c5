"""Outlines of shapes: how far each pixel lies outside, in a frame's units and negative inside, float32 NSS.

Unions are `np.minimum`, intersections `np.maximum`; `canvas.cover` turns distances into coverage. Distances are exact near the
edge, where coverage is computed, and only ordered elsewhere. `moulds` computes outlines once on a fine grid of G x G points, so
that any of these M can be put into the frames of N pictures. Shapes as in `canvas`; settings are (N,) or plain numbers.
"""

from collections.abc import Callable, Sequence

import numpy as np

from lgzoo_mini.canvas import Frame, Number, wide

_TINY = np.float32(1e-6)


def length(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The distance from the centre."""
    return np.sqrt(x * x + y * y)


def polar(place: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Distance from the centre, and the angle, -pi to pi, clockwise from the right."""
    return length(place.x, place.y), np.arctan2(place.y, place.x)


def disc(place: Frame, radius: Number = 1.0) -> np.ndarray:
    """A circle around the centre."""
    return length(place.x, place.y) - wide(radius)


def ellipse(place: Frame, across: Number, down: Number) -> np.ndarray:
    """An ellipse with these two radii."""
    x, y = place.x / wide(across), place.y / wide(down)
    far = length(x, y)
    return far * (far - 1) / (length(x / wide(across), y / wide(down)) + _TINY)


def box(place: Frame, across: Number, down: Number, corner: Number = 0.0) -> np.ndarray:
    """A rectangle, half as wide and as high as said, its corners rounded by `corner`."""
    x, y = np.abs(place.x) - wide(across) + wide(corner), np.abs(place.y) - wide(down) + wide(corner)
    outside = length(np.maximum(x, 0), np.maximum(y, 0))
    return outside + np.minimum(np.maximum(x, y), 0) - wide(corner)


def capsule(
    place: Frame, start: tuple[Number, Number], end: tuple[Number, Number], radius: Number, tip: Number | None = None
) -> np.ndarray:
    """Everything within `radius` of a line from start to end (x, y each); towards the end the radius becomes `tip`."""
    (x0, y0), (x1, y1) = ((wide(x), wide(y)) for x, y in (start, end))
    along_x, along_y = x1 - x0, y1 - y0
    x, y = place.x - x0, place.y - y0
    share = np.clip((x * along_x + y * along_y) / (along_x * along_x + along_y * along_y + _TINY), 0, 1)
    thick = wide(radius) if tip is None else wide(radius) + share * (wide(tip) - wide(radius))
    return length(x - share * along_x, y - share * along_y) - thick


def half_plane(place: Frame, angle: Number, offset: Number = 0.0) -> np.ndarray:
    """What lies less than `offset` from the centre in the direction of `angle`."""
    return place.x * np.cos(wide(angle)) + place.y * np.sin(wide(angle)) - wide(offset)


def convex(place: Frame, points: Sequence[tuple[Number, Number]]) -> np.ndarray:
    """The convex polygon of these points (x, y), which go around clockwise as seen."""
    farthest: np.ndarray | None = None
    for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]]):
        along_x, along_y = wide(x1) - wide(x0), wide(y1) - wide(y0)
        scale = 1 / np.sqrt(along_x * along_x + along_y * along_y + _TINY)
        side = (place.x - wide(x0)) * (along_y * scale) - (place.y - wide(y0)) * (along_x * scale)
        farthest = side if farthest is None else np.maximum(farthest, side)
    assert farthest is not None
    return farthest


def polygon(place: Frame, sides: Number, inner: Number = 1.0) -> np.ndarray:
    """A regular polygon with a point at the top, its points at distance 1; `inner` below 1 pulls in the middles of its
    sides by that factor, which makes it a star."""
    rho, theta = polar(place)
    step = np.float32(2 * np.pi) / wide(sides)
    fold = np.mod(theta + np.float32(np.pi / 2) + step / 2, step) - step / 2
    x, y = rho * np.cos(fold), np.abs(rho * np.sin(fold))
    middle = wide(inner) * np.cos(step / 2)
    middle_x, middle_y = middle * np.cos(step / 2), middle * np.sin(step / 2)
    along_x, along_y = middle_x - 1, middle_y
    scale = 1 / np.sqrt(along_x * along_x + along_y * along_y)
    return (x - 1) * (along_y * scale) - y * (along_x * scale)


def contour(place: Frame, waves: Sequence[tuple[Number, Number, Number]], radius: Number = 1.0) -> np.ndarray:
    """The closed curve r(theta) = radius (1 + sum of amplitude cos(lobes theta + phase)); `waves` (lobes, amplitude, phase)."""
    rho, theta = polar(place)
    reach = 1.0 + sum(wide(amplitude) * np.cos(wide(lobes) * theta + wide(phase)) for lobes, amplitude, phase in waves)
    return rho - wide(radius) * reach


def band(distance: np.ndarray, width: Number) -> np.ndarray:
    """A line of this width along an outline."""
    return np.abs(distance) - wide(width) / 2


Outline = Callable[[Frame], np.ndarray]
POINTS = 128  # of a mould's side
REACH = 1.5  # of the grid, in a frame's units; farther out a pixel is as far as it is outside the grid
_STEP = 2 * REACH / POINTS

_AXIS = ((np.arange(POINTS, dtype=np.float32) + np.float32(0.5)) * np.float32(_STEP) - np.float32(REACH)).astype(
    np.float32
)


def moulds(outlines: Sequence[Outline]) -> np.ndarray:
    """The distances of these outlines, float32 (M, G, G)."""
    grid = Frame(_AXIS[None, None, :], _AXIS[None, :, None], wide(_STEP))
    return np.concatenate([np.broadcast_to(outline(grid), (1, POINTS, POINTS)) for outline in outlines])


def moulded(moulds_MGG: np.ndarray, numbers_N: np.ndarray, place: Frame) -> np.ndarray:
    """The outline with each picture's number in its frame, float32 NSS: the distance at the nearest point of the grid."""
    column = np.clip((place.x + np.float32(REACH)) * np.float32(1 / _STEP), 0, POINTS - 1).astype(np.int64)
    row = np.clip((place.y + np.float32(REACH)) * np.float32(1 / _STEP), 0, POINTS - 1).astype(np.int64)
    row *= POINTS
    row += column
    row += numbers_N[:, None, None] * (POINTS * POINTS)
    return np.take(moulds_MGG, row)
