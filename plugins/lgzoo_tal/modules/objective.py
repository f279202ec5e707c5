"""A step of meta-training: draw architectures, predict their weights, and compute the loss.

    loss = (1 - alpha) L_task + alpha L_guidance
           + norm_weight * sum of the predicted tensors' Frobenius norms

averaged over the architectures of the step; alpha is 0 without guidance. The architectures are a
function of the seed and the step, so they are the same on all processes and after resuming. L_task
is the cross-entropy of the class plus, on a task with attributes, the loss of each attribute, as in
any other training on that task.

L_guidance is the distance of the features of a predicted student from those of the ancestry model
(TAL, eq. 4):

    student-teacher  KL(softmax(s / T) || softmax(t / T)), as in the paper
    teacher-student  KL(softmax(t / T) || softmax(s / T)), as in the authors' code

times T^2, where s = M f + m is the student's feature at the ancestry's width. The paper has no
temperature; the code's is 3, and it divides the sum over a batch by the number of images and by
that of the task's classes.

Of texts, a student's only token here is its pooled feature, the input of its head.

One more predicted linear layer, the graph's sink, computes from the class token's feature the
outputs that descendants do not need: the feature at the ancestry's width (M of eq. 4), and the
attributes. So a student runs once.

Shapes: B images, N tokens, D a student's width, E the ancestry's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from learngene_zoo.plugin import (
    CLASS_LOSS,
    Attribute,
    Spec,
    build_empty,
    compute_attribute_loss,
    compute_divergence,
    compute_pooled,
    count_attributes,
    derive_seed,
)
from lgzoo_tal.architectures import pick_architecture
from lgzoo_tal.config import Guidance
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.embedding import extract_feature
from lgzoo_tal.modules.graph import SINK, Graph
from lgzoo_tal.modules.hypernet import Hypernet, build_graph_for
from lgzoo_tal.modules.mixture import TaskBatch

Losses = dict[str, torch.Tensor]
Linear = tuple[torch.Tensor, torch.Tensor]  # weight (E, D) and bias (E,)


class Guide:
    """The frozen ancestry model and the settings of its guidance. Neither trained nor saved."""

    def __init__(self, model: Any, settings: Guidance, width: int | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.settings = settings
        self.width: int = model.embed_dim if width is None else width

    def __deepcopy__(self, memo: object) -> Guide:
        return self  # the moving average of an objective has the same guide

    @torch.no_grad()
    def compute_tokens(self, images_BCHW: Any) -> torch.Tensor:
        """Return (B, N, E) after the final norm: the model's feature, then every patch.

        The feature is the class token, or without one the input of the head. Registers are left
        out. Of texts there is the feature alone.
        """
        if not isinstance(images_BCHW, torch.Tensor):
            return compute_pooled(self.model, images_BCHW)[:, None]
        tokens_BNE = self.model.forward_features(images_BCHW)
        return torch.cat(
            (
                extract_feature(self.model, tokens_BNE)[:, None],
                tokens_BNE[:, self.model.num_prefix_tokens :],
            ),
            dim=1,
        )

    def compute_loss(
        self, student_BND: torch.Tensor, teacher_BNE: torch.Tensor, matrix: Linear, classes: int
    ) -> torch.Tensor:
        """Return the distance of a student from the model, a scalar: the mean over the batch.

        Args:
            student_BND: the student's tokens.
            teacher_BNE: the model's.
            matrix: M of eq. 4 and its bias.
            classes: of the task, by which the released code divides.
        """
        settings = self.settings
        if settings.axis == "features":
            student_BND, teacher_BNE = student_BND[:, 0], teacher_BNE[:, 0]
        student, teacher = functional.linear(student_BND, *matrix).float(), teacher_BNE.float()
        if settings.axis == "positions":
            student, teacher = student.transpose(1, 2), teacher.transpose(1, 2)
        distance = compute_divergence(student, teacher, settings.temperature, settings.direction)
        return distance / classes if settings.reduction == "classes" else distance


def draw_random_matrix(rows: int, columns: int, seed: int, *names: object) -> Linear:
    """Draw a linear layer as torch initialises it, uniform within 1/sqrt(columns).

    Args:
        rows: the number of outputs.
        columns: the number of inputs.
        seed: the layer is a function of it and of the names.
        names: tell one draw from another.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "projection", *names))
    bound = columns**-0.5
    weight, bias = torch.empty(rows, columns), torch.empty(rows)
    return weight.uniform_(-bound, bound, generator=generator), bias.uniform_(
        -bound, bound, generator=generator
    )


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The facts of a task that a step needs."""

    classes: int
    attributes: tuple[Attribute, ...] = ()  # learnt beside the class
    embedding: torch.Tensor | None = None  # (E,), if the hypernetwork has a task layer

    @property
    def outputs(self) -> list[int]:
        """Return the number of outputs for each attribute."""
        return [attribute.classes or 1 for attribute in self.attributes]


class MetaObjective(nn.Module):
    """From a batch of one task to the losses of models whose weights are predicted.

    Args:
        hypernet: is trained.
        architectures: the set that models are drawn from.
        task_specs: the number of a batch's task is its index here.
        seed: of the draws.
        meta_batch: the number of models, over which losses are averaged.
        norm_weight: of the predicted tensors' norms.
        label_smoothing: of the cross-entropy.
        guide: the ancestry model, if it guides the training.
    """

    # Steps so far; a buffer, so that a resumed training draws the right architectures.
    finished: torch.Tensor

    def __init__(
        self,
        hypernet: Hypernet,
        architectures: Sequence[Spec],
        task_specs: Sequence[TaskSpec],
        seed: int,
        *,
        meta_batch: int = 1,
        norm_weight: float = 3e-5,
        label_smoothing: float = 0.0,
        guide: Guide | None = None,
    ) -> None:
        super().__init__()
        self.hypernet, self.guide, self.seed = hypernet, guide, seed
        self.architectures, self.task_specs = tuple(architectures), tuple(task_specs)
        self.meta_batch, self.norm_weight = meta_batch, norm_weight
        self.label_smoothing = label_smoothing
        self.register_buffer("finished", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: TaskBatch) -> Losses:
        """Return `cross_entropy`, `norm` and, if any, `attributes/<name>` and `guidance`."""
        task_spec = self.task_specs[int(batch.tasks[0])]
        teacher_BNE = self.guide.compute_tokens(batch.inputs) if self.guide else None
        first = int(self.finished) * self.meta_batch
        total: Losses = {}
        for draw in range(first, first + self.meta_batch):
            for name, loss in self._compute_losses(draw, task_spec, batch, teacher_BNE).items():
                total[name] = total[name] + loss if name in total else loss
        return {name: loss / self.meta_batch for name, loss in total.items()}

    def count_terms(self, batch: TaskBatch) -> dict[str, torch.Tensor]:
        """Return the number of images that have each attribute, by the names of the losses."""
        return count_attributes(self.task_specs[int(batch.tasks[0])].attributes, batch)

    def get_architecture(self, draw: int) -> Spec:
        """Return the architecture of a draw; draws are counted from 0 over all steps."""
        return pick_architecture(self.architectures, self.seed, draw)

    def _compute_losses(
        self, draw: int, task_spec: TaskSpec, batch: TaskBatch, teacher_BNE: torch.Tensor | None
    ) -> Losses:
        spec = self.get_architecture(draw).with_(classes=task_spec.classes)
        sink = self._projection_rows + sum(task_spec.outputs)
        device = batch.labels.device
        graph = _build_graph_on(
            self.hypernet.spec, spec, (sink, spec.width) if sink else None, device
        )
        embedding = None if task_spec.embedding is None else task_spec.embedding.to(device)
        parameters = self.hypernet(graph, task=embedding)
        tokens_BND = compute_tokens(spec, parameters, batch.inputs)
        head = parameters[graph.class_weight], parameters.get(graph.class_bias)
        labels = self._compute_label_losses(task_spec, batch, tokens_BND[:, 0], head, parameters)
        norm = {"norm": self.norm_weight * sum_norms(parameters)}
        if self.guide is None or teacher_BNE is None:
            return {**labels, **norm}
        alpha = self.guide.settings.alpha
        matrix = self._get_projection(draw, parameters, tokens_BND)
        distance = self.guide.compute_loss(tokens_BND, teacher_BNE, matrix, task_spec.classes)
        return {
            **{name: (1 - alpha) * loss for name, loss in labels.items()},
            "guidance": alpha * distance,
            **norm,
        }

    def _compute_label_losses(
        self,
        task_spec: TaskSpec,
        batch: TaskBatch,
        features_BD: torch.Tensor,
        head: tuple[torch.Tensor, torch.Tensor | None],
        parameters: Mapping[str, torch.Tensor],
    ) -> Losses:
        """Return the losses of the class and of every attribute."""
        logits_BK = functional.linear(features_BD, *head).float()
        losses = {
            CLASS_LOSS: functional.cross_entropy(
                logits_BK, batch.labels, label_smoothing=self.label_smoothing
            )
        }
        if task_spec.attributes and batch.attributes is not None:
            rows = sum(task_spec.outputs)
            outputs = functional.linear(
                features_BD, *(parameters[name][-rows:] for name in SINK)
            ).float()
            split, truths = outputs.split(task_spec.outputs, dim=1), batch.attributes.unbind(dim=1)
            for attribute, output, truth_B in zip(task_spec.attributes, split, truths, strict=True):
                losses[f"attributes/{attribute.name}"] = compute_attribute_loss(output, truth_B)
        return losses

    @property
    def _projection_rows(self) -> int:
        """Return the number of the sink's rows that are M; the attributes' rows follow."""
        is_predicted = self.guide and self.guide.settings.projection == "predicted"
        return self.guide.width if self.guide and is_predicted else 0

    def _get_projection(
        self, draw: int, parameters: Mapping[str, torch.Tensor], tokens_BND: torch.Tensor
    ) -> Linear:
        """Return M and its bias: the first rows of the sink, or random numbers of the step."""
        assert self.guide is not None
        if self._projection_rows:
            weight, bias = (parameters[name][: self._projection_rows] for name in SINK)
            return weight, bias
        weight, bias = draw_random_matrix(self.guide.width, tokens_BND.shape[-1], self.seed, draw)
        return weight.to(tokens_BND), bias.to(tokens_BND)


def sum_norms(parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the sum of the Frobenius norms of all tensors."""
    return torch.stack([tensor.float().norm() for tensor in parameters.values()]).sum()


