"""xNES, the exponential natural evolution strategy (Glasmachers, Schaul, Sun, Wierstra, Schmidhuber, GECCO 2010).

A normal distribution over vectors climbs, by the natural gradient of the expected rank. With its mean m, scale s and shape A of
determinant 1, in N dimensions, a generation of n

    z_k ~ N(0, 1),  x_k = m + s A z_k                     u_k = max(0, ln(n/2 + 1) - ln k) / (their sum) - 1/n  for the k-th best
    d = sum_k u_k z_k,  M = sum_k u_k (z_k z_k' - 1)      g = trace(M) / N
    m <- m + s A d                                       s <- s exp(r/2 g)      A <- A exp(r/2 (M - g 1))

with n = 4 + floor(3 ln N) and r = (9 + 3 ln N) / (5 N sqrt(N)), the values of that paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Found:
    """The best vector of all that were tried, the start among them, and the loss of each in their order."""

    best: torch.Tensor  # (N,), float64
    losses: list[float]

    @property
    def loss(self) -> float:
        """That of the best."""
        return min(self.losses)


def minimised(
    loss: Callable[[torch.Tensor], float], start_N: torch.Tensor, *, evaluations: int, spread: float, seed: int
) -> Found:
    """Try so many vectors: the start, then generations around it of this standard deviation at first."""
    mean_N, size = start_N.double(), len(start_N)
    count, rate = 4 + int(3 * math.log(size)), (9 + 3 * math.log(size)) / (5 * size * math.sqrt(size))
    scale, shape_NN, one_NN = spread, torch.eye(size, dtype=torch.float64), torch.eye(size, dtype=torch.float64)
    generator, worth_n = torch.Generator().manual_seed(seed), worths(count)
    best, losses = mean_N, [loss(mean_N)]
    while len(losses) < evaluations:
        draws_nN = torch.randn(count, size, generator=generator, dtype=torch.float64)[: evaluations - len(losses)]
        found = []
        for one_N in mean_N + scale * draws_nN @ shape_NN.T:
            found.append(loss(one_N))
            best = one_N if found[-1] < min(losses) else best
            losses.append(found[-1])
        if len(found) < count:  # the last generation is not whole
            break
        ordered_nN = draws_nN[torch.tensor(found, dtype=torch.float64).argsort(stable=True)]
        slope_N = worth_n @ ordered_nN
        M_NN = ordered_nN.T @ (ordered_nN * worth_n[:, None]) - worth_n.sum() * one_NN
        growth = float(M_NN.trace()) / size
        mean_N = mean_N + scale * shape_NN @ slope_N
        scale *= math.exp(rate / 2 * growth)
        shape_NN = shape_NN @ torch.linalg.matrix_exp(rate / 2 * (M_NN - growth * one_NN))
    return Found(best, losses)


def worths(count: int) -> torch.Tensor:
    """u (n,), of the best first; in sum 0."""
    raw = torch.tensor([max(0.0, math.log(count / 2 + 1) - math.log(k)) for k in range(1, count + 1)])
    return (raw / raw.sum() - 1 / count).double()
