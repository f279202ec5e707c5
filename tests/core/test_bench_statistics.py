"""Intervals over tasks and seeds: coverage, Student's quantiles and Holm's correction, by number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from learngene_zoo.bench.claims.contrasts import compute_p_value, judge_gain
from learngene_zoo.bench.results.statistics import (
    WIDEST,
    Estimate,
    Spread,
    _draw_counts,
    adjust_by_holm,
    estimate,
    leave_one_out,
    plan_effect,
)
from learngene_zoo.intervals import compute_t_probability, compute_t_quantile


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 5, 2.5706),
        (0.8, 4, 0.9410),
        (0.975, 30, 2.0423),
    ],
)
def test_students_quantiles_by_number(probability: float, freedom: int, value: float) -> None:
    assert compute_t_quantile(probability, freedom) == pytest.approx(value, abs=1e-4)
    assert compute_t_quantile(1 - probability, freedom) == -compute_t_quantile(probability, freedom)
    assert compute_t_probability(value, freedom) == pytest.approx(probability, abs=1e-5)


def test_degrees_of_freedom_are_rounded_down() -> None:
    assert (
        compute_t_quantile(0.975, 2.9)
        == compute_t_quantile(0.975, 2)
        > compute_t_quantile(0.975, 3.0)
    )


SPREADS = [
    (1.0, 0.0, 1.0),
    (0.0, 1.0, 1.0),
    (1.0, 1.0, 1.0),
    (2.0, 0.3, 1.0),
    (0.0, 0.0, 1.0),
]  # of tasks, seeds, the rest


@pytest.mark.slow
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("shape", [(6, 3), (6, 5)])
def test_the_interval_covers_the_truth_as_often_as_it_says(
    spread: tuple[float, ...], shape: tuple[int, int]
) -> None:
    covered = sum(low <= 3.0 <= high for low, high in _simulate(spread, shape, 300, mean=3.0))
    assert 0.93 <= covered / 300 <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 3), (6, 5), (8, 5)])
def test_the_interval_covers_skewed_effects_too(shape: tuple[int, int]) -> None:
    """Exponential effects of tasks, of either sign. Student's interval covers 90 %."""
    generator, covered, students = np.random.default_rng(shape), 0, 0
    for number in range(400):
        sign = 1 - 2 * (number % 2)
        table = sign * (generator.exponential(size=(shape[0], 1)) - 1) + 0.3 * generator.normal(
            size=shape
        )
        result = estimate(table.tolist())
        low, high = result.interval()
        covered += low <= 0.0 <= high
        students += abs(result.value) <= compute_t_quantile(0.975, result.freedom or 1) * (
            result.error or 0
        )
    assert students / 400 < 0.92
    assert covered / 400 >= 0.93


def test_an_interval_of_seeds_covers_the_mean_of_the_very_tasks() -> None:
    generator, covered = np.random.default_rng(3), 0
    for _ in range(300):
        tasks = generator.normal(size=4) * 5
        table = tasks[:, None] + generator.normal(size=5) + generator.normal(size=(4, 5))
        low, high = estimate(table.tolist(), scope="seeds").interval()
        covered += low <= tasks.mean() <= high
    assert 0.91 <= covered / 300 <= 0.99


def _simulate(
    spread: tuple[float, ...], shape: tuple[int, int], times: int, mean: float
) -> list[tuple[float, float]]:
    """Return intervals of crossed tables of normal numbers with this spread of tasks, seeds and the
    rest.
    """
    generator = np.random.default_rng([*shape, *(int(10 * part) for part in spread)])
    tasks, seeds, rest = spread
    results = []
    for _ in range(times):
        table = (
            mean
            + generator.normal(size=(shape[0], 1)) * tasks
            + generator.normal(size=(1, shape[1])) * seeds
            + generator.normal(size=shape) * rest
        )
        results.append(estimate(table.tolist()).interval())
    return results


def test_one_row_is_students_interval() -> None:
    row = [1.0, 2.0, 4.0, 3.0, 5.0]
    result = estimate([row])
    half = compute_t_quantile(0.975, 4) * np.std(row, ddof=1) / math.sqrt(5)
    low, high = result.interval()
    assert result.value == pytest.approx(3.0)
    assert low <= 3.0 - half + 1e-9
    assert high >= 3.0 + half - 1e-9
    assert high - low <= 2 * WIDEST * half + 1e-9


def test_a_common_seed_effect_is_not_averaged_away_by_many_tasks() -> None:
    seeds = np.array([-2.0, 0.0, 2.0])
    few, many = (estimate(np.tile(seeds, (tasks, 1)).tolist()) for tasks in (2, 50))
    assert few.error == pytest.approx(many.error)
    assert many.error == pytest.approx(2.0 / math.sqrt(3))


def test_a_number_alone_has_no_interval() -> None:
    alone = estimate([[4.0]])
    assert (alone.value, alone.interval(), alone.detectable) == (4.0, (-math.inf, math.inf), None)
    assert alone.p_value(0.0) == 1.0


def test_equal_numbers_leave_no_doubt() -> None:
    exact = estimate([[2.0] * 3] * 4)
    assert exact.interval() == (2.0, 2.0)
    assert exact.p_value(1.0) < 1e-9
    assert exact.p_value(2.0) == 1.0


def test_numbers_in_steps_that_agree_by_chance_leave_the_doubt_of_rounding() -> None:
    result = estimate([[40.0] * 5], step=20.0)
    assert result.error == pytest.approx(20 / math.sqrt(12) / math.sqrt(5))
    assert result.interval()[1] - 40.0 == pytest.approx(2.7764 * result.error, abs=1e-3)
    assert estimate([[10.0, 40.0, 80.0]], step=20.0) == estimate([[10.0, 40.0, 80.0]])


