"""The objective of Learngene Pool's Algorithm 1: an auxiliary model that learns from labels and imitates the ancestry model.

    L     = alpha L_cls + (1 - alpha) (L_att + L_blk + L_pred)
    L_blk = sum over the levels of MSE(B_anc W, B_aux)        B: output of a block after both residuals
    L_att = sum over the levels of MSE(A_anc M, A_aux)        A: output of its attention after proj, before drop path and residual
    L_pred = cross-entropy of the student's logits against softmax(teacher's logits / tau)

The paper gives no alpha; the authors' code has 0.1. Their code divides L_pred by the number of classes as well (`entries`).
L_cls is what training on the task minimises anyway (`objective_for`): where a task has attributes, the class and every
attribute.

Shapes: B images, N tokens, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn import functional

from lgzoo_pool.features import Features, Teacher, watching
from lgzoo_pool.transforms import Transformations

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.plugin import Batch

Reduction = Literal["sample", "entries"]


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How the losses are weighed."""

    alpha: float = 0.1  # the labels' share
    tau: float = 1.0  # what the teacher's logits are divided by
    reduction: Reduction = "sample"


class Distilled(nn.Module):
    """The objective `told` of `student` times alpha, and beside it what it lacks to be like the teacher.

    `pairs` are (block of the student, block of the teacher), counted from 0, one for each level. With alpha 1 the teacher is
    not asked. Trained with the student are the matrices; the teacher is no part of this module.
    """

    def __init__(
        self,
        told: nn.Module,
        student: VisionTransformer,
        teacher: Teacher,
        matrices: Transformations,
        pairs: Sequence[tuple[int, int]],
        shares: Shares,
    ) -> None:
        super().__init__()
        self.told, self.matrices = told, matrices
        self.pairs, self.shares = tuple(pairs), shares
        self._watched = (student,)  # a tuple hides it from the module's parameters: it is the objective's already
        self.teacher = teacher

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The losses of `told` by their names; `prediction`; and, where levels are distilled, `block` and `attention`."""
        alpha = self.shares.alpha
        if alpha == 1:
            losses: dict[str, torch.Tensor] = self.told(batch)
            return losses
        wanted = self.teacher(batch)
        with watching(self._watched[0], [own for own, _ in self.pairs], logits=True) as given:
            told = self.told(batch)
        imitation = {"prediction": self._prediction(given, wanted), **self._levels(given, wanted)}
        return {
            **{name: alpha * loss for name, loss in told.items()},
            **{name: (1 - alpha) * loss for name, loss in imitation.items()},
        }

    def _prediction(self, given: Features, wanted: Features) -> torch.Tensor:
        return prediction_loss(given.logits, wanted.logits, self.shares.tau, self.shares.reduction)

    def _levels(self, given: Features, wanted: Features) -> dict[str, torch.Tensor]:
        """L_blk and L_att, sums over the levels, where there are any."""
        if not self.pairs:
            return {}
        matrices = zip(self.pairs, self.matrices.blocks, self.matrices.attentions, strict=True)
        both = [
            (
                distance(given.blocks[own], w(wanted.blocks[other])),
                distance(given.attentions[own], m(wanted.attentions[other])),
            )
            for (own, other), w, m in matrices
        ]
        block, attention = (torch.stack(losses).sum() for losses in zip(*both))
        return {"block": block, "attention": attention}


def distance(given_BND: torch.Tensor, wanted_BND: torch.Tensor) -> torch.Tensor:
    """The mean squared difference over all numbers, in single precision."""
    return functional.mse_loss(given_BND.float(), wanted_BND.float())


def prediction_loss(
    student: torch.Tensor, teacher: torch.Tensor, tau: float = 1.0, reduction: Reduction = "sample"
) -> torch.Tensor:
    """Cross-entropy against softmax(teacher / tau); logits (B, K), of dense models (B, patches, K).

    sample   the mean over images (and patches)
    entries  the mean over all numbers, that is a K-th of it, as the authors' code has it
    """
    wanted = torch.softmax(teacher.float() / tau, dim=-1)
    entropies = -(wanted * torch.log_softmax(student.float(), dim=-1))
    return entropies.mean() if reduction == "entries" else entropies.sum(dim=-1).mean()
