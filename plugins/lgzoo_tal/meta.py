"""A step of meta-training: draw architectures, predict their weights for the batch's task, and see how well they do.

    loss = (1 - alpha) L_task + alpha L_guidance + norm_weight * sum of the predicted tensors' Frobenius norms

averaged over the architectures of the step; alpha is 0 where nobody guides. The architectures are a function of the seed and the
step, so that they are equal on all processes and after resuming. L_task is the cross-entropy of the class and, on a task with
attributes, beside it the loss of each attribute, as in any other training on that task.

What has no place in a descendant is read by rows of one more predicted linear layer, the graph's sink, from the class token's
feature: the feature at the ancestry's width (M of eq. 4), and the attributes. A student runs once.

Shapes: B images, N tokens, D a student's width, E the ancestry's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.plugin import CLASS_LOSS, Attribute, ViTSpec, attribute_loss
from lgzoo_tal.architectures import at
from lgzoo_tal.graph import SINK, Graph, graph_of
from lgzoo_tal.guidance import Guide, Linear, random_matrix
from lgzoo_tal.hypernet import Hypernet
from lgzoo_tal.mixture import TaskBatch
from lgzoo_tal.students import tokens_of

Losses = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a step must know of its batch's task."""

    classes: int
    attributes: tuple[Attribute, ...] = ()  # those that are learnt beside the class
    embedding: torch.Tensor | None = None  # (E,), where the hypernetwork has a task layer

    @property
    def answers(self) -> list[int]:
        """How many numbers answer for each attribute."""
        return [attribute.classes or 1 for attribute in self.attributes]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a step is made."""

    meta_batch: int = 1
    norm_weight: float = 3e-5
    label_smoothing: float = 0.0


class MetaObjective(nn.Module):
    """From a batch of one task to the losses of models that do not exist: their weights are predicted."""

    finished: torch.Tensor  # steps; a buffer, so that a resumed training goes on with the right architectures

    def __init__(
        self,
        hypernet: Hypernet,
        architectures: Sequence[ViTSpec],
        lessons: Sequence[Lesson],
        rules: Rules,
        seed: int,
        guide: Guide | None = None,
    ) -> None:
        super().__init__()
        self.hypernet, self.guide = hypernet, guide
        self.architectures, self.lessons, self.rules = tuple(architectures), tuple(lessons), rules
        self.seed = seed
        self.register_buffer("finished", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: TaskBatch) -> Losses:
        """`cross_entropy`, `norm`, and where they apply `attributes/<name>` and `guidance`."""
        lesson = self.lessons[int(batch.tasks[0])]
        teacher_BNE = self.guide.tokens(batch.images) if self.guide else None
        first = int(self.finished) * self.rules.meta_batch
        total: Losses = {}
        for draw in range(first, first + self.rules.meta_batch):
            for name, loss in self._losses(draw, lesson, batch, teacher_BNE).items():
                total[name] = total[name] + loss if name in total else loss
        return {name: loss / self.rules.meta_batch for name, loss in total.items()}

    def architecture(self, draw: int) -> ViTSpec:
        """The architecture of a draw, counted from 0 over all steps."""
        return at(self.architectures, self.seed, draw)

    def _losses(self, draw: int, lesson: Lesson, batch: TaskBatch, teacher_BNE: torch.Tensor | None) -> Losses:
        spec = self.architecture(draw).with_(classes=lesson.classes)
        sink = self._sink_rows(lesson)
        device = batch.images.device
        graph = _graph(spec, (sink, spec.width) if sink else None, device)
        embedding = None if lesson.embedding is None else lesson.embedding.to(device)
        parameters = self.hypernet(graph, task=embedding)
        tokens_BND = tokens_of(spec, parameters, batch.images)
        told = self._told(lesson, batch, tokens_BND[:, 0], parameters)
        norm = {"norm": self.rules.norm_weight * total_norm(parameters)}
        if self.guide is None or teacher_BNE is None:
            return {**told, **norm}
        alpha = self.guide.settings.alpha
        matrix = self._matrix(draw, parameters, tokens_BND)
        distance = self.guide.loss(tokens_BND, teacher_BNE, matrix, lesson.classes)
        return {**{name: (1 - alpha) * loss for name, loss in told.items()}, "guidance": alpha * distance, **norm}

    def _told(
        self, lesson: Lesson, batch: TaskBatch, features_BD: torch.Tensor, parameters: Mapping[str, torch.Tensor]
    ) -> Losses:
        """What the labels say, of the class and of every attribute."""
        logits_BK = functional.linear(features_BD, parameters["head.weight"], parameters["head.bias"]).float()
        smoothing = self.rules.label_smoothing
        losses = {CLASS_LOSS: functional.cross_entropy(logits_BK, batch.labels, label_smoothing=smoothing)}
        if lesson.attributes and batch.attributes is not None:
            rows = sum(lesson.answers)
            read = functional.linear(features_BD, *(parameters[name][-rows:] for name in SINK)).float()
            answers, truths = read.split(lesson.answers, dim=1), batch.attributes.unbind(dim=1)
            for attribute, answer, truth_B in zip(lesson.attributes, answers, truths, strict=True):
                losses[f"attributes/{attribute.name}"] = attribute_loss(answer, truth_B)
        return losses

    def _sink_rows(self, lesson: Lesson) -> int:
        """What the sink gives: the guide's feature, if M is predicted, then the answers for the attributes."""
        return self._guided_rows + sum(lesson.answers)

    @property
    def _guided_rows(self) -> int:
        return self.guide.width if self.guide and self.guide.settings.projection == "predicted" else 0

    def _matrix(self, draw: int, parameters: Mapping[str, torch.Tensor], tokens_BND: torch.Tensor) -> Linear:
        """M and its bias: the first rows of the sink, or fresh random numbers in every step."""
        assert self.guide is not None
        if self._guided_rows:
            weight, bias = (parameters[name][: self._guided_rows] for name in SINK)
            return weight, bias
        weight, bias = random_matrix(self.guide.width, tokens_BND.shape[-1], self.seed, draw)
        return weight.to(tokens_BND), bias.to(tokens_BND)


def total_norm(parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The sum of the Frobenius norms of all tensors."""
    return torch.stack([tensor.float().norm() for tensor in parameters.values()]).sum()


@lru_cache(maxsize=256)
def _graph(spec: ViTSpec, sink: tuple[int, int] | None, device: torch.device) -> Graph:
    return graph_of(spec, sink=sink).to(device)