def test_the_same_table_has_the_same_interval() -> None:
    table = np.random.default_rng(1).normal(size=(5, 3)).tolist()
    assert estimate(table).interval() == estimate(table).interval()
    assert estimate(table).interval(0.8)[0] > estimate(table).interval(0.95)[0]


TABLE = [[2.0, 3.0, 4.0], [3.0, 5.0, 4.0], [2.0, 2.5, 3.0], [4.0, 4.5, 7.5]]


def test_an_interval_never_changes() -> None:
    """Verdicts on claims depend on it."""
    result = estimate(TABLE)
    assert (result.value, result.error, result.freedom) == pytest.approx(
        (3.7083333, 0.7872685, 4.9810060)
    )
    assert result.interval() == pytest.approx((1.4708334, 6.9870449))
    assert result.interval(0.8) == pytest.approx((2.4271630, 5.5189008))
    assert result.p_value(1.0) == pytest.approx(0.0370000, abs=1e-6)
    assert result.detectable == pytest.approx(2.9782917)
    assert estimate(TABLE, scope="seeds").interval() == pytest.approx((0.2124280, 7.2042387))


@pytest.mark.parametrize("table", [TABLE, TABLE[:1], [[row[0]] for row in TABLE]])
def test_a_studentised_draw_is_the_mean_of_a_resampled_table_in_its_own_errors(
    table: list[list[float]],
) -> None:
    d = np.array(table)
    rows, columns = (
        _draw_counts(n, which)[:40].astype(int) if n > 1 else np.ones((40, 1), int)
        for which, n in enumerate(d.shape)
    )
    result = estimate(table).shape
    for of_rows, of_columns in zip(rows, columns):
        drawn = np.repeat(np.repeat(d, of_rows, axis=0), of_columns, axis=1)
        own = estimate(drawn.tolist())
        assert own.error is not None
        if own.error > 1e-9:
            assert np.abs(result - (drawn.mean() - d.mean()) / own.error).min() < 1e-6
    assert list(result) == sorted(result)


def test_p_values_agree_with_intervals() -> None:
    result = estimate([[2.0, 3.0, 4.0], [3.0, 5.0, 4.0], [2.0, 2.5, 3.0], [4.0, 4.5, 5.5]])
    p = result.p_value(1.0)
    inside, outside = result.interval(1 - 0.8 * p), result.interval(1 - 1.2 * p)
    assert inside[0] <= 1.0 < outside[0]


@pytest.mark.parametrize("shift", [-4.0, -3.0, -2.2])
def test_an_undecided_loss_is_not_evidence_of_a_gain(shift: float) -> None:
    result = estimate([[shift + d for d in row] for row in ([2.0, 3.5], [1.0, 3.0], [4.0, 2.0])])
    assert judge_gain(result, 1.0) == "undecided"
    assert result.value <= 1.0
    assert compute_p_value(result, 1.0) == 1.0


def test_what_an_experiment_could_have_seen_is_its_own_interval_and_the_power() -> None:
    result = estimate(TABLE)
    assert result.detectable == pytest.approx(
        result.value - result.interval()[0] + 0.9410 * result.error, abs=1e-3
    )
    assert Estimate(0.0, 1.0, 4, np.empty(0)).detectable == pytest.approx(2.7764 + 0.9410, abs=1e-3)


@pytest.mark.slow
def test_planned_effects_are_detected_four_times_in_five() -> None:
    spread = Spread(tasks=2.0, seeds=1.0, rest=1.0)
    effect = plan_effect(6, 4, spread)
    generator = np.random.default_rng(5)
    seen = 0
    for _ in range(300):
        table = (
            2.0 * generator.normal(size=(6, 1))
            + generator.normal(size=(1, 4))
            + generator.normal(size=(6, 4))
        )
        seen += estimate((effect + table).tolist()).interval()[0] > 0
    assert 0.74 <= seen / 300 <= 0.87
    assert plan_effect(12, 8, spread) < 0.7 * effect < plan_effect(4, 3, spread)
    assert plan_effect(6, 4, spread, "seeds") < effect


def test_leaving_one_task_out_by_number() -> None:
    assert leave_one_out({"a": [1.0, 3.0], "b": [4.0, 4.0], "c": [9.0, 9.0]}) == {
        "a": 6.5,
        "b": 5.5,
        "c": 3.0,
    }
    assert leave_one_out({"a": [1.0]}) == {}


def test_holm_by_number() -> None:
    adjusted = adjust_by_holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert adjusted == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert adjust_by_holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert adjust_by_holm({"only": 0.04}) == {"only": 0.04}


def test_an_outer_interval_is_wider_and_its_margin_falls_with_the_draws() -> None:
    """So a verdict that holds for it does not depend on the random resamplings."""
    table = np.random.default_rng(12).exponential(size=(10, 4)).tolist()
    few, many = (estimate(table, draws=draws) for draws in (1_000, 100_000))
    for effect in (few, many):
        inner, outer = effect.interval(), effect.outer_interval
        assert outer[0] <= inner[0] < inner[1] <= outer[1]
    widths = [
        effect.outer_interval[1] - effect.outer_interval[0] - np.diff(effect.interval())[0]
        for effect in (few, many)
    ]
    assert 0 < widths[1] < widths[0] / 4
