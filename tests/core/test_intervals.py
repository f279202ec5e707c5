"""Intervals by number."""

import numpy as np
import pytest

from learngene_zoo.intervals import (
    Z95,
    compute_crossed_interval,
    compute_interval,
    compute_paired_gain,
    compute_pooled_interval,
)


def test_wilson_by_number() -> None:
    low, high = compute_interval(45, 50)  # Wilson's interval of 0.9 of 50: 0.786 to 0.957
    assert (low, high) == (pytest.approx(0.7864, abs=1e-4), pytest.approx(0.9565, abs=1e-4))
    assert compute_interval(0, 0) == (0.0, 1.0)
    assert compute_interval(10, 10)[1] == pytest.approx(1.0)


def test_a_paired_gain_counts_only_where_the_two_differ() -> None:
    gain = compute_paired_gain([[True] * 16 + [False] * 4], [[True] * 12 + [False] * 8])
    assert gain.value == pytest.approx(0.2)
    assert gain.high - gain.value == pytest.approx(1.959964 * (0.16 * 20 / 19 / 20) ** 0.5)
    assert compute_paired_gain([[True] * 9 + [False]], [[False] * 10]).low > 0


def test_seeds_are_averaged_per_image_first() -> None:
    ours = [[True, False, True, True], [True, True, True, False]]
    theirs = [[False, False, True, True], [False, True, True, False]]
    assert compute_paired_gain(ours, theirs).value == pytest.approx(0.25)


def test_models_that_agree_on_every_image_may_differ_on_others() -> None:
    """The error is that of two images of which each model gets one right: sqrt(2 / n) / sqrt(n)."""
    gain = compute_paired_gain([[True] * 50], [[True] * 50])
    assert (gain.value, gain.low, gain.high) == pytest.approx(
        (0.0, -Z95 * 2**0.5 / 50, Z95 * 2**0.5 / 50)
    )


def test_no_end_of_a_difference_lies_beyond_one() -> None:
    gain = compute_paired_gain([[True] * 4], [[False] * 4])
    assert (gain.value, gain.high) == (1.0, 1.0)
    assert 0 < gain.low < 1
    assert compute_paired_gain([[False] * 4], [[True] * 4]).low == -1.0


def test_one_run_pools_to_wilsons_interval() -> None:
    assert compute_pooled_interval([[True] * 45 + [False] * 5]) == pytest.approx(
        compute_interval(45, 50)
    )
    assert compute_pooled_interval([[True] * 10]) == pytest.approx(compute_interval(10, 10))


def test_runs_that_agree_are_one_run_and_runs_that_differ_count_as_more_images() -> None:
    flags = [True] * 30 + [False] * 20
    thirds = [[run == number % 3 for number in range(10)] for run in range(3)]
    assert compute_pooled_interval(thirds) == pytest.approx(compute_interval(10 / 3, 10))
    assert compute_pooled_interval([flags, flags, flags]) == pytest.approx(compute_interval(30, 50))
    # Means of two runs: 10 images 1, 20 images 1/2, 20 images 0. Variance 0.14 against 0.4 * 0.6 of
    # flags.
    low, high = compute_pooled_interval([[True] * 30 + [False] * 20, [True] * 10 + [False] * 40])
    assert (low, high) == pytest.approx(compute_interval(0.4 * 50 * 0.24 / 0.14, 50 * 0.24 / 0.14))


def draw_flags(generator: np.random.Generator, spread: float) -> list[list[bool]]:
    """Return whether 200 images are correct in 5 draws, with a mean of 50 % over all draws.

    Images differ with a standard deviation of 1 in the probit of their accuracy, draws with
    `spread`.
    """
    images_N, draws_D1 = generator.normal(size=200), spread * generator.normal(size=(5, 1))
    flags: list[list[bool]] = (generator.normal(size=(5, 200)) < images_N + draws_D1).tolist()
    return flags


@pytest.mark.parametrize("spread", [0.0, 0.2, 0.6])
def test_an_interval_over_images_and_draws_covers_the_mean_of_further_ones(spread: float) -> None:
    generator = np.random.default_rng(0)
    tables = [draw_flags(generator, spread) for _ in range(300)]
    crossed, pooled = (
        sum(low <= 0.5 <= high for low, high in map(compute, tables)) / len(tables)
        for compute in (compute_crossed_interval, compute_pooled_interval)
    )
    assert 0.92 < crossed < 0.99
    if spread:
        assert pooled < crossed - 0.05


def test_a_single_draw_has_wilsons_interval() -> None:
    runs = [[True] * 45 + [False] * 5]
    assert compute_crossed_interval(runs) == pytest.approx(compute_interval(45, 50))
    for equal in ([[True] * 9] * 3, [[False] * 9] * 3):
        assert compute_crossed_interval(equal) == compute_pooled_interval(equal)
