"""Segmentation data stored as images and masks: ADE20K's SceneParse150 and PASCAL VOC 2012 in the
layout of their archives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learngene_zoo.plugin import (
    IGNORED,
    SPLITS,
    BadData,
    Entry,
    Files,
    Labelled,
    Rows,
    Sample,
    Samples,
    Task,
    assemble_photo_task,
    assign_roles,
    complete_splits,
    decode_image,
    decode_indices,
)
from lgzoo_papers.places import Place

PALETTE_BITS = 8


@dataclass(frozen=True)
class Reading:
    """The meaning of mask values: the number of classes, and the value of the first class.

    Values below `first` are ignored.
    """

    classes: int
    first: int = 0  # ADE20K's 0 is "other"; its classes begin at 1


@dataclass(frozen=True)
class Pairs:
    """Images and their masks, row by row."""

    pictures: Rows
    masks: Rows

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, row: int, /) -> Sample:
        """Return the image without its mask."""
        return self.pictures[row]


@dataclass(frozen=True)
class MaskedSplit:
    """A selection of pairs."""

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
        """Return images uint8 (3, H, W) each and masks uint8 (H, W) each.

        Raises `BadData` that names a file which is wrong.
        """
        rows = [int(self.members[index]) for index in indices]
        images = [decode_image(*self.pairs[row][:2]) for row in rows]
        masks = [self._mask(row, image) for row, image in zip(rows, images, strict=True)]
        return Samples(images, masks)

    def _mask(self, row: int, image_CHW: torch.Tensor) -> torch.Tensor:
        stored, where, *_ = self.pairs.masks[row]
        mask_HW = read_mask(stored, where, self.reading)
        if mask_HW.shape != image_CHW.shape[1:]:
            sizes = "x".join(map(str, mask_HW.shape)), "x".join(map(str, image_CHW.shape[1:]))
            raise BadData(
                f"{where}: the mask is {sizes[0]} and the image {sizes[1]} pixels; replace or"
                " remove both"
            )
        return mask_HW


def read_mask(image: Any, where: str, reading: Reading) -> torch.Tensor:
    """Read the classes of a mask, uint8 (H, W): 0 to `classes` - 1, or 255 for ignored pixels.

    The mask is a grey or palette image, or one in VOC's colours. Raises `BadData` for other values.
    """
    values_HW = decode_indices(image, where)
    if values_HW.ndim == 3:
        values_HW = _of_colours(values_HW, where)
    ignored_HW = (values_HW == IGNORED) | (values_HW < reading.first)
    classes_HW = values_HW - reading.first
    wrong_HW = (classes_HW >= reading.classes) & ~ignored_HW
    if wrong_HW.any():
        last = reading.first + reading.classes - 1
        got = int(values_HW[wrong_HW][0])
        raise BadData(
            f"{where}: the mask has the value {got}; expected {reading.first} to {last}, or 255"
            " for ignored pixels"
        )
    return torch.from_numpy(np.where(ignored_HW, IGNORED, classes_HW).astype(np.uint8))


def list_voc_colours() -> np.ndarray:
    """Return VOC's colour of every value, uint8 (256, 3).

    The value's bits go to red, green and blue in turn, highest first.
    """
    values = np.arange(256)
    colours = np.zeros((256, 3), dtype=np.int64)
    for bit in range(PALETTE_BITS):
        for channel in range(3):
            colours[:, channel] |= ((values >> channel) & 1) << (PALETTE_BITS - 1 - bit)
        values = values >> 3
    return colours.astype(np.uint8)


def _of_colours(colours_HW3: np.ndarray, where: str) -> np.ndarray:
    weights = np.array([1 << 16, 1 << 8, 1])
    known = {
        int(code): value for value, code in enumerate(list_voc_colours().astype(np.int64) @ weights)
    }
    codes, places = np.unique(colours_HW3 @ weights, return_inverse=True)
    strange = next((int(code) for code in codes if int(code) not in known), None)
    if strange is not None:
        raise BadData(
            f"{where}: the mask has colour #{strange:06x}, which is not a class of VOC; store"
            " the classes in grey"
        )
    return np.array([known[int(code)] for code in codes], dtype=np.int64)[places].reshape(
        colours_HW3.shape[:2]
    )


def assemble_from_masks(
    name: str,
    found: Mapping[str, Pairs],
    class_names: Sequence[str],
    reading: Reading,
    /,
    **fields: Any,
) -> Task:
    """Build the segmentation task of these splits; missing ones are cut from train.

    Raises `BadData` if there are too few images.
    """
    if not len(found.get("train", ())):
        raise BadData(f"{name} has no training images; add some")
    labelled = {
        split: Labelled(pairs, np.zeros(len(pairs), dtype=np.int64))
        for split, pairs in found.items()
    }
    members = {split: part.members for split, part in complete_splits(name, labelled, {}).items()}
    pairs = {
        split: found[split] if len(found.get(split, ())) else found["train"] for split in SPLITS
    }
    chosen = {split: MaskedSplit(pairs[split], members[split], reading) for split in SPLITS}
    return assemble_photo_task(name, class_names, chosen, {"kind": "segmentation", **fields})


ADE_SPLITS = {"training": "train", "validation": "validation"}

VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


def open_ade20k(entry: Entry, place: Place, top: Path, **fields: Any) -> Task:
    """Open images/{training,validation}/*.jpg with annotations/{training,validation}/*.png.

    The value 0 is ignored.
    """
    base = top / "ADEChallengeData2016" if (top / "ADEChallengeData2016").is_dir() else top
    found = {}
    for word, split in ADE_SPLITS.items():
        folder = base / "images" / word
        if not folder.is_dir():
            raise BadData(
                f"there is no {folder}; give the folder that holds images/ and annotations/"
            )
        names = sorted(file.stem for file in folder.glob("*.jpg"))
        found[split] = _find_pairs(names, folder, base / "annotations" / word)
    reading = Reading(entry.classes, first=1)
    names_file = base / "objectInfo150.txt"
    numbers = [str(number) for number in range(1, entry.classes + 1)]
    class_names = _read_ade_names(names_file, entry.classes) if names_file.is_file() else numbers
    return assemble_from_masks(
        entry.name, assign_roles(found, place.roles), class_names, reading, **fields
    )


def open_voc(entry: Entry, place: Place, top: Path, **fields: Any) -> Task:
    """Open JPEGImages/, SegmentationClass/ and ImageSets/Segmentation/{train,val}.txt.

    255 marks the border of things and is ignored. If both trainaug.txt and SegmentationClassAug/
    exist, the usual larger training set of 10,582 images is used.
    """
    base = next(
        (path for path in (top / "VOCdevkit" / "VOC2012", top / "VOC2012") if path.is_dir()), top
    )
    sets = base / "ImageSets" / "Segmentation"
    more = (sets / "trainaug.txt").is_file() and (base / "SegmentationClassAug").is_dir()
    masks = base / ("SegmentationClassAug" if more else "SegmentationClass")
    lists = {"train": sets / f"train{'aug' if more else ''}.txt", "validation": sets / "val.txt"}
    found = {
        split: _find_pairs(_read_names(file), base / "JPEGImages", masks)
        for split, file in lists.items()
    }
    return assemble_from_masks(
        entry.name, assign_roles(found, place.roles), VOC_CLASSES, Reading(entry.classes), **fields
    )


def _read_names(file: Path) -> list[str]:
    """Return the names in a list of images."""
    if not file.is_file():
        raise BadData(
            f"there is no {file}; give the folder that holds JPEGImages/, SegmentationClass/ and"
            " ImageSets/"
        )
    return [Path(line.split()[0]).stem for line in file.read_text().splitlines() if line.strip()]


def _find_pairs(names: Sequence[str], pictures: Path, masks: Path) -> Pairs:
    """Return the images of these names and their masks.

    Raises `BadData` if a file is missing.
    """
    if not names:
        raise BadData(f"{pictures} has no images for this split; unpack the archive again")
    found = []
    for folder, suffix in ((pictures, ".jpg"), (masks, ".png")):
        there = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        lost = next((name for name in names if name + suffix not in there), None)
        if lost:
            raise BadData(f"there is no {folder / (lost + suffix)}; unpack the archive again")
        found.append(Files(tuple(str(folder / (name + suffix)) for name in names)))
    return Pairs(*found)


def _read_ade_names(file: Path, count: int) -> list[str]:
    """Return the first name of each class in objectInfo150.txt.

    Its columns are number, shares, stuff or thing, and names.
    """
    rows = [line.split("\t") for line in file.read_text().splitlines()[1:] if line.strip()]
    if len(rows) != count:
        raise BadData(
            f"{file} names {len(rows)} classes, expected {count}; unpack the archive again"
        )
    return [row[-1].split(",")[0].strip() for row in rows]
