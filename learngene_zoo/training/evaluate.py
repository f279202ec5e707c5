"""Evaluate a model on a split of a task: accuracy or another metric that the task names, or mIoU
where every pixel has a class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from torch import nn

from learngene_zoo.errors import BadData, TrainingFailed, WrongCall
from learngene_zoo.families.forward import compute_logits
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run, gather_values, join, open_device
from learngene_zoo.text import quote_word
from learngene_zoo.training.objectives import (
    Accuracy,
    Confusion,
    MeanIoU,
    Metric,
    choose_batch_size,
    choose_metric,
)

if TYPE_CHECKING:
    from learngene_zoo.tasks.task import Task

Resolution = Literal["resized", "original"]


class Classifier(Protocol):
    """The properties of a model that `check_head` compares with a task."""

    @property
    def classes(self) -> int: ...
    @property
    def dense(self) -> bool: ...
    @property
    def class_names(self) -> Sequence[str]: ...


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of a model on a split."""

    task: str
    split: str
    metric: str = "accuracy"  # or mIoU, matthews, F1
    value: float
    # 95 % confidence interval over images: Wilson's for accuracy, bootstrap for others
    interval: tuple[float, float]
    images: int
    # Per image, in the order of the split; empty if the metric is not accuracy
    correct: tuple[bool, ...]
    # Of mIoU: whether it was computed on the resized images or at their original resolution
    resolution: Resolution | None = None
    is_text: bool = False  # whether `images` counts texts


def check_head(
    model: Classifier,
    task: Task,
    which: str = "the model",
    named: str = "",
    *,
    is_exported: bool = False,
    any_order: bool = False,
) -> None:
    """Raise `WrongCall` for a model that does not have the classes of the task.

    Classes are compared by name and order if the model knows their names, otherwise by number.

    Args:
        model: the model.
        task: the task.
        which: the model in messages.
        named: the model in the command lines that messages suggest; "" for the default one.
        is_exported: whether it is an exported file, which cannot be trained.
        any_order: accept the same names in another order (`find_class_order`).
    """
    data = f"--task {quote_word(task.name)}"
    train = (
        "name a file of a model that was trained for this task"
        if is_exported
        else f"train it first: lgzoo finetune {f'{named} -o NEW ' if named else ''}{data}"
    )
    if model.dense != task.dense:
        each = {True: "pixel", False: "image"}
        raise WrongCall(
            f"{which} gives one class per {each[model.dense]} and {task.name} has one per"
            f" {each[task.dense]}; {train}"
        )
    if model.classes != task.classes:
        count = f"{model.classes} classes" if model.classes else "no classes, but returns features,"
        probe = (
            ""
            if model.classes or is_exported
            else f", or probe its features: lgzoo evaluate {named or 'MODEL'} {data} --probe ridge"
        )
        raise WrongCall(f"{which} has {count} and {task.name} has {task.classes}; {train}{probe}")
    if any_order and find_class_order(model, task) is not None:
        return
    for number, (own_name, theirs) in enumerate(zip(model.class_names, task.class_names)):
        if own_name != theirs:
            raise WrongCall(
                f"{which} has other classes than {task.name}: class {number} is {own_name!r:.60}"
                f" for the model and {theirs!r:.60} for the task; {train}"
            )


def find_class_order(model: Classifier, task: Task) -> list[int] | None:
    """Return for each class of a task the class of that name in a model.

    None if they have the same order, other names, or names that occur twice.
    """
    numbers = {name: number for number, name in enumerate(model.class_names)}
    is_same = list(model.class_names) == list(task.class_names)
    if is_same or len(numbers) != len(task.class_names) or set(numbers) != set(task.class_names):
        return None
    return [numbers[name] for name in task.class_names]


def evaluate(
    model: nn.Module,
    task: Task,
    split: str,
    input_format: InputFormat | TextFormat,
    run: Run,
    *,
    batch_size: int | None = None,
    images: int | None = None,
    order: Sequence[int] | None = None,
) -> Evaluation:
    """Return the top-1 accuracy of a classifier, or the mIoU of a dense model.

    It is computed in the run's precision; under torchrun the processes share the images. The model
    is moved to the run's device and otherwise unchanged: every module keeps its mode, gradients are
    not touched.

    Args:
        model: the model.
        task: the task.
        split: the split to evaluate on.
        input_format: the images that the model takes.
        run: the run, for its device, precision and workers.
        batch_size: images per forward pass. None: chosen by the metric.
        images: evaluate on N images only, the same number of each class where it has as many.
        order: for each class of the task that of the model; None: the same.

    Raises:
        TrainingFailed: for logits that are not finite.
        BadData: for an empty split.
    """
    (judged,) = evaluate_each(
        _wrap_alone(model, order),
        model,
        task,
        split,
        input_format,
        run,
        batch_size=batch_size,
        images=images,
    )
    return judged.evaluation


@dataclass(frozen=True)
class Judged:
    """An evaluation with the row of each image, from `MeanIoU` or from `Answers`."""

    evaluation: Evaluation
    rows: np.ndarray  # int64 (N, R)


