"""Confidence intervals of accuracies and of paired differences between them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

Z95 = 1.959964
ROUNDING = 1e-12  # of a variance of equal accuracies
Runs = Sequence[Sequence[bool]]  # for each seed, whether each image was classified correctly


class Gain(NamedTuple):
    """A difference of two accuracies with its 95 % confidence interval, as fractions."""

    value: float
    low: float
    high: float


def compute_paired_gain(ours: Runs, theirs: Runs) -> Gain:
    """Return the difference in accuracy of two models on the same images, with its 95 % interval.

    The unit is the image: its difference is averaged over seeds first. The interval is the normal
    interval of a paired mean; it generalises over images of the same kind, not over trainings. Its
    variance is at least that of two discordant images, one in favour of each model (Agresti and Min
    2005 add these two), because models that agree on a few images may differ on others. The limits
    are clipped to [-1, 1].
    """
    images = len(ours[0])
    differences = [a - b for a, b in zip(_average_runs(ours), _average_runs(theirs), strict=True)]
    mean = sum(differences) / images
    variance = sum((difference - mean) ** 2 for difference in differences) / max(images - 1, 1)
    half = Z95 * math.sqrt(max(variance, 2 / images) / images)
    return Gain(mean, max(-1.0, mean - half), min(1.0, mean + half))


def compute_interval(right: float, total: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of an accuracy with `right` of `total` images correct."""
    if total == 0:
        return 0.0, 1.0
    share, squared = right / total, Z95**2
    centre = (share + squared / (2 * total)) / (1 + squared / total)
    half = (
        Z95
        * math.sqrt(share * (1 - share) / total + squared / (4 * total**2))
        / (1 + squared / total)
    )
    return max(0.0, centre - half), min(1.0, centre + half)


def compute_pooled_interval(runs: Runs) -> tuple[float, float]:
    """Return Wilson's 95 % interval of an accuracy averaged over seeds, on the same images.

    The unit is the image, as in `compute_paired_gain`: the flags of an image are averaged over the
    runs first. These means vary less than flags do, so they count as a larger number of images, for
    which flags would have the same standard error. For a single run this equals `compute_interval`.
    """
    means = _average_runs(runs)
    images, share = len(means), sum(means) / len(means)
    variance = sum((mean - share) ** 2 for mean in means) / images
    has_spread = variance > ROUNDING
    effective = images * share * (1 - share) / variance if has_spread else images
    return compute_interval(share * effective, effective)


def _average_runs(runs: Runs) -> list[float]:
    """Return for each image the fraction of runs that classify it correctly."""
    return [sum(flags) / len(runs) for flags in zip(*runs, strict=True)]
