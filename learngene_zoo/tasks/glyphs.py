"""Splits of painted glyphs: every picture is a function of (task, split, index), made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch

from learngene_zoo.run import derive_seed
from learngene_zoo.tasks.draws import noise, uniform
from learngene_zoo.tasks.fonts import covered, mask
from learngene_zoo.tasks.painting import SIZE, STREAMS, Style, paint

Drawing = tuple[str, str]  # a face and a text
Drawings = Callable[[str], Sequence[Sequence[Drawing]]]  # a split's name -> for every class, what may be drawn


def in_faces(text: str, faces: Sequence[str]) -> list[Drawing]:
    """The text in each face that has all its characters."""
    return [(face, text) for face in faces if covered(face).issuperset(text)]


@cache
def _masks(drawings: Drawings, split: str) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """All masks uint8 (M, BOX, BOX); for every class its first mask and its count. Made once in a process."""
    by_class = drawings(split)
    counts = np.array([len(row) for row in by_class])
    masks = torch.stack([mask(face, text) for row in by_class for face, text in row])
    return masks, np.cumsum(counts) - counts, counts


@dataclass(frozen=True)
class GlyphSplit:
    """`images` pictures of `classes` classes in equal numbers; `drawings` says what belongs to each class.

    What is pickled for a worker is this recipe, not the masks.
    """

    task: str
    name: str
    images: int
    classes: int
    drawings: Drawings
    style: Style

    @property
    def labels(self) -> np.ndarray:
        """int64 (N,)."""
        return np.arange(self.images, dtype=np.int64) % self.classes

    @cached_property
    def _keys(self) -> tuple[int, int]:
        return derive_seed(0, self.task, self.name, "picture"), derive_seed(0, self.task, self.name, "noise")

    def __len__(self) -> int:
        return self.images

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        """uint8 (N, 3, 32, 32)."""
        masks, first, counts = _masks(self.drawings, self.name)
        indices_N = np.asarray(indices, dtype=np.int64)
        labels_N = indices_N % self.classes
        picture_key, noise_key = self._keys
        draws_NK = uniform(picture_key, indices_N, STREAMS)
        choice_N = (draws_NK[:, -1] * counts[labels_N]).astype(np.int64)
        chosen = masks[torch.from_numpy(first[labels_N] + choice_N)]
        return paint(chosen, draws_NK, noise(noise_key, indices_N, 3 * SIZE * SIZE), self.style)
