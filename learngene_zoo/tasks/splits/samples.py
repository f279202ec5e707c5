"""The images or texts of one split: in memory, decoded when read, or a part of another split.

Decoded images can be cached in a model's input size (`keep_fitted`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from learngene_zoo.families.picture_format import USUAL_VIEW, InputFormat
from learngene_zoo.tasks.images import decode_samples
from learngene_zoo.tasks.task import Sample, Samples, Split

if TYPE_CHECKING:
    import torch

# Of the resized images of one split; larger splits are decoded in every epoch.
MAX_FITTED_BYTES = 2**30


class PixelSplit:
    """Images in memory, uint8 (N, 1 or 3, H, W), and labels int64 (N,).

    Grey images are returned with three equal channels, all images with `border` black pixels on
    every side.
    """

    def __init__(self, images: torch.Tensor, labels: np.ndarray, border: int = 0) -> None:
        self.images, self.labels, self.border = images, labels, border
        # Resized images, by the format that they are resized to, and by their index (`keep_fitted`)
        self.fitted: dict[Any, dict[int, torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self.images)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without cached images: another process resizes its own."""
        return {**self.__dict__, "fitted": {}}

    @property
    def shape(self) -> tuple[int, int]:
        """The height and width of the images."""
        height, width = self.images.shape[-2:]
        return height + 2 * self.border, width + 2 * self.border

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        """Return the images at these indices, uint8 (N, 3, H, W)."""
        import torch
        from torch.nn import functional

        chosen = self.images[torch.as_tensor(np.asarray(indices, dtype=np.int64))]
        if self.border:
            chosen = functional.pad(chosen, (self.border,) * 4)
        return chosen.expand(-1, 3, -1, -1)


class Rows(Protocol):
    """Encoded images in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Sample:
        """Return the image, with the path, or file and row, that names it in errors."""


@dataclass(frozen=True)
class Labelled:
    """A stored split: its images and their labels."""

    rows: Rows
    labels: np.ndarray


@dataclass(frozen=True)
class DecodedSplit:
    """A selection of rows; an image is decoded when it is read, in the process that reads it."""

    rows: Rows
    members: np.ndarray
    labels: np.ndarray
    # Cached images, by the format that they are resized to, and by their index (`keep_fitted`).
    fitted: dict[Any, dict[int, torch.Tensor]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(self.members)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without cached images: another process decodes its own."""
        return {**self.__dict__, "fitted": {}}

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor] | Samples:
        """Return the images at these indices, uint8 (3, H, W) each, at the stored size."""
        return decode_samples(self.rows[int(self.members[index])] for index in indices)


@dataclass(frozen=True)
class TextSplit:
    """A selection of rows that are texts or pairs of texts."""

    rows: Rows
    members: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.members)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the texts or pairs at these indices."""
        return [self.rows[int(self.members[index])].image for index in indices]


def name_sample(split: Split, index: int, noun: str = "image") -> str:
    """Return the path of a sample, or its data and row; "image N" where there is neither."""
    stored: Any = split
    position = index
    while isinstance(stored, PartOfSplit):
        stored, position = stored.split, int(stored.members[position])
    if isinstance(stored, DecodedSplit | TextSplit):
        return stored.rows[int(stored.members[position])].where
    return f"{noun} {index}"


@dataclass(frozen=True)
class PartOfSplit:
    """A selection of the images of a split."""

    split: Split
    members: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """The class of every image, int64 (N,)."""
        return self.split.labels[self.members]

    def __len__(self) -> int:
        return len(self.members)

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the images at these indices, in the same form as the split does."""
        return self.split.__getitems__([int(self.members[index]) for index in indices])


@dataclass(frozen=True)
class FittedSplit:
    """A split whose images, uint8 (C, size, size), are decoded and resized at the first read."""

    split: DecodedSplit | PixelSplit
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
        from learngene_zoo.tasks.transforms import fit_images

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

    The images are shared by all readers of the split with the same format. They are dropped when it
    is read in another format, and when those of a further reader might take too much memory.

    Args:
        split: the split.
        input_format: the format that the images are resized to.
        num_images: number of the split's images that will be read.

    Returns:
        The split and a format that does not resize again; None if the split neither decodes nor
        resizes its images, or if those read would take more than `MAX_FITTED_BYTES`.
    """
    from learngene_zoo.tasks.transforms import compute_resized_shape

    if isinstance(split, PartOfSplit):
        fitted = keep_fitted(split.split, input_format, num_images)
        return fitted and (PartOfSplit(fitted[0], split.members), fitted[1])
    size, view = input_format.image_size, input_format.view
    if not isinstance(split, DecodedSplit | PixelSplit):
        return None
    if isinstance(split, PixelSplit) and split.shape == compute_resized_shape(
        split.shape, size, view
    ):
        return None
    if num_images * input_format.channels * size**2 > MAX_FITTED_BYTES:
        return None
    key = (size, view, input_format.fill)
    num_most = len(split.fitted.get(key, ())) + num_images
    is_too_large = min(num_most, len(split)) * input_format.channels * size**2 > MAX_FITTED_BYTES
    if key not in split.fitted or is_too_large:
        split.fitted.clear()
    images = split.fitted.setdefault(key, {})
    return FittedSplit(split, input_format, images), replace(input_format, view=USUAL_VIEW)
