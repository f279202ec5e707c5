"""Splits that a data set lacks, cut from its training images or texts.

A missing test split takes a fifth of the training images, a missing validation split a tenth of the
rest: stratified, and the same images as long as the list of images is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.seeds import interleave_classes
from learngene_zoo.tasks.splits.samples import DecodedSplit, Labelled, PartOfSplit, TextSplit
from learngene_zoo.tasks.task import Split, Task

SHARES = (("test", 0.2), ("validation", 0.1))  # taken from the training images, in this order
SEED = 0  # of the splits that are cut
MIN_KEPT = 2  # training images that a class keeps when a split is cut, if it has enough


def ensure_validation(task: Task) -> Task:
    """Return the task with validation images: if it has none, a tenth of the training images.

    Raises `BadData` if there are too few, or if the images are streamed.
    """
    if task.sizes["validation"]:
        return task
    train = task.split("train")
    count = max(1, round(dict(SHARES)["validation"] * len(train)))
    parts_of_train = None if task.open_stream is not None else cut_split(train.labels, count, SEED)
    if parts_of_train is None:
        raise BadData(
            f"{task.name} has no validation {task.sample_noun}s, and none can be taken from its "
            f"training {task.sample_noun}s; add some"
        )
    cut, left = parts_of_train
    parts = {"train": left, "validation": cut}
    return replace(
        task,
        sizes={**task.sizes, **{split: len(chosen) for split, chosen in parts.items()}},
        open_split=partial(_open_part, task.open_split, parts),
    )


def limit_validation(task: Task, count: int | None) -> Task:
    """Return the task with at most `count` of its validation images, in proportion to the classes.

    The images are the same for every model; None keeps all. Raises `WrongCall` if the images are
    streamed.
    """
    if count is None or count >= task.sizes["validation"]:
        return task
    if task.open_stream is not None:
        raise WrongCall(
            f"validation_images is {count}, but the {task.sample_noun}s of {task.name} are "
            "streamed; leave it out"
        )
    members = _draw_in_proportion(task.split("validation").labels, count)
    return replace(
        task,
        sizes={**task.sizes, "validation": count},
        open_split=partial(_open_members, task.open_split, members),
    )


def _draw_in_proportion(labels_N: np.ndarray, count: int) -> np.ndarray:
    """Return indices of `count` images, whose classes have their shares, by largest remainders; of
    equal ones that of the smaller class.
    """
    _, classes_N, counts_C = np.unique(labels_N, return_inverse=True, return_counts=True)
    taken_C, left_C = np.divmod(count * counts_C, len(labels_N))
    order_C = np.lexsort((counts_C, -left_C))
    taken_C[order_C[: count - taken_C.sum()]] += 1
    order_N = interleave_classes(labels_N, SEED)
    chosen = [order_N[classes_N[order_N] == label][:taken] for label, taken in enumerate(taken_C)]
    return np.sort(np.concatenate(chosen))


def _open_members(opener: Callable[[str], Split], members: np.ndarray, name: str) -> Split:
    return PartOfSplit(opener(name), members) if name == "validation" else opener(name)


def _open_part(opener: Callable[[str], Split], parts: Mapping[str, np.ndarray], name: str) -> Split:
    return PartOfSplit(opener("train"), parts[name]) if name in parts else opener(name)


def cut_split(labels_N: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Select about `count` images for another split, in proportion to the classes.

    Every class keeps `MIN_KEPT` images, or all if it has fewer; if that leaves fewer than `count`
    images to select, it keeps one. If no class reaches this limit, the split is that of
    `split_stratified`.

    Returns:
        The indices of the selected and of the remaining images; None if none can be selected.
    """
    _, classes_N, counts_C = np.unique(labels_N, return_inverse=True, return_counts=True)
    spare_C = np.maximum(counts_C - MIN_KEPT, 0)
    if spare_C.sum() < count:
        spare_C = counts_C - 1
    taken_C = np.zeros_like(counts_C)
    cut: list[int] = []
    for index in interleave_classes(labels_N, seed).tolist():
        if len(cut) < count and taken_C[classes_N[index]] < spare_C[classes_N[index]]:
            taken_C[classes_N[index]] += 1
            cut.append(index)
    if not cut:
        return None
    return np.sort(cut), np.setdiff1d(np.arange(len(labels_N)), cut)


def complete_splits(
    name: str, stored: Mapping[str, Labelled], counts: Mapping[str, int], is_text: bool = False
) -> dict[str, DecodedSplit | TextSplit]:
    """Return every split; missing or empty ones are cut from the training samples.

    Raises `BadData` if there are too few of them.
    """
    select: type[DecodedSplit | TextSplit] = TextSplit if is_text else DecodedSplit
    chosen = {
        split: select(part.rows, np.arange(len(part.labels)), part.labels)
        for split, part in stored.items()
    }
    for split, share in SHARES:
        if split in chosen and len(chosen[split]):
            continue
        train = chosen["train"]
        count = counts.get(split, max(1, round(share * len(train))))
        parts = cut_split(train.labels, count, SEED)
        if parts is None:
            noun = "text" if is_text else "image"
            classes = len(np.unique(train.labels))
            of_classes = f", of {classes} classes" if classes > 1 else ""
            raise BadData(
                f"{name} has too few training {noun}s ({len(train)}{of_classes}) to make a {split} "
                "split: each class keeps at least one; add some"
            )
        cut, left = parts
        chosen[split] = select(train.rows, train.members[cut], train.labels[cut])
        chosen["train"] = select(train.rows, train.members[left], train.labels[left])
    return chosen
