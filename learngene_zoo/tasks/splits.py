"""Deterministic choices of images: stratified parts, balanced subsets. No data set is ever split by chance.

A split whose images are all in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from learngene_zoo.seeds import derive_seed, uniform


def interleaved(labels_N: np.ndarray, seed: int) -> np.ndarray:
    """All indices in an order whose every beginning is balanced like the whole: int64 (N,), a function of the seed.

    Image j of the n_c images of class c stands at (j + u) / n_c, where u in [0, 1) is drawn.
    """
    return np.argsort(_places(labels_N, seed, proportional=True), kind="stable")


def _places(labels_N: np.ndarray, seed: int, proportional: bool) -> np.ndarray:
    draws_N2 = uniform(derive_seed(seed, "order"), np.arange(len(labels_N)), 2)
    places_N = np.empty(len(labels_N), dtype=np.float64)
    for label in np.unique(labels_N):
        members = np.flatnonzero(labels_N == label)
        order = members[np.argsort(draws_N2[members, 0], kind="stable")]
        share = len(members) if proportional else 1
        places_N[order] = (np.arange(len(order)) + draws_N2[order, 1]) / share
    return places_N


def parts(labels_N: np.ndarray, counts: Sequence[int], seed: int) -> list[np.ndarray]:
    """Disjoint index sets of these sizes, each with every class in its share, sorted."""
    order = interleaved(labels_N, seed)
    ends = np.cumsum(counts)
    if ends[-1] > len(order):
        raise ValueError(f"{ends[-1]} images asked of {len(order)}")
    return [np.sort(order[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def balanced(labels_N: np.ndarray, count: int, seed: int) -> np.ndarray:
    """`count` indices with as many of each class as there are (sorted); a larger count holds every smaller one."""
    order = np.argsort(_places(labels_N, seed, proportional=False), kind="stable")
    return np.sort(order[:count])


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
