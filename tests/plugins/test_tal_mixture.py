"""Temperature sampling of tasks against the official sampler."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from learngene_zoo.errors import WrongCall
from lgzoo_tal.modules.mixture import (
    TaskMixture,
    _repeat_epochs,
    compute_probabilities,
    sample_task,
)

CASES: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "tal" / "task_sampler.json").read_text(encoding="utf-8")
)["cases"]


@pytest.mark.parametrize("case", CASES)
def test_the_official_probabilities(case: str) -> None:
    sizes, temperature = CASES[case]["sizes"], float(case.rpartition("=")[2])
    assert compute_probabilities(sizes, temperature) == pytest.approx(
        CASES[case]["probs"], rel=1e-12
    )
    loaders: Any = {
        name: SimpleNamespace(images=size, task=None, input_format=None)
        for name, size in sizes.items()
    }
    mixture = TaskMixture(loaders, batch_size=512, temperature=temperature, seed=0)
    assert mixture.steps == CASES[case]["steps_per_epoch_bs512"]


class Loader:
    """Three steps an epoch, each named."""

    steps = 3

    def epoch(self, epoch: int, start: int = 0) -> Any:
        return iter([(epoch, step) for step in range(start, self.steps)])


@pytest.mark.parametrize("skip", [0, 1, 3, 7])
def test_a_task_goes_through_its_epochs_from_where_it_was(skip: int) -> None:
    every: Any = [(epoch, step) for epoch in range(5) for step in range(3)]
    loader: Any = Loader()
    assert list(islice(_repeat_epochs(loader, skip), 6)) == every[skip : skip + 6]


def test_the_limits_of_the_temperature() -> None:
    sizes = {"small": 10, "large": 10_000}
    assert compute_probabilities(sizes, math.inf) == {"small": 0.5, "large": 0.5}
    assert compute_probabilities(sizes, 1e-3)["large"] == 1.0


def test_tasks_are_drawn_as_often_as_they_are_likely() -> None:
    likely = compute_probabilities({"a": 100, "b": 400, "c": 2500}, 2.0)
    assert likely == pytest.approx({"a": 10 / 80, "b": 20 / 80, "c": 50 / 80})
    draws = Counter(sample_task(likely, 3, step) for step in range(8000))
    # Four standard deviations of a binomial count.
    assert all(
        abs(draws[name] - 8000 * p) < 4 * math.sqrt(8000 * p * (1 - p))
        for name, p in likely.items()
    )


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    likely = compute_probabilities({"a": 1, "b": 1})
    forwards = [sample_task(likely, 3, step) for step in range(64)]
    assert [sample_task(likely, 3, step) for step in reversed(range(64))] == forwards[::-1]
    assert [sample_task(likely, 4, step) for step in range(64)] != forwards


def test_probabilities_that_sum_to_less_than_one_still_name_a_task() -> None:
    assert {sample_task({"a": 1e-9, "b": 2e-9}, 0, step) for step in range(20)} == {"b"}


def test_tasks_without_images_are_refused() -> None:
    with pytest.raises(WrongCall, match="the task b has 0 training images"):
        compute_probabilities({"a": 5, "b": 0})
