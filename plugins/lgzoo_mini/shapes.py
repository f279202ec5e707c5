"""Outlines of shapes, and what fills them and lies behind them: patterns, gradients and clutter.

An outline says how far each pixel lies outside, in a frame's units and negative inside, float32 NSS; unions are `np.minimum`,
intersections `np.maximum`, and `canvas.cover` turns distances into coverage. Distances are exact near the edge, where coverage is
computed, and only ordered elsewhere. `moulds` computes outlines once on a fine grid of G x G points, so that any of these M can
be put into the frames of N pictures. A pattern goes from -1 to 1, float32 NSS; frequencies are in cycles from one side of a frame
to the other. Shapes as in `canvas`; settings are (N,) or plain numbers.
"""

from collections.abc import Callable, Sequence

import numpy as np

from lgzoo_mini.canvas import PICTURE, Dice, Frame, Number, any_colour, cover, frame, mix, over, shade, wide
from lgzoo_mini.suite import SIZE

Outline = Callable[[Frame], np.ndarray]
POINTS = 128  # of a mould's side
REACH = 1.5  # of the grid, in a frame's units; farther out a pixel is as far as it is outside the grid
_STEP = 2 * REACH / POINTS
_AXIS = (np.arange(POINTS, dtype=np.float32) + np.float32(0.5)) * np.float32(_STEP) - np.float32(REACH)
_TINY, _PI = np.float32(1e-6), np.float32(np.pi)


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


def stripes(place: Frame, frequency: Number, angle: Number = 0.0, phase: Number = 0.0) -> np.ndarray:
    """Waves across the direction of `angle`."""
    along = place.x * np.cos(wide(angle)) + place.y * np.sin(wide(angle))
    return np.sin(along * (wide(frequency) * _PI) + wide(phase))


def checks(place: Frame, frequency: Number) -> np.ndarray:
    """Light and dark fields in turn, with soft edges."""
    return np.sin(place.x * (wide(frequency) * _PI)) * np.sin(place.y * (wide(frequency) * _PI))


def dots(place: Frame, frequency: Number, radius: Number = 0.3) -> np.ndarray:
    """Dots on a square lattice; `radius` in lattice steps."""
    x, y = place.x * (wide(frequency) / 2), place.y * (wide(frequency) / 2)
    far = length(x - np.rint(x), y - np.rint(y))
    return np.clip((wide(radius) - far) / (wide(frequency) * place.pixel / 2), -1, 1)


def _lattice(x: np.ndarray, y: np.ndarray, key: np.ndarray) -> np.ndarray:
    """A number from -1 to 1 for every lattice point: the bits of its place, mixed (xxhash's primes)."""
    bits = x * np.uint32(0x9E3779B1) + y * np.uint32(0x85EBCA77) + key
    bits ^= bits >> np.uint32(15)
    bits *= np.uint32(0xC2B2AE3D)
    bits ^= bits >> np.uint32(13)
    bits *= np.uint32(0x27D4EB2F)
    bits ^= bits >> np.uint32(16)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - 1


def value_noise(place: Frame, frequency: Number, key: Number) -> np.ndarray:
    """Smooth random hills: values at lattice points, joined by smoothsteps. `key` in [0, 1) chooses which."""
    x, y = place.x * (wide(frequency) / 2), place.y * (wide(frequency) / 2)
    low_x, low_y = np.floor(x), np.floor(y)
    x, y = x - low_x, y - low_y
    x, y = x * x * (3 - 2 * x), y * y * (3 - 2 * y)
    # Through int32: a negative float has no defined value as an unsigned number.
    column, row = low_x.astype(np.int32).astype(np.uint32), low_y.astype(np.int32).astype(np.uint32)
    bits = (wide(key) * np.float32(2.0**24)).astype(np.uint32) * np.uint32(0x165667B1)
    one = np.uint32(1)
    top, top_right = _lattice(column, row, bits), _lattice(column + one, row, bits)
    foot, foot_right = _lattice(column, row + one, bits), _lattice(column + one, row + one, bits)
    top += x * (top_right - top)
    foot += x * (foot_right - foot)
    return top + y * (foot - top)


def hills(place: Frame, frequency: Number, key: Number) -> np.ndarray:
    """Value noise of three octaves, from about -1 to 1."""
    rough = value_noise(place, frequency, key)
    fine = value_noise(place, np.asarray(frequency) * np.float32(2), np.mod(np.asarray(key) + np.float32(0.37), 1))
    finest = value_noise(place, np.asarray(frequency) * np.float32(4), np.mod(np.asarray(key) + np.float32(0.71), 1))
    return 0.6 * rough + 0.3 * fine + 0.15 * finest


def gradient(first_N3: np.ndarray, second_N3: np.ndarray, angle: Number) -> np.ndarray:
    """Pictures N3SS that go from one colour to another in the direction of `angle`."""
    along = PICTURE.x * np.cos(wide(angle)) + PICTURE.y * np.sin(wide(angle))
    picture = np.empty((len(first_N3), 3, *along.shape[1:]), dtype=np.float32)
    picture[:] = first_N3[:, :, None, None]
    return over(picture, second_N3, np.clip(0.5 + 0.5 * along, 0, 1))


def backdrop(dice: Dice, contrast: float = 0.35) -> np.ndarray:
    """Pictures N3SS of any two colours that are not far apart, in a gradient under hills. Takes 9 draws."""
    first = any_colour(dice)
    second = mix(first, any_colour(dice), contrast)
    picture = gradient(first, second, dice.turn())
    light = hills(PICTURE, dice.between(2.5, 5), dice.share())
    return shade(picture, 1 + light * np.float32(contrast / 2))


def middle(picture: np.ndarray) -> np.ndarray:
    """The colour in the middle of pictures N3SS, (N, 3)."""
    return picture[:, :, SIZE // 2, SIZE // 2].copy()


def clutter(
    picture: np.ndarray, dice: Dice, things: int, *, size: tuple[float, float] = (0.08, 0.3), strength: float = 0.8
) -> np.ndarray:
    """`picture` with blobs, bars and rings of any colour thrown over it. Takes 11 draws for each. The picture
    itself is changed."""
    for _ in range(things):
        place = frame(
            x=dice.around(1),
            y=dice.around(1),
            size=dice.between(*size),
            angle=dice.turn(),
            stretch=dice.between(0.5, 2.2),
        )
        blob = contour(place, [(dice.choice(4) + 2, dice.between(0, 0.35), 0.0)])
        hollow = dice.happens(0.3)
        hole = wide(1.55 * hollow - 1) - length(place.x, place.y)  # without one it lies inside every blob
        alpha = cover(np.maximum(blob, hole), place.pixel) * np.float32(strength)
        over(picture, any_colour(dice), alpha)
    return picture
