"""A split whose images are all in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional


class PixelSplit:
    """Images uint8 (N, 1 or 3, H, W), grey ones given out in three equal channels, and labels int64 (N,).

    Stored images may be smaller than those given out: `border` black pixels are added on every side.
    """

    def __init__(self, images: torch.Tensor, labels: np.ndarray, border: int = 0) -> None:
        self.images, self.labels, self.border = images, labels, border

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        """uint8 (N, 3, H, W)."""
        chosen = self.images[torch.as_tensor(np.asarray(indices, dtype=np.int64))]
        if self.border:
            chosen = functional.pad(chosen, (self.border,) * 4)
        return chosen.expand(-1, 3, -1, -1)
