"""The user's own images as a task: which splits there are, the missing ones made, what is wrong with them said.

A missing test split takes a fifth of the training images, a missing validation split a tenth of what is left: stratified,
the same every time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.decoding import decoded
from learngene_zoo.tasks.splits import parts
from learngene_zoo.tasks.task import SPLITS, Task

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SYNONYMS = {"val": "validation", "valid": "validation", "dev": "validation", "eval": "validation"}
SHARES = (("test", 0.2), ("validation", 0.1))  # taken of the training images, in this order
SEED = 0
Stored = TypeVar("Stored")


class Rows(Protocol):
    """Encoded images in order, and words for each that name it in an error."""

    def __len__(self) -> int: ...

    def image(self, row: int) -> Any:
        """What `decoding.decoded` takes."""

    def where(self, row: int) -> str:
        """A path, or a file and a row."""


@dataclass(frozen=True)
class Labelled:
    """One split as it was found."""

    rows: Rows
    labels: np.ndarray


@dataclass(frozen=True)
class DecodedSplit:
    """Some of the rows; an image is decoded when it is asked for, in whichever process asks."""

    rows: Rows
    members: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.members)

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """uint8 (3, H, W) each, of the size it is stored in."""
        places = [int(self.members[index]) for index in indices]
        return [decoded(self.rows.image(place), self.rows.where(place)) for place in places]


def split_name(name: str) -> str:
    """The zoo's word for a split that may be called `val` or `valid`."""
    return SYNONYMS.get(name.lower(), name.lower())


def in_roles(stored: Mapping[str, Stored], roles: Mapping[str, str]) -> dict[str, Stored]:
    """What plays each part: `roles` says of a split which stored one plays it, if that one is there.

    A stored split whose part another plays is left out: `{"test": "validation"}` leaves the test split out.
    """
    played = {role: split for role, split in roles.items() if split in stored}
    kept = {name: part for name, part in stored.items() if name not in {*played, *played.values()}}
    return {**kept, **{role: stored[split] for role, split in played.items()}}


def task_of(
    name: str,
    found: Mapping[str, Labelled],
    class_names: Sequence[str],
    /,
    counts: Mapping[str, int] | None = None,
    **fields: Any,
) -> Task:
    """The task of these splits, the missing ones made (of `counts` images, if it says). `fields` are the task's own.

    Raises `BadData` for one class, an empty one, or no images.
    """
    if "train" not in found:
        raise BadData(f"{name} has no train split, only {', '.join(sorted(found)) or 'none'}; name one of them train")
    _check(name, found, class_names)
    chosen = completed(name, found, counts or {})
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
        "sizes": {split: len(chosen[split]) for split in SPLITS},
        "open_split": partial(_opened, chosen),
    }
    return Task(**{**settings, **fields})


def _opened(chosen: Mapping[str, DecodedSplit], name: str) -> DecodedSplit:
    return chosen[name]


def _check(name: str, found: Mapping[str, Labelled], class_names: Sequence[str]) -> None:
    if not len(found["train"].labels):
        raise BadData(f"{name} has no training images; put some there")
    if len(class_names) < 2:
        raise BadData(f"{name} has one class ({', '.join(class_names) or 'none'}); a task needs at least two")
    for split, part in found.items():
        outside = np.flatnonzero((part.labels < 0) | (part.labels >= len(class_names)))
        if len(outside):
            row = int(outside[0])
            got = part.labels[row]
            raise BadData(f"{part.rows.where(row)} in {split}: label {got} is none of 0 to {len(class_names) - 1}")
    empty = set(range(len(class_names))) - set(found["train"].labels.tolist())
    if empty:
        first = class_names[min(empty)]
        raise BadData(f"{name}: class {first!r} has no training images; add some or remove the class")


def completed(name: str, found: Mapping[str, Labelled], counts: Mapping[str, int]) -> dict[str, DecodedSplit]:
    """Every split, those that are missing or empty cut from the training images.

    Raises `BadData` if there are too few of them.
    """
    chosen = {split: DecodedSplit(part.rows, np.arange(len(part.labels)), part.labels) for split, part in found.items()}
    for split, share in SHARES:
        if split in chosen and len(chosen[split]):
            continue
        train = chosen["train"]
        count = counts.get(split, max(1, round(share * len(train))))
        if count >= len(train):
            raise BadData(f"{name} has too few training images ({len(train)}) to make a {split} split; add some")
        cut, left = parts(train.labels, [count, len(train) - count], SEED)
        chosen[split] = DecodedSplit(train.rows, train.members[cut], train.labels[cut])
        chosen["train"] = DecodedSplit(train.rows, train.members[left], train.labels[left])
    return chosen
