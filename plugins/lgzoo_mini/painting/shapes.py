"""Frames (coordinate systems of things) and outlines of shapes in them.

An outline gives the distance of each pixel from a shape in a frame's units, negative inside; unions
are `np.minimum`, intersections `np.maximum`, and `cover` converts distances to coverage. Distances
are exact near the edge, where coverage is computed, and only monotonic elsewhere. `moulds` computes
outlines once on a fine grid of G x G points, and `draw_mould` puts any of these M into the frames
of N images; `stamp_masks` does so with masks.

Everything is float32 and computed element by element with numpy: no matrix product, no sum along an
axis, no loop over N. So an image is bitwise the same, regardless of the batch it is drawn in.
Shapes: NSS is (N, SIZE, SIZE); settings are (N,), one for each image, or a plain number.
"""

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch.nn import functional

from lgzoo_mini.suite import SIZE

Number = np.ndarray | float  # one value for each image, float32 (N,), or one for all
PIXEL = 2.0 / SIZE  # width of a pixel; an image extends from -1 to 1
_AXIS = ((np.arange(SIZE, dtype=np.float32) * 2 + 1) / SIZE - 1).astype(np.float32)


class Frame(NamedTuple):
    """The coordinates of every pixel in a frame: x to the right, y down, NSS each.

    The frame extends from -1 to 1; a pixel of the image is `pixel` wide in it, (N, 1, 1).
    """

    x: np.ndarray
    y: np.ndarray
    pixel: np.ndarray


def wide(values: Number) -> np.ndarray:
    """Reshape one number per image to float32 (N, 1, 1), for NSS; return a field unchanged."""
    numbers = np.asarray(values, dtype=np.float32)
    return numbers if numbers.ndim == 3 else numbers.reshape(-1, 1, 1)


PICTURE = Frame(_AXIS[None, None, :], _AXIS[None, :, None], wide(PIXEL))


def frame(
    *,
    x: Number = 0.0,
    y: Number = 0.0,
    size: Number = 1.0,
    angle: Number = 0.0,
    stretch: Number = 1.0,
    shear: Number = 0.0,
    tilt_x: Number = 0.0,
    tilt_y: Number = 0.0,
    mirror: Number = 1.0,
    inside: Frame = PICTURE,
) -> Frame:
    """Return a frame at (x, y) in `inside`, `size` times as large, rotated by `angle`.

    Args:
        x, y: the centre, in units of `inside`.
        size: the size relative to `inside`.
        angle: clockwise rotation, in radians.
        stretch: factor on the width; the height is divided by it.
        shear: horizontal shift per unit of height.
        tilt_x, tilt_y: perspective tilt out of the image plane, less than 1 / the frame's reach
            (0.3 is much).
        mirror: -1 swaps left and right.
        inside: the enclosing frame.
    """
    scale = 1 / wide(size)
    right, down = (inside.x - wide(x)) * scale, (inside.y - wide(y)) * scale
    if not (_is_zero(tilt_x) and _is_zero(tilt_y)):
        near = 1 / np.maximum(1 + wide(tilt_x) * right + wide(tilt_y) * down, np.float32(0.2))
        right, down = right * near, down * near
    if not _is_zero(angle):
        cosine, sine = np.cos(wide(angle)), np.sin(wide(angle))
        right, down = cosine * right + sine * down, cosine * down - sine * right
    if not _is_zero(shear):
        right = right - wide(shear) * down
    if (
        isinstance(stretch, np.ndarray)
        or isinstance(mirror, np.ndarray)
        or stretch != 1
        or mirror != 1
    ):
        right, down = right * (wide(mirror) / wide(stretch)), down * wide(stretch)
    return Frame(right, down, inside.pixel * scale)


def _is_zero(values: Number) -> bool:
    return not isinstance(values, np.ndarray) and values == 0


class Placed(TypedDict):
    """Position, size and rotation of a thing, float32 (N,) each: arguments of `frame`."""

    x: np.ndarray
    y: np.ndarray
    size: np.ndarray
    angle: np.ndarray


class Pose(Placed, total=False):
    """Position, size, rotation and deformation of a thing."""

    stretch: np.ndarray
    shear: np.ndarray
    tilt_x: np.ndarray
    tilt_y: np.ndarray


def cover(distance: np.ndarray, pixel: np.ndarray, soft: Number = 1.0) -> np.ndarray:
    """Return the share of each pixel that lies inside, 0 to 1, where `distance` is negative inside.

    The edge is `soft` pixels wide.
    """
    return np.clip(0.5 - distance / (pixel * wide(soft)), 0, 1)


def stamp_masks(masks: torch.Tensor, place: Frame) -> np.ndarray:
    """Return the coverage of each pixel, float32 (N, C, SIZE, SIZE), by masks in their frames.

    `masks` (N, C, B, B) has C layers, each of which fills the frame `place`.
    """
    grid = np.empty((len(masks), SIZE, SIZE, 2), dtype=np.float32)
    grid[..., 0], grid[..., 1] = place.x, place.y
    return functional.grid_sample(
        masks, torch.from_numpy(grid), mode="bilinear", padding_mode="zeros", align_corners=False
    ).numpy()


