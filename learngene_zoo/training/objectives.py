"""Objectives: modules from a batch to named scalar losses, each a mean over the batch. The total is their sum.

Shapes: B images, K classes, A attributes, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.recipe import Recipe
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.images import IGNORED

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.tasks.task import Attribute, Task

CLASS_LOSS = "cross_entropy"  # in every objective the name of the loss whose value for a guess is ln(classes)


class LabelledBatch(Protocol):
    """A batch of images (B, C, H, W) with labels: classes (B,), shares of classes (B, K) after mixup, or masks (B, H, W)."""

    @property
    def images(self) -> torch.Tensor: ...

    @property
    def labels(self) -> torch.Tensor: ...


class DescribedBatch(LabelledBatch, Protocol):
    """A batch whose images also have attributes, float32 (B, A), NaN where one does not apply."""

    @property
    def attributes(self) -> torch.Tensor | None: ...


class Classification(nn.Module):
    """Cross-entropy of a model's logits (B, K)."""

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, batch: LabelledBatch) -> dict[str, torch.Tensor]:
        """`{"cross_entropy": scalar}`, in single precision whatever that of the logits."""
        logits_BK = self.model(batch.images).float()
        return {CLASS_LOSS: functional.cross_entropy(logits_BK, batch.labels, label_smoothing=self.label_smoothing)}


class ClassAndAttributes(nn.Module):
    """The class and every attribute of an image, from one pass of a timm ViT; all losses are summed.

    Attributes are predicted by one more linear layer on the head's input, which is trained with the model and then
    discarded. They tell a small ViT much more about an image than its class does; without them it may stay at chance
    where there are many classes.
    """

    def __init__(
        self,
        model: VisionTransformer,
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
        self.outputs = [attribute.classes or 1 for attribute in self.attributes]
        self.reader = _fresh_linear(model.get_classifier().in_features, sum(self.outputs), seed)

    def forward(self, batch: DescribedBatch) -> dict[str, torch.Tensor]:
        """`cross_entropy` of the class and, for each attribute, `attributes/<name>` times the weight."""
        if batch.attributes is None:
            raise ValueError("this batch has no attributes")
        pooled_BD = self.model.forward_head(self.model.forward_features(batch.images), pre_logits=True)
        logits_BK = self.model.get_classifier()(pooled_BD).float()
        losses = {CLASS_LOSS: functional.cross_entropy(logits_BK, batch.labels, label_smoothing=self.label_smoothing)}
        answers = self.reader(pooled_BD).float().split(self.outputs, dim=1)
        for attribute, answer, truth_B in zip(self.attributes, answers, batch.attributes.unbind(dim=1), strict=True):
            losses[f"attributes/{attribute.name}"] = self.weight * attribute_loss(answer, truth_B)
        return losses


class Segmentation(Classification):
    """Cross-entropy of every pixel: of a dense model's logits (B, K, H, W) with labels (B, H, W)."""

    def forward(self, batch: LabelledBatch) -> dict[str, torch.Tensor]:
        """`{"cross_entropy": scalar}`, the mean over all pixels that are not ignored; 0 if there are none."""
        summed = functional.cross_entropy(
            self.model(batch.images).float(),
            batch.labels,
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        return {CLASS_LOSS: summed / (batch.labels != IGNORED).sum().clamp(min=1)}


def attribute_loss(answers: torch.Tensor, truth_B: torch.Tensor) -> torch.Tensor:
    """The mean, over the images whose truth is not NaN, of cross-entropy (answers (B, K)) or squared error ((B, 1)).

    0 if no image has the attribute. No value is read on the host, so that nothing waits for a GPU.
    """
    known_B = ~truth_B.isnan()
    if answers.shape[1] == 1:
        # NaN is replaced before the arithmetic: a masked NaN would still be one in the gradient.
        errors_B = (answers[:, 0] - truth_B.nan_to_num()).square()
    else:
        errors_B = functional.cross_entropy(answers, truth_B.nan_to_num().long(), reduction="none")
    return (errors_B * known_B).sum() / known_B.sum().clamp(min=1)


def objective_for(task: Task, model: VisionTransformer, recipe: Recipe, seed: int) -> nn.Module:
    """The objective of training `model` on a task, by the kind of its labels; `seed` initialises what is not the model's."""
    if task.dense:
        return Segmentation(model, recipe.label_smoothing)
    if task.attributes:
        return ClassAndAttributes(model, task.attributes, recipe.label_smoothing, seed=seed)
    return Classification(model, recipe.label_smoothing)


def _fresh_linear(inputs: int, outputs: int, seed: int) -> nn.Linear:
    """A layer whose weights are N(0, 1/sqrt(inputs)), a function of the seed alone, and whose biases are 0."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    generator = torch.Generator().manual_seed(derive_seed(seed, "attributes"))
    with torch.no_grad():
        layer.weight.normal_(std=inputs**-0.5, generator=generator)
        layer.bias.zero_()
    return layer
