"""The row of the position embedding that belongs to the class token, which no hypernetwork here makes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from learngene_zoo.plugin import derive_seed, uniform

STD = 0.02


def class_position(width: int, noise: torch.Generator | None = None) -> Tensor:
    """(d,) numbers with a standard deviation of 0.02.

    The released code draws them anew at every call, which `noise` does too. Without it they are a function of the width
    alone, and those of a narrow model the first of a wide one's. They are not zeros, though the token is: the first norm's
    gradient at a row of zeros is a thousand times that at any other.
    """
    if noise is not None:
        return torch.empty(width, device=noise.device).normal_(std=STD, generator=noise)
    return _fixed(width).clone()


@lru_cache(maxsize=64)
def _fixed(width: int) -> Tensor:
    """Box and Muller's normal numbers, one from every two uniform ones, so that each depends on its own index only."""
    first_d, second_d = uniform(derive_seed(0, "class position"), range(width), 2).astype(np.float64).T
    normal_d = np.sqrt(-2 * np.log1p(-first_d)) * np.cos(2 * np.pi * second_d)
    with torch.inference_mode(False):
        return torch.from_numpy(np.float32(STD) * normal_d.astype(np.float32))
