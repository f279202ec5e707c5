"""Linear maps from the student's tokens to the teacher's, by least squares.

The equations are those of a ridge regression with an intercept, which is not penalised, in double
precision. Only sums over tokens are kept, so the memory does not grow with their number. The
penalty is the one with the smallest error on the tokens of other images: those of one image are
alike, so an estimate from the fitted tokens alone would choose too small a penalty.

Shapes: R rows (tokens), D width of the student, E width of the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from learngene_zoo.runs.run import gather_values

# Relative to the mean eigenvalue of the student's covariance.
PENALTIES = tuple(10.0 ** (power / 2) for power in range(-8, 5))


@dataclass
class TokenMoments:
    """Sums over pairs of tokens, float64."""

    rows: int
    student_sum: torch.Tensor
    teacher_sum: torch.Tensor
    student_products: torch.Tensor
    cross_products: torch.Tensor
    squares: torch.Tensor  # () of the teacher's tokens

    @classmethod
    def of(cls, student: torch.Tensor, teacher: torch.Tensor) -> TokenMoments:
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

    def __add__(self, other: TokenMoments) -> TokenMoments:
        return TokenMoments(*(a + b for a, b in zip(vars(self).values(), vars(other).values())))

    def is_finite(self) -> bool:
        """Return whether all sums are finite."""
        sums = (self.student_products, self.cross_products, self.squares)
        return all(bool(torch.isfinite(part).all()) for part in sums)

    def solve(self, penalty: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weight (E, D) and the bias (E,) for a penalty.

        It is relative to the mean eigenvalue of the covariance of the student's tokens.
        """
        mean_D, mean_E = self.student_sum / self.rows, self.teacher_sum / self.rows
        covariance_DD = self.student_products - self.rows * torch.outer(mean_D, mean_D)
        cross_DE = self.cross_products - self.rows * torch.outer(mean_D, mean_E)
        scale = covariance_DD.diagonal().mean().clamp_min(1e-12)
        damped_DD = covariance_DD + penalty * scale * torch.eye(len(mean_D), dtype=torch.float64)
        weight_ED = torch.linalg.solve(damped_DD, cross_DE).T
        return weight_ED, mean_E - weight_ED @ mean_D

    def measure_error(self, weight_ED: torch.Tensor, bias_E: torch.Tensor) -> float:
        """Return the sum of squared errors of a map on these tokens."""
        answers_ED = weight_ED @ self.student_products
        linear = (weight_ED * (answers_ED / 2 - self.cross_products.T)).sum()
        linear += bias_E @ (weight_ED @ self.student_sum - self.teacher_sum)
        return float(self.squares + 2 * linear + self.rows * bias_E.square().sum())


def solve_map(
    fitted: TokenMoments, judged: TokenMoments
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the weight and the bias of a map of all tokens, and its relative penalty.

    Args:
        fitted: sums over the tokens of most images.
        judged: sums over those of the others, which choose the penalty.
    """
    errors = {penalty: judged.measure_error(*fitted.solve(penalty)) for penalty in PENALTIES}
    best = min(errors, key=lambda penalty: errors[penalty])
    return *(fitted + judged).solve(best), best


def add_processes(moments: dict[str, TokenMoments]) -> dict[str, TokenMoments]:
    """Return the sums over the tokens of all processes."""
    total: dict[str, TokenMoments] = {}
    for part in gather_values(moments):
        for name, sums in part.items():
            total[name] = add_moments(total.get(name), sums)
    return total


def add_moments(total: TokenMoments | None, sums: TokenMoments) -> TokenMoments:
    """Return the sum; `sums` if there is no total yet."""
    return sums if total is None else total + sums
