"""How well pruned models' features agree with the whole model's: what the evolution strategy makes larger.

A vector of factors, one for the hidden neurons of each block and one for every head, scales the scores, and so makes one ranking
through all blocks. Several shares of it are cut, nothing is compensated, and the features of the cut models and of the whole one
are compared on some images, both by the whole one's principal components: the mean of their cosines, over images and shares.

Shapes: B images, L blocks, H heads, M hidden neurons, D features, P components.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional

from learngene_zoo.plugin import Model, Spec
from lgzoo_closed_form.curvature import Scores, features
from lgzoo_closed_form.cutting import Kept
from lgzoo_closed_form.sizes import begun, least_of, ranked
from lgzoo_closed_form.streams import some


@dataclass(frozen=True)
class Agreement:
    """The images, the whole model's components of them, and the shares of heads and of hidden neurons that are compared."""

    model: Model
    spec: Spec
    scores: Scores
    images: torch.Tensor  # (B, C, H, W)
    mean: torch.Tensor  # (D,)
    components: torch.Tensor  # (D, P)
    wanted: torch.Tensor  # (B, P)
    shares: Sequence[tuple[float, float]]

    @classmethod
    def on(
        cls,
        model: Model,
        spec: Spec,
        scores: Scores,
        images_BCHW: torch.Tensor,
        shares: Sequence[tuple[float, float]],
        components: int,
    ) -> Agreement:
        """With at most so many components."""
        whole_BD = _features(model, spec, images_BCHW)
        mean_D, directions_DP = principal(whole_BD, components)
        wanted_BP = (whole_BD - mean_D) @ directions_DP
        return cls(model, spec, scores, images_BCHW, mean_D, directions_DP, wanted_BP, shares)

    def loss(self, factors_N: torch.Tensor) -> float:
        """1 minus the mean cosine, with the magnitudes of these factors."""
        scores, total = scaled(self.scores, factors_N), 0.0
        leasts = least_of(self.spec)
        rankings = [(ranked(one.tolist(), least), least) for one, least in zip(scores, leasts)]
        for shares in self.shares:
            kept = Kept(*(begun(r, share, self.spec.layers, least) for (r, least), share in zip(rankings, shares)))
            with silenced(self.model, self.spec, kept):
                got_BP = (_features(self.model, self.spec, self.images) - self.mean) @ self.components
            total += float(functional.cosine_similarity(got_BP, self.wanted).mean())
        return 1 - total / len(self.shares)


def scaled(scores: Scores, factors_N: torch.Tensor) -> Scores:
    """The scores times their factors' magnitudes: first of every block's hidden neurons (L), then of every head (L H)."""
    (heads_LH, hidden_LM), size = scores, factors_N.abs()
    layers = len(heads_LH)
    return heads_LH * size[layers:].view_as(heads_LH), hidden_LM * size[:layers, None]


def principal(rows_BD: torch.Tensor, components: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean (D,) and the directions (D, P) of most variance."""
    mean_D = rows_BD.mean(dim=0)
    _, _, directions = torch.linalg.svd((rows_BD - mean_D).double(), full_matrices=False)
    return mean_D, directions[:components].T.to(rows_BD.dtype)


@contextmanager
def silenced(model: Model, spec: Spec, kept: Kept) -> Iterator[None]:
    """Within, the model computes as if only these heads and hidden neurons were there."""
    handles = []
    for number, block in enumerate(model.blocks):
        for layer, chosen in (
            (block.attn.proj, kept.channels(number, spec.head_width)),
            (block.mlp.fc2, kept.hidden[number]),
        ):
            mask = torch.zeros(layer.in_features)
            mask[chosen] = 1.0
            handles.append(layer.register_forward_pre_hook(lambda _, inputs, mask=mask: (inputs[0] * mask,)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _features(model: Model, spec: Spec, images_BCHW: torch.Tensor) -> torch.Tensor:
    return torch.cat([features(model, spec, one) for _, one in some(images_BCHW)])
