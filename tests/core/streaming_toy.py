"""Small tars of numbered images for the tests of streams, and a shorthand for their loader."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.tasks.loader import Batches, Loader
from learngene_zoo.tasks.task import Task

VIEW = InputFormat(image_size=8, mean=(0.0,) * 3, std=(1 / 255,) * 3)
CLASSES = 5


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def encode(number: int, kind: str = "png") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels(number)).save(stream, kind)
    return stream.getvalue()


def write_tar(path: Path, files: list[tuple[str, bytes]], **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **settings) as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def pairs(first: int, count: int) -> list[tuple[str, bytes]]:
    numbers = range(first, first + count)
    return [
        f
        for n in numbers
        for f in ((f"{n:04d}.png", encode(n)), (f"{n:04d}.cls", str(n % CLASSES).encode()))
    ]


def shards(top: Path, count: int = 4, each: int = 25) -> Path:
    """Write training tars of numbered images, and one tar each for validation and test."""
    for number in range(count):
        write_tar(top / f"train-{number:03d}.tar", pairs(each * number, each))
    write_tar(top / "val-000.tar", pairs(1000, 10))
    write_tar(top / "test-000.tar", pairs(2000, 15))
    return top


def loader(task: Task, split: str = "train", **changes: Any) -> Batches:
    settings = {"batch_size": 12, "seed": 3, "shuffle": True, "augment": "light", "window": 20}
    return Loader(task, split, VIEW, **{**settings, **changes})


def by_index(batches: Iterator[Any]) -> dict[int, tuple[bytes, int]]:
    return {
        index: (image.numpy().tobytes(), label)
        for images, labels, indices, _ in batches
        for image, label, index in zip(images, labels.tolist(), indices.tolist())
    }


def equal(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))
