"""What a student is told beside its labels: the answers of a teacher to the same images.

Shapes: B images, K classes. Of dense models K stands last, behind the patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.training.objectives import Labelled


class Guided(nn.Module):
    """The objective `told` of a student, times `1 - share`, and beside it `share` times the distance to the teacher's answers.

    Both models are asked in the passes that they make anyway, where their heads answer. The teacher is no part of this module:
    it is neither trained nor saved.
    """

    def __init__(
        self, told: nn.Module, student: VisionTransformer, teacher: VisionTransformer, share: float, temperature: float
    ) -> None:
        super().__init__()
        self.told = told
        self.share, self.temperature = share, temperature
        self._models = (student, teacher.eval())  # a tuple hides them from the module's parameters

    def forward(self, batch: Labelled) -> dict[str, torch.Tensor]:
        """The losses of `told` by their names, and `distillation`, a scalar."""
        student, teacher = self._models
        with torch.no_grad(), listening(teacher) as wanted:
            teacher(batch.images)
        with listening(student) as given:
            losses = self.told(batch)
        distance = divergence(given[0].float(), wanted[0].float(), self.temperature)
        return {
            **{name: (1 - self.share) * loss for name, loss in losses.items()},
            "distillation": self.share * distance,
        }


@contextmanager
def listening(model: VisionTransformer) -> Iterator[list[torch.Tensor]]:
    """A list to which, within, every answer of the model's head is added: logits (B, K), or (B, patches, K)."""
    answers: list[torch.Tensor] = []
    hook = model.get_classifier().register_forward_hook(lambda module, inputs, output: answers.append(output))
    try:
        yield answers
    finally:
        hook.remove()


def divergence(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """t^2 KL(softmax(teacher / t) || softmax(student / t)), the mean over all but the last axis, which are the classes.

    The factor keeps the gradient's size whatever the temperature (Hinton, Vinyals and Dean, 2015, section 2.1).
    """
    logs_NK = functional.log_softmax(student.flatten(0, -2) / temperature, dim=-1)
    wanted_NK = functional.log_softmax(teacher.flatten(0, -2) / temperature, dim=-1)
    return temperature**2 * functional.kl_div(logs_NK, wanted_NK, reduction="batchmean", log_target=True)
