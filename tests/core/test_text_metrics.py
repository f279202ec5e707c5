"""Matthews correlation and F1 from the summed confusion matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from learngene_zoo.bench.running.trial import compute_chance_level
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.evaluate import Judged, convert_rows, summarise_rows
from learngene_zoo.training.fit import find_constant_share
from learngene_zoo.training.objectives import F1, Accuracy, Confusion, Matthews, choose_metric

# Computed by hand. Rows are true classes, columns predicted ones.
TABLES: list[tuple[Any, float, float]] = [
    ([[5, 0], [0, 5]], 1.0, 1.0),
    ([[0, 5], [5, 0]], -1.0, 0.0),
    ([[6, 2], [1, 3]], (6 * 3 - 2 * 1) / (8 * 4 * 7 * 5) ** 0.5, 6 / 9),
    ([[4, 0], [6, 0]], 0.0, 0.0),
    # (right * total - sum of true * predicted) / the root of both spreads; F1 is the mean of
    # 4/6, 2/5 and 2/3
    ([[2, 1, 0], [1, 1, 0], [0, 1, 1]], (4 * 7 - 17) / ((49 - 17) * (49 - 19)) ** 0.5, 26 / 45),
]


@pytest.mark.parametrize(("matrix", "matthews", "f1"), TABLES)
def test_the_values_are_those_computed_by_hand(matrix: Any, matthews: float, f1: float) -> None:
    matrix_KK = np.array(matrix)
    labels, predicted = (
        np.repeat(part, matrix_KK.ravel()) for part in np.indices(matrix_KK.shape).reshape(2, -1)
    )
    for metric, expected in (
        (Matthews(len(matrix)), matthews),
        (F1(len(matrix)), f1),
    ):
        rows_NR = metric.rows_of_pairs(labels, predicted)
        assert rows_NR.sum(axis=0).tolist() == matrix_KK.ravel().tolist()
        assert metric.value(rows_NR.sum(axis=0), len(rows_NR)) == pytest.approx(expected)
        logits = torch.nn.functional.one_hot(torch.from_numpy(predicted), len(matrix))
        assert torch.equal(metric.rows(logits, torch.from_numpy(labels)), torch.from_numpy(rows_NR))
        low, high = metric.interval(rows_NR)
        assert low <= metric.value(rows_NR.sum(axis=0), len(rows_NR)) + 1e-9
        assert high >= metric.value(rows_NR.sum(axis=0), len(rows_NR)) - 1e-9
        assert metric.interval(rows_NR) == (low, high)


def test_a_task_names_its_metric() -> None:
    digits = open_task("digits")
    assert isinstance(choose_metric(digits), Accuracy)
    kinds = [type(choose_metric(replace(digits, metric=name))) for name in ("matthews", "F1")]
    assert kinds == [Matthews, F1]


def test_an_evaluation_with_another_metric_has_no_flags() -> None:
    """The flags are those of accuracy, from which paired differences are computed."""
    task = replace(open_task("digits"), classes=2, class_names=("a", "b"), metric="matthews")
    pairs = np.array([[0, 0, 9, 9], [1, 1, 9, 9], [1, 0, 9, 9], [0, 0, 9, 9]])
    metric = choose_metric(task)
    assert isinstance(metric, Confusion)
    judged = summarise_rows(task.name, "test", metric, convert_rows(metric, pairs))
    assert (judged.metric, judged.correct, judged.resolution) == ("matthews", (), None)
    assert judged.value == pytest.approx((2 * 1 - 0) / (2 * 2 * 3 * 1) ** 0.5)
    assert compute_chance_level(Judged(judged, pairs), task) == 0.0
    assert compute_chance_level(Judged(judged, pairs), replace(task, metric="F1")) == pytest.approx(
        2 / 3
    )
    assert find_constant_share(task) == 0.0
    assert find_constant_share(replace(task, metric="F1")) is None
    right = summarise_rows(task.name, "test", Accuracy(), convert_rows(Accuracy(), pairs))
    assert right.correct == (True, True, False, True)