def compute_tokens(spec: Spec, parameters: Mapping[str, torch.Tensor], inputs: Any) -> torch.Tensor:
    """Return all tokens after the final norm, (B, N, D), of the model with these parameters.

    Of texts it is the pooled feature alone, (B, 1, D). Gradients flow into the parameters. Those
    beyond the final norm, such as the head's, are ignored.

    Args:
        spec: of the model.
        parameters: by the model's names.
        inputs: images (B, C, H, W), or `Tokens`.
    """
    body = _build_body(spec.with_(classes=0))  # one module for all tasks
    state_dict = {f"model.{name}": parameters[name] for name in body.names}
    # No parameter is tied, and without looking for tied ones a step is milliseconds faster.
    tokens_BND: torch.Tensor = functional_call(body, state_dict, (inputs,), tie_weights=False)
    return tokens_BND


class _Body(nn.Module):
    """A model up to its final norm: modules without memory for weights."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.names = [name for name, _ in model.named_parameters()]

    def forward(self, inputs: Any) -> torch.Tensor:
        if not isinstance(inputs, torch.Tensor):
            return compute_pooled(self.model, inputs)[:, None]
        tokens_BND: torch.Tensor = self.model.forward_features(inputs)
        return tokens_BND


# A set has a few hundred shapes at most, and a module without weights is small.
@lru_cache(maxsize=512)
def _build_body(spec: Spec) -> _Body:
    return _Body(build_empty(spec))


@lru_cache(maxsize=256)
def _build_graph_on(
    hypernet: HypernetSpec, spec: Spec, sink: tuple[int, int] | None, device: torch.device
) -> Graph:
    return build_graph_for(hypernet, spec, sink).to(device)
