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
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from learngene_zoo.colours import PAGE_COLOURS
from learngene_zoo.errors import ZooError
from learngene_zoo.tasks.splits import DecodedSplit, PartOfSplit
from learngene_zoo.text import html
from learngene_zoo.training.evaluate import Judged

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.tasks.task import Task

# Of a confusion matrix; of more classes, the pairs that are confused most are listed
MOST_CLASSES = 40
MOST_PAIRS, WORST, SIDE = 40, 24, 112  # rows; pictures, and their longer side in pixels
_STYLE = """
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink); background: var(--paper) }
h1, p, figcaption { overflow-wrap: anywhere } .warning { border-left: 4px solid var(--series-1); padding-left: .8rem }
table { border-collapse: collapse; font-size: 13px } td, th { padding: 2px 8px; text-align: right } th { font-weight: 600 }
td:first-child, th:first-child { text-align: left } .matrix td { min-width: 1.6em; text-align: center; padding: 3px }
.matrix th { font-weight: 400 } .matrix thead th { writing-mode: vertical-rl; transform: rotate(180deg); padding: 6px 2px }
.scroll { overflow-x: auto } .worst { display: grid; grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); gap: 14px }
figure { margin: 0; font-size: 12px; min-width: 0 } figcaption b { font-weight: 600; display: block }
figure img { width: 112px; height: 112px; object-fit: contain; background: var(--panel) }
.curves { display: flex; flex-wrap: wrap; gap: 1rem } svg { display: block; width: 100%; max-width: 420px; height: auto }
svg text { font-size: 11px; fill: var(--quiet) } polyline { stroke: var(--series-0) } circle { fill: var(--series-0) }
summary { cursor: pointer; color: var(--accent) }
""".strip()


