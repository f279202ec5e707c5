"""Weighted ridge regression towards given weights; selection of heads and neurons by its error.

    min over W, b of  sum_r w_r |W a_r + b - t_r|^2 + lambda |W - W0|^2
    lambda = rho mean(diag(G)),  G = sum_r w_r a_r a_r'

with the rows a_r and t_r centred by their weighted means if the layer has a bias; b is then not
penalised. Solutions and errors follow from sums over the rows (`Sums`), which take a few rows at a
time, in float64: the inputs of a layer are never in memory all at once. One Cholesky factorisation
serves any number of targets.

Shapes: R rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from math import comb
from typing import Literal

import torch

from learngene_zoo.plugin import WrongCall

MAX_SUBSETS = 300  # tried one by one; with more subsets, heads are dropped one after the other
_BAND = 512  # rows of a Gram matrix that are added up at once; below its diagonal it stays empty

# A penalty is relative to the mean of the Gram matrix's diagonal, to its largest eigenvalue, or for
# each input to its own entry of the diagonal.
Damping = Literal["mean", "largest", "each"]
_POWER_STEPS = 30

# Some rows: inputs (R, I), targets (R, O) and weights (R,).
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Sums:
    """Weighted means and sums of products over rows that come a few at a time.

    Of centred sums each part is centred by its own means, and the distances of the means are added
    (Chan, Golub and LeVeque, 1983), so that large means cost no digits.

    Args:
        inputs: I.
        targets: O.
        centred: whether the rows are centred by their weighted means.
        dtype: the precision of the products within a part (see `choose_precision`). The sums are
            float64.
    """

    def __init__(
        self,
        inputs: int,
        targets: int = 0,
        *,
        centred: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.centred, self.dtype = centred, dtype
        self.weight = 0.0
        self.mean_I, self.mean_O = torch.zeros(inputs).double(), torch.zeros(targets).double()
        self.cross_IO = torch.zeros(inputs, targets, dtype=torch.float64)
        self.square_O = torch.zeros(targets).double()
        self._gram_II = torch.zeros(inputs, inputs, dtype=torch.float64)  # its upper triangle

    @classmethod
    def from_rows(
        cls, parts: Iterable[Rows], *, centred: bool = True, dtype: torch.dtype = torch.float64
    ) -> Sums:
        """Return the sums over all rows of at least one part."""
        sums: Sums | None = None
        for inputs_RI, targets_RO, weights_R in parts:
            inputs, targets = inputs_RI.shape[1], targets_RO.shape[1]
            sums = sums or cls(inputs, targets, centred=centred, dtype=dtype)
            sums.add(inputs_RI, targets_RO, weights_R)
        assert sums is not None
        return sums

    def add(
        self, inputs_RI: torch.Tensor, targets_RO: torch.Tensor, weights_R: torch.Tensor
    ) -> None:
        """Add some rows."""
        weight = float(weights_R.sum())
        if not weight:  # rows of padding alone
            return
        inputs, targets = inputs_RI.to(self.dtype), targets_RO.to(self.dtype)
        if self.centred:
            mean_I = compute_weighted_mean(inputs, weights_R)
            mean_O = compute_weighted_mean(targets, weights_R)
            inputs, targets = inputs - mean_I.to(self.dtype), targets - mean_O.to(self.dtype)
            # The sum of squares of two groups around their joint mean is the sum of those around
            # each group's mean, plus w1 w2 / (w1 + w2) times the squared distance of the means.
            total = self.weight + weight
            away_I, away_O = mean_I - self.mean_I, mean_O - self.mean_O
            apart = self.weight * weight / total
            self._gram_II.addr_(away_I, away_I, alpha=apart)
            self.cross_IO.addr_(away_I, away_O, alpha=apart)
            self.square_O.add_(away_O.square(), alpha=apart)
            self.mean_I.add_(away_I, alpha=weight / total)
            self.mean_O.add_(away_O, alpha=weight / total)
        self.weight += weight
        root_R1 = weights_R.to(self.dtype).sqrt()[:, None]
        inputs, targets = inputs * root_R1, targets * root_R1
        for first in range(0, inputs.shape[1], _BAND):
            band = self._gram_II[first : first + _BAND, first:]
            band.add_(inputs[:, first : first + _BAND].T @ inputs[:, first:])
        self.cross_IO.add_(inputs.T @ targets)
        self.square_O.add_(targets.square().sum(dim=0))

    @property
    def gram(self) -> torch.Tensor:
        """G (I, I), without a penalty."""
        return self._gram_II.triu() + self._gram_II.triu(1).T

    def solve(
        self, start_OI: torch.Tensor, start_O: torch.Tensor | None, rho: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return weight (O, I) and bias (O,), float64.

        Args:
            start_OI: the weight W0 that the solution is drawn towards.
            start_O: the bias to start from; None, which needs sums that are not centred, gives no
                bias.
            rho: the penalty relative to the mean of the Gram matrix's diagonal.
        """
        weight = self._solve_weight(start_OI, rho)[0]
        return weight, None if start_O is None else self.mean_O - weight @ self.mean_I

    def compute_errors(self, start_OI: torch.Tensor, rho: float) -> torch.Tensor:
        """Return the weighted squared error (O,) that the solution leaves in every output."""
        _, change_OI, right_IO, penalty = self._solve_weight(start_OI, rho)
        start = start_OI.double()
        copied_O = self.square_O - (start * (self.cross_IO.T + right_IO.T)).sum(dim=1)
        errors_O = copied_O - (change_OI * right_IO.T).sum(dim=1)
        return (errors_O - penalty * change_OI.square().sum(dim=1)).clamp_min(0)

    def count_degrees(self, rho: float) -> float:
        """Return the effective degrees of freedom of the solution, trace of G (G + lambda)^-1."""
        gram = self.gram
        penalty = self._find_penalty(gram, rho)
        gram.diagonal().add_(penalty)
        inverse = torch.cholesky_inverse(factor(gram))
        return len(gram) - penalty * float(inverse.diagonal().sum())

    @staticmethod
    def _find_penalty(gram_II: torch.Tensor, rho: float) -> float:
        return max(rho * float(gram_II.diagonal().mean()), torch.finfo(torch.float64).tiny)

    def _solve_weight(
        self, start_OI: torch.Tensor, rho: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        """Return the weight, its change, the right side and lambda.

        The right side (I, O) holds the products of the inputs with the errors of the start.
        """
        start, gram = start_OI.double(), self.gram
        right_IO = self.cross_IO - gram @ start.T
        penalty = self._find_penalty(gram, rho)
        gram.diagonal().add_(penalty)
        change = torch.cholesky_solve(right_IO, factor(gram)).T
        return start + change, change, right_IO, penalty


def factor(gram_II: torch.Tensor) -> torch.Tensor:
    """Return the Cholesky factor. Raises `WrongCall` for equations without a unique solution."""
    factor_II, failed = torch.linalg.cholesky_ex(gram_II)
    if failed:
        raise WrongCall(
            "the least squares have no unique solution: give more images, or a larger ridge"
        )
    return factor_II


def choose_penalty(gram_II: torch.Tensor, rho: float, damping: Damping) -> torch.Tensor:
    """Return the penalty of each input, (I,) or a number.

    Args:
        gram_II: the Gram matrix, without a penalty.
        rho: the relative penalty.
        damping: that it is relative to.
    """
    diagonal = gram_II.diagonal()
    if damping == "each":
        size = diagonal.clone()
    elif damping == "largest":
        size = measure_largest(gram_II)
    else:
        size = diagonal.mean()
    return (rho * size).clamp_min(torch.finfo(gram_II.dtype).tiny)


def measure_largest(gram_II: torch.Tensor) -> torch.Tensor:
    """Return the largest eigenvalue of a Gram matrix, a tensor of one number, by power iteration.

    The iteration starts at the row of the largest entry of the diagonal.
    """
    vector = gram_II[gram_II.diagonal().argmax()]
    for _ in range(_POWER_STEPS):
        vector = gram_II @ (vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny))
    return vector.norm()


