"""`scenes`: image and mask are one function of (split, index), and the mask describes the image."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import IGNORED, Samples, Task
from lgzoo_mini.scenes import CLASSES, border


@pytest.fixture(scope="module")
def task() -> Task:
    return open_task("scenes", offline=True)


@pytest.fixture(scope="module")
def whole(task: Task) -> Samples:
    samples: Samples = task.split("validation").__getitems__(range(300))
    return samples


def test_the_catalogue_knows_it(task: Task) -> None:
    assert (task.kind, task.classes, task.class_names, task.flip) == (
        "segmentation",
        6,
        CLASSES,
        True,
    )
    assert dict(task.sizes) == {"train": 2000, "validation": 300, "test": 500}
    assert [len(task.split(name)) for name in task.sizes] == [2000, 300, 500]


def test_a_scene_depends_on_its_index_alone(task: Task, whole: Samples) -> None:
    split = pickle.loads(pickle.dumps(task.split("validation")))
    some = split.__getitems__([299, 4, 17])
    for position, index in enumerate((299, 4, 17)):
        assert torch.equal(some.images[position], whole.images[index])
        assert torch.equal(some.masks[position], whole.masks[index])
    others = task.split("train").__getitems__(range(300))
    assert not any(torch.equal(a, b) for a, b in zip(others.images, whole.images))
    assert len({image.numpy().tobytes() for image in whole.images}) == 300


def test_every_class_is_shown_often_and_the_rims_do_not_count(whole: Samples) -> None:
    masks = whole.masks
    assert isinstance(masks, torch.Tensor)
    assert (masks.dtype, tuple(masks.shape), tuple(whole.images.shape)) == (
        torch.uint8,
        (300, 32, 32),
        (300, 3, 32, 32),
    )
    shares = np.bincount(masks.flatten().numpy(), minlength=256) / masks.numel()
    assert shares[:6].min() > 0.04
    assert shares[:6].max() < 0.4
    assert 0.04 < shares[IGNORED] < 0.12
    assert shares[:6].sum() + shares[IGNORED] == pytest.approx(1)
    assert (masks == IGNORED).flatten(1).any(dim=1).all()  # a thing in every picture


def test_a_thing_is_parted_from_all_else_by_its_rim(whole: Samples) -> None:
    masks = whole.masks.numpy().astype(int)  # type: ignore[union-attr]
    for first, second in ((masks[:, 1:], masks[:, :-1]), (masks[:, :, 1:], masks[:, :, :-1])):
        things = (first >= 3) | (second >= 3)
        touching = things & (first != second) & (first != IGNORED) & (second != IGNORED)
        assert not touching.any()


def test_the_rim_of_a_shape_is_one_pixel_wide_inside_it() -> None:
    inside = np.zeros((1, 6, 6), dtype=bool)
    inside[0, 1:5, 2:6] = True
    rim = border(inside)[0]
    assert (
        rim.sum() == 10
    )  # 16 pixels, less 2 x 3 that have no neighbour outside: the picture's edge is none
    assert not rim[2:4, 3:6].any()


def test_colours_do_not_tell_the_classes(whole: Samples) -> None:
    """The nearest class mean of single colours is hardly better than the most frequent class."""
    pixels = whole.images.permute(0, 2, 3, 1).reshape(-1, 3).float()  # type: ignore[union-attr]
    told = whole.masks.flatten().long()  # type: ignore[union-attr]
    means = torch.stack([pixels[told == number].mean(dim=0) for number in range(6)])
    counted = told != IGNORED
    right = (torch.cdist(pixels, means).argmin(dim=1) == told)[counted].float().mean()
    assert right < 0.35
