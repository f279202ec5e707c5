"""Cache decoded images in a model's input size: decoding photographs takes longer than a forward
pass of a small model.

Only the result of the steps that are the same in every epoch is cached: the image resized and
cropped (or padded), before any augmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from learngene_zoo.families.spec import USUAL_VIEW, InputFormat
from learngene_zoo.tasks.splits import DecodedSplit, PartOfSplit
from learngene_zoo.tasks.task import Samples, Split
from learngene_zoo.tasks.transforms import fit_images

MAX_BYTES = 2**30  # of the images of one split; larger splits are decoded in every epoch


@dataclass(frozen=True)
class FittedSplit:
    """A split whose images, uint8 (C, size, size), are decoded and resized at the first read."""

    split: DecodedSplit
    input_format: InputFormat
    images: dict[int, torch.Tensor]

    def __len__(self) -> int:
        return len(self.split)

    @property
    def labels(self) -> np.ndarray:
        """The class of every image, int64 (N,)."""
        return self.split.labels

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """Return the images in this order."""
        missing = [index for index in dict.fromkeys(indices) if index not in self.images]
        if missing:
            read = self.split.__getitems__(missing)
            decoded = read.images if isinstance(read, Samples) else read
            form = self.input_format
            for index, image in zip(missing, decoded):
                self.images[index] = fit_images(image[None], form.image_size, form.view, form.fill)[
                    0
                ]
        return [self.images[index] for index in indices]


def keep_fitted(
    split: Split, input_format: InputFormat, num_images: int
) -> tuple[Split, InputFormat] | None:
    """Return a split that caches its resized images, and the format for reading them.

    The images are shared by all readers of the split with the same format, and dropped when it is
    read in another format.

    Args:
        split: the split.
        input_format: the format that the images are resized to.
        num_images: number of the split's images that will be read.

    Returns:
        The split and a format that does not resize again; None if the split decodes no images, or
        if those read would take more than `MAX_BYTES`.
    """
    if isinstance(split, PartOfSplit):
        fitted = keep_fitted(split.split, input_format, num_images)
        return fitted and (PartOfSplit(fitted[0], split.members), fitted[1])
    num_bytes = num_images * input_format.channels * input_format.image_size**2
    if not isinstance(split, DecodedSplit) or num_bytes > MAX_BYTES:
        return None
    key = (input_format.image_size, input_format.view, input_format.fill)
    if key not in split.fitted:
        split.fitted.clear()
    images = split.fitted.setdefault(key, {})
    return FittedSplit(split, input_format, images), replace(input_format, view=USUAL_VIEW)