def choose_precision(rho: float) -> torch.dtype:
    """Return the precision of products for a relative penalty.

    A part's products in float32 are wrong by at most about 1e-6 of the Gram matrix's diagonal, so
    they serve equations whose penalty is far above that.
    """
    return torch.float32 if rho >= 1e-4 else torch.float64


def measure_spread(parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the weighted squared distance (D,) of rows from their weighted mean, by channel.

    A part holds rows (R, D) and their weights (R,).
    """
    return Sums.from_rows((rows[:, :0], rows, weights) for rows, weights in parts).square_O


def compute_weighted_mean(rows_RD: torch.Tensor, weights_R: torch.Tensor) -> torch.Tensor:
    """Return the mean (D,) of rows, float64."""
    return (weights_R.to(rows_RD) @ rows_RD).double() / weights_R.sum()


def select_heads(
    gram_AA: torch.Tensor, projection_DA: torch.Tensor, count: int, heads: int
) -> list[int]:
    """Return the heads that explain best, by least squares, the sum that all add to the stream.

    Args:
        gram_AA: the Gram matrix of the outputs of all heads together.
        projection_DA: the weight that writes these outputs into the stream.
        count: how many heads to select.
        heads: how many there are.
    """
    gram = gram_AA + 1e-9 * gram_AA.diagonal().mean() * torch.eye(len(gram_AA), dtype=gram_AA.dtype)
    cross_AD = gram @ projection_DA.double().T
    head_dim = len(gram) // heads

    def measure_explained(subset: tuple[int, ...]) -> float:
        index = torch.tensor(
            [head * head_dim + channel for head in subset for channel in range(head_dim)]
        )
        part = cross_AD[index]
        return float((part * torch.linalg.solve(gram[index][:, index], part)).sum())

    subsets: Iterable[tuple[int, ...]] = combinations(range(heads), count)
    if comb(heads, count) > MAX_SUBSETS:
        subset = tuple(range(heads))
        while len(subset) > count:
            smaller = [tuple(head for head in subset if head != dropped) for dropped in subset]
            subset = max(smaller, key=measure_explained)
        subsets = [subset]
    best = max(subsets, key=measure_explained)
    return list(best)


def select_neurons(variance_H: torch.Tensor, reader_DH: torch.Tensor, count: int) -> list[int]:
    """Return the hidden neurons of largest variance times squared norm of the weights that read it.

    The indices ascend.
    """
    loudness_H = variance_H * reader_DH.double().square().sum(dim=0)
    return sorted(loudness_H.topk(count).indices.tolist())
