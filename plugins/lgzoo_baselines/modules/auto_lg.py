"""Resemblance of the blocks of two models: linear CKA, and Auto-LG's meta-network with its loss.

N images, T tokens, D width; L blocks of the ancestry model, M of the small one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from learngene_zoo.plugin import Batch, Model, Teacher, count_terms, gather_values, record_features


@torch.no_grad()
def compute_cka(model: Model, teacher: Teacher, batches: Iterable[Batch]) -> torch.Tensor:
    """Return the CKA of every pair of blocks, (L, M).

    Args:
        model: the small model.
        teacher: the ancestry model.
        batches: images; the features of a block are the mean over the tokens after it.
    """
    student_features: list[list[torch.Tensor]] = [[] for _ in model.blocks]
    teacher_features: list[list[torch.Tensor]] = [[] for _ in teacher.blocks]
    for batch in batches:
        teacher_tokens = teacher(batch).blocks
        with record_features(model, range(len(student_features))) as student:
            model(batch.inputs)
        for features, tokens in (
            (student_features, student.blocks),
            (teacher_features, teacher_tokens),
        ):
            for block, rows in enumerate(features):
                rows.append(tokens[block].mean(dim=1).float().cpu())
    small, large = (
        [_gather_rows(rows) for rows in features]
        for features in (student_features, teacher_features)
    )
    return torch.tensor([[compute_linear_cka(y, x) for x in small] for y in large])


def _gather_rows(rows: list[torch.Tensor]) -> torch.Tensor:
    """Return the rows of all processes as one tensor."""
    return torch.cat([row for part in gather_values(rows) for row in part])


def compute_linear_cka(x_ND: torch.Tensor, y_ND: torch.Tensor) -> float:
    """Return the linear centred kernel alignment (Kornblith et al., 2019, section 3).

    It is |Y'X|^2 / (|X'X| |Y'Y|) in Frobenius norms, of centred columns: 1 for features that are
    equal up to a rotation and a factor, else less; 0 where X or Y does not vary. The widths may
    differ.
    """
    x, y = (features.double() - features.double().mean(dim=0) for features in (x_ND, y_ND))
    norms = (x.T @ x).norm() * (y.T @ y).norm()
    return float((y.T @ x).square().sum() / norms) if norms else 0.0


class MetaMatching(nn.Module):
    """Compute the losses of the small model, which matches blocks, and of the meta-network.

        share_ij = softmax over i of w_ij' mean(A_i) + b_ij
        match    = mean over j of sum over i of share_ij |norm(A_i) - norm(P_j)|^2
        meta     = the task's loss after `inner_steps` steps of gradient descent on `match` alone,
                   and one on the task's loss

    A_i, P_j: tokens after block i of the ancestry model, j of the small model. The small model is
    trained by the task's loss and `match` with constant shares, the meta-network by `meta`, whose
    gradient goes through the inner steps. norm: each token to mean 0 and variance 1; |.|^2: the
    mean over images, tokens and channels.
    """

    def __init__(
        self,
        objective: nn.Module,
        model: Model,
        teacher: Teacher,
        inner_steps: int,
        inner_lr: float,
    ) -> None:
        super().__init__()
        self.objective, self.teacher = objective, teacher
        self.inner_steps, self.inner_lr = inner_steps, inner_lr
        self.blocks = range(len(model.blocks))
        self.meta = nn.ModuleList(
            nn.Linear(model.embed_dim, len(self.blocks)) for _ in teacher.blocks
        )
        for parameter in self.meta.parameters():  # at first all shares are equal
            nn.init.zeros_(parameter)
        self._model = (model,)  # a tuple hides its parameters: they are the objective's already

    def compute_shares(self, ancestry: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the shares (N, L, M), with sum 1 over L, from the L tensors A_i (N, T, D)."""
        scores = [
            layer(tokens.mean(dim=1)) for layer, tokens in zip(self.meta, ancestry, strict=True)
        ]
        return torch.stack(scores, dim=1).softmax(dim=1)

    @torch.no_grad()
    def average_shares(self, batches: Iterable[Batch]) -> torch.Tensor:
        """Return the mean of the shares over images, (L, M)."""
        shares = [self.compute_shares(self.record_tokens(batch)).cpu() for batch in batches]
        return _gather_rows(shares).mean(dim=0)

    def record_tokens(self, batch: Batch) -> list[torch.Tensor]:
        """Return A_i of the ancestry model's blocks, (N, T, D) each."""
        tokens = self.teacher(batch).blocks
        return [tokens[i].float() for i in self.teacher.blocks]

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the task's losses, `match` and, in training, `meta`."""
        ancestry = self.record_tokens(batch)
        shares = self.compute_shares(ancestry)
        with record_features(self._model[0], self.blocks) as student:
            losses = self.objective(batch)
        losses["match"] = compute_matching_loss(ancestry, student.blocks, shares.detach())
        if self.training:
            losses["meta"] = self.meta_loss(batch, ancestry, shares)
        return losses

    def count_terms(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the numbers of terms of the task's losses by name."""
        return count_terms(self.objective, batch)

    def meta_loss(
        self, batch: Batch, ancestry: Sequence[torch.Tensor], shares: torch.Tensor
    ) -> torch.Tensor:
        """Return the task's loss after the inner steps, as a function of the shares alone."""
        weights = {
            name: value.detach().requires_grad_()
            for name, value in self.objective.named_parameters()
        }

        def compute_losses() -> tuple[torch.Tensor, torch.Tensor]:
            with record_features(self._model[0], self.blocks) as student:
                losses = functional_call(self.objective, weights, (batch,))
            match = compute_matching_loss(ancestry, student.blocks, shares)
            return match, torch.stack(list(losses.values())).sum()

        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            for _ in range(self.inner_steps):
                weights = descend(weights, compute_losses()[0], self.inner_lr)
            weights = descend(weights, compute_losses()[1], self.inner_lr)
            return compute_losses()[1]


def descend(
    weights: Mapping[str, torch.Tensor], loss: torch.Tensor, lr: float
) -> dict[str, torch.Tensor]:
    """Return the weights after a differentiable step of gradient descent.

    Args:
        weights: by name; those that the loss does not use stay as they are.
        loss: a function of the weights.
        lr: the learning rate.
    """
    steps = torch.autograd.grad(loss, list(weights.values()), create_graph=True, allow_unused=True)
    return {
        name: value if step is None else value - lr * step
        for (name, value), step in zip(weights.items(), steps, strict=True)
    }


def compute_matching_loss(
    ancestry: Sequence[torch.Tensor],
    student: Mapping[int, torch.Tensor],
    shares_NLM: torch.Tensor,
) -> torch.Tensor:
    """Return `match`.

    Args:
        ancestry: the L tensors A_i (N, T, D).
        student: P_j (N, T, D) by j.
        shares_NLM: the shares.
    """
    losses = []
    for j, tokens in sorted(student.items()):
        normed = functional.layer_norm(tokens.float(), tokens.shape[-1:])
        for i, target in enumerate(ancestry):
            difference = functional.layer_norm(target, target.shape[-1:]) - normed
            distance_N = difference.square().mean(dim=(1, 2))
            losses.append((shares_NLM[:, i, j] * distance_N).mean())
    return torch.stack(losses).sum() / len(student)
