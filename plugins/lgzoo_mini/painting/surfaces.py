"""Twelve kinds of texture as fields: 1 is ink, -1 is paper, with edges about two pixels wide.

A texture is defined in a frame whose unit is one repeat: positions with equal fractions look alike,
except for random variation. `_far` is the distance of a number from the nearest integer. Shapes as
in `shapes`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lgzoo_mini.painting.canvas import hills, value_noise
from lgzoo_mini.painting.shapes import Frame, length, wide

_TURN = np.float32(2 * np.pi)


class Manner(NamedTuple):
    """Style of the marks of a texture, (N, 1, 1) each; in repeats, except `rough` (0 to 1)."""

    width: np.ndarray  # of a mark; cells and scales are shaded instead of outlined from 0.5 on
    # Displacement of marks; length of a cross's arms; offset of bricks
    bend: np.ndarray
    rough: np.ndarray  # irregularity of positions


# Frame, style, and a seed in [0, 1), (N, 1, 1) -> the field.
Surface = Callable[[Frame, Manner, np.ndarray], np.ndarray]


def _far(values: np.ndarray) -> np.ndarray:
    return np.abs(values - np.rint(values))


def _edge(depth: np.ndarray, place: Frame) -> np.ndarray:
    """Return the field of a shape from each pixel's depth inside it."""
    return np.clip(depth / place.pixel, -1, 1)


