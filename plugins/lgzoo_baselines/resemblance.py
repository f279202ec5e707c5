"""How much the blocks of two models resemble each other: linear CKA, and Auto-LG's meta-network with the loss that trains it.

N images, T tokens, D width; L blocks of the ancestry model, M of the small one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from learngene_zoo.plugin import Batch, Model, Teacher, gathered, observing


@torch.no_grad()
def cka_of(model: Model, teacher: Teacher, batches: Iterable[Batch]) -> torch.Tensor:
    """The CKA of every pair of blocks over some images, (L, M); a block's features are the mean over the tokens after it."""
    own: list[list[torch.Tensor]] = [[] for _ in model.blocks]
    theirs: list[list[torch.Tensor]] = [[] for _ in teacher.blocks]
    for batch in batches:
        target = teacher(batch).blocks
        with observing(model, range(len(own))) as given:
            model(batch.images)
        for features, seen in ((own, given.blocks), (theirs, target)):
            for number, found in enumerate(features):
                found.append(seen[number].mean(dim=1).float().cpu())
    small, large = ([_of_all(found) for found in features] for features in (own, theirs))
    return torch.tensor([[linear_cka(one, other) for other in small] for one in large])


def _of_all(found: list[torch.Tensor]) -> torch.Tensor:
    """The rows of all processes."""
    return torch.cat([rows for part in gathered(found) for rows in part])


def linear_cka(one_ND: torch.Tensor, other_ND: torch.Tensor) -> float:
    """Linear centred kernel alignment (Kornblith et al., 2019, section 3): 1 for what a rotation and a factor make equal, else less.

    |Y'X|^2 / (|X'X| |Y'Y|) in Frobenius norms, of centred columns; the widths may differ. 0 where one does not vary.
    """
    one, other = (features.double() - features.double().mean(dim=0) for features in (one_ND, other_ND))
    own = (one.T @ one).norm() * (other.T @ other).norm()
    return float((other.T @ one).square().sum() / own) if own else 0.0


class MetaMatching(nn.Module):
    """The small model learns the task and to match the ancestry model's blocks, and the meta-network learns which to match.

        share_ij = softmax over i of w_ij' mean(A_i) + b_ij        A_i, P_j: tokens after block i of the ancestry, j of the small model
        match    = mean over j of sum over i of share_ij |norm(A_i) - norm(P_j)|^2
        meta     = the task's loss after `inner` steps of gradient descent on `match` alone, and one on the task's loss

    The small model is trained by the task's loss and `match` with shares that are given, the meta-network by `meta`, whose gradient goes
    through the inner steps. norm: each token to mean 0 and variance 1; |.|^2: the mean over images, tokens and channels.
    """

    def __init__(self, objective: nn.Module, model: Model, teacher: Teacher, inner: int, rate: float) -> None:
        super().__init__()
        self.objective, self.teacher, self.inner, self.rate = objective, teacher, inner, rate
        self.blocks = range(len(model.blocks))
        self.meta = nn.ModuleList(nn.Linear(model.embed_dim, len(self.blocks)) for _ in teacher.blocks)
        for parameter in self.meta.parameters():  # at first all shares are equal
            nn.init.zeros_(parameter)
        self._model = (model,)  # a tuple hides it from the parameters: they are the objective's already

    def shares(self, ancestry: Sequence[torch.Tensor]) -> torch.Tensor:
        """From the tokens after the ancestry's blocks, L of (N, T, D): (N, L, M), whose sums over L are 1."""
        scores = [layer(tokens.mean(dim=1)) for layer, tokens in zip(self.meta, ancestry, strict=True)]
        return torch.stack(scores, dim=1).softmax(dim=1)

    @torch.no_grad()
    def mean_shares(self, batches: Iterable[Batch]) -> torch.Tensor:
        """The shares in the mean over some images, (L, M)."""
        found = [self.shares(self.tokens(batch)).cpu() for batch in batches]
        return _of_all(found).mean(dim=0)

    def tokens(self, batch: Batch) -> list[torch.Tensor]:
        """A_i of the ancestry's blocks, (N, T, D) each."""
        target = self.teacher(batch).blocks
        return [target[i].float() for i in self.teacher.blocks]

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The task's losses, `match` and `meta`."""
        ancestry = self.tokens(batch)
        shares = self.shares(ancestry)
        with observing(self._model[0], self.blocks) as given:
            losses = self.objective(batch)
        losses["match"] = matching(ancestry, given.blocks, shares.detach())
        if self.training:
            losses["meta"] = self.after(batch, ancestry, shares)
        return losses

    def after(self, batch: Batch, ancestry: Sequence[torch.Tensor], shares: torch.Tensor) -> torch.Tensor:
        """The task's loss after the inner steps, as a function of the shares alone."""
        weights = {name: value.detach().requires_grad_() for name, value in self.objective.named_parameters()}

        def losses() -> tuple[torch.Tensor, torch.Tensor]:
            with observing(self._model[0], self.blocks) as given:
                task = functional_call(self.objective, weights, (batch,))
            return matching(ancestry, given.blocks, shares), torch.stack(list(task.values())).sum()

        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            for _ in range(self.inner):
                weights = descended(weights, losses()[0], self.rate)
            weights = descended(weights, losses()[1], self.rate)
            return losses()[1]


def descended(weights: Mapping[str, torch.Tensor], loss: torch.Tensor, rate: float) -> dict[str, torch.Tensor]:
    """The weights after a step of gradient descent, through which gradients go; those that the loss does not use stay."""
    steps = torch.autograd.grad(loss, list(weights.values()), create_graph=True, allow_unused=True)
    return {
        name: value if step is None else value - rate * step
        for (name, value), step in zip(weights.items(), steps, strict=True)
    }


def matching(
    ancestry: Sequence[torch.Tensor], given: Mapping[int, torch.Tensor], shares_NLM: torch.Tensor
) -> torch.Tensor:
    """`match`, from tokens after blocks and the shares."""
    losses = []
    for j, tokens in sorted(given.items()):
        own = functional.layer_norm(tokens.float(), tokens.shape[-1:])
        for i, target in enumerate(ancestry):
            distance_N = (functional.layer_norm(target, target.shape[-1:]) - own).square().mean(dim=(1, 2))
            losses.append((shares_NLM[:, i, j] * distance_N).mean())
    return torch.stack(losses).sum() / len(given)
