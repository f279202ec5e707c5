"""`report.html`: how a training went and what the model confuses, on one page that loads nothing
from anywhere.

It is a function of the model, the task and the seed, without the time, so that a resumed training
writes the same page. It names pictures of the task by their paths: `lgzoo publish` leaves it
behind.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from learngene_zoo.colours import PAGE_COLOURS
from learngene_zoo.errors import ZooError
from learngene_zoo.tasks.splits.samples import name_sample
from learngene_zoo.text import render_page
from learngene_zoo.training.evaluate import Judged

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.tasks.task import Task

# Of more classes than this the pairs that are confused most are listed, not the whole matrix.
MAX_MATRIX_CLASSES = 40
MAX_PAIRS, MAX_WORST_PICTURES = 40, 24
PICTURE_SIDE = 112  # pixels
MAX_SHOWN_TEXT = 200  # letters


def report(model: Descendant | TimmModel, task: Task, judged: Judged) -> str:
    """Return the page of a trained model.

    Args:
        model: the model; its provenance has the metrics of the training.
        task: the task that it was trained on.
        judged: its predictions for the images of a split.
    """
    metrics: Mapping[str, Any] = model.provenance["metrics"]
    test = judged.evaluation
    low, high = test.interval
    sections = _describe_pixels(task, judged) if task.dense else _describe_images(task, judged)
    return render_page(
        "training/report.html.jinja",
        colours=PAGE_COLOURS,
        title=f"Fine-tuned on {task.name}",
        noun=task.sample_noun,
        facts=(
            f"{test.metric} {test.value:.4f} on {test.images} {test.split} {task.sample_noun}s "
            f"(95 % interval {low:.4f} to {high:.4f})"
        ),
        epoch_sentence=_describe_epoch(metrics.get("kept_epoch")),
        warning=metrics.get("warning", ""),
        **_describe_history(metrics.get("history", ()), test.metric),
        **sections,
    )


def _describe_epoch(kept_epoch: int | None) -> str:
    if kept_epoch is None:
        return ""
    if kept_epoch == 0:
        return " No epoch validates better than epoch 0, before training, whose weights these are."
    return f" The weights are those of epoch {kept_epoch}."


def _describe_history(history: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Return the loss of training and the value on validation images over the epochs.

    Epoch 0 is before training.
    """
    columns = {"training loss": "loss", f"validation {metric}": f"validation_{metric}"}
    series = {
        title: [(int(row["epoch"]), row[key]) for row in history if key in row]
        for title, key in columns.items()
    }
    return {
        "curves": [_draw_curve(title, points) for title, points in series.items() if points[1:]],
        "epoch_columns": ("epoch", *columns),
        "epochs": [
            (row["epoch"], *(f"{row[key]:.4f}" if key in row else "" for key in columns.values()))
            for row in history
        ],
    }


