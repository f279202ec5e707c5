"""The canvas: where things lie on N pictures at once, how one is laid over another, and how pictures are finished.

Beside it: `outlines` (shapes), `fills` (patterns, backgrounds, clutter), `colours`, and `dice` (draws, read by name).

Everything is float32 and computed element by element with numpy: no matrix product, no sum along an axis, no loop over N. So
a picture is the same, bit by bit, whoever it is made with. Shapes: NSS is (N, SIZE, SIZE), N3SS has colours, and what an
argument gives per picture is (N,) or a plain number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from learngene_zoo.tasks.mini.generator import SIZE

Number = np.ndarray | float  # one for each picture, float32 (N,), or one for all

PIXEL = 2.0 / SIZE  # width of a pixel; a picture reaches from -1 to 1
_AXIS = ((np.arange(SIZE, dtype=np.float32) * 2 + 1) / SIZE - 1).astype(np.float32)


class Frame(NamedTuple):
    """Where every pixel lies for somebody who stands at the frame's centre: x to the right, y down, NSS each.

    In its units the frame reaches from -1 to 1; a picture's pixel is `pixel` wide, (N, 1, 1).
    """

    x: np.ndarray
    y: np.ndarray
    pixel: np.ndarray


def wide(values: Number) -> np.ndarray:
    """One number for each picture as float32 (N, 1, 1), to meet NSS; a field passes unchanged."""
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
    """A frame that lies at (x, y) in another, `size` times as large, turned clockwise by `angle` radians.

    `stretch` makes it wider and as much lower, `shear` pushes its foot aside, `tilt_x` and `tilt_y` turn it out of the
    picture's plane (less than 1 / its reach; 0.3 is much), and `mirror` -1 swaps left and right.
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
    if isinstance(stretch, np.ndarray) or isinstance(mirror, np.ndarray) or stretch != 1 or mirror != 1:
        right, down = right * (wide(mirror) / wide(stretch)), down * wide(stretch)
    return Frame(right, down, inside.pixel * scale)


def _is_zero(values: Number) -> bool:
    return not isinstance(values, np.ndarray) and values == 0


def cover(distance: np.ndarray, pixel: np.ndarray, soft: Number = 1.0) -> np.ndarray:
    """How much of each pixel lies inside, 0 to 1: `distance` is negative there. The edge is `soft` pixels wide."""
    return np.clip(0.5 - distance / (pixel * wide(soft)), 0, 1)


def plain(colour_N3: np.ndarray) -> np.ndarray:
    """Pictures of one colour each, N3SS."""
    picture = np.empty((len(colour_N3), 3, SIZE, SIZE), dtype=np.float32)
    picture[:] = colour_N3[:, :, None, None]
    return picture


def over(picture: np.ndarray, colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """`picture` N3SS with a colour, (N, 3) or N3SS, laid over it where `alpha` NSS is 1. The picture itself is changed."""
    ink = colour[:, :, None, None] if colour.ndim == 2 else colour
    difference = ink - picture
    difference *= alpha[:, None]
    picture += difference
    return picture


def shade(picture: np.ndarray, light: np.ndarray) -> np.ndarray:
    """`picture` N3SS with every colour multiplied by `light` NSS. The picture itself is changed."""
    picture *= light[:, None]
    return picture


def blur(picture: np.ndarray, amount: Number) -> np.ndarray:
    """Each pixel mixed with its neighbours: weights (a, 1, a) / (1 + 2a) along both sides, `amount` a from 0 to 1."""
    side = np.asarray(amount, dtype=np.float32).reshape(-1, 1, 1, 1)
    whole = 1 / (1 + 2 * side)
    across = np.concatenate([picture[..., :1], picture, picture[..., -1:]], axis=-1)
    picture = (picture + side * (across[..., :-2] + across[..., 2:])) * whole
    down = np.concatenate([picture[..., :1, :], picture, picture[..., -1:, :]], axis=-2)
    return (picture + side * (down[..., :-2, :] + down[..., 2:, :])) * whole


def finish(picture: np.ndarray, grain: np.ndarray, strength: Number = 0.1) -> torch.Tensor:
    """Pictures as bytes, uint8 (N, 3, SIZE, SIZE). `grain` uint8 (N, GRAIN) adds noise up to half of `strength` to a side."""
    assert picture.dtype == np.float32, "something was computed in float64"
    noise = grain.reshape(-1, 3, SIZE, SIZE).astype(np.float32)
    scale = np.asarray(strength, dtype=np.float32).reshape(-1, 1, 1, 1)
    noise -= np.float32(127.5)
    noise *= scale
    noise += picture * np.float32(255)
    np.clip(noise, 0, 255, out=noise)
    np.rint(noise, out=noise)
    return torch.from_numpy(noise.astype(np.uint8))
