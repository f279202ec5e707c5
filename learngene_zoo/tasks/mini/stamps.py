"""Stamps: shapes that were drawn beforehand, as masks, put into the frames of N pictures.

Shapes: N pictures, M masks, C layers of a mask, B pixels of its side; the rest as in `canvas`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch.nn import functional

from learngene_zoo.tasks.fonts import BOX, Drawing, mask
from learngene_zoo.tasks.mini.canvas import Frame
from learngene_zoo.tasks.mini.generator import SIZE

RIM = 2  # empty pixels around a font's mask that are cut off


class Placed(TypedDict):
    """Where a thing lies, float32 (N,) each: settings of `canvas.frame`."""

    x: np.ndarray
    y: np.ndarray
    size: np.ndarray
    angle: np.ndarray


class Pose(Placed, total=False):
    """And how it is deformed."""

    stretch: np.ndarray
    shear: np.ndarray
    tilt_x: np.ndarray
    tilt_y: np.ndarray


def attributes_of(where: Placed) -> dict[str, np.ndarray]:
    """The attributes that say where a thing with a head lies."""
    return {
        "x": where["x"],
        "y": where["y"],
        "size": 2 * where["size"] - 1,
        "angle_x": np.cos(where["angle"]),
        "angle_y": np.sin(where["angle"]),
    }


def drawn(drawing: Drawing, side: int) -> torch.Tensor:
    """The mask of one text in one face, uint8 (side, side)."""
    ink = mask(*drawing)[RIM : BOX - RIM, RIM : BOX - RIM].float()[None, None]
    small = functional.interpolate(ink, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
    return small[0, 0].round_().clamp_(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Stamps:
    """Masks uint8 (M, B, B), a few of every class; for each class its first mask and how many it has."""

    masks: torch.Tensor
    first: np.ndarray
    counts: np.ndarray

    def chosen(self, classes_N: np.ndarray, shares_N: np.ndarray) -> torch.Tensor:
        """A mask of each class, float32 (N, 1, B, B); the share, 0 to 1, says which."""
        places_N = self.first[classes_N] + (shares_N * self.counts[classes_N]).astype(np.int64)
        return self.masks[torch.from_numpy(places_N)][:, None].float().mul_(1 / 255)


def stamps(drawings: Sequence[Sequence[Drawing]], side: int) -> Stamps:
    """The masks of what each class may be drawn as."""
    counts = np.array([len(row) for row in drawings])
    masks = torch.stack([drawn(drawing, side) for row in drawings for drawing in row])
    return Stamps(masks, np.cumsum(counts) - counts, counts)


def stamped(masks: torch.Tensor, place: Frame) -> np.ndarray:
    """How much of each pixel is covered, float32 (N, C, SIZE, SIZE), by masks (N, C, B, B) that fill their frames."""
    grid = np.empty((len(masks), SIZE, SIZE, 2), dtype=np.float32)
    grid[..., 0], grid[..., 1] = place.x, place.y
    return functional.grid_sample(
        masks, torch.from_numpy(grid), mode="bilinear", padding_mode="zeros", align_corners=False
    ).numpy()
