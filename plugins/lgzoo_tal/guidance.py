"""The ancestry model's guidance in stage 1: how far the features of a predicted student are from its own (TAL, eq. 4).

    student-teacher  KL(softmax(s / T) || softmax(t / T)), as in the paper
    teacher-student  KL(softmax(t / T) || softmax(s / T)), as in the authors' code

times T^2, where s = M f + m is the student's feature at the ancestry's width. The paper has no temperature; the code's is 3,
and it divides the sum over a batch by the number of images and by that of the task's classes.

Shapes: B images, N tokens, D width, E the ancestry's width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from learngene_zoo.plugin import derive_seed, divergence
from lgzoo_tal.config import Guidance
from lgzoo_tal.embedding import feature

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

Linear = tuple[torch.Tensor, torch.Tensor]  # weight (E, D) and bias (E,)


class Guide:
    """The frozen ancestry model and the settings of its guidance. Not a module: it is neither trained nor saved."""

    def __init__(self, model: VisionTransformer, settings: Guidance) -> None:
        self.model = model.eval().requires_grad_(False)
        self.settings = settings
        self.width: int = model.embed_dim

    def __deepcopy__(self, memo: object) -> Guide:
        return self  # the moving average of an objective has the same guide

    @torch.no_grad()
    def tokens(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """(B, N, E) after the final norm: the model's feature, then every patch. Registers are left out.

        The feature is the class token, or without one the input of the head.
        """
        tokens_BNE = self.model.forward_features(images_BCHW)
        return torch.cat(
            (feature(self.model, tokens_BNE)[:, None], tokens_BNE[:, self.model.num_prefix_tokens :]), dim=1
        )

    def loss(self, student_BND: torch.Tensor, teacher_BNE: torch.Tensor, matrix: Linear, classes: int) -> torch.Tensor:
        """The distance of a student from the model, a scalar: the mean over the batch."""
        settings = self.settings
        if settings.axis == "features":
            student_BND, teacher_BNE = student_BND[:, 0], teacher_BNE[:, 0]
        student, teacher = functional.linear(student_BND, *matrix).float(), teacher_BNE.float()
        if settings.axis == "positions":
            student, teacher = student.transpose(1, 2), teacher.transpose(1, 2)
        distance = divergence(student, teacher, settings.temperature, settings.direction)
        return distance / classes if settings.reduction == "classes" else distance


def random_matrix(rows: int, columns: int, seed: int, *names: object) -> Linear:
    """A linear layer as torch initialises it, uniform within 1/sqrt(columns): a function of the seed and the names."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "projection", *names))
    bound = columns**-0.5
    weight, bias = torch.empty(rows, columns), torch.empty(rows)
    return weight.uniform_(-bound, bound, generator=generator), bias.uniform_(-bound, bound, generator=generator)
