"""Intervals, by number."""

import pytest

from learngene_zoo.intervals import paired_gain, proportion


def test_wilson_by_number() -> None:
    low, high = proportion(45, 50)  # Wilson's interval of 0.9 of 50: 0.786 to 0.957
    assert (low, high) == (pytest.approx(0.7864, abs=1e-4), pytest.approx(0.9565, abs=1e-4))
    assert proportion(0, 0) == (0.0, 1.0)
    assert proportion(10, 10)[1] == pytest.approx(1.0)


def test_a_paired_gain_counts_only_where_the_two_differ() -> None:
    gain = paired_gain([[True] * 6 + [False] * 4], [[True] * 4 + [False] * 6])
    assert gain.value == pytest.approx(0.2)
    assert gain.high - gain.value == pytest.approx(1.959964 * (0.16 * 10 / 9 / 10) ** 0.5)
    assert gain.low <= 0
    assert paired_gain([[True] * 9 + [False]], [[False] * 10]).low > 0


def test_seeds_are_averaged_per_image_first() -> None:
    ours = [[True, False, True, True], [True, True, True, False]]
    theirs = [[False, False, True, True], [False, True, True, False]]
    assert paired_gain(ours, theirs).value == pytest.approx(0.25)
