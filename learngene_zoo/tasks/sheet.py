"""Draw a sheet of a task's images as a PNG file, with one row for each class.

In a segmentation task each image is shown beside its mask, in the row of a class that it contains.
Shapes: R rows, P images in a row, S the side of an image.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure

from learngene_zoo.atomic import new_file
from learngene_zoo.errors import BadData, Exists, WrongCall
from learngene_zoo.tasks.task import IGNORED, Split, Task, check_inputs
from learngene_zoo.tasks.transforms import check_samples, fit_images

ROWS, COLUMNS = 20, 10  # maximal numbers
MAX_SIDE = 64  # pixels of an image's side; larger ones are resized
TARGET_SIDE = 64  # smaller ones are enlarged by a whole factor to about this
MAX_SEARCHED = 500  # images of a segmentation task that are searched for each class
MAX_NAME = 36  # characters of a class's name
GAP = 4  # pixels between the rows
GREY = 128  # level of ignored pixels


def write_sheet(task: Task, path: Path, *, split: str = "train", force: bool = False) -> Path:
    """Draw the sheet of one split and write it.

    Raises `WrongCall` for another suffix than .png, and the errors of opening the split.
    """
    check_sheet(path, force)
    figure = _draw_figure(task, split)
    with new_file(path, force) as draft, warnings.catch_warnings():
        # The font may lack letters of a class's name
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(draft, format="png", dpi=100, metadata={"Software": None})
    return path


def check_sheet(path: Path, force: bool) -> None:
    """Check that a sheet can be written to a path.

    Raises `WrongCall` for another suffix than .png, and `Refused` for an existing file unless
    `force` is set.
    """
    if path.suffix.lower() != ".png":
        raise WrongCall(f"{path} must end in .png")
    if path.exists() and not force:
        raise Exists(path)


def select_classes(classes: int) -> list[int]:
    """Return at most `ROWS` classes, evenly spread from the first to the last."""
    rows = min(classes, ROWS)
    return [index * (classes - 1) // max(1, rows - 1) for index in range(rows)]


def collect_rows(task: Task, split: str) -> dict[int, np.ndarray]:
    """Return the images of each shown class: uint8 (P, S, S, 3), or (P, S, 2 S, 3) with masks.

    Classes without images are left out. Raises `BadData` if there are no images, and the errors of
    opening the split.
    """
    check_inputs(task)
    source = task.split(split)
    if task.kind == "segmentation":
        indices = _find_examples(task, source)
    else:
        labels_N = np.asarray(source.labels)
        indices = {
            label: np.flatnonzero(labels_N == label)[:COLUMNS]
            for label in select_classes(task.classes)
        }
    rows = {
        label: _render_images(task, source, indices_P)
        for label, indices_P in indices.items()
        if len(indices_P)
    }
    if not rows:
        raise BadData(f"task {task.name} has no {split} images to show")
    return rows


def _find_examples(task: Task, source: Split) -> dict[int, np.ndarray]:
    """Return for each shown class the images in which it has the largest share."""
    classes = select_classes(task.classes)
    masks = source.__getitems__(range(min(len(source), MAX_SEARCHED))).masks
    shares_NK = np.stack(
        [np.bincount(mask.numpy().ravel(), minlength=256) / mask.numel() for mask in masks]
    )
    order_NK = np.argsort(-shares_NK, axis=0, kind="stable")[:COLUMNS]
    return {
        label: order[shares_NK[order, label] > 0]
        for label, order in enumerate(order_NK.T)
        if label in classes
    }


def _render_images(task: Task, source: Split, indices: np.ndarray) -> np.ndarray:
    """Return the images at `indices`, with their masks to the right if there are any."""
    side = min(task.image_size, MAX_SIDE)
    samples = check_samples(source.__getitems__(indices.tolist()), task, indices.tolist())
    columns = [fit_images(samples.images, side).expand(-1, 3, -1, -1)]
    if samples.masks is not None:
        columns.append(fit_images([_colour_mask(mask.numpy()) for mask in samples.masks], side))
    return np.concatenate([images.permute(0, 2, 3, 1).numpy() for images in columns], axis=2)


def _colour_mask(mask_HW: np.ndarray) -> torch.Tensor:
    """Return uint8 (3, H, W): a colour for each class, grey for ignored pixels."""
    colours = colormaps["tab20"](np.arange(256) % 20)[:, :3] * 255
    colours[IGNORED] = GREY
    return torch.from_numpy(colours.astype(np.uint8)[mask_HW]).permute(2, 0, 1)


def _draw_figure(task: Task, split: str) -> Figure:
    """Draw the rows below each other, with the names of their classes on the left."""
    rows = collect_rows(task, split)
    height, width = next(iter(rows.values())).shape[1:3]
    larger = max(1, TARGET_SIDE // height)
    height, width = height * larger, width * larger
    sheet = np.full((len(rows) * (height + GAP), COLUMNS * width, 3), 255, dtype=np.uint8)
    for index, pictures in enumerate(rows.values()):
        line = np.concatenate(list(pictures), axis=1).repeat(larger, axis=0).repeat(larger, axis=1)
        sheet[index * (height + GAP) :][:height, : line.shape[1]] = line
    left, top = 260, 30  # pixels for the names and the title
    size = np.array([sheet.shape[1] + left, sheet.shape[0] + top])
    figure = Figure(figsize=tuple(size / 100), dpi=100, facecolor="white")
    figure.figimage(sheet, xo=left, yo=0, origin="upper")
    style: dict[str, Any] = {"fontsize": 8, "parse_math": False, "va": "center"}
    for index, label in enumerate(rows):
        middle = 1 - (top + index * (height + GAP) + height / 2) / size[1]
        figure.text(
            (left - 8) / size[0],
            middle,
            _shorten_name(task.class_names[label]),
            ha="right",
            **style,
        )
    title = f"{task.title} ({task.name}): {split} images, {len(rows)} of {task.classes} classes"
    figure.text(8 / size[0], 1 - top / 2 / size[1], title, **{**style, "fontsize": 10})
    return figure


def _shorten_name(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
