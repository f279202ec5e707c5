"""`digits`: 1797 real handwritten digits, 8 x 8 pixels (UCI, Alpaydin and Kaynak 1998), from the
copy in scikit-learn.

They are stored beside this file in `digits.npz`, under CC BY 4.0 (`digits.LICENSE.txt`).
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from learngene_zoo.plugin import Entry, PixelSplit, Task, build_task, split_stratified

SIZE = 32
SEED = 1998
SCANS = Path(__file__).with_suffix(".npz")


@cache
def _data() -> tuple[torch.Tensor, np.ndarray]:
    """Load all images, uint8 (1797, 1, 32, 32), enlarged bicubically, and their labels."""
    with np.load(SCANS, allow_pickle=False) as scans:  # values 0 to 16
        images, labels = scans["images"], scans["labels"].astype(np.int64)
    small = torch.from_numpy(images).float()[:, None] * (255 / 16)
    large = functional.interpolate(small, size=(SIZE, SIZE), mode="bicubic", align_corners=False)
    return large.round().clamp(0, 255).to(torch.uint8), labels


def open_task(entry: Entry) -> Task:
    """Return the task of its catalogue entry. Data is read when a split is opened."""

    def open_split(name: str) -> PixelSplit:
        images, labels = _data()
        members = dict(zip(entry.sizes, split_stratified(labels, [*entry.sizes.values()], SEED)))[
            name
        ]
        return PixelSplit(images[torch.from_numpy(members)], labels[members])

    return build_task(entry, tuple("0123456789"), open_split)
