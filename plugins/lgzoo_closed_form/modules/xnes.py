"""xNES, the exponential natural evolution strategy.

Glasmachers, Schaul, Sun, Wierstra, Schmidhuber. Exponential Natural Evolution Strategies. GECCO
2010. A normal distribution over vectors climbs, by the natural gradient of the expected rank. With
its mean m, scale s and shape A of determinant 1, in N dimensions, a generation of n

    z_k ~ N(0, 1),  x_k = m + s A z_k
    u_k = max(0, ln(n/2 + 1) - ln k) / (their sum) - 1/n      for the k-th best
    d = sum_k u_k z_k,  M = sum_k u_k (z_k z_k' - 1)          g = trace(M) / N
    m <- m + s A d       s <- s exp(r/2 g)                    A <- A exp(r/2 (M - g 1))

with n = 4 + floor(3 ln N) and r = (9 + 3 ln N) / (5 N sqrt(N)), the values of that paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Minimum:
    """The best of all vectors that were tried, the start among them, and all losses in order."""

    best: torch.Tensor  # (N,), float64
    losses: list[float]

    @property
    def loss(self) -> float:
        """The loss of the best vector."""
        return min(self.losses)


def minimise(
    compute_loss: Callable[[torch.Tensor], float],
    start_N: torch.Tensor,
    *,
    evaluations: int,
    spread: float,
    seed: int,
) -> Minimum:
    """Minimise a loss: try the start, then generations around it.

    Args:
        compute_loss: of a vector (N,), float64.
        start_N: the first mean.
        evaluations: how many vectors are tried, the start among them.
        spread: the standard deviation of the first generation.
        seed: of the draws.
    """
    size = len(start_N)
    count, rate = (
        4 + int(3 * math.log(size)),
        (9 + 3 * math.log(size)) / (5 * size * math.sqrt(size)),
    )
    mean_N, scale = start_N.double(), spread
    identity_NN = torch.eye(size, dtype=torch.float64)
    shape_NN = torch.eye(size, dtype=torch.float64)
    generator, utilities_n = torch.Generator().manual_seed(seed), compute_utilities(count)
    best, losses = mean_N, [compute_loss(mean_N)]
    while len(losses) < evaluations:
        draws_nN = torch.randn(count, size, generator=generator, dtype=torch.float64)
        draws_nN = draws_nN[: evaluations - len(losses)]
        generation = []  # its losses
        for vector_N in mean_N + scale * draws_nN @ shape_NN.T:
            generation.append(compute_loss(vector_N))
            best = vector_N if generation[-1] < min(losses) else best
            losses.append(generation[-1])
        if len(generation) < count:  # the last generation is incomplete
            break
        order = torch.tensor(generation, dtype=torch.float64).argsort(stable=True)
        ordered_nN = draws_nN[order]
        slope_N = utilities_n @ ordered_nN
        M_NN = ordered_nN.T @ (ordered_nN * utilities_n[:, None]) - utilities_n.sum() * identity_NN
        growth = float(M_NN.trace()) / size
        mean_N = mean_N + scale * shape_NN @ slope_N
        scale *= math.exp(rate / 2 * growth)
        shape_NN = shape_NN @ torch.linalg.matrix_exp(rate / 2 * (M_NN - growth * identity_NN))
    return Minimum(best, losses)


def compute_utilities(count: int) -> torch.Tensor:
    """Return u (n,), that of the best first; their sum is 0."""
    offset = math.log(count / 2 + 1)
    raw = torch.tensor([max(0.0, offset - math.log(k)) for k in range(1, count + 1)])
    return (raw / raw.sum() - 1 / count).double()