def _draw_curve(title: str, history: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Return a curve's title, its ends and its points, in a picture of 420 x 180."""
    epochs, values = zip(*history)
    low, high = min(values), max(values)
    step, reach = 360 / max(epochs[-1] - epochs[0], 1), (high - low) or 1.0
    points = [
        (f"{40 + (epoch - epochs[0]) * step:.1f}", f"{150 - 120 * (value - low) / reach:.1f}")
        for epoch, value in history
    ]
    return {
        "title": title,
        "low": f"{low:.3g}",
        "high": f"{high:.3g}",
        "first": epochs[0],
        "last": epochs[-1],
        "points": points,
    }


def _describe_pixels(task: Task, judged: Judged) -> dict[str, Any]:
    both_K, either_K = np.split(judged.rows.sum(axis=0), 2)
    rows = [
        (name, f"{intersection / either:.4f}" if either else "none", int(either))
        for name, intersection, either in zip(task.class_names, both_K.tolist(), either_K.tolist())
    ]
    columns = ("class", "IoU", "pixels of either")
    return {
        "matrix": None,
        "confused_pairs": None,
        "worst": None,
        "class_columns": columns,
        "classes": rows,
    }


def _describe_images(task: Task, judged: Judged) -> dict[str, Any]:
    matrix_KK = np.zeros((task.classes, task.classes), dtype=np.int64)
    np.add.at(matrix_KK, (judged.rows[:, 0], judged.rows[:, 1]), 1)
    is_small = task.classes <= MAX_MATRIX_CLASSES
    return {
        "class_names": task.class_names,
        "matrix": _shade_matrix(task, matrix_KK) if is_small else None,
        "confused_pairs": None if is_small else _list_pairs(task, matrix_KK),
        "class_columns": ("class", f"{task.sample_noun}s", "recall", "precision"),
        "classes": _list_classes(task, matrix_KK),
        **_list_worst(task, judged),
    }


def _shade_matrix(task: Task, matrix_KK: np.ndarray) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return each class with the cells of its row: right ones green, wrong ones red."""
    rows = []
    for i, (name, row_K) in enumerate(zip(task.class_names, matrix_KK.tolist())):
        total = max(sum(row_K), 1)
        cells = []
        for j, count in enumerate(row_K):
            shade, rgb = 0.1 + 0.8 * count / total, "56,161,105" if i == j else "197,48,48"
            colour = f"rgba({rgb},{shade:.2f})" if count else "none"
            cells.append({"count": count, "colour": colour})
        rows.append((name, cells))
    return rows


def _list_pairs(task: Task, matrix_KK: np.ndarray) -> list[tuple[str, str, int, int]]:
    wrong = matrix_KK * (1 - np.eye(task.classes, dtype=np.int64))
    pairs = Counter({(int(i), int(j)): int(wrong[i, j]) for i, j in np.argwhere(wrong)})
    return [
        (task.class_names[i], task.class_names[j], count, int(matrix_KK[i].sum()))
        for (i, j), count in pairs.most_common(MAX_PAIRS)
    ]


def _list_classes(task: Task, matrix_KK: np.ndarray) -> list[tuple[str, int, str, str]]:
    """Return recall and precision of every class, the worst recall first."""
    right_K, true_K, said_K = matrix_KK.diagonal(), matrix_KK.sum(axis=1), matrix_KK.sum(axis=0)
    rows = [
        (name, int(true), _share(right, true), _share(right, predicted))
        for name, right, true, predicted in zip(task.class_names, right_K, true_K, said_K)
    ]
    return sorted(rows, key=lambda row: (row[2] == "none", row[2]))


def _share(part: int, total: int) -> str:
    return f"{part / total:.4f}" if total else "none"


def _list_worst(task: Task, judged: Judged) -> dict[str, Any]:
    """Return the wrong predictions that gave the true class the least probability."""
    rows_NR = judged.rows
    wrong_N = np.flatnonzero(rows_NR[:, 0] != rows_NR[:, 1])
    order_N = np.argsort(rows_NR[wrong_N, 2], kind="stable")
    chosen = wrong_N[order_N][:MAX_WORST_PICTURES].tolist()
    if not chosen:
        return {"worst": [], "worst_note": "None is wrong."}
    if task.open_stream is not None:
        note = "The images of this task are streamed; none is shown."
        return {"worst": [], "worst_note": note}
    split = task.split(judged.evaluation.split)
    pictures = []
    for index in chosen:
        truth, predicted, _, share = rows_NR[index].tolist()
        picture = {
            "truth": task.class_names[truth],
            "predicted": task.class_names[predicted],
            "share": f"{share / 1e4:.0f}",
            **_describe_sample(task, split, index),
        }
        pictures.append(picture)
    return {"worst": pictures, "worst_note": ""}


def _describe_sample(task: Task, split: Any, index: int) -> dict[str, str]:
    """Return the name of an image and its content in base64, or the beginning of a text."""
    if not task.is_text:
        return {"name": name_sample(split, index), **_encode_picture(split, index)}
    text = split.__getitems__([index])[0]
    shown = text if isinstance(text, str) else " / ".join(text)
    short = shown if len(shown) <= MAX_SHOWN_TEXT else f"{shown[:MAX_SHOWN_TEXT]}…"
    return {"name": short, "kind": "", "data": ""}


def _encode_picture(split: Any, index: int) -> dict[str, str]:
    """Return an image, at most twice `PICTURE_SIDE` on its longer side, in base64.

    Without data for an image that cannot be read.
    """
    from PIL import Image

    try:
        images = split.__getitems__([index])
    except ZooError:
        return {"kind": "", "data": ""}
    image_CHW = getattr(images, "images", images)[0]
    is_grey = len(image_CHW) == 1
    pixels = (image_CHW[0] if is_grey else image_CHW.permute(1, 2, 0)).numpy()
    picture = Image.fromarray(pixels)
    picture.thumbnail((2 * PICTURE_SIDE, 2 * PICTURE_SIDE))
    kind = "png" if max(picture.size) <= PICTURE_SIDE else "jpeg"
    stored = io.BytesIO()
    picture.save(stored, kind.upper(), quality=85)
    return {"kind": kind, "data": base64.b64encode(stored.getvalue()).decode()}
