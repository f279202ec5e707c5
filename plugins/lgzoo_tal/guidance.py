"""What the ancestry model tells a predicted student in stage 1: how far two distributions over features lie apart (TAL, eq. 4).

    student-teacher  KL(softmax(s / T) || softmax(t / T)), as the paper has it
    teacher-student  KL(softmax(t / T) || softmax(s / T)), as the authors' code has it

times T^2. s = M f + m: the student's feature, brought to the ancestry's width. The paper has no temperature; the code's is
3, and it divides the sum over a batch by its images and by the task's classes.

Shapes: B images, N tokens, D width, E the ancestry's width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from learngene_zoo.plugin import derive_seed
from lgzoo_tal.course import Direction, Guidance
from lgzoo_tal.embedding import feature

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

Linear = tuple[torch.Tensor, torch.Tensor]  # weight (E, D) and bias (E)


class Guide:
    """The frozen ancestry model and how it is listened to. No module: it is neither trained nor saved."""

    def __init__(self, model: VisionTransformer, settings: Guidance) -> None:
        self.model = model.eval().requires_grad_(False)
        self.settings = settings
        self.width: int = model.embed_dim

    def __deepcopy__(self, memo: object) -> Guide:
        return self  # the moving average of a student's objective asks the same one

    @torch.no_grad()
    def tokens(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """What it knows of a batch after the last norm: (B, N, E), its feature, then every patch.

        The feature is the class token, of a model without one what its head reads. Registers are left out.
        """
        tokens_BNE = self.model.forward_features(images_BCHW)
        return torch.cat(
            (feature(self.model, tokens_BNE)[:, None], tokens_BNE[:, self.model.num_prefix_tokens :]), dim=1
        )

    def loss(self, student_BND: torch.Tensor, teacher_BNE: torch.Tensor, matrix: Linear, classes: int) -> torch.Tensor:
        """How far a student is from it, a scalar, the mean over the batch."""
        if self.settings.axis == "features":
            student_BND, teacher_BNE = student_BND[:, 0], teacher_BNE[:, 0]
        given, wanted = functional.linear(student_BND, *matrix).float(), teacher_BNE.float()
        if self.settings.axis == "positions":
            given, wanted = given.transpose(1, 2), wanted.transpose(1, 2)
        distance = divergence(given, wanted, self.settings.direction, self.settings.temperature)
        return distance / classes if self.settings.reduction == "classes" else distance


def divergence(
    student: torch.Tensor, teacher: torch.Tensor, direction: Direction = "student-teacher", temperature: float = 1.0
) -> torch.Tensor:
    """T^2 KL between the softmaxes over the last axis, the mean over all others."""
    logs = [functional.log_softmax(x.flatten(0, -2) / temperature, dim=-1) for x in (student, teacher)]
    of, against = logs if direction == "student-teacher" else reversed(logs)
    return temperature**2 * functional.kl_div(against, of, reduction="batchmean", log_target=True)


def random_matrix(rows: int, columns: int, seed: int, *names: object) -> Linear:
    """A fresh linear layer as torch draws it, uniform within 1/sqrt(columns), a function of the seed and the names."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "projection", *names))
    bound = columns**-0.5
    weight, bias = torch.empty(rows, columns), torch.empty(rows)
    return weight.uniform_(-bound, bound, generator=generator), bias.uniform_(-bound, bound, generator=generator)
