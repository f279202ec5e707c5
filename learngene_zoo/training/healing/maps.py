"""Linear maps from the student's tokens to the teacher's, by least squares.

The equations are those of a ridge regression with an intercept, which is not penalised, in double
precision. Only sums over tokens are kept, so the memory does not grow with their number. The
penalty is the one with the smallest generalised cross-validation error (Golub, Heath and Wahba
1979, Generalized Cross-Validation as a Method for Choosing a Good Ridge Parameter).

Shapes: R rows (tokens), D width of the student, E width of the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from learngene_zoo.runs.run import gather_values

# Penalties, relative to the mean eigenvalue of the student's covariance.
PENALTIES = tuple(10.0 ** (power / 2) for power in range(-12, 5))


@dataclass
class Moments:
    """Sums over pairs of tokens, float64."""

    rows: int
    student_sum: torch.Tensor
    teacher_sum: torch.Tensor
    student_products: torch.Tensor
    cross_products: torch.Tensor
    squares: torch.Tensor  # () of the teacher's tokens

    @classmethod
    def of(cls, student: torch.Tensor, teacher: torch.Tensor) -> Moments:
        """Return the sums over tokens (..., D) and (..., E) of one batch."""
        # Not on every device there is double precision.
        device = "cpu" if student.device.type == "mps" else student.device
        student_RD = student.detach().flatten(0, -2).to(device, torch.float64)
        teacher_RE = teacher.detach().flatten(0, -2).to(device, torch.float64)
        return cls(
            rows=len(student_RD),
            student_sum=student_RD.sum(dim=0).cpu(),
            teacher_sum=teacher_RE.sum(dim=0).cpu(),
            student_products=(student_RD.T @ student_RD).cpu(),
            cross_products=(student_RD.T @ teacher_RE).cpu(),
            squares=teacher_RE.square().sum().cpu(),
        )

    def __add__(self, other: Moments) -> Moments:
        return Moments(*(a + b for a, b in zip(vars(self).values(), vars(other).values())))

    def is_finite(self) -> bool:
        """Return whether all sums are finite."""
        sums = (self.student_products, self.cross_products, self.squares)
        return all(bool(torch.isfinite(part).all()) for part in sums)

    def solve(self) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Return the map's weight (E, D) and bias (E,), and its relative penalty."""
        mean_D, mean_E = self.student_sum / self.rows, self.teacher_sum / self.rows
        covariance_DD = self.student_products - self.rows * torch.outer(mean_D, mean_D)
        cross_DE = self.cross_products - self.rows * torch.outer(mean_D, mean_E)
        variance = self.squares - self.rows * mean_E.square().sum()
        eigenvalues_D, vectors_DD = torch.linalg.eigh(covariance_DD)
        eigenvalues_D = eigenvalues_D.clamp_min(0)
        scale = eigenvalues_D.mean().clamp_min(1e-12)
        products_DE = vectors_DD.T @ cross_DE
        best: tuple[float, float, torch.Tensor] | None = None
        for penalty in PENALTIES:
            damped_D = eigenvalues_D + penalty * scale
            solution_DE = products_DE / damped_D[:, None]
            freedom = self.rows - 1 - float((eigenvalues_D / damped_D).sum())
            residual = (
                variance
                - 2 * (solution_DE * products_DE).sum()
                + (eigenvalues_D[:, None] * solution_DE.square()).sum()
            )
            error = float(residual) / freedom**2 if freedom > 0 else float("inf")
            if best is None or error < best[0]:
                best = error, penalty, solution_DE
        assert best is not None
        weight_ED = (vectors_DD @ best[2]).T
        return weight_ED, mean_E - weight_ED @ mean_D, best[1]


def add_processes(moments: dict[str, Moments]) -> dict[str, Moments]:
    """Return the sums over the tokens of all processes."""
    total: dict[str, Moments] = {}
    for part in gather_values(moments):
        for name, sums in part.items():
            total[name] = total[name] + sums if name in total else sums
    return total