class Answers:
    """For every image its class, the predicted class, and the probability of each in millionths."""

    def rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return a row for each image, int64 (B, 4), from logits (B, K) and labels (B,)."""
        predicted_B = logits.argmax(dim=1)
        pairs_B2 = torch.stack([labels, predicted_B], dim=1)
        shares_B2 = logits.float().softmax(dim=1).gather(1, pairs_B2)
        return torch.cat([pairs_B2, (shares_B2 * 1e6).round().long()], dim=1)


def judge(
    model: nn.Module,
    task: Task,
    split: str,
    input_format: InputFormat | TextFormat,
    run: Run,
    order: Sequence[int] | None = None,
) -> Judged:
    """Evaluate a model as `evaluate` does, and return the rows of all images too."""
    return evaluate_each(_wrap_alone(model, order), model, task, split, input_format, run)[0]


def _wrap_alone(
    model: nn.Module, order: Sequence[int] | None = None
) -> Callable[[torch.Tensor], tuple[torch.Tensor]]:
    chosen = slice(None) if order is None else list(order)
    return lambda inputs: (compute_logits(model, inputs)[:, chosen],)


def evaluate_each(
    answers: Callable[[Any], Iterable[torch.Tensor]],
    model: nn.Module,
    task: Task,
    split: str,
    input_format: InputFormat | TextFormat,
    run: Run,
    *,
    batch_size: int | None = None,
    images: int | None = None,
) -> tuple[Judged, ...]:
    """Evaluate several models at once as `judge` does.

    Every image is read once for all models, and a single set of logits is in memory at a time.
    Other arguments, and errors, are those of `evaluate`.

    Args:
        answers: maps images or `Tokens` to the logits of each model, in a fixed order.
        model: the module that contains all parameters.
    """
    from learngene_zoo.tasks.loader import Loader

    metric, counted = choose_metric(task), MeanIoU(task.classes) if task.dense else Answers()
    device = open_device(run)
    join(run.device_name)
    size = batch_size or choose_batch_size(metric, input_format, device.type)
    loader = Loader(
        task,
        split,
        input_format,
        batch_size=size,
        images=images,
        workers=run.workers,
        drop_last=False,
        by_length=True,
    )
    model.to(device)
    marks: list[tuple[int, int, bool, list[int]]] = []  # answer, index, finite, row
    with (
        use_evaluation_mode(model, device, run),
        report_activity(f"evaluating on {task.name}", loader.steps) as activity,
    ):
        for activity.num_done, batch in enumerate(loader.epoch(0)):
            if len(batch.inputs):
                labels, indices = batch.labels.to(device), batch.indices.tolist()
                for answer, logits in enumerate(answers(batch.inputs.to(device))):
                    rows_BR = counted.rows(logits, labels).cpu()
                    finite_B = torch.isfinite(logits).flatten(1).all(dim=1).cpu()
                    marks += zip(
                        [answer] * len(indices), indices, finite_B.tolist(), rows_BR.tolist()
                    )
    every = sorted(mark for part in gather_values(marks) for mark in part)
    if not every:
        raise BadData(f"the split {split} of {task.name} has no {task.sample_noun}s")
    predictions = [collect_rows(task, [*group]) for _, group in groupby(every, key=itemgetter(0))]
    return tuple(_make_judged(task, split, metric, rows_NR) for rows_NR in predictions)


def _make_judged(task: Task, split: str, metric: Metric, rows_NR: np.ndarray) -> Judged:
    evaluation = summarise_rows(task.name, split, metric, convert_rows(metric, rows_NR))
    return Judged(replace(evaluation, is_text=task.is_text), rows_NR)


def convert_rows(metric: Metric, rows_NR: np.ndarray) -> np.ndarray:
    """Return the rows of a metric from those of `Answers`; the rows of mIoU are unchanged."""
    if isinstance(metric, MeanIoU):
        return rows_NR
    if isinstance(metric, Confusion):
        return metric.rows_of_pairs(rows_NR[:, 0], rows_NR[:, 1])
    return (rows_NR[:, :1] == rows_NR[:, 1:2]).astype(np.int64)


@contextmanager
def use_evaluation_mode(model: nn.Module, device: torch.device, run: Run) -> Iterator[None]:
    """Use eval mode, no gradients and the run's precision in this context.

    The modes of all modules of the model are restored afterwards.
    """
    modes = {module: module.training for module in model.modules()}
    kind = torch.float16 if run.precision == "fp16" else torch.bfloat16
    model.eval()
    try:
        # Not inference_mode: tensors that a module stores here could not be used in later training.
        with torch.no_grad(), torch.autocast(device.type, kind, enabled=run.precision != "fp32"):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def collect_rows(task: Task, marks: Sequence[tuple[int, int, bool, list[int]]]) -> np.ndarray:
    """Return the rows of all images, int64 (N, R).

    `marks` have for each image the number of the model, the index, whether its outputs are finite,
    and its row. Raises `TrainingFailed` if outputs are not finite.
    """
    broken = sum(not finite for _, _, finite, _ in marks)
    if broken:
        raise TrainingFailed(
            f"the model's outputs are not finite for {broken} of {len(marks)} {task.sample_noun}s "
            f"of {task.name}"
        )
    return np.array([row for *_, row in marks])


def summarise_rows(
    task: str, split: str, metric: Metric, rows_NR: np.ndarray, resolution: Resolution = "resized"
) -> Evaluation:
    """Return the evaluation for the rows of all images.

    Args:
        task: name of the task.
        split: name of the split.
        metric: the metric of the task.
        rows_NR: a row for each image.
        resolution: of mIoU, the resolution at which it was computed.
    """
    return Evaluation(
        task=task,
        split=split,
        metric=metric.name,
        value=metric.value(rows_NR.sum(axis=0), len(rows_NR)),
        interval=metric.interval(rows_NR),
        images=len(rows_NR),
        correct=tuple(bool(row[0]) for row in rows_NR) if isinstance(metric, Accuracy) else (),
        resolution=resolution if isinstance(metric, MeanIoU) else None,
    )
