"""The accuracy of a model on a split of a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from learngene_zoo.errors import BadData, TrainingFailed
from learngene_zoo.intervals import proportion
from learngene_zoo.processes import join
from learngene_zoo.run import Run
from learngene_zoo.training.device import open_device
from learngene_zoo.training.exchange import gathered
from learngene_zoo.view import View

if TYPE_CHECKING:
    from learngene_zoo.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How a model did: the share of images it got right, and which they were."""

    task: str
    split: str
    metric: str = "accuracy"
    value: float
    images: int
    correct: tuple[bool, ...]  # per image, in the order of the split

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of `value`."""
        return proportion(sum(self.correct), self.images)


def evaluate(
    model: nn.Module,
    task: Task,
    split: str,
    view: View,
    run: Run,
    *,
    batch_size: int = 256,
    images: int | None = None,
) -> Evaluation:
    """The top-1 accuracy of a classifier, in the run's precision; under torchrun the processes share the images.

    The model moves to the run's device and is otherwise as before: every module keeps its mode, no gradient is touched.
    `images` takes only so many. Raises `TrainingFailed` for logits that are not finite, `BadData` for an empty split.
    """
    from learngene_zoo.tasks.loader import Loader

    device = open_device(run)
    join(run.device)
    loader = Loader(task, split, view, batch_size=batch_size, images=images, workers=run.workers, drop_last=False)
    model.to(device)
    marks: list[tuple[int, bool, bool]] = []  # index, right, finite
    with _judging(model, device, run):
        for batch in loader.epoch(0):
            if len(batch.images):
                logits_BK = model(batch.images.to(device))
                right_B = logits_BK.argmax(dim=1).cpu() == batch.labels
                finite_B = torch.isfinite(logits_BK).all(dim=1).cpu()
                marks += zip(batch.indices.tolist(), right_B.tolist(), finite_B.tolist())
    return _summary(task.name, split, sorted(mark for part in gathered(marks) for mark in part))


@contextmanager
def _judging(model: nn.Module, device: torch.device, run: Run) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    kind = torch.float16 if run.precision == "fp16" else torch.bfloat16
    model.eval()
    try:
        # Not inference_mode: what a module remembers of this pass would be unusable in later training.
        with torch.no_grad(), torch.autocast(device.type, kind, enabled=run.precision != "fp32"):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _summary(task: str, split: str, marks: list[tuple[int, bool, bool]]) -> Evaluation:
    if not marks:
        raise BadData(f"the split {split} of {task} has no images")
    broken = sum(not finite for _, _, finite in marks)
    if broken:
        raise TrainingFailed(
            f"the model's outputs are not finite for {broken} of {len(marks)} images of {task}; its weights are broken"
        )
    correct = tuple(right for _, right, _ in marks)
    return Evaluation(task=task, split=split, value=sum(correct) / len(correct), images=len(correct), correct=correct)
