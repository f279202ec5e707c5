"""`InputFormat`: how images are presented to a model. Cold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """Square images of `image_size` pixels, values from 0 to 1, then normalised per channel: (value - mean) / std."""

    image_size: int
    channels: int = 3
    mean: tuple[float, ...]
    std: tuple[float, ...]
