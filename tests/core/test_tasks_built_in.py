"""The tasks that need no download: every picture is a function of (task, split, index), as the catalogue says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learngene_zoo.tasks.catalogue import names, open_task, suite

GENERATED = suite("mini")


@pytest.mark.parametrize("name", GENERATED)
def test_a_picture_does_not_depend_on_which_others_are_asked_for(name: str) -> None:
    split = open_task(name).split("train")
    together = split.__getitems__(range(64))
    assert together.dtype == torch.uint8
    assert together.shape == (64, 3, 32, 32)
    for places in ([5], [63, 0, 17], list(range(63, 40, -1))):
        assert torch.equal(split.__getitems__(places), together[places])


@pytest.mark.parametrize("name", GENERATED)
def test_splits_differ_and_pictures_are_not_repeated(name: str) -> None:
    task = open_task(name)
    train, test = (task.split(part).__getitems__(range(50)) for part in ("train", "test"))
    assert len({bytes(picture.numpy()) for picture in torch.cat([train, test])}) == 100


@pytest.mark.parametrize("name", GENERATED)
def test_every_class_is_equally_frequent(name: str) -> None:
    task = open_task(name)
    for part, size in task.sizes.items():
        labels = task.split(part).labels
        counts = np.bincount(labels, minlength=task.classes)
        assert len(labels) == size
        assert counts.max() - counts.min() <= 1
        assert len(counts) == task.classes == len(task.class_names)


def test_catalogue_rows_agree_with_the_tasks_they_open() -> None:
    for entry in names():
        if entry.name in (*GENERATED, "source", "scenes", "digits"):
            task = open_task(entry.name, offline=True)
            assert (task.classes, dict(task.sizes), task.licence) == (entry.classes, dict(entry.sizes), entry.licence)
            assert len(task.class_names) == task.classes
            assert task.record.images == entry.sizes["train"]


def test_digits_has_three_disjoint_stratified_splits() -> None:
    task = open_task("digits")
    seen = []
    for part, size in (("train", 1000), ("validation", 297), ("test", 500)):
        split = task.split(part)
        assert len(split) == len(split.labels) == size
        counts = np.bincount(split.labels, minlength=10) / size
        assert np.abs(counts - 0.1).max() < 0.012
        seen.append(split.__getitems__(range(size)))
    assert len({bytes(picture.numpy()) for picture in torch.cat(seen)}) == 1797
