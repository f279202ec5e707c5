"""The tasks drawn from font outlines: every picture is a function of (task, split, index), and no digit is among them."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
import torch

from learngene_zoo.tasks import characters, letters, scripts, typefaces
from learngene_zoo.tasks.catalogue import DEFAULT_TASKS, SOURCE_TASK, names, open_task

GLYPH_TASKS = (*DEFAULT_TASKS, SOURCE_TASK)


@pytest.mark.parametrize("name", GLYPH_TASKS)
def test_a_picture_does_not_depend_on_which_others_are_asked_for(name: str) -> None:
    split = open_task(name).split("train")
    together = split.__getitems__(range(64))
    assert together.dtype == torch.uint8
    assert together.shape == (64, 3, 32, 32)
    for places in ([5], [63, 0, 17], list(range(63, 40, -1))):
        assert torch.equal(split.__getitems__(places), together[places])


@pytest.mark.parametrize("name", GLYPH_TASKS)
def test_splits_differ_and_pictures_are_not_repeated(name: str) -> None:
    task = open_task(name)
    train, test = (task.split(part).__getitems__(range(50)) for part in ("train", "test"))
    assert len({bytes(picture.numpy()) for picture in torch.cat([train, test])}) == 100


@pytest.mark.parametrize("name", GLYPH_TASKS)
def test_every_class_is_equally_frequent(name: str) -> None:
    task = open_task(name)
    for part, size in task.sizes.items():
        labels = task.split(part).labels
        counts = np.bincount(labels, minlength=task.classes)
        assert len(labels) == size
        assert counts.max() - counts.min() <= 1
        assert len(counts) == task.classes == len(task.class_names)


@pytest.mark.parametrize("module", [letters, scripts, typefaces, characters])
def test_no_task_draws_a_digit_and_every_class_draws_something(module: object) -> None:
    for part in ("train", "validation", "test"):
        for row in module.drawings(part):  # type: ignore[attr-defined]
            assert row
            assert not any(unicodedata.category(sign) in ("Nd", "No") for _, text in row for sign in text)


@pytest.mark.parametrize("module", [scripts, typefaces])
def test_splits_share_no_text(module: object) -> None:
    texts = [
        {text for row in module.drawings(part) for _, text in row}  # type: ignore[attr-defined]
        for part in ("train", "validation", "test")
    ]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]


def test_the_characters_are_two_hundred_different_ones() -> None:
    assert len(set(characters.characters())) == 200
    assert len({row[0] for row in characters.drawings("train")}) == 200


def test_catalogue_rows_agree_with_the_tasks_they_open() -> None:
    for entry in names():
        if entry.name in (*GLYPH_TASKS, "digits"):
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
