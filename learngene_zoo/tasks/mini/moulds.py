"""Moulds: outlines worked out once on a fine grid, so that any of them can be put into the frames of N pictures.

Shapes: N pictures, M moulds, G points of a mould's side; the rest as in `canvas`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from learngene_zoo.tasks.mini.canvas import Frame, wide

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
