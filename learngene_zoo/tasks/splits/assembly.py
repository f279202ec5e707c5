"""The task of stored splits, after checks of their labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from learngene_zoo.errors import BadData, NoLabels
from learngene_zoo.tasks.splits.cutting import SHARES, complete_splits
from learngene_zoo.tasks.splits.samples import Labelled
from learngene_zoo.tasks.task import SPLITS, Split, Task
from learngene_zoo.tasks.texts.duplicates import describe_duplicates

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MAX_SHOWN = 10  # classes in a note
Stored = TypeVar("Stored")


def assign_roles(stored: Mapping[str, Stored], roles: Mapping[str, str]) -> dict[str, Stored]:
    """Return the stored splits by role; `roles` maps a split to the stored one used for it.

    A stored split whose role is taken by another one is left out: `{"test": "validation"}` leaves
    the test split out, if there is a validation split.
    """
    played = {role: split for role, split in roles.items() if split in stored}
    unassigned = {
        name: part for name, part in stored.items() if name not in {*played, *played.values()}
    }
    return {**unassigned, **{role: stored[split] for role, split in played.items()}}


def check_train_classes(
    name: str,
    labels: Mapping[str, Sequence[Stored]],
    locate: Callable[[str, int], str] | None = None,
) -> set[Stored]:
    """Return the labels of the training images.

    Args:
        name: the name of the data in errors.
        labels: the labels of each split's rows.
        locate: returns the name of a row in errors, given its split and its number.

    Raises:
        BadData: if another split has further labels.
    """
    train = set(labels["train"])
    for split, values in labels.items():
        strange = set(values) - train
        if strange:
            first = min(strange, key=str)
            where = f" ({locate(split, values.index(first))})" if locate else ""
            raise BadData(
                f"{name}: class {first!r} of {split}{where} is not in train; give both the same "
                "classes"
            )
    return train


def assemble_task(
    name: str,
    stored: Mapping[str, Labelled],
    class_names: Sequence[str],
    /,
    counts: Mapping[str, int] | None = None,
    *,
    may_lack_classes: bool = False,
    **fields: Any,
) -> Task:
    """Build the task of these splits; missing ones are cut from the training images.

    Args:
        name: the name of the task.
        stored: the stored splits.
        class_names: the classes in the order of their numbers.
        counts: the number of images of each split that is cut; by default a share of the training
            images.
        may_lack_classes: whether there may be classes without training images, as in a fixed
            sample of few images; a note of the task names them.
        fields: fields of `Task`.

    Raises:
        BadData: for a single class, a class without images, or no images at all.
    """
    if "train" not in stored:
        raise BadData(
            f"{name} has no train split, only {', '.join(sorted(stored)) or 'none'}; name one of "
            "them train"
        )
    is_text = fields.get("kind") == "text"
    noun = "text" if is_text else "image"
    _check(name, stored, class_names, noun)
    missing = describe_missing(stored["train"].labels, class_names, f"training {noun}")
    if missing and not may_lack_classes:
        raise BadData(f"{name}: {missing[0]}; add some, or remove such classes")
    splits = complete_splits(name, stored, counts or {}, is_text)
    missing += describe_untested(splits["test"].labels, class_names, noun)
    copies = describe_duplicates(splits) if is_text else []
    cut = tuple(name for name, _ in SHARES if name not in stored or not len(stored[name].labels))
    notes = (*fields.get("notes", ()), *missing, *copies)
    fields = {**fields, "cut_splits": cut, "notes": notes}
    return (assemble_text_task if is_text else assemble_photo_task)(
        name, class_names, splits, fields
    )


def describe_missing(labels_N: np.ndarray, class_names: Sequence[str], noun: str) -> list[str]:
    """Return a list with a line that names the classes without samples, or an empty list.

    `noun` names the samples, such as "test image".
    """
    known = set(labels_N.tolist())
    missing = [name for label, name in enumerate(class_names) if label not in known]
    if not missing:
        return []
    more = f" and {len(missing) - MAX_SHOWN} more" if len(missing) > MAX_SHOWN else ""
    number = (
        f"{len(missing)} of {len(class_names)} classes have"
        if len(missing) > 1
        else "one class has"
    )
    return [f"{number} no {noun}s: {', '.join(missing[:MAX_SHOWN])}{more}"]


def describe_untested(labels_N: np.ndarray, class_names: Sequence[str], noun: str) -> list[str]:
    """Return a list with a line on the classes without test samples, or an empty list.

    `noun` names a sample: "image" or "text".
    """
    return [
        f"{text}; the result on test {noun}s says nothing about such classes"
        for text in describe_missing(labels_N, class_names, f"test {noun}")
    ]


def assemble_photo_task(
    name: str, class_names: Sequence[str], splits: Mapping[str, Split], fields: Mapping[str, Any]
) -> Task:
    """Build a task of photographs, by default at 224 pixels with ImageNet's normalisation.

    `fields` are fields of `Task`.
    """
    photos = {"image_size": 224, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "flip": True}
    return Task(**{**_list_fields(name, class_names, splits), **photos, **fields})


def assemble_text_task(
    name: str, class_names: Sequence[str], splits: Mapping[str, Split], fields: Mapping[str, Any]
) -> Task:
    """Build a text task. `fields` are fields of `Task`."""
    return Task(**{**_list_fields(name, class_names, splits), "kind": "text", **fields})


def _list_fields(
    name: str, class_names: Sequence[str], splits: Mapping[str, Split]
) -> dict[str, Any]:
    return {
        "name": name,
        "title": name,
        "classes": len(class_names),
        "class_names": tuple(class_names),
        "source": name,
        "sizes": {split: len(splits[split]) for split in SPLITS if split in splits},
        "open_split": dict(splits).__getitem__,
    }


def _check(
    name: str, stored: Mapping[str, Labelled], class_names: Sequence[str], noun: str
) -> None:
    if not len(stored["train"].labels):
        raise BadData(f"{name} has no training {noun}s; add some")
    if len(class_names) < 2:
        raise NoLabels(
            f"{name} has one class ({', '.join(class_names) or 'none'}); a task needs at least two"
        )
    for split, part in stored.items():
        outside = np.flatnonzero((part.labels < 0) | (part.labels >= len(class_names)))
        if len(outside):
            row = int(outside[0])
            got = part.labels[row]
            raise BadData(
                f"{part.rows[row].where} in {split}: expected a label 0 to "
                f"{len(class_names) - 1}, got {got}"
            )
