"""Checking, resizing and augmenting images and masks, by number."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from learngene_zoo.errors import BadData
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.tasks.task import IGNORED, Samples
from learngene_zoo.tasks.transforms import (
    check_samples,
    fit_images,
    fit_masks,
    normalise_images,
    shift_and_flip,
)
from learngene_zoo.testing import make_tiny_task


def test_colours_become_grey_by_their_luminance() -> None:
    images = torch.zeros(3, 3, 1, 1, dtype=torch.uint8)
    for channel in range(3):
        images[channel, channel] = 255
    grey = normalise_images(images, InputFormat(image_size=1, channels=1, mean=(0.0,), std=(1.0,)))
    assert grey.flatten().tolist() == pytest.approx([0.299, 0.587, 0.114])
    colour = normalise_images(
        images[:1, :1],
        InputFormat(image_size=1, channels=3, mean=(0.5, 0.0, 1.0), std=(0.5, 2.0, 1.0)),
    )
    assert colour.flatten().tolist() == [1.0, 0.5, 0.0]


def test_a_mask_takes_the_class_that_is_nearest_to_the_middle_of_a_pixel() -> None:
    mask = torch.arange(8, dtype=torch.uint8).expand(8, 8)[None]
    assert fit_masks(mask, 4)[0, 0].tolist() == [1, 3, 5, 7]
    assert fit_masks(mask, 16)[0, 0].tolist() == [pixel // 2 for pixel in range(16)]
    wide = torch.arange(12, dtype=torch.uint8).expand(4, 12)[None]
    assert (
        fit_masks(wide, 4)[0, 0].tolist()
        == fit_images(wide[:, None], 4)[0, 0, 0].tolist()
        == [4, 5, 6, 7]
    )


@pytest.mark.parametrize("value", [2, 3, 254])
def test_a_mask_holds_classes_of_its_task_or_what_does_not_count(value: int) -> None:
    task = replace(make_tiny_task(classes=2), kind="segmentation")
    images, masks = (
        torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        torch.zeros(2, 4, 4, dtype=torch.uint8),
    )
    masks[0, 0, 0], masks[0, 0, 1] = 1, IGNORED
    assert check_samples(Samples(images, masks), task, [5, 6]).masks is masks
    masks[1, 2, 3] = value
    with pytest.raises(
        BadData, match=f"the mask of image 6 of tiny holds {value}; expected 0 to 1, or 255"
    ):
        check_samples(Samples(images, masks), task, [5, 6])


def test_a_shifted_image_is_mirrored_at_its_border() -> None:
    row = torch.arange(16, dtype=torch.uint8)
    images = row.expand(1, 16, 16)[None].expand(200, 1, 16, 16).contiguous()
    moved = shift_and_flip(images, 0, 0, list(range(200)), flip=False)[:, 0, 0].tolist()
    expected = {
        shift: [abs(index) if index < 16 else 30 - index for index in range(shift, 16 + shift)]
        for shift in range(-2, 3)
    }
    assert {tuple(line) for line in moved} == {tuple(line) for line in expected.values()}, (
        "every shift up to an eighth"
    )
    flipped = shift_and_flip(images, 0, 0, list(range(200)), flip=True)[:, 0, 0].tolist()
    mirrored = sum(first != second for first, second in zip(moved, flipped, strict=True))
    assert all(second in (first, first[::-1]) for first, second in zip(moved, flipped, strict=True))
    assert 70 <= mirrored <= 130
