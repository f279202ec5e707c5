"""`fashion_mnist`: 70,000 grey images of clothes (Xiao, Rasul and Vollgraf 2017), from a folder of
IDX files or the Hub.

The 28 x 28 images get a black border of two pixels, as their background is black. IDX is the format
of MNIST's files, here gzipped: magic 0x0801 for labels or 0x0803 for images, sizes as big-endian
integers, then bytes. It is read strictly: another magic, a wrong length or a damaged archive is an
error.
"""

import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from learngene_zoo.plugin import (
    SEED,
    BadData,
    Entry,
    PixelSplit,
    Split,
    Task,
    build_task,
    open_hub,
    split_stratified,
)

SIDE, BORDER = 28, 2
UNSIGNED_BYTE = 0x08  # IDX's code of the type
CLASSES = (
    "T-shirt",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def open_fashion_mnist(entry: Entry, folder: Path | None, offline: bool) -> Task:
    """Open the task from the folder of IDX files if there is one, else from the Hub."""
    if folder is None:
        task = open_hub(entry.source, offline, entry)
        return replace(task, open_split=lambda name: BorderedSplit(task.open_split(name)))
    return build_task(
        entry, CLASSES, lambda name: open_split(folder, entry.sizes["validation"], name)
    )


@cache
def _read(folder: Path, prefix: str) -> tuple[torch.Tensor, np.ndarray]:
    """Read images uint8 (N, 1, 28, 28) and labels int64 (N,) of "train" or "t10k"."""
    images_path = folder / f"{prefix}-images-idx3-ubyte.gz"
    images = read_idx(images_path, 3)
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 1).astype(np.int64)
    if len(images) != len(labels) or images.shape[1:] != (SIDE, SIDE) or not len(labels):
        raise BadData(
            f"{images_path} has shape {images.shape} and there are {len(labels)} labels; download"
            " both again"
        )
    if labels.max() >= len(CLASSES):
        raise BadData(
            f"{folder}: label {labels.max()} in {prefix}; there are {len(CLASSES)} classes"
        )
    return torch.from_numpy(images)[:, None], labels


def open_split(folder: Path, validation_images: int, name: str) -> PixelSplit:
    """Open a split; validation is a fixed, stratified part of the training images."""
    images, labels = _read(folder, "t10k" if name == "test" else "train")
    if name != "test":
        sizes = [validation_images, len(labels) - validation_images]
        if min(sizes) < 1:
            raise BadData(f"{folder} has only {len(labels)} training images; download them again")
        validation, train = split_stratified(labels, sizes, SEED)
        members = validation if name == "validation" else train
        images, labels = images[torch.from_numpy(members)], labels[members]
    return PixelSplit(images, labels, BORDER)


@dataclass(frozen=True)
class BorderedSplit:
    """The Hub's images with the border that the local ones get."""

    inner: Split

    @property
    def labels(self) -> np.ndarray:
        """The class of every image, int64 (N,)."""
        return self.inner.labels

    def __len__(self) -> int:
        return len(self.inner)

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        """Return the images at these indices, uint8 (N, 3, 32, 32)."""
        return functional.pad(torch.stack(list(self.inner.__getitems__(indices))), (BORDER,) * 4)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read the uint8 array of `dimensions` axes in a `.gz` IDX file.

    Raises `BadData` that names the file.
    """
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"{path} cannot be read ({error}); download it again") from None
    expected = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    start = 4 + 4 * dimensions
    if content[:4] != expected or len(content) < start:
        raise BadData(
            f"{path} begins with {content[:4].hex()}, expected {expected.hex()}: it is not the"
            " right IDX file"
        )
    shape = tuple(np.frombuffer(content, dtype=">u4", count=dimensions, offset=4).tolist())
    if len(content) - start != math.prod(shape):
        raise BadData(
            f"{path} holds {len(content) - start} bytes for shape {shape}; download it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()
