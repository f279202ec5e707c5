"""The parts of a training that depend on the task: batches, objective and metric.

An objective is a module from a batch to named scalar losses, each a mean over the batch; their sum
is minimised. If a loss is a mean over something else than images, such as pixels that count, the
objective has a method that counts them (`count_terms`). The metric is accuracy or another that the
task names, or mIoU where every pixel has a class. Each image gives a row of integers, and the
metric is a function of the sum of the rows, so that any batches and any number of processes give
bit-equal results.

Shapes: B images, N images of a split, K classes, A attributes, D features, R numbers of a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.forward import compute_logits, compute_pooled, get_classifier
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.intervals import compute_interval
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.check import check_before_training
from learngene_zoo.tasks.loader import Batches, Loader
from learngene_zoo.tasks.splits.samples import DecodedSplit
from learngene_zoo.tasks.task import IGNORED

if TYPE_CHECKING:
    from learngene_zoo.families.tensors import Model
    from learngene_zoo.tasks.loader import Batch
    from learngene_zoo.tasks.task import Attribute, Task


# The name in every objective of the loss whose value for a guess is ln(classes).
CLASS_LOSS = "cross_entropy"
NUM_RESAMPLES = 1000
MAX_LOGITS = 2**26  # numbers in the logits of a batch: 256 MiB
MAX_BATCH_SIZE = 256  # of an evaluation
# The tensors of a larger batch leave the processor's cache: with 256, an image takes up to 1.3
# times as long (benchmarks/timings/evaluation_batch.py).
CPU_BATCH_SIZE = 64
MAX_BATCH_TOKENS = 2**15  # in a batch of texts that is evaluated: 64 texts of 512 tokens


def load_training_images(
    task: Task, input_format: InputFormat | TextFormat, recipe: Recipe, run: Run
) -> Batches:
    """Return shuffled and augmented batches of a task's training images, or batches of its texts.

    Args:
        task: the task.
        input_format: the images or texts that the model takes.
        recipe: settings of the training, for the number, the batches and the augmentation of
            images.
        run: the run, for its seed and workers.

    Raises:
        BadData: if images cannot be read; only images that are read now are checked
            (`tasks.check`).
        WrongCall: for mixup or cutmix on a task with attributes or masks, or of texts, which cannot
            be mixed.
    """
    if (recipe.mixup or recipe.cutmix) and (task.attributes or task.kind != "classification"):
        parts = "texts" if task.is_text else "attributes" if task.attributes else "masks"
        raise WrongCall(f"mixup and cutmix cannot mix the {parts} of {task.name}; set both to 0")
    loader = Loader(
        task,
        "train",
        input_format,
        batch_size=recipe.batch_size,
        seed=derive_seed(run.seed, "data"),
        shuffle=True,
        # Without training, the augmentation may not suit the task; texts are not augmented.
        augment=recipe.augment if recipe.epochs and not task.is_text else "none",
        images=recipe.images,
        workers=run.workers,
        repeats=recipe.repeats,
    )
    if recipe.epochs and task.open_stream is None and isinstance(task.split("train"), DecodedSplit):
        check_before_training(task, loader.used, run.workers)
    return loader


def make_mixup(recipe: Recipe, classes: int) -> Callable[[Any], Any] | None:
    """Return timm's Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019); None if both are off.

    The result is a function from a batch with labels (B,) to one with mixed images and labels (B,
    classes). It draws from numpy's global generator, which the loop seeds before every step.
    """
    if not (recipe.mixup or recipe.cutmix):
        return None
    from timm.data import Mixup

    mix = Mixup(recipe.mixup, recipe.cutmix, label_smoothing=0.0, num_classes=classes)

    def mix_batch(batch: Any) -> Any:
        images_BCHW, labels_B, size = batch.inputs, batch.labels, len(batch.inputs)
        # timm mixes batches of even size only: an odd one is extended by its first image.
        if size % 2:
            images_BCHW = torch.cat([images_BCHW, images_BCHW[:1]])
            labels_B = torch.cat([labels_B, labels_B[:1]])
        images_BCHW, labels_BK = mix(images_BCHW.clone(), labels_B)
        return batch._replace(inputs=images_BCHW[:size], labels=labels_BK[:size])

    return mix_batch


def count_terms(objective: object, batch: Any) -> dict[str, torch.Tensor]:
    """Return how many terms the losses of an objective are means over, for a batch.

    A batch may be split: into parts of `accumulate`, and over processes. The loss of the batch is
    then the mean of the losses of its parts, weighted by these numbers. Losses without one are
    means over images.

    Args:
        objective: the objective, or a loss of features. Its method `count_terms`, if it has one,
            maps a batch to these numbers.
        batch: the batch or a part of it.

    Returns:
        Scalar int64 tensors by the names of losses, on the device of the batch.
    """
    count: Any = getattr(objective, "count_terms", None)
    return {} if count is None else count(batch)


class Classification(nn.Module):
    """Cross-entropy of a model's logits (B, K) with labels (B,), or soft labels (B, K)."""

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return `{"cross_entropy": scalar}`, computed in single precision."""
        logits_BK = compute_logits(self.model, batch.inputs).float()
        return {
            CLASS_LOSS: functional.cross_entropy(
                logits_BK, batch.labels, label_smoothing=self.label_smoothing
            )
        }


class ClassAndAttributes(nn.Module):
    """The losses of the class and of all attributes of an image, in one forward pass of a ViT.

    Attributes are predicted by another linear layer on the input of the head, which is trained with
    the model and then discarded. They give a small ViT much more information about an image than
    its class; without them it may stay at chance level if there are many classes.

    Args:
        model: the model.
        attributes: the attributes of the task.
        label_smoothing: share of the target spread over all classes.
        weight: factor of the losses of attributes.
        seed: seed of the linear layer.
    """

    def __init__(
        self,
        model: Model,
        attributes: Sequence[Attribute],
        label_smoothing: float = 0.0,
        weight: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.model = model
        self.attributes = tuple(attributes)
        self.label_smoothing = label_smoothing
        self.weight = weight
        classifier: Any = get_classifier(model)
        self.outputs = [attribute.classes or 1 for attribute in self.attributes]
        self.reader = _initialise_linear(classifier.in_features, sum(self.outputs), seed)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the losses `cross_entropy` and, for each attribute, `attributes/<name>`."""
        if batch.attributes is None:
            raise ValueError("this batch has no attributes")
        pooled_BD = compute_pooled(self.model, batch.inputs)
        logits_BK = get_classifier(self.model)(pooled_BD).float()
        losses = {
            CLASS_LOSS: functional.cross_entropy(
                logits_BK, batch.labels, label_smoothing=self.label_smoothing
            )
        }
        answers = self.reader(pooled_BD).float().split(self.outputs, dim=1)
        for attribute, answer, truth_B in zip(
            self.attributes, answers, batch.attributes.unbind(dim=1), strict=True
        ):
            loss = compute_attribute_loss(answer, truth_B)
            losses[f"attributes/{attribute.name}"] = self.weight * loss
        return losses

    def count_terms(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of images that have each attribute, by the names of the losses."""
        return count_attributes(self.attributes, batch)


class Segmentation(Classification):
    """Cross-entropy of every pixel: logits (B, K, H, W) of a dense model, labels (B, H, W)."""

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return `{"cross_entropy": scalar}`, the mean over all pixels that are not ignored.

        It is 0 if there are none.
        """
        summed = functional.cross_entropy(
            compute_logits(self.model, batch.inputs).float(),
            batch.labels,
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        return {CLASS_LOSS: summed / self.count_terms(batch)[CLASS_LOSS].clamp(min=1)}

    def count_terms(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of pixels that are not ignored."""
        return {CLASS_LOSS: (batch.labels != IGNORED).sum()}


def count_attributes(attributes: Sequence[Attribute], batch: Any) -> dict[str, torch.Tensor]:
    """Return the number of images of a batch that have each attribute, by the names of the losses.

    Empty for a batch without attributes, and for an objective that uses none.
    """
    if batch.attributes is None or not attributes:
        return {}
    names = [f"attributes/{attribute.name}" for attribute in attributes]
    return dict(zip(names, (~batch.attributes.isnan()).sum(dim=0), strict=True))


def compute_attribute_loss(answers: torch.Tensor, truth_B: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of an attribute over the images whose value is not NaN.

    The loss is cross-entropy for answers (B, K) and squared error for answers (B, 1); 0 if no image
    has the attribute. No value is copied to the host, which would wait for the GPU.
    """
    known_B = ~truth_B.isnan()
    if answers.shape[1] == 1:
        # NaN is replaced before the arithmetic: a masked NaN would still reach the gradient.
        errors_B = (answers[:, 0] - truth_B.nan_to_num()).square()
    else:
        errors_B = functional.cross_entropy(answers, truth_B.nan_to_num().long(), reduction="none")
    return (errors_B * known_B).sum() / known_B.sum().clamp(min=1)


def make_objective(task: Task, model: Model, recipe: Recipe, seed: int) -> nn.Module:
    """Return the objective for training `model` on a task, by the kind of its labels.

    Args:
        task: the task.
        model: the model.
        recipe: settings of the training, for label smoothing.
        seed: seed of parameters that are not the model's.
    """
    if task.dense:
        return Segmentation(model, recipe.label_smoothing)
    if task.attributes and isinstance(get_classifier(model), nn.Linear):
        return ClassAndAttributes(model, task.attributes, recipe.label_smoothing, seed=seed)
    return Classification(model, recipe.label_smoothing)


def _initialise_linear(inputs: int, outputs: int, seed: int) -> nn.Linear:
    """Return a linear layer with weights N(0, 1/sqrt(inputs)) from the seed, and biases 0."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    generator = torch.Generator().manual_seed(derive_seed(seed, "attributes"))
    with torch.no_grad():
        layer.weight.normal_(std=inputs**-0.5, generator=generator)
        layer.bias.zero_()
    return layer


class Accuracy:
    """The share of images whose largest logit is that of their class.

    A row has one number: 1 if the image is correct, otherwise 0.
    """

    name = "accuracy"

    def rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return int64 (B, 1) for logits (B, K) and labels (B,)."""
        return (logits.argmax(dim=1) == labels).long()[:, None]

    def value(self, sum_R: np.ndarray, images: int) -> float:
        """Return the share of correct images, given the sum of the rows."""
        return int(sum_R[0]) / images

    def interval(self, rows_NR: np.ndarray) -> tuple[float, float]:
        """Return Wilson's 95 % interval."""
        return compute_interval(int(rows_NR.sum()), len(rows_NR))

    def batch_size(self, image_size: int) -> int:
        """Return a batch size for which any machine has enough memory."""
        return MAX_BATCH_SIZE


class MeanIoU:
    """The mean over classes of intersection over union of predicted and true pixels of a split.

    Classes that occur in neither do not count, nor do ignored pixels (label 255). A row has each
    class's intersection, then each class's union.
    """

    name = "mIoU"

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return int64 (B, 2 K) for logits (B, K, H, W) and labels (B, H, W)."""
        return self.counts(logits.argmax(dim=1), labels)

    def counts(self, predicted_BHW: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return int64 (B, 2 K) for the predicted and the true classes (B, H, W)."""
        counted_BHW = labels != IGNORED
        intersection_K = self._histogram(labels, counted_BHW & (predicted_BHW == labels))
        predicted, true = (
            self._histogram(predicted_BHW, counted_BHW),
            self._histogram(labels, counted_BHW),
        )
        return torch.cat([intersection_K, predicted + true - intersection_K], dim=1)

    def _histogram(self, classes_BHW: torch.Tensor, counted_BHW: torch.Tensor) -> torch.Tensor:
        """Return the number of counted pixels of each class, int64 (B, K)."""
        # Pixels that do not count get an additional class, so that all rows have equal lengths.
        masked_BP = torch.where(counted_BHW, classes_BHW, self.classes).flatten(1)
        counts = torch.zeros(
            len(masked_BP), self.classes + 1, dtype=torch.int64, device=masked_BP.device
        )
        return counts.scatter_add_(1, masked_BP, torch.ones_like(masked_BP))[:, :-1]

    def value(self, sum_R: np.ndarray, images: int) -> float:
        """Return the mean over classes, given the sum of the rows; 0 if no pixel counts."""
        both_K, either_K = np.split(sum_R, 2)
        present_K = either_K > 0
        return float((both_K[present_K] / either_K[present_K]).mean()) if present_K.any() else 0.0

    def interval(self, rows_NR: np.ndarray) -> tuple[float, float]:
        """Return the 95 % bootstrap interval over images.

        The drawn images are a function of their number.
        """
        return resample_interval(self.value, rows_NR)

    def batch_size(self, image_size: int) -> int:
        """Return a batch size for which the logits have at most `MAX_LOGITS` numbers."""
        return max(1, min(MAX_BATCH_SIZE, MAX_LOGITS // (self.classes * image_size**2)))


def resample_interval(
    value: Callable[[np.ndarray, int], float], rows_NR: np.ndarray
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval over images of a function of their summed rows."""
    images = len(rows_NR)
    draws = np.random.Generator(np.random.PCG64(derive_seed(0, "resampled images", images)))
    resampled = (rows_NR[draws.integers(images, size=images)] for _ in range(NUM_RESAMPLES))
    values = [value(drawn_NR.sum(axis=0), images) for drawn_NR in resampled]
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


class Confusion(ABC):
    """A function of the confusion matrix of a split.

    A row has one number for each pair of a true and a predicted class: 1 for the pair of the
    sample, otherwise 0. The sum of the rows is the matrix, row by row of the true classes.
    """

    name: str

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return int64 (B, K K) for logits (B, K) and labels (B,)."""
        pairs_B = labels * self.classes + logits.argmax(dim=1)
        return functional.one_hot(pairs_B, self.classes**2)

    def rows_of_pairs(self, labels_N: np.ndarray, predicted_N: np.ndarray) -> np.ndarray:
        """Return int64 (N, K K) for the true and the predicted classes."""
        rows_NR = np.zeros((len(labels_N), self.classes**2), dtype=np.int64)
        rows_NR[np.arange(len(labels_N)), labels_N * self.classes + predicted_N] = 1
        return rows_NR

    def value_of_constant(self, labels_N: np.ndarray, predicted: int) -> float:
        """Return the metric of a model that predicts one class for all samples."""
        rows_NR = self.rows_of_pairs(labels_N, np.full_like(labels_N, predicted))
        return self.value(rows_NR.sum(axis=0), len(rows_NR))

    def value(self, sum_R: np.ndarray, images: int) -> float:
        """Return the metric, given the sum of the rows."""
        return self.of_matrix(sum_R.reshape(self.classes, self.classes).astype(np.float64))

    @abstractmethod
    def of_matrix(self, matrix_KK: np.ndarray) -> float:
        """Return the metric of a confusion matrix (true, predicted), float64 (K, K)."""

    def interval(self, rows_NR: np.ndarray) -> tuple[float, float]:
        """Return the 95 % bootstrap interval; the drawn samples are a function of their number."""
        return resample_interval(self.value, rows_NR)

    def batch_size(self, image_size: int) -> int:
        """Return a batch size for which any machine has enough memory."""
        return MAX_BATCH_SIZE


class Matthews(Confusion):
    """The correlation of true and predicted classes (Matthews 1975; Gorodkin 2004, equation 8).

    It is 0 if the model or the split has a single class.
    """

    name = "matthews"

    def of_matrix(self, matrix_KK: np.ndarray) -> float:
        """Return the correlation, from -1 to 1."""
        true_K, predicted_K = matrix_KK.sum(axis=1), matrix_KK.sum(axis=0)
        total = matrix_KK.sum()
        covariance = matrix_KK.trace() * total - true_K @ predicted_K
        spread = (total**2 - true_K @ true_K) * (total**2 - predicted_K @ predicted_K)
        return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


class F1(Confusion):
    """The harmonic mean of precision and recall: of the second class of two, as GLUE computes it.

    For more classes it is the mean over the classes of the split or of the predictions.
    """

    name = "F1"

    def of_matrix(self, matrix_KK: np.ndarray) -> float:
        """Return the value, from 0 to 1."""
        right_K = matrix_KK.diagonal()
        either_K = matrix_KK.sum(axis=0) + matrix_KK.sum(axis=1)
        scores_K = np.divide(2 * right_K, either_K, out=np.zeros_like(right_K), where=either_K > 0)
        if self.classes == 2:
            return float(scores_K[1])
        return float(scores_K[either_K > 0].mean()) if either_K.any() else 0.0


Metric = Accuracy | MeanIoU | Confusion
_CONFUSIONS: dict[str, type[Confusion]] = {"matthews": Matthews, "F1": F1}


def choose_metric(task: Task) -> Metric:
    """Return the metric of a task."""
    if task.dense:
        return MeanIoU(task.classes)
    return _CONFUSIONS[task.metric](task.classes) if task.metric in _CONFUSIONS else Accuracy()


def choose_batch_size(
    metric: Metric, input_format: InputFormat | TextFormat, device: str = "cpu"
) -> int:
    """Return how many images or texts are evaluated at once.

    Args:
        metric: the metric.
        input_format: the images or texts.
        device: the type of the device. On "cpu" the number is at most `CPU_BATCH_SIZE`.
    """
    most = CPU_BATCH_SIZE if device == "cpu" else MAX_BATCH_SIZE
    if isinstance(input_format, TextFormat):
        return max(1, min(most, MAX_BATCH_TOKENS // input_format.tokens))
    return min(most, metric.batch_size(input_format.image_size))
