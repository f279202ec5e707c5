"""Weighted ridge regression towards given weights, and what is chosen by its error.

    min over W, b of  sum_r w_r |W a_r + b - t_r|^2 + lambda |W - W0|^2,    lambda = rho mean(diag(G)),  G = sum_r w_r a_r a_r'

with the rows a_r and t_r centred by their weighted means if the layer has a bias; b is then not penalised. It is solved in
float64 by one Cholesky factorisation for any number of targets.

Shapes: R rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import comb

import torch
from torch import nn

MOST_SUBSETS = 300  # that are tried one by one; of more, heads are dropped one after the other


@dataclass(frozen=True)
class Ridge:
    """A regression on given inputs, factorised once."""

    inputs: torch.Tensor  # (R, I), centred, float64
    mean: torch.Tensor  # (I,)
    weights: torch.Tensor  # (R,)
    factor: torch.Tensor  # (I, I), Cholesky's, of G + lambda

    @classmethod
    def on(cls, inputs_RI: torch.Tensor, weights_R: torch.Tensor, rho: float, centred: bool = True) -> Ridge:
        """For these inputs."""
        rows = inputs_RI.double()
        mean = weighted_mean(rows, weights_R) if centred else torch.zeros(rows.shape[1], dtype=rows.dtype)
        rows = rows - mean
        gram = rows.T @ (rows * weights_R[:, None])
        penalty = max(rho * float(gram.diagonal().mean()), torch.finfo(torch.float64).tiny)
        return cls(
            rows, mean, weights_R, torch.linalg.cholesky(gram + penalty * torch.eye(len(gram), dtype=gram.dtype))
        )

    def solve(
        self, targets_RO: torch.Tensor, start_OI: torch.Tensor, start_O: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight (O, I) and bias (O,), float64; no bias if there is none to start from."""
        start = start_OI.double()
        targets = targets_RO.double()
        mean = (
            weighted_mean(targets, self.weights) if start_O is not None else torch.zeros(len(start), dtype=start.dtype)
        )
        missed_RO = (targets - mean) - self.inputs @ start.T
        right_IO = self.inputs.T @ (missed_RO * self.weights[:, None])
        weight = start + torch.cholesky_solve(right_IO, self.factor).T
        return weight, None if start_O is None else mean - weight @ self.mean

    def missed(self, targets_RO: torch.Tensor, start_OI: torch.Tensor) -> float:
        """The weighted squared error that the solution leaves."""
        weight, _ = self.solve(targets_RO, start_OI, torch.zeros(len(start_OI)))
        targets = targets_RO.double()
        targets = targets - weighted_mean(targets, self.weights)
        return float(((targets - self.inputs @ weight.T).square().sum(dim=1) * self.weights).sum())


def spread(rows_RD: torch.Tensor, weights_R: torch.Tensor) -> float:
    """The weighted squared distance from the weighted mean."""
    rows = rows_RD.double()
    rows = rows - weighted_mean(rows, weights_R)
    return max(float((rows.square().sum(dim=1) * weights_R).sum()), torch.finfo(torch.float64).tiny)


def weighted_mean(rows_RD: torch.Tensor, weights_R: torch.Tensor) -> torch.Tensor:
    """(D,)."""
    return (rows_RD * weights_R[:, None]).sum(dim=0) / weights_R.sum()


@torch.no_grad()
def fit(
    layer: nn.Linear, inputs_RI: torch.Tensor, targets_RO: torch.Tensor, weights_R: torch.Tensor, rho: float
) -> None:
    """Set a linear layer to the solution that starts from its own weights."""
    weight, bias = Ridge.on(inputs_RI, weights_R, rho, layer.bias is not None).solve(
        targets_RO, layer.weight, layer.bias
    )
    layer.weight.copy_(weight)
    if bias is not None:
        layer.bias.copy_(bias)


def best_heads(
    outputs_RA: torch.Tensor, projection_DA: torch.Tensor, weights_R: torch.Tensor, count: int, heads: int
) -> list[int]:
    """The heads whose outputs explain best, by least squares, what all heads together add to the stream; ascending."""
    rows = outputs_RA.double()
    rows = rows - weighted_mean(rows, weights_R)
    gram = rows.T @ (rows * weights_R[:, None])
    gram += 1e-9 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    cross_AD = gram @ projection_DA.double().T
    wide = len(gram) // heads

    def explained(chosen: tuple[int, ...]) -> float:
        index = torch.tensor([head * wide + channel for head in chosen for channel in range(wide)])
        part = cross_AD[index]
        return float((part * torch.linalg.solve(gram[index][:, index], part)).sum())

    subsets: Iterable[tuple[int, ...]] = combinations(range(heads), count)
    if comb(heads, count) > MOST_SUBSETS:
        chosen = tuple(range(heads))
        while len(chosen) > count:
            chosen = max([tuple(head for head in chosen if head != dropped) for dropped in chosen], key=explained)
        subsets = [chosen]
    best = max(subsets, key=explained)
    return list(best)


def best_neurons(outputs_RH: torch.Tensor, reader_DH: torch.Tensor, weights_R: torch.Tensor, count: int) -> list[int]:
    """The hidden neurons of most variance times squared norm of what reads them; ascending."""
    rows = outputs_RH.double()
    rows = rows - weighted_mean(rows, weights_R)
    variance_H = (rows.square() * weights_R[:, None]).sum(dim=0)
    return sorted((variance_H * reader_DH.double().square().sum(dim=0)).topk(count).indices.tolist())
