"""The task of a stream. It has no single images to ask for: `open_stream` gives its splits, `tasks.batches` its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from learngene_zoo.errors import WrongCall
from learngene_zoo.tasks.own_data import IMAGENET_MEAN, IMAGENET_STD
from learngene_zoo.tasks.task import SPLITS, Split, Stream, Task


def stream_task(name: str, splits: Mapping[str, Stream], class_names: Sequence[str], **fields: Any) -> Task:
    """The task of these splits; `fields` are more of the task's own."""
    settings: dict[str, Any] = {
        "name": name,
        "title": name,
        "classes": len(class_names),
        "class_names": tuple(class_names),
        "image_size": 224,
        "mean": IMAGENET_MEAN,
        "std": IMAGENET_STD,
        "flip": True,
        "source": name,
        "sizes": {split: sum(splits[split].counts) for split in SPLITS},
        "open_split": partial(_no_split, name),
        "open_stream": partial(_stream, dict(splits)),
    }
    return Task(**{**settings, **fields})


def _stream(splits: Mapping[str, Stream], split: str) -> Stream:
    return splits[split]


def _no_split(name: str, split: str) -> Split:
    raise WrongCall(
        f"{name} is read in order and has no single images to ask for; take its batches, or use folder: or parquet:"
    )
