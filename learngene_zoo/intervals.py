"""Confidence intervals of accuracies and of paired differences between them."""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

Z95 = 1.959964
ROUNDING = 1e-12  # of a variance of equal accuracies
MAX_FREEDOM = 1000.0  # degrees of freedom from which on Student's quantile is nearly the normal one
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


def compute_interval(right: float, total: float, quantile: float = Z95) -> tuple[float, float]:
    """Return Wilson's interval of an accuracy with `right` of `total` images correct.

    `quantile` is that of the error in standard errors; the default is that of a 95 % interval.
    """
    if total == 0:
        return 0.0, 1.0
    share, squared = right / total, quantile**2
    centre = (share + squared / (2 * total)) / (1 + squared / total)
    half = (
        quantile
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


def compute_crossed_interval(runs: Runs) -> tuple[float, float]:
    """Return the 95 % interval of an accuracy averaged over draws of the training images.

    It generalises over images and over draws, which are crossed. The variance of the mean is that
    of the images' means, plus what that of the draws' means has beyond its share of the rest.
    Its degrees of freedom follow from Satterthwaite's formula. The limits are Wilson's with
    Student's quantile, for the number of images that has the same standard error. For a single draw
    this equals `compute_interval`.

    Args:
        runs: for each draw, whether each image was classified correctly.
    """
    images, draws = len(runs[0]), len(runs)
    if draws == 1 or images < 2:
        return compute_pooled_interval(runs)
    of_images = _average_runs(runs)
    of_draws = [sum(flags) / images for flags in runs]
    share = sum(of_draws) / draws
    rest = sum(
        (flag - image - draw + share) ** 2
        for flags, draw in zip(runs, of_draws)
        for flag, image in zip(flags, of_images)
    ) / ((images - 1) * (draws - 1) * images * draws)
    from_images = sum((mean - share) ** 2 for mean in of_images) / ((images - 1) * images)
    from_draws = sum((mean - share) ** 2 for mean in of_draws) / ((draws - 1) * draws)
    from_draws = max(0.0, from_draws - rest)
    variance = from_images + from_draws
    if variance <= ROUNDING:
        return compute_pooled_interval(runs)
    freedom = variance**2 / (from_images**2 / (images - 1) + from_draws**2 / (draws - 1))
    quantile = compute_t_quantile(0.975, min(freedom, MAX_FREEDOM))
    effective = share * (1 - share) / variance
    return compute_interval(share * effective, effective, quantile)


def _average_runs(runs: Runs) -> list[float]:
    """Return for each image the fraction of runs that classify it correctly."""
    return [sum(flags) / len(runs) for flags in zip(*runs, strict=True)]


@cache
def compute_t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's distribution.

    The degrees of `freedom` are rounded down, and at least 1.
    """
    n = max(1, math.floor(freedom + 1e-9))
    if probability < 0.5:
        return -compute_t_quantile(1 - probability, freedom)
    low, high = 0.0, 1.0
    while compute_t_probability(high, n) < probability and high < 1e12:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if compute_t_probability(middle, n) < probability else (low, middle)
        )
    return high


def compute_t_probability(t: float, freedom: int) -> float:
    """Return Student's distribution function for whole degrees of freedom.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    term = math.cos(angle) if freedom % 2 else 1.0
    total = 0.0
    for k in range(1 if freedom % 2 else 0, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k + 1) / (k + 2)
    inside = (
        2 / math.pi * (angle + math.sin(angle) * total) if freedom % 2 else math.sin(angle) * total
    )
    return 0.5 + inside / 2
