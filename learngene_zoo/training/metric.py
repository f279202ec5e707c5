"""The metric of a task: accuracy, or mIoU where every pixel has a class.

Each image gives a row of integers, and the metric is a function of their sum. So images can be evaluated in any batches
and by any processes with bit-equal results. Shapes: B images, N images of a split, K classes, R numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from learngene_zoo.intervals import proportion
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.images import IGNORED

if TYPE_CHECKING:
    from learngene_zoo.tasks.task import Task

RESAMPLES = 1000
MOST_LOGITS = 2**26  # of a batch: 256 MiB


class Metric(Protocol):
    """How models are evaluated on one kind of task."""

    name: str

    def rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """int64 (B, R)."""

    def value(self, sum_R: np.ndarray, images: int) -> float:
        """From 0 to 1."""

    def interval(self, rows_NR: np.ndarray) -> tuple[float, float]:
        """The 95 % interval over images of the value."""

    def batch_size(self, image_size: int) -> int:
        """How many images are evaluated at once."""


class Accuracy:
    """The share of images whose largest logit is that of their class. A row has one number, 1 if that is so."""

    name = "accuracy"

    def rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """From logits (B, K) and labels (B,): int64 (B, 1)."""
        return (logits.argmax(dim=1) == labels).long()[:, None]

    def value(self, sum_R: np.ndarray, images: int) -> float:
        """The share of images that are right."""
        return int(sum_R[0]) / images

    def interval(self, rows_NR: np.ndarray) -> tuple[float, float]:
        """Wilson's interval."""
        return proportion(int(rows_NR.sum()), len(rows_NR))

    def batch_size(self, image_size: int) -> int:
        """Few enough for the memory of any machine."""
        return 256


class MeanIoU:
    """The mean over classes of intersection over union of predicted and true pixels, over the whole split.

    Classes that occur in neither do not count, nor do pixels marked 255. A row holds each class's intersection, then each
    class's union.
    """

    name = "mIoU"

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """From logits (B, K, H, W) and labels (B, H, W): int64 (B, 2 K)."""
        predicted_BHW, counted_BHW = logits.argmax(dim=1), labels != IGNORED
        both = self._histogram(labels, counted_BHW & (predicted_BHW == labels))
        predicted, true = self._histogram(predicted_BHW, counted_BHW), self._histogram(labels, counted_BHW)
        return torch.cat([both, predicted + true - both], dim=1)

    def _histogram(self, classes_BHW: torch.Tensor, counted_BHW: torch.Tensor) -> torch.Tensor:
        """Pixels of each class among those counted, int64 (B, K)."""
        # What does not count goes to a class of its own: leaving it out would make the rows differ in length.
        kept = torch.where(counted_BHW, classes_BHW, self.classes).flatten(1)
        counts = torch.zeros(len(kept), self.classes + 1, dtype=torch.int64, device=kept.device)
        return counts.scatter_add_(1, kept, torch.ones_like(kept))[:, :-1]

    def value(self, sum_R: np.ndarray, images: int) -> float:
        """The mean over classes; 0 where no pixel counts."""
        both_K, either_K = np.split(sum_R, 2)
        there = either_K > 0
        return float((both_K[there] / either_K[there]).mean()) if there.any() else 0.0

    def interval(self, rows_NR: np.ndarray) -> tuple[float, float]:
        """From images drawn with replacement; which they are is a function of their number."""
        images = len(rows_NR)
        draws = np.random.Generator(np.random.PCG64(derive_seed(0, "resampled images", images)))
        values = [self.value(self._drawn(rows_NR, draws), images) for _ in range(RESAMPLES)]
        low, high = np.quantile(values, (0.025, 0.975))
        return float(low), float(high)

    def _drawn(self, rows_NR: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        drawn: np.ndarray = rows_NR[draws.integers(len(rows_NR), size=len(rows_NR))].sum(axis=0)
        return drawn

    def batch_size(self, image_size: int) -> int:
        """As many as keep the logits of a batch small."""
        return max(1, min(256, MOST_LOGITS // (self.classes * image_size**2)))


def metric_for(task: Task) -> Metric:
    """The metric of a task's kind."""
    return MeanIoU(task.classes) if task.dense else Accuracy()
