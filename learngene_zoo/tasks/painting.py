"""From a glyph's mask to a picture: turned, scaled, sheared and shifted, in two colours, on a gradient, with noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

SIZE = 32  # pixels of a picture's side
STREAMS = 20  # random numbers one picture takes, its noise not counted


@dataclass(frozen=True, kw_only=True)
class Style:
    """How much pictures vary: each value is the largest change to either side, except `zoom`, from the least to the most."""

    rotation: float = 0.25  # radians
    zoom: tuple[float, float] = (0.95, 1.35)  # field of view; above 1 the glyph is smaller than the picture
    shear: float = 0.15
    shift: float = 0.12  # of half the picture
    stretch: float = 0.12
    noise: float = 0.15  # of the range of values
    gradient: float = 0.35


def _between(draws_N: np.ndarray, low: float, high: float) -> np.ndarray:
    return draws_N * np.float32(high - low) + np.float32(low)


def _grid(draws_NK: np.ndarray, style: Style) -> torch.Tensor:
    """Where in the mask each pixel of the picture looks, float32 (N, SIZE, SIZE, 2). From 6 draws.

    Written out by element (no matrix product), so that a picture does not depend on which others are made with it.
    """
    angle = _between(draws_NK[:, 0], -style.rotation, style.rotation)
    zoom = _between(draws_NK[:, 1], *style.zoom)
    shear = _between(draws_NK[:, 2], -style.shear, style.shear)
    stretch = _between(draws_NK[:, 3], 1 - style.stretch, 1 + style.stretch)
    shift_x = _between(draws_NK[:, 4], -style.shift, style.shift)
    shift_y = _between(draws_NK[:, 5], -style.shift, style.shift)
    cosine, sine = np.cos(angle) * zoom, np.sin(angle) * zoom
    axis = (np.arange(SIZE, dtype=np.float32) * 2 + 1) / SIZE - 1
    across, down = axis[None, None, :], axis[None, :, None]
    looks_x = (
        (cosine * stretch)[:, None, None] * across + ((shear - sine)[:, None, None] * down) + shift_x[:, None, None]
    )
    looks_y = sine[:, None, None] * across + (cosine[:, None, None] * down) + shift_y[:, None, None]
    return torch.from_numpy(np.stack([looks_x, looks_y], axis=-1).astype(np.float32, copy=False))


def _colours(draws_NK: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Ink and paper, float32 (N, 3, 1, 1) each, of clearly different lightness. From 6 draws."""
    ink, paper = draws_NK[:, :3], draws_NK[:, 3:6]
    light = paper.mean(axis=1, keepdims=True)
    close = np.abs(ink.mean(axis=1, keepdims=True) - light) < 0.3
    pushed = np.where(light > 0.5, ink * np.float32(0.2), 1 - ink * np.float32(0.2))
    ink = np.where(close, pushed, ink).astype(np.float32)
    return torch.from_numpy(ink)[..., None, None], torch.from_numpy(np.ascontiguousarray(paper))[..., None, None]


def paint(masks: torch.Tensor, draws_NK: np.ndarray, noise: np.ndarray, style: Style) -> torch.Tensor:
    """Pictures, uint8 (N, 3, SIZE, SIZE).

    `masks` uint8 (N, BOX, BOX); `draws_NK` float32 (N, STREAMS) in [0, 1); `noise` uint8 (N, 3 * SIZE * SIZE).
    """
    alpha = functional.grid_sample(
        masks[:, None].float(), _grid(draws_NK, style), mode="bilinear", padding_mode="zeros", align_corners=False
    ).mul_(1 / 255)
    ink, paper = _colours(draws_NK[:, 6:12])
    slopes = torch.from_numpy((draws_NK[:, 12:18] - np.float32(0.5)) * np.float32(2 * style.gradient))[..., None, None]
    axis = torch.arange(SIZE, dtype=torch.float32) / (SIZE - 1) - 0.5
    picture = paper + slopes[:, :3] * axis[:, None] + slopes[:, 3:] * axis
    picture += alpha * (ink - picture)
    strength = torch.from_numpy(draws_NK[:, 18] * np.float32(2 * style.noise))[:, None, None, None]
    grain = torch.from_numpy(noise).view(-1, 3, SIZE, SIZE).float().mul_(1 / 255).sub_(0.5)
    picture += grain.mul_(strength)
    return picture.clamp_(0, 1).mul_(255).round_().to(torch.uint8)
