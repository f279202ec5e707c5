"""Confidence intervals of accuracies and of paired differences between them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

Z95 = 1.959964


class Gain(NamedTuple):
    """A difference of two accuracies and its 95 % interval, as fractions."""

    value: float
    low: float
    high: float


def paired_gain(ours: Sequence[Sequence[bool]], theirs: Sequence[Sequence[bool]]) -> Gain:
    """The difference in accuracy of two models on the same images; one sequence per seed, one flag per image.

    The unit is the image: each one's difference is averaged over seeds first. The interval is the normal one of a paired
    mean; it generalises over images of the same kind, not over trainings.
    """
    images = len(ours[0])
    means = ([sum(flags) / len(runs) for flags in zip(*runs, strict=True)] for runs in (ours, theirs))
    differences = [a - b for a, b in zip(*means, strict=True)]
    mean = sum(differences) / images
    variance = sum((difference - mean) ** 2 for difference in differences) / max(images - 1, 1)
    half = Z95 * math.sqrt(variance / images)
    return Gain(mean, mean - half, mean + half)


def proportion(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of an accuracy: `right` of `total` images are classified correctly."""
    if total == 0:
        return 0.0, 1.0
    share, squared = right / total, Z95**2
    centre = (share + squared / (2 * total)) / (1 + squared / total)
    half = Z95 * math.sqrt(share * (1 - share) / total + squared / (4 * total**2)) / (1 + squared / total)
    return max(0.0, centre - half), min(1.0, centre + half)
