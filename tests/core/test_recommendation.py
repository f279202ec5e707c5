"""Recommendations for given images: the probe against its definition, the ranking, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble, load_descendant
from learngene_zoo.cli.main import main
from learngene_zoo.cli.plan import _call
from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.intervals import Gain
from learngene_zoo.lifecycle.recommendation import (
    RankedDescendant,
    choose_evenly,
    choose_largest,
    rank_descendants,
    sort_candidates,
)
from learngene_zoo.method.sizes import Budget, Member
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training import probes
from learngene_zoo.training.probes import Features, is_right_left_out

RUN = Run(threads=1, device="cpu")
SPEC = ViTSpec(layers=2, width=16, heads=2, classes=3, image_size=16, patch_size=8)


def refit(features_ND: np.ndarray, labels_N: np.ndarray, penalty: float) -> np.ndarray:
    """Return the leave-one-out result by one regression for each image.

    All features are standardised before.
    """
    standard_ND = (features_ND - features_ND.mean(axis=0)) / features_ND.std(axis=0)
    targets_NK, count = np.eye(labels_N.max() + 1)[labels_N], len(labels_N)
    right = []
    for left in range(count):
        rest = np.arange(count) != left
        design = np.c_[np.ones(count), standard_ND]
        # Sums over the rest, but the intercept is not penalised and the penalty is that of all
        # pictures.
        ridge = np.diag([0.0, *[penalty * count] * standard_ND.shape[1]])
        weights = np.linalg.solve(
            design[rest].T @ design[rest] + ridge, design[rest].T @ targets_NK[rest]
        )
        right.append((design[left] @ weights).argmax() == labels_N[left])
    return np.array(right)


@pytest.mark.parametrize("penalty", [1e-3, 1.0])
def test_the_probe_is_that_of_a_regression_without_each_picture(
    penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "PENALTIES", (penalty,))
    draws = np.random.Generator(np.random.PCG64(3))
    labels_N = np.arange(40) % 4
    features_ND = draws.normal(size=(40, 6)) + 0.7 * np.eye(4)[labels_N] @ draws.normal(size=(4, 6))
    is_right = is_right_left_out(Features(features_ND, labels_N))
    assert 0 < is_right.mean() < 1
    assert (is_right == refit(features_ND, labels_N, penalty)).all()


def test_features_without_meaning_are_at_chance_even_if_there_are_many() -> None:
    draws = np.random.Generator(np.random.PCG64(5))
    is_right = is_right_left_out(Features(draws.normal(size=(300, 200)), np.arange(300) % 3))
    assert 0.2 < is_right.mean() < 0.47


def test_one_class_is_refused() -> None:
    with pytest.raises(BadData, match="samples of one class; a linear probe needs at least two"):
        is_right_left_out(Features(np.ones((5, 2)), np.zeros(5, dtype=np.int64)))


def test_sizes_are_spread_from_the_smallest_to_the_largest() -> None:
    members = [Member(spec=SPEC.with_(layers=layers)) for layers in (9, 1, 3, 5, 7)]
    assert [member.spec.layers for member in choose_evenly(members, 3)] == [1, 5, 9]
    assert [member.spec.layers for member in choose_evenly(members, 1)] == [1]
    assert [member.spec.layers for member in choose_evenly(members, 9)] == [1, 3, 5, 7, 9]


def test_within_a_budget_the_largest_shapes_come_first() -> None:
    shapes = [(2, 16), (4, 16), (6, 16), (2, 32), (4, 32), (1, 64)]
    members = [
        Member(spec=SPEC.with_(layers=layers, width=width, heads=width // 8))
        for layers, width in shapes
    ]
    chosen = [(member.spec.layers, member.spec.width) for member in choose_largest(members, 9)]
    # Nothing exceeds the first two; then the next largest, of at least half the parameters.
    assert chosen == [(1, 64), (4, 32), (2, 32)]
    assert choose_largest(members, 1) == [members[-1]]
    assert choose_largest([], 3) == []


def build_candidate(seed: int) -> tuple[str, Member, Descendant]:
    return f"gene-{seed}", Member(spec=SPEC), assemble(SPEC, {}, seed=seed, scheme="fan_in")


def test_the_best_is_first_and_the_others_are_told_by_paired_differences() -> None:
    heard: list[str] = []
    ranking = rank_descendants(
        map(build_candidate, range(4)),
        make_tiny_task(),
        RUN,
        images=None,
        report=lambda name, member, value: heard.append(name),
    )
    assert sorted(heard) == sorted(item.learngene for item in ranking)
    assert [item.probe for item in ranking] == sorted(
        (item.probe for item in ranking), reverse=True
    )
    assert ranking[0].difference == (0, 0, 0)
    for item in ranking:
        assert item.difference.value == pytest.approx(item.probe - ranking[0].probe)
        assert item.interval[0] < item.probe < item.interval[1] or item.probe in (0, 1)
        assert item.is_tied == (item.difference.high >= 0)


def test_a_class_for_every_pixel_is_refused() -> None:
    with pytest.raises(WrongCall, match="scenes has a class for every pixel"):
        rank_descendants([], open_task("scenes"), RUN, images=10)


def test_budgets_that_nothing_fits_are_refused_before_anything_is_built() -> None:
    with pytest.raises(WrongCall, match="none of lsamd has a descendant within these budgets"):
        lifecycle.recommend("digits", "lsamd", budget=Budget(max_params=1_000), run=RUN)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    words = [
        "recommend",
        "lsamd",
        "--task",
        "digits",
        "--images",
        "60",
        "--sizes",
        "2",
        "--max-params",
        "1M",
    ]
    result = CliRunner().invoke(main, [*words, "--json", "--device", "cpu", "--threads", "1"])
    assert result.exit_code == 0, result.stderr
    data: list[dict[str, object]] = json.loads(result.stdout)
    return data


@pytest.mark.slow
def test_the_command_says_what_each_costs_and_knows(rows: list[dict[str, object]]) -> None:
    assert {row["learngene"] for row in rows} == {"lsamd-mini"}
    assert len(rows) == 2
    assert all(row["params"] <= 1_000_000 for row in rows)  # type: ignore[operator]
    assert rows[0]["difference"] == 0
    assert rows[0]["probe"] > 0.4  # type: ignore[operator]  # of ten classes


@pytest.mark.parametrize("name", ["nested-mini", "pruning-mini", "lsamd-mini"])
def test_the_printed_command_names_all_that_distinguishes_the_sizes(name: str) -> None:
    calls = []
    for member in lifecycle.plan(name):
        ranked: Any = SimpleNamespace(learngene=name, member=member)
        calls.append(_call(ranked, "digits"))
    assert len(set(calls)) == len(calls)


@pytest.mark.slow
def test_the_line_that_it_prints_builds_what_it_ranked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "recommend",
        "pool",
        "--task",
        "digits",
        "--images",
        "40",
        "--sizes",
        "1",
        "--device",
        "cpu",
    ]
    result = CliRunner().invoke(main, [*words, "--threads", "1"])
    assert result.exit_code == 0, result.stderr
    line = result.stderr.splitlines()[-1]
    assert line.startswith("next: lgzoo expand pool-mini --low ")
    expansion = CliRunner().invoke(main, line.removeprefix("next: lgzoo ").split())
    assert expansion.exit_code == 0, expansion.stderr
    smallest = min(lifecycle.plan("pool-mini"), key=lambda member: member.cost())
    opened = lifecycle.expand("pool-mini", **smallest.settings, task="digits", run=RUN)
    assert load_descendant(tmp_path / "descendant").spec == opened.spec


@pytest.mark.parametrize(
    ("difference", "is_tied"),
    [
        (Gain(0.0, 0.0, 0.0), True),
        (Gain(-0.05, -0.1, 0.0), True),
        (Gain(-0.05, -0.2, 0.1), True),
        (Gain(-0.2, -0.3, -0.1), False),
        (Gain(0.2, 0.1, 0.3), False),
    ],
)
def test_a_candidate_is_tied_while_its_interval_holds_no_difference(
    difference: Gain, is_tied: bool
) -> None:
    candidate = RankedDescendant(
        learngene="gene",
        member=Member(spec=SPEC),
        probe=0.5,
        interval=(0.4, 0.6),
        images=100,
        difference=difference,
    )
    assert candidate.is_tied == is_tied


def test_of_equally_good_descendants_the_cheapest_is_first() -> None:
    right = np.array([True, True, False])
    probes = [
        (name, Member(spec=SPEC.with_(layers=layers)), right)
        for name, layers in (("b", 5), ("a", 3), ("c", 1))
    ]
    better = ("d", Member(spec=SPEC.with_(layers=9)), np.array([True, True, True]))
    assert [item.learngene for item in sort_candidates([*probes, better])] == ["d", "c", "a", "b"]
