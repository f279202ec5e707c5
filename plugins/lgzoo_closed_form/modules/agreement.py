"""Agreement of pruned models' features with the whole model's: the aim of the evolution strategy.

A vector of factors, one for the hidden neurons of each block and one for every head, scales the
scores, and so makes one ranking through all blocks. Several shares of it are cut, nothing is
compensated, and the features of the cut models and of the whole one are compared on some images,
both by the whole one's principal components: the mean of their cosines, over images and shares.

Shapes: B images, L blocks, H heads, M hidden neurons, D features, P components, N factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional

from learngene_zoo.plugin import (
    Model,
    Run,
    Spec,
    derive_seed,
    get_blocks,
    get_table,
    show_progress,
)
from lgzoo_closed_form.modules.curvature import Scores, extract_features
from lgzoo_closed_form.modules.cutting import Selection
from lgzoo_closed_form.modules.streams import iterate_batches
from lgzoo_closed_form.modules.xnes import Minimum, minimise
from lgzoo_closed_form.sizes import derive_minimum, rank_positions, take_share


@dataclass(frozen=True)
class Agreement:
    """The images, the whole model's components of them, and the shares that are compared."""

    model: Model
    spec: Spec
    scores: Scores
    images: torch.Tensor  # (B, C, H, W)
    mean: torch.Tensor  # (D,)
    components: torch.Tensor  # (D, P)
    target: torch.Tensor  # the whole model's features in these components (B, P)
    shares: Sequence[tuple[float, float]]  # of heads and of hidden neurons

    @classmethod
    def from_images(
        cls,
        model: Model,
        spec: Spec,
        scores: Scores,
        images_BCHW: torch.Tensor,
        shares: Sequence[tuple[float, float]],
        components: int,
    ) -> Agreement:
        """Return the agreement on these images.

        Args:
            model: the whole model.
            spec: its shape.
            scores: of its heads and hidden neurons, before their factors.
            images_BCHW: the images on which features are compared.
            shares: of heads and of hidden neurons that are kept.
            components: the largest number of principal components.
        """
        features_BD = _compute_features(model, spec, images_BCHW)
        mean_D, directions_DP = compute_components(features_BD, components)
        target_BP = (features_BD - mean_D) @ directions_DP
        return cls(model, spec, scores, images_BCHW, mean_D, directions_DP, target_BP, shares)

    def compute_loss(self, factors_N: torch.Tensor) -> float:
        """Return 1 minus the mean cosine, with the magnitudes of these factors."""
        rankings = [
            (rank_positions(scores.tolist(), minimum), minimum)
            for scores, minimum in zip(
                scale_scores(self.scores, factors_N), derive_minimum(self.spec)
            )
        ]
        total = 0.0
        for shares in self.shares:
            heads, hidden = (
                take_share(ranking, share, self.spec.layers, minimum)
                for (ranking, minimum), share in zip(rankings, shares)
            )
            selection = Selection(heads, hidden)
            with mask_model(self.model, self.spec, selection):
                features_BD = _compute_features(self.model, self.spec, self.images)
            features_BP = (features_BD - self.mean) @ self.components
            total += float(functional.cosine_similarity(features_BP, self.target).mean())
        return 1 - total / len(self.shares)


def evolve_factors(
    agreement: Agreement, start_N: torch.Tensor, *, evaluations: int, spread: float, run: Run
) -> Minimum:
    """Search the factors with which pruned models' features agree best, by xNES.

    Args:
        agreement: of the features.
        start_N: the factors that are tried first.
        evaluations: how many vectors of factors are tried.
        spread: their standard deviation around the start.
        run: seed and progress.
    """
    bar = show_progress(range(evaluations), "evolving the ranking", run.progress)
    with closing(bar) as steps:

        def compute_loss(factors_N: torch.Tensor) -> float:
            next(steps, None)
            return agreement.compute_loss(factors_N)

        return minimise(
            compute_loss,
            start_N,
            evaluations=evaluations,
            spread=spread,
            seed=derive_seed(run.seed, "evolution"),
        )


def scale_scores(scores: Scores, factors_N: torch.Tensor) -> Scores:
    """Return the scores times their factors' magnitudes.

    The factors are first those of every block's hidden neurons (L), then of every head (L H).
    """
    (heads_LH, hidden_LM), size = scores, factors_N.abs()
    layers = len(heads_LH)
    return heads_LH * size[layers:].view_as(heads_LH), hidden_LM * size[:layers, None]


def compute_components(rows_BD: torch.Tensor, components: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean (D,) and the directions (D, P) of most variance."""
    mean_D = rows_BD.mean(dim=0)
    _, _, directions = torch.linalg.svd((rows_BD - mean_D).double(), full_matrices=False)
    return mean_D, directions[:components].T.to(rows_BD.dtype)


@contextmanager
def mask_model(model: Model, spec: Spec, selection: Selection) -> Iterator[None]:
    """Mask all heads and hidden neurons that are not selected, while the context is open."""
    handles = []
    for number, block in enumerate(get_blocks(model)):
        inputs = (selection.list_channels(number, spec.head_width), selection.hidden[number])
        for branch, indices in zip(get_table(spec).branches(spec), inputs):
            layer = block.get_submodule(branch.writer)
            size = spec.heads_width if branch.mixes else spec.hidden
            mask = torch.zeros(size)
            mask[indices] = 1.0
            handles.append(
                layer.register_forward_pre_hook(lambda _, inputs, mask=mask: (inputs[0] * mask,))
            )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _compute_features(model: Model, spec: Spec, images_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the features (B, D) of images, a few at a time."""
    batches = [batch for _, batch in iterate_batches(images_BCHW)]
    return torch.cat([extract_features(model, spec, batch) for batch in batches])