def report(model: Descendant | TimmModel, task: Task, judged: Judged) -> str:
    """The page of a trained model, from its provenance and what it answered for the images of a
    split.
    """
    metrics: Mapping[str, Any] = model.provenance["metrics"]
    test = judged.evaluation
    low, high = test.interval
    title = f"Fine-tuned on {task.name}"
    facts = f"{test.metric} {test.value:.4f} on {test.images} {test.split} images (95 % interval {low:.4f} to {high:.4f})"
    epoch = metrics.get("kept_epoch")
    before = " No epoch validates better than epoch 0, before training, whose weights these are."
    sentence = (
        "" if epoch is None else f" The weights are those of epoch {epoch}." if epoch else before
    )
    warning = f'<p class="warning">{html(metrics["warning"])}</p>' if "warning" in metrics else ""
    parts = [
        f"<h1>{html(title)}</h1><p>{html(facts)}.{sentence}</p>{warning}",
        _curves(metrics.get("history", ()), test.metric),
    ]
    parts += _of_pixels(task, judged) if task.dense else _of_images(task, judged)
    head = f'<meta charset="utf-8"><title>{html(title)}</title><meta name="viewport" content="width=device-width"><style>{PAGE_COLOURS}{_STYLE}</style>'
    return (
        f"<!doctype html>\n<html lang=en>\n<head>{head}</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _of_images(task: Task, judged: Judged) -> list[str]:
    truth_N, predicted_N = judged.rows[:, 0], judged.rows[:, 1]
    matrix_KK = np.zeros((task.classes, task.classes), dtype=np.int64)
    np.add.at(matrix_KK, (truth_N, predicted_N), 1)
    draw_errors = _matrix if task.classes <= MOST_CLASSES else _pairs
    return [draw_errors(task, matrix_KK), _classes(task, matrix_KK), _worst(task, judged)]


def _of_pixels(task: Task, judged: Judged) -> list[str]:
    both_K, either_K = np.split(judged.rows.sum(axis=0), 2)
    rows = [
        (name, f"{intersection / either:.4f}" if either else "none", int(either))
        for name, intersection, either in zip(task.class_names, both_K.tolist(), either_K.tolist())
    ]
    return ["<h2>Classes</h2>", _table(("class", "IoU", "pixels of either"), rows)]


def _curves(history: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Loss of training and value on validation images, each over the epochs.

    Epoch 0 is before training.
    """
    if not history:
        return ""
    drawn = [("training loss", "loss"), (f"validation {metric}", f"validation_{metric}")]
    rows = [
        (row["epoch"], *(f"{row[key]:.4f}" if key in row else "" for _, key in drawn))
        for row in history
    ]
    table = _table(("epoch", "training loss", f"validation {metric}"), rows)
    curves = [
        (title, [(int(row["epoch"]), row[key]) for row in history if key in row])
        for title, key in drawn
    ]
    lines = "".join(_curve(title, points) for title, points in curves if points)
    return f"<h2>Training</h2><div class=curves>{lines}</div><details><summary>every epoch</summary>{table}</details>"


def _curve(title: str, history: Sequence[tuple[int, float]]) -> str:
    epochs, values = zip(*history)
    low, high = min(values), max(values)
    reach = (high - low) or 1.0
    step = 360 / max(epochs[-1] - epochs[0], 1)
    points = [
        (40 + (epoch - epochs[0]) * step, 150 - 120 * (value - low) / reach)
        for epoch, value in history
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in points)
    labels = f'<text x="2" y="34">{high:.3g}</text><text x="2" y="154">{low:.3g}</text><text x="40" y="14">{html(title)}</text>'
    ends = f'<text x="40" y="172">epoch {epochs[0]}</text><text x="400" y="172" text-anchor="end">{epochs[-1]}</text>'
    line = f'<polyline points="{path}" fill="none" stroke-width="1.5"/>'
    return f'<svg viewBox="0 0 420 180" role="img">{labels}{ends}{line}{dots}</svg>'


def _matrix(task: Task, matrix_KK: np.ndarray) -> str:
    names = [html(name) for name in task.class_names]
    head = "".join(f"<th>{name}</th>" for name in names)
    body = ""
    for i, (name, row_K) in enumerate(zip(names, matrix_KK.tolist())):
        cells = "".join(_cell(count, sum(row_K), right=i == j) for j, count in enumerate(row_K))
        body += f"<tr><th>{name}</th>{cells}</tr>"
    return (
        "<h2>What is taken for what</h2><p>A row is a true class, a column a predicted one; images.</p>"
        f'<div class="scroll"><table class="matrix"><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(count: int, total: int, right: bool) -> str:
    shade = count / max(total, 1)
    colour = (
        f"rgba({'56,161,105' if right else '197,48,48'},{0.1 + 0.8 * shade:.2f})"
        if count
        else "none"
    )
    return f'<td style="background:{colour}">{count or ""}</td>'


def _pairs(task: Task, matrix_KK: np.ndarray) -> str:
    wrong = matrix_KK * (1 - np.eye(task.classes, dtype=np.int64))
    pairs = Counter(
        {(int(i), int(j)): int(wrong[i, j]) for i, j in np.argwhere(wrong)}
    ).most_common(MOST_PAIRS)
    rows = [
        (task.class_names[i], task.class_names[j], count, int(matrix_KK[i].sum()))
        for (i, j), count in pairs
    ]
    return "<h2>What is taken for what</h2>" + _table(
        ("true class", "predicted", "images", "of the class"), rows
    )


def _classes(task: Task, matrix_KK: np.ndarray) -> str:
    """Recall and precision, the worst recall first."""
    right_K, true_K, said_K = matrix_KK.diagonal(), matrix_KK.sum(axis=1), matrix_KK.sum(axis=0)
    rows = [
        (name, int(true), _share(right, true), _share(right, predicted))
        for name, right, true, predicted in zip(task.class_names, right_K, true_K, said_K)
    ]
    rows.sort(key=lambda row: (row[2] == "none", row[2]))
    return "<h2>Classes</h2>" + _table(("class", "images", "recall", "precision"), rows)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.4f}" if whole else "none"


def _worst(task: Task, judged: Judged) -> str:
    """The wrong answers that gave the true class the least probability, with their pictures."""
    rows_NR = judged.rows
    wrong_N = np.flatnonzero(rows_NR[:, 0] != rows_NR[:, 1])
    chosen = wrong_N[np.argsort(rows_NR[wrong_N, 2], kind="stable")][:WORST].tolist()
    if not chosen:
        return "<h2>Worst pictures</h2><p>None is wrong.</p>"
    if task.open_stream is not None:
        return "<h2>Worst pictures</h2><p>The images of this task are streamed; none is shown.</p>"
    split = task.split(judged.evaluation.split)
    figures = []
    for index in chosen:
        truth, predicted, _, share = rows_NR[index].tolist()
        names = f"{html(task.class_names[truth])}, taken for {html(task.class_names[predicted])} ({share / 1e4:.0f} %)"
        caption = f"<figcaption><b>{html(_find_name(split, index))}</b> {names}</figcaption>"
        figures.append(f"<figure>{_picture(split, index)}{caption}</figure>")
    return f'<h2>Worst pictures</h2><div class="worst">{"".join(figures)}</div>'


def _find_name(split: Any, index: int) -> str:
    """Return the path of an image, as the task names it, or its data and row.

    "image N" where there is neither.
    """
    position = index
    while isinstance(split, PartOfSplit):
        split, position = split.split, int(split.members[position])
    if isinstance(split, DecodedSplit):
        return split.rows[int(split.members[position])].where
    return f"image {index}"


def _picture(split: Any, index: int) -> str:
    from PIL import Image

    try:
        got = split.__getitems__([index])
    except ZooError:
        return ""
    image_CHW = getattr(got, "images", got)[0]
    picture = Image.fromarray(image_CHW.permute(1, 2, 0).numpy().squeeze())
    picture.thumbnail((2 * SIDE, 2 * SIDE))
    stored = io.BytesIO()
    picture.save(stored, "PNG" if max(picture.size) <= SIDE else "JPEG", quality=85)
    kind = "png" if max(picture.size) <= SIDE else "jpeg"
    return f'<img alt="" src="data:image/{kind};base64,{base64.b64encode(stored.getvalue()).decode()}">'


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    top = "".join(f"<th>{html(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
