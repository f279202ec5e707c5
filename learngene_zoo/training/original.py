"""Evaluate mIoU at the original resolution of images, for a dense model with a fixed input size.

As in the evaluation of Segmenter (Strudel et al. 2021), an image is resized by the model's view and
covered by windows of the model's size. Logits are averaged where windows overlap, and upsampled
(bilinear) to the original size, at which the classes are compared with the stored mask.

Shapes: W windows of side S, K classes; h, w of the resized image, H, W of the original.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run, gather_values, get_world_size, join, open_device, rank
from learngene_zoo.tasks.loader import WorkerLoader
from learngene_zoo.tasks.task import Samples, Split, Task
from learngene_zoo.tasks.transforms import (
    check_samples,
    compute_resized_shape,
    crop_or_pad,
    find_padding,
    normalise_images,
    resize_image,
)
from learngene_zoo.text import name_option
from learngene_zoo.training.objectives import MAX_LOGITS, MeanIoU

if TYPE_CHECKING:
    from learngene_zoo.training.evaluate import Evaluation

MAX_RESIZED_LOGITS = 500_000_000  # numbers in the logits of an image: 2 GB


@dataclass(frozen=True)
class Originals:
    """Read images with their masks at their original sizes, in worker processes."""

    task: Task
    split: Split

    def __getitem__(self, index: int) -> Samples | BadData:
        try:
            return check_samples(self.split.__getitems__([index]), self.task, [index])
        except BadData as error:
            return error


def evaluate_originals(
    model: nn.Module,
    task: Task,
    split: str,
    input_format: InputFormat,
    run: Run,
    *,
    images: int | None = None,
) -> Evaluation:
    """Return the mIoU of a dense model at the original resolution.

    Under torchrun the processes share the images.

    Args:
        model: the model.
        task: the task.
        split: the split to evaluate on.
        input_format: the images that the model takes.
        run: the run, for its device, precision and workers.
        images: evaluate on the first N images only.

    Raises:
        WrongCall: for a task without masks, and as `evaluate` does.
    """
    from learngene_zoo.training.evaluate import collect_rows, summarise_rows, use_evaluation_mode

    if not task.dense:
        raise WrongCall(
            f"{task.name} has one class per image, and the original resolution needs a class per "
            f"pixel; leave out {name_option('resolution')}"
        )
    device, metric, source = open_device(run), MeanIoU(task.classes), task.split(split)
    join(run.device_name)
    indices = range(rank(), min(len(source), images or len(source)), get_world_size())
    marks = []
    reader = Originals(task, source)
    title = f"evaluating on {task.name} at the original resolution"
    with (
        use_evaluation_mode(model.to(device), device, run),
        report_activity(title, len(indices)) as activity,
    ):
        for index, got in zip(
            indices,
            (
                WorkerLoader(reader, indices, run.workers)
                if run.workers
                else map(reader.__getitem__, indices)
            ),
        ):
            if isinstance(got, BadData):
                raise got
            activity.num_done += 1
            assert got.masks is not None, "they were checked"
            _check_logits(got.images[0], input_format, task, index)
            logits_Khw, finite = average_windows(model, got.images[0], input_format, device)
            mask_HW = got.masks[0].long().to(device)
            rows_1R = metric.counts(predict_classes(logits_Khw, mask_HW.shape)[None], mask_HW[None])
            marks.append((0, index, finite, rows_1R[0].tolist()))
    every = sorted(mark for part in gather_values(marks) for mark in part)
    if not every:
        raise BadData(f"the split {split} of {task.name} has no images")
    return summarise_rows(
        task.name, split, metric, collect_rows(task, every), resolution="original"
    )


def _check_logits(
    image_CHW: torch.Tensor, input_format: InputFormat, task: Task, index: int
) -> None:
    """Check that the logits of all classes at each pixel of the resized image fit into memory."""
    shape = compute_resized_shape(image_CHW.shape[-2:], input_format.image_size, input_format.view)
    if math.prod(shape) * task.classes > MAX_RESIZED_LOGITS:
        height, width = image_CHW.shape[-2:]
        raise BadData(
            f"image {index} of {task.name} is {width} x {height} pixels, too large for"
            f" {task.classes} classes at the original resolution; remove it, or use "
            f"{name_option('resolution', 'resized')}"
        )


def average_windows(
    model: Callable[[torch.Tensor], torch.Tensor],
    image_CHW: torch.Tensor,
    input_format: InputFormat,
    device: Any,
) -> tuple[torch.Tensor, bool]:
    """Return the mean logits of all windows at each pixel of the resized image.

    Args:
        model: maps windows (1, C, S, S) to logits (1, K, S, S).
        image_CHW: the image at its original size.
        input_format: the images that the model takes.
        device: device of the model.

    Returns:
        The logits (K, h, w), and whether they are finite.
    """
    side, view = input_format.image_size, input_format.view
    height, width = compute_resized_shape(image_CHW.shape[-2:], side, view)
    if (height, width) != tuple(image_CHW.shape[-2:]):
        image_CHW = resize_image(image_CHW, (height, width), view.interpolation)
    top, left = 0, 0
    padded_height, padded_width = height, width
    if view.crop_mode == "border":  # a side may be shorter than a window
        square = max(height, width, side)
        top, left = find_padding((height, width), square)
        image_CHW = crop_or_pad(image_CHW[None], square, input_format.fill)[0]
        padded_height = padded_width = square
    places = [
        (row, column)
        for row in starts(padded_height, side)
        for column in starts(padded_width, side)
    ]
    total, count = torch.zeros(()), torch.zeros(padded_height, padded_width, device=device)
    for row, column in places:
        window = image_CHW[None, :, row : row + side, column : column + side]
        logits_KSS = model(normalise_images(window, input_format).to(device))[0].float()
        if not total.dim():
            total = torch.zeros(len(logits_KSS), padded_height, padded_width, device=device)
        total[:, row : row + side, column : column + side] += logits_KSS
        count[row : row + side, column : column + side] += 1
    mean = (total / count)[:, top : top + height, left : left + width]
    return mean, bool(torch.isfinite(mean).all())


def starts(length: int, side: int) -> list[int]:
    """Return the first pixels of windows of `side` pixels that cover `length` pixels.

    The windows are as few as possible, and evenly spaced.
    """
    windows = math.ceil(length / side)
    return [round(number * (length - side) / max(windows - 1, 1)) for number in range(windows)]


def predict_classes(logits_Khw: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the class of the largest logit of each pixel at the size `shape`, int64 (H, W).

    The logits are upsampled (bilinear), a few classes at a time to save memory.
    """
    rows = max(1, MAX_LOGITS // (shape[0] * shape[1]))
    best_HW = torch.full(shape, -math.inf, device=logits_Khw.device)
    classes_HW = torch.zeros(shape, dtype=torch.int64, device=logits_Khw.device)
    for first in range(0, len(logits_Khw), rows):
        part = logits_Khw[None, first : first + rows]
        large = functional.interpolate(
            part, size=tuple(shape), mode="bilinear", align_corners=False
        )[0]
        highest_HW, place_HW = large.max(dim=0)
        better_HW = highest_HW > best_HW
        best_HW = torch.where(better_HW, highest_HW, best_HW)
        classes_HW = torch.where(better_HW, place_HW + first, classes_HW)
    return classes_HW