def chance(x: np.ndarray, y: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for every lattice point (integers x, y), by mixing bits.

    The constants are MurmurHash3's.
    """
    bits = x.astype(np.int32).astype(np.uint32) * np.uint32(0x9E3779B1)
    bits += y.astype(np.int32).astype(np.uint32) * np.uint32(0x85EBCA77)
    bits += (key * np.float32(2**24)).astype(np.uint32) * np.uint32(0xC2B2AE3D)
    bits ^= bits >> np.uint32(16)
    bits *= np.uint32(0x85EBCA6B)
    bits ^= bits >> np.uint32(13)
    bits *= np.uint32(0xC2B2AE35)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def stripes(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return parallel stripes, bent by low-frequency noise."""
    u = place.x + manner.bend * value_noise(place, 1.0, key)
    return _edge(manner.width / 2 - _far(u), place)


def checks(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return a checkerboard of light and dark fields."""
    slow = manner.bend * value_noise(place, 1.0, key)
    wave = np.sin((place.x + slow) * (_TURN / 2)) * np.sin((place.y + slow) * (_TURN / 2))
    return np.clip(wave / (place.pixel * 3), -1, 1)


def _scatter_marks(place: Frame, manner: Manner, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset of each pixel from the mark of its lattice cell.

    `rough` displaces marks, at most to the border of their cells.
    """
    column, row = np.floor(place.x), np.floor(place.y)
    x = (
        place.x
        - column
        - np.float32(0.5)
        - manner.rough * (chance(column, row, key) - np.float32(0.5))
    )
    y = (
        place.y
        - row
        - np.float32(0.5)
        - manner.rough * (chance(row, column, key + 1) - np.float32(0.5))
    )
    return x, y


def dots(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return a round dot in every cell of a lattice."""
    return _edge(manner.width / 2 - length(*_scatter_marks(place, manner, key)), place)


def crosses(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return a plus sign in every cell; arms of half a repeat join to a grid."""
    x, y = (np.abs(part) for part in _scatter_marks(place, manner, key))
    return _edge(
        np.minimum(manner.width / 2 - np.minimum(x, y), manner.bend - np.maximum(x, y)), place
    )


def cells(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return the regions nearest to scattered points (Worley, A cellular texture basis, 1996)."""
    column, row = np.floor(place.x), np.floor(place.y)
    nearest, second = (
        np.full(place.x.shape, 9, dtype=np.float32),
        np.full(place.x.shape, 9, dtype=np.float32),
    )
    for across in (-1, 0, 1):
        for down in (-1, 0, 1):
            i, j = column + across, row + down
            x = i + np.float32(0.5) + manner.rough * (chance(i, j, key) - np.float32(0.5)) - place.x
            y = (
                j
                + np.float32(0.5)
                + manner.rough * (chance(j, i, key + 1) - np.float32(0.5))
                - place.y
            )
            distance = x * x + y * y
            second = np.minimum(second, np.maximum(nearest, distance))
            nearest = np.minimum(nearest, distance)
    nearest, second = np.sqrt(nearest), np.sqrt(second)
    outline = _edge(manner.width - (second - nearest), place)
    return np.where(manner.width < 0.5, outline, np.clip(1.4 - 3 * nearest, -1, 1))


def noise(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return two octaves of noise; `rough` is the weight of the finer one."""
    slow, fast = value_noise(place, 2.0, key), value_noise(place, 6.0, key + np.float32(0.1))
    return np.clip(1.6 * ((1 - manner.rough) * slow + manner.rough * fast), -1, 1)


def marble(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return veins: stripes in a turbulent medium (Perlin, "An image synthesizer", 1985)."""
    wave = np.cos((place.x + manner.bend * hills(place, 1.2, key)) * _TURN)
    return np.clip(
        (wave + 2 * manner.width - 1) / np.maximum(place.pixel * 5, np.float32(0.5)), -1, 1
    )


def weave(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return interwoven round threads, lighter in their middle."""
    x, y = place.x - np.rint(place.x), place.y - np.rint(place.y)
    upright = np.mod(np.rint(place.x) + np.rint(place.y), 2) < 1
    over, under = np.where(upright, x, y), np.where(upright, y, x)
    top, below = (
        np.clip((manner.width / 2 - np.abs(part)) / place.pixel, 0, 1) for part in (over, under)
    )
    shade = 1 - 2 * (np.abs(over) / manner.width) ** 2
    return np.where(
        top > 0, top * shade + (1 - top) * np.float32(-0.4), below * np.float32(0.6) - 1
    )


def rings(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return circles around one centre."""
    return _edge(manner.width / 2 - _far(length(place.x, place.y) + key), place)


def zigzag(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return zigzag stripes; `bend` is the amplitude."""
    return _edge(manner.width / 2 - _far(place.x + 2 * manner.bend * _far(place.y)), place)


def scales(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return rows of discs, each row half hidden by the next one."""
    found = np.full(place.x.shape, 9, dtype=np.float32)
    first = np.floor(place.y * 2)
    for back in (-1, 0, 1):  # from the lowest row to the topmost, which is written last
        row = first - back
        x = place.x - row / 2
        distance = length(x - np.rint(x), place.y - row / 2)
        found = np.where(distance < np.float32(0.58), distance, found)
    found = np.minimum(found, np.float32(0.58))
    outline = _edge(manner.width - (np.float32(0.58) - found), place)
    return np.where(manner.width < 0.5, outline, 1 - found * np.float32(2 / 0.58))


def bricks(place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return courses of bricks with mortar between them, each brick in a random tone.

    `width` is the mortar's width, `bend` the offset of each course.
    """
    row = np.rint(place.y)
    x = place.x + row * manner.bend
    column = np.rint(x)
    depth = np.minimum(
        np.float32(0.5) - np.abs(x - column), np.float32(0.5) - np.abs(place.y - row)
    )
    tone = 1 - manner.rough * chance(column, row, key)
    return np.clip(((depth - manner.width / 2) / place.pixel + 1) / 2, 0, 1) * (tone + 1) - 1


KINDS = (stripes, checks, dots, cells, noise, marble, weave, rings, zigzag, scales, bricks, crosses)


def surface(kinds_N: np.ndarray, place: Frame, manner: Manner, key: np.ndarray) -> np.ndarray:
    """Return the fields of these kinds, NSS; images of one kind are computed together."""
    made = np.empty(place.x.shape, dtype=np.float32)
    for number in np.unique(kinds_N):
        of_kind = np.flatnonzero(kinds_N == number)
        part = Frame(*(field[of_kind] for field in place))
        made[of_kind] = KINDS[number](
            part, Manner(*(column[of_kind] for column in manner)), wide(key)[of_kind]
        )
    return made