def pose(
    x: np.ndarray, y: np.ndarray, size: np.ndarray, angle: np.ndarray, **_: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the attributes of a pose: centre, diameter as a share of the image, and rotation."""
    return {
        "x": x,
        "y": y,
        "size": 2 * size - 1,
        "angle_x": np.cos(angle),
        "angle_y": np.sin(angle),
    }


Outline = Callable[[Frame], np.ndarray]
POINTS = 128  # points along a side of the grid of a mould
# Half the side of the grid, in a frame's units; pixels outside take the value at its border
REACH = 1.5
_STEP = 2 * REACH / POINTS
_GRID = (np.arange(POINTS, dtype=np.float32) + np.float32(0.5)) * np.float32(_STEP) - np.float32(
    REACH
)
_TINY = np.float32(1e-6)


def length(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the distance from the centre."""
    return np.sqrt(x * x + y * y)


def polar(place: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Return the distance from the centre, and the angle, -pi to pi, clockwise from the right."""
    return length(place.x, place.y), np.arctan2(place.y, place.x)


def disc(place: Frame, radius: Number = 1.0) -> np.ndarray:
    """Return the outline of a circle around the centre."""
    return length(place.x, place.y) - wide(radius)


def ellipse(place: Frame, across: Number, down: Number) -> np.ndarray:
    """Return the outline of an ellipse with these two radii."""
    x, y = place.x / wide(across), place.y / wide(down)
    far = length(x, y)
    return far * (far - 1) / (length(x / wide(across), y / wide(down)) + _TINY)


def box(place: Frame, across: Number, down: Number, corner: Number = 0.0) -> np.ndarray:
    """Return the outline of a rectangle with these half width and half height.

    Its corners are rounded by `corner`.
    """
    x, y = (
        np.abs(place.x) - wide(across) + wide(corner),
        np.abs(place.y) - wide(down) + wide(corner),
    )
    outside = length(np.maximum(x, 0), np.maximum(y, 0))
    return outside + np.minimum(np.maximum(x, y), 0) - wide(corner)


def capsule(
    place: Frame,
    start: tuple[Number, Number],
    end: tuple[Number, Number],
    radius: Number,
    tip: Number | None = None,
) -> np.ndarray:
    """Return the outline of all points within `radius` of a line from start to end (x, y each).

    The radius changes linearly to `tip` at the end.
    """
    (x0, y0), (x1, y1) = ((wide(x), wide(y)) for x, y in (start, end))
    along_x, along_y = x1 - x0, y1 - y0
    x, y = place.x - x0, place.y - y0
    share = np.clip(
        (x * along_x + y * along_y) / (along_x * along_x + along_y * along_y + _TINY), 0, 1
    )
    thick = wide(radius) if tip is None else wide(radius) + share * (wide(tip) - wide(radius))
    return length(x - share * along_x, y - share * along_y) - thick


def half_plane(place: Frame, angle: Number, offset: Number = 0.0) -> np.ndarray:
    """Return the outline of the half plane up to `offset` from the centre towards `angle`."""
    return place.x * np.cos(wide(angle)) + place.y * np.sin(wide(angle)) - wide(offset)


def convex(place: Frame, points: Sequence[tuple[Number, Number]]) -> np.ndarray:
    """Return the outline of a convex polygon with these corners (x, y), clockwise on the screen."""
    sides = []
    for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]]):
        along_x, along_y = wide(x1) - wide(x0), wide(y1) - wide(y0)
        scale = 1 / np.sqrt(along_x * along_x + along_y * along_y + _TINY)
        sides.append(
            (place.x - wide(x0)) * (along_y * scale) - (place.y - wide(y0)) * (along_x * scale)
        )
    return reduce(np.maximum, sides)


def polygon(place: Frame, sides: Number, inner: Number = 1.0) -> np.ndarray:
    """Return the outline of a regular polygon with a corner at the top; corners are at distance 1.

    `inner` below 1 pulls in the middles of its sides by that factor, which makes it a star.
    """
    rho, theta = polar(place)
    step = np.float32(2 * np.pi) / wide(sides)
    fold = np.mod(theta + np.float32(np.pi / 2) + step / 2, step) - step / 2
    x, y = rho * np.cos(fold), np.abs(rho * np.sin(fold))
    middle = wide(inner) * np.cos(step / 2)
    middle_x, middle_y = middle * np.cos(step / 2), middle * np.sin(step / 2)
    along_x, along_y = middle_x - 1, middle_y
    scale = 1 / np.sqrt(along_x * along_x + along_y * along_y)
    return (x - 1) * (along_y * scale) - y * (along_x * scale)


def contour(
    place: Frame, waves: Sequence[tuple[Number, Number, Number]], radius: Number = 1.0
) -> np.ndarray:
    """Return the outline of a closed curve, r(theta) = radius (1 + sum of waves).

    A wave (lobes, amplitude, phase) is amplitude cos(lobes theta + phase).
    """
    rho, theta = polar(place)
    reach = 1.0 + sum(
        wide(amplitude) * np.cos(wide(lobes) * theta + wide(phase))
        for lobes, amplitude, phase in waves
    )
    return rho - wide(radius) * reach


def band(distance: np.ndarray, width: Number) -> np.ndarray:
    """Return a line of this width along an outline."""
    return np.abs(distance) - wide(width) / 2


@cache
def moulds(*outlines: Outline) -> np.ndarray:
    """Return the distances of these outlines, float32 (M, G, G). Cached per process."""
    grid = Frame(_GRID[None, None, :], _GRID[None, :, None], wide(_STEP))
    return np.concatenate(
        [np.broadcast_to(outline(grid), (1, POINTS, POINTS)) for outline in outlines]
    )


def draw_mould(moulds_MGG: np.ndarray, numbers_N: np.ndarray, place: Frame) -> np.ndarray:
    """Return the outline with each image's number in its frame, float32 NSS.

    The distance is that of the nearest point of the grid.
    """
    column, row = (
        np.clip((way + np.float32(REACH)) * np.float32(1 / _STEP), 0, POINTS - 1).astype(np.int64)
        for way in (place.x, place.y)
    )
    return moulds_MGG[numbers_N[:, None, None], row, column]
