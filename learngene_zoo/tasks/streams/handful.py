"""A few samples that were read, as a split: decoded when they are asked for."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.decoding import decoded
from learngene_zoo.tasks.task import Sample, Samples


@dataclass(frozen=True)
class Handful:
    """Samples by their index."""

    samples: Mapping[int, Sample]

    @property
    def labels(self) -> np.ndarray:
        """The class of every image."""
        return np.array([sample.label for sample in self.samples.values()], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor] | Samples:
        """uint8 (3, H, W) each, with uint8 (H, W) masks if they have some. Raises `BadData`."""
        chosen = [self.samples[index] for index in indices]
        images = [decoded(sample.image, sample.where) for sample in chosen]
        masks = [decoded_mask(sample.mask, sample.where) for sample in chosen if sample.mask is not None]
        return Samples(images, masks) if masks else images


def decoded_mask(data: bytes, where: str) -> torch.Tensor:
    """uint8 (H, W): the classes in a palette or grey picture. Raises `BadData` naming `where`."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as opened:
            mode, values = opened.mode, np.array(opened)
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise BadData(f"{where}: the mask cannot be read; replace or remove it") from None
    if mode not in ("P", "L"):
        raise BadData(f"{where}: the mask is a picture of mode {mode}; store one class a pixel, in grey or a palette")
    return torch.from_numpy(values)
