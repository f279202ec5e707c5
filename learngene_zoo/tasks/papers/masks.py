"""Segmentation data: pictures with masks beside them, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.decoding import decoded, decoded_indices
from learngene_zoo.tasks.own_data import IMAGENET_MEAN, IMAGENET_STD, Labelled, Rows, completed
from learngene_zoo.tasks.task import SPLITS, Samples, Task

IGNORED = 255
PALETTE_BITS = 8


@dataclass(frozen=True)
class Reading:
    """How the values of a mask are meant: which classes there are, and the value of the first (0 below it is ignored)."""

    classes: int
    first: int = 0  # ADE20K's 0 is "other"; its classes begin at 1


@dataclass(frozen=True)
class Pairs:
    """Pictures and their masks, row by row."""

    pictures: Rows
    masks: Rows

    def __len__(self) -> int:
        return len(self.pictures)

    def image(self, row: int) -> Any:
        """The picture, as `decoding.decoded` takes it."""
        return self.pictures.image(row)

    def where(self, row: int) -> str:
        """What names the picture."""
        return self.pictures.where(row)


@dataclass(frozen=True)
class MaskedSplit:
    """Some of the pairs."""

    pairs: Pairs
    members: np.ndarray
    reading: Reading

    @property
    def labels(self) -> np.ndarray:
        """Zeros, int64 (N,): the masks are the labels."""
        return np.zeros(len(self.members), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.members)

    def __getitems__(self, indices: Sequence[int]) -> Samples:
        """Images uint8 (3, H, W) each and masks uint8 (H, W) each. Raises `BadData` naming the file that is wrong."""
        rows = [int(self.members[index]) for index in indices]
        images = [decoded(self.pairs.image(row), self.pairs.where(row)) for row in rows]
        masks = [self._mask(row, image) for row, image in zip(rows, images, strict=True)]
        return Samples(images, masks)

    def _mask(self, row: int, image_CHW: torch.Tensor) -> torch.Tensor:
        where = self.pairs.masks.where(row)
        mask_HW = read_mask(self.pairs.masks.image(row), where, self.reading)
        if mask_HW.shape != image_CHW.shape[1:]:
            sizes = "x".join(map(str, mask_HW.shape)), "x".join(map(str, image_CHW.shape[1:]))
            raise BadData(f"{where}: the mask is {sizes[0]} and the picture {sizes[1]} pixels; replace or remove both")
        return mask_HW


def read_mask(image: Any, where: str, reading: Reading) -> torch.Tensor:
    """Classes 0 to `classes` - 1, or 255, uint8 (H, W), of a grey or palette picture, or one in VOC's colours.

    Raises `BadData` for a value that is neither.
    """
    values_HW = decoded_indices(image, where)
    if values_HW.ndim == 3:
        values_HW = _of_colours(values_HW, where)
    ignored_HW = values_HW == IGNORED
    if reading.first:
        ignored_HW |= values_HW < reading.first
    classes_HW = values_HW - reading.first
    wrong_HW = (classes_HW >= reading.classes) & ~ignored_HW
    if wrong_HW.any():
        last = reading.first + reading.classes - 1
        got = int(values_HW[wrong_HW][0])
        raise BadData(
            f"{where}: the mask has value {got}; there are classes {reading.first} to {last}, and 255 is left out"
        )
    return torch.from_numpy(np.where(ignored_HW, IGNORED, classes_HW).astype(np.uint8))


def voc_colours() -> np.ndarray:
    """VOC's colour of every value, uint8 (256, 3): the value's bits, dealt to red, green and blue in turn, highest first."""
    values = np.arange(256)
    colours = np.zeros((256, 3), dtype=np.int64)
    for bit in range(PALETTE_BITS):
        for channel in range(3):
            colours[:, channel] |= ((values >> channel) & 1) << (PALETTE_BITS - 1 - bit)
        values = values >> 3
    return colours.astype(np.uint8)


def _of_colours(colours_HW3: np.ndarray, where: str) -> np.ndarray:
    weights = np.array([1 << 16, 1 << 8, 1])
    known = {int(code): value for value, code in enumerate(voc_colours().astype(np.int64) @ weights)}
    codes, places = np.unique(colours_HW3 @ weights, return_inverse=True)
    strange = next((int(code) for code in codes if int(code) not in known), None)
    if strange is not None:
        raise BadData(f"{where}: the mask has colour #{strange:06x}, which is no class of VOC; store classes as grey")
    return np.array([known[int(code)] for code in codes], dtype=np.int64)[places].reshape(colours_HW3.shape[:2])


def task_of_masks(
    name: str, found: Mapping[str, Pairs], class_names: Sequence[str], reading: Reading, /, **fields: Any
) -> Task:
    """The segmentation task of these splits, the missing ones cut from train. Raises `BadData` if there are too few."""
    if not len(found.get("train", ())):
        raise BadData(f"{name} has no training images; put some there")
    labelled = {split: Labelled(pairs, np.zeros(len(pairs), dtype=np.int64)) for split, pairs in found.items()}
    members = {split: part.members for split, part in completed(name, labelled, {}).items()}
    pairs = {split: found[split] if len(found.get(split, ())) else found["train"] for split in SPLITS}
    chosen = {split: MaskedSplit(pairs[split], members[split], reading) for split in SPLITS}
    settings: dict[str, Any] = {
        "name": name,
        "title": name,
        "kind": "segmentation",
        "classes": reading.classes,
        "class_names": tuple(class_names),
        "image_size": 224,
        "mean": IMAGENET_MEAN,
        "std": IMAGENET_STD,
        "source": name,
        "sizes": {split: len(part) for split, part in chosen.items()},
        "open_split": partial(_opened, chosen),
    }
    return Task(**{**settings, **fields})


def _opened(chosen: Mapping[str, MaskedSplit], name: str) -> MaskedSplit:
    return chosen[name]
