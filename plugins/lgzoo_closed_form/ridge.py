"""Weighted ridge regression towards given weights, and what is chosen by its error.

    min over W, b of  sum_r w_r |W a_r + b - t_r|^2 + lambda |W - W0|^2,    lambda = rho mean(diag(G)),  G = sum_r w_r a_r a_r'

with the rows a_r and t_r centred by their weighted means if the layer has a bias; b is then not penalised. Solutions and what
they miss follow from sums over the rows (`Sums`), which are taken a few rows at a time, in float64: no layer's inputs are ever
held as a whole. One Cholesky factorisation serves any number of targets.

Shapes: R rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import comb

import torch

MOST_SUBSETS = 300  # that are tried one by one; of more, heads are dropped one after the other
_BAND = 512  # rows of a Gram matrix that are added up at once; what lies below its diagonal is not computed

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # inputs (R, I), targets (R, O) and weights (R,) of some rows


class Sums:
    """Weighted means and sums of products over rows that come a few at a time; float64.

    Of centred sums each part is centred by its own means, and the means' distances are added (Chan, Golub and LeVeque, 1983),
    so that large means cost no digits.
    """

    def __init__(self, inputs: int, targets: int = 0, *, centred: bool = True) -> None:
        self.centred = centred
        self.weight = 0.0
        self.mean_I, self.mean_O = torch.zeros(inputs).double(), torch.zeros(targets).double()
        self.cross_IO = torch.zeros(inputs, targets, dtype=torch.float64)
        self.square_O = torch.zeros(targets).double()
        self._gram_II = torch.zeros(inputs, inputs, dtype=torch.float64)  # its upper triangle

    @classmethod
    def over(cls, parts: Iterable[Rows], *, centred: bool = True) -> Sums:
        """Of all rows of at least one part."""
        sums: Sums | None = None
        for inputs_RI, targets_RO, weights_R in parts:
            sums = sums or cls(inputs_RI.shape[1], targets_RO.shape[1], centred=centred)
            sums.add(inputs_RI, targets_RO, weights_R)
        assert sums is not None
        return sums

    def add(self, inputs_RI: torch.Tensor, targets_RO: torch.Tensor, weights_R: torch.Tensor) -> None:
        """Some more rows."""
        inputs, targets, weight = inputs_RI.double(), targets_RO.double(), float(weights_R.sum())
        if self.centred:
            mean_I, mean_O = weighted_mean(inputs, weights_R), weighted_mean(targets, weights_R)
            inputs, targets = inputs - mean_I, targets - mean_O
            total = self.weight + weight
            away_I, away_O = mean_I - self.mean_I, mean_O - self.mean_O
            apart = self.weight * weight / total
            self._gram_II.addr_(away_I, away_I, alpha=apart)
            self.cross_IO.addr_(away_I, away_O, alpha=apart)
            self.square_O.add_(away_O.square(), alpha=apart)
            self.mean_I.add_(away_I, alpha=weight / total)
            self.mean_O.add_(away_O, alpha=weight / total)
        self.weight += weight
        root_R1 = weights_R.double().sqrt()[:, None]
        inputs, targets = inputs * root_R1, targets * root_R1
        for first in range(0, inputs.shape[1], _BAND):
            band = self._gram_II[first : first + _BAND, first:]
            band.addmm_(inputs[:, first : first + _BAND].T, inputs[:, first:])
        self.cross_IO.addmm_(inputs.T, targets)
        self.square_O.add_(targets.square().sum(dim=0))

    @property
    def gram(self) -> torch.Tensor:
        """G (I, I), without a penalty."""
        return self._gram_II.triu() + self._gram_II.triu(1).T

    def solve(
        self, start_OI: torch.Tensor, start_O: torch.Tensor | None, rho: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight (O, I) and bias (O,), float64; no bias if there is none to start from, which needs sums that are not centred."""
        weight = self._solved(start_OI, rho)[0]
        return weight, None if start_O is None else self.mean_O - weight @ self.mean_I

    def missed(self, start_OI: torch.Tensor, rho: float) -> torch.Tensor:
        """The weighted squared error (O,) that the solution leaves in every output."""
        _, change_OI, right_IO, penalty = self._solved(start_OI, rho)
        start = start_OI.double()
        copied_O = self.square_O - (start * (self.cross_IO.T + right_IO.T)).sum(dim=1)
        return (copied_O - (change_OI * right_IO.T).sum(dim=1) - penalty * change_OI.square().sum(dim=1)).clamp_min(0)

    def _solved(self, start_OI: torch.Tensor, rho: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        """The weight, its change from the start, the products of inputs with what the start misses, and lambda."""
        start, gram = start_OI.double(), self.gram
        right_IO = self.cross_IO - gram @ start.T
        penalty = max(rho * float(gram.diagonal().mean()), torch.finfo(torch.float64).tiny)
        gram.diagonal().add_(penalty)
        change = torch.cholesky_solve(right_IO, torch.linalg.cholesky(gram)).T
        return start + change, change, right_IO, penalty


@dataclass(frozen=True)
class Ridge:
    """A regression on inputs that are held as a whole."""

    inputs: torch.Tensor  # (R, I)
    weights: torch.Tensor  # (R,)
    rho: float
    centred: bool = True

    @classmethod
    def on(cls, inputs_RI: torch.Tensor, weights_R: torch.Tensor, rho: float, centred: bool = True) -> Ridge:
        """For these inputs."""
        return cls(inputs_RI, weights_R, rho, centred)

    def solve(
        self, targets_RO: torch.Tensor, start_OI: torch.Tensor, start_O: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight (O, I) and bias (O,), float64; no bias if there is none to start from."""
        return Sums.over([(self.inputs, targets_RO, self.weights)], centred=self.centred).solve(
            start_OI, start_O, self.rho
        )


def spread(parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """The weighted squared distance (D,) of rows from their weighted mean, in every channel; a part is rows and their weights."""
    return Sums.over((rows[:, :0], rows, weights) for rows, weights in parts).square_O


def weighted_mean(rows_RD: torch.Tensor, weights_R: torch.Tensor) -> torch.Tensor:
    """(D,)."""
    return (rows_RD * weights_R[:, None]).sum(dim=0) / weights_R.sum()


def best_heads(
    outputs_RA: torch.Tensor, projection_DA: torch.Tensor, weights_R: torch.Tensor, count: int, heads: int
) -> list[int]:
    """The heads whose outputs explain best, by least squares, what all heads together add to the stream; ascending."""
    return explaining(Sums.over([(outputs_RA, outputs_RA[:, :0], weights_R)]).gram, projection_DA, count, heads)


def explaining(gram_AA: torch.Tensor, projection_DA: torch.Tensor, count: int, heads: int) -> list[int]:
    """As `best_heads`, from the Gram matrix of the outputs."""
    gram = gram_AA + 1e-9 * gram_AA.diagonal().mean() * torch.eye(len(gram_AA), dtype=gram_AA.dtype)
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
    return most_heard(spread([(outputs_RH, weights_R)]), reader_DH, count)


def most_heard(variance_H: torch.Tensor, reader_DH: torch.Tensor, count: int) -> list[int]:
    """As `best_neurons`, from the variance of every neuron."""
    return sorted((variance_H * reader_DH.double().square().sum(dim=0)).topk(count).indices.tolist())
