"""What a split gave, checked before it is used: a wrong mask or attribute is an error that names its image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.task import Attribute, Samples, Task

IGNORED = 255  # in a mask: neither trained on nor judged


def checked(got: Any, task: Task, indices: Sequence[int]) -> Samples:
    """What a split of `task` returned for `indices`, as `Samples`. Raises `BadData` for what does not fit the task."""
    samples = got if isinstance(got, Samples) else Samples(got)
    if task.dense:
        _check_masks(samples, task, indices)
    if task.attributes:
        _check_attributes(samples.attributes, task, indices)
    return samples


def _check_masks(samples: Samples, task: Task, indices: Sequence[int]) -> None:
    masks = samples.masks
    if masks is None:
        raise BadData(f"{task.name} is a segmentation task, but its images come without masks")
    if isinstance(masks, torch.Tensor) and isinstance(samples.images, torch.Tensor):
        # At once: one by one is slow for many small ones.
        sized = masks.shape == (len(indices), *samples.images.shape[-2:])
        if sized and not _wrong(masks, task.classes).any():
            return
    for image, mask_HW, index in zip(samples.images, masks, indices, strict=True):
        if mask_HW.shape != image.shape[-2:]:
            raise BadData(
                f"image {index} of {task.name} has {_pixels(image.shape[-2:])} pixels, its mask {_pixels(mask_HW.shape)}"
            )
        wrong = mask_HW[_wrong(mask_HW, task.classes)]
        if len(wrong):
            raise BadData(
                f"the mask of image {index} of {task.name} holds {int(wrong[0])}; a pixel is one of 0 to "
                f"{task.classes - 1}, or {IGNORED} where it does not count"
            )


def _wrong(masks: torch.Tensor, classes: int) -> torch.Tensor:
    return (masks >= classes) & (masks != IGNORED)


def _pixels(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _check_attributes(attributes_NA: torch.Tensor | None, task: Task, indices: Sequence[int]) -> None:
    wanted = (len(indices), len(task.attributes))
    if attributes_NA is None or tuple(attributes_NA.shape) != wanted:
        got = "none" if attributes_NA is None else f"a table of shape {tuple(attributes_NA.shape)}"
        raise BadData(f"{task.name} promises attributes of shape {wanted} and gave {got}")
    for attribute, values_N in zip(task.attributes, attributes_NA.unbind(dim=1)):
        wrong_N = _impossible(attribute, values_N)
        if wrong_N.any():
            first = int(wrong_N.nonzero()[0])
            raise BadData(
                f"image {indices[first]} of {task.name} has {attribute.name} {float(values_N[first])}; "
                f"it is {f'one of 0 to {attribute.classes - 1}' if attribute.classes else 'a finite number'}, or NaN"
            )


def _impossible(attribute: Attribute, values_N: torch.Tensor) -> torch.Tensor:
    """Which values cannot be meant: bool (N,)."""
    if attribute.classes is None:
        return values_N.isinf()
    known_N = values_N.nan_to_num()
    return (known_N < 0) | (known_N >= attribute.classes) | (known_N != known_N.floor())
