"""Two models on the same images: intervals checked by hand, and costs that equal the closed form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from torch import nn

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.cli.main import main
from learngene_zoo.errors import TrainingWarning, WrongCall
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle import comparison
from learngene_zoo.lifecycle.comparison import compare, compute_mcnemar, count_cost
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training.evaluate import Evaluation, Judged

TASK = make_tiny_task()
RUN = Run(threads=1, device="cpu")
SPEC = ViTSpec(layers=2, width=16, heads=2, classes=3, image_size=16, patch_size=8)


def model(seed: int, **sizes: int) -> Descendant:
    return assemble(SPEC.with_(**sizes), {}, seed=seed, scheme="fan_in")


@pytest.mark.parametrize(
    ("lost", "won", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (0, 5, 2 / 32), (5, 0, 2 / 32), (2, 8, 112 / 1024)],
)
def test_the_exact_test_of_mcnemar(lost: int, won: int, p: float) -> None:
    assert compute_mcnemar(lost, won) == pytest.approx(p)


def test_a_large_count_is_no_problem_for_the_exact_test() -> None:
    assert 0 < compute_mcnemar(4_800, 5_200) < 1e-4


def test_the_difference_is_that_of_the_images_which_only_one_gets_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = {"one": [True] * 6 + [False] * 4, "other": [True] * 5 + [False] + [True] * 3 + [False]}
    given = iter(right.values())

    def judged(*args: object) -> Judged:
        correct = tuple(next(given))
        value = sum(correct) / 10
        evaluation = Evaluation(
            task="t", split="test", value=value, interval=(0, 1), images=10, correct=correct
        )
        return Judged(evaluation, np.zeros((10, 4)))

    monkeypatch.setattr(comparison, "judge", judged)
    result = compare(model(0), model(1), TASK, "test", RUN)
    assert (result.only_first, result.only_second) == (1, 3)
    assert result.difference.value == pytest.approx(0.2)
    half = 1.96 * np.std([0] * 6 + [1] * 3 + [-1], ddof=1) / 10**0.5
    assert result.difference.high == pytest.approx(0.2 + half, rel=1e-4)
    assert result.p == pytest.approx(10 / 16)


def test_a_model_does_not_differ_from_itself_and_the_order_decides_the_sign() -> None:
    same = compare(model(0), model(0), TASK, "test", RUN)
    assert same.difference.value == 0.0
    assert same.difference.high == pytest.approx(1.96 * (2 / 12) ** 0.5 / 12**0.5, rel=1e-4), (
        "they may differ elsewhere"
    )
    assert same.difference.low == -same.difference.high
    assert same.p == 1.0
    first, second = (
        compare(*pair, TASK, "train", RUN) for pair in ((model(0), model(1)), (model(1), model(0)))
    )
    assert first.difference.value == pytest.approx(-second.difference.value)
    assert (
        first.difference.value == first.second.evaluation.value - first.first.evaluation.value != 0
    )


def test_models_of_other_input_sizes_see_the_same_images() -> None:
    comparison = compare(model(0), model(1, image_size=32), TASK, "test", RUN, timed=True)
    assert comparison.first.evaluation.images == comparison.second.evaluation.images == 12
    assert comparison.second.flops > comparison.first.flops
    assert comparison.first.latency is not None
    assert comparison.first.latency > 0


def test_miou_is_compared_by_resampling_the_same_images_for_both() -> None:
    rng = np.random.default_rng(0)
    either = rng.integers(50, 100, (30, 3))
    both = (either * rng.uniform(0.3, 0.9, (30, 3))).astype(np.int64)
    better = np.minimum(either, both + 10)  # on every image
    dense = replace(TASK, kind="segmentation")

    def judged(rows: np.ndarray) -> Judged:
        value = comparison.choose_metric(dense).value(rows.sum(axis=0), 30)
        return Judged(
            Evaluation(task="t", split="test", value=value, interval=(0, 1), images=30, correct=()),
            rows,
        )

    first, second = (judged(np.concatenate([part, either], axis=1)) for part in (both, better))
    gain = comparison._resample_gain(dense, first, second)
    assert gain.low < gain.value < gain.high
    assert gain.low > 0, "better on every image, so better in every resampling"
    assert gain.high - gain.low < 0.1


@pytest.mark.parametrize("sizes", [{}, {"layers": 3, "width": 24, "heads": 3}, {"image_size": 32}])
def test_what_is_counted_is_what_the_closed_form_says(sizes: dict[str, int]) -> None:
    descendant = model(0, **sizes)
    assert count_cost(descendant.model(), descendant.input_format) == (
        descendant.cost().params,
        descendant.cost().flops,
    )


def test_a_convolution_is_counted_in_multiply_adds() -> None:
    images = InputFormat(image_size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert count_cost(nn.Conv2d(3, 4, 3, bias=False), images) == (108, 108 * 36)


def test_random_heads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    tuned = replace(model(0), provenance={"trained_on": {}})
    with pytest.warns(TrainingWarning, match="the head is random") as found:
        lifecycle.compare(tuned, model(1), task="tiny", run=RUN)
    assert len(found) == 1


def test_a_model_of_other_classes_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    other = replace(model(1), class_names=("a", "b", "c"))
    with pytest.raises(WrongCall, match="other classes than tiny"):
        lifecycle.compare(model(0), other, task="tiny", run=RUN)


def test_classes_in_another_order_are_matched_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("a", "b", "c")
    task = replace(TASK, class_names=names)
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: task)
    usual = replace(model(0), class_names=names)
    order = [2, 0, 1]  # the new head's class k is the usual one's class order[k]
    heads = {name: tensor[order] for name, tensor in usual.state.items() if name[:5] == "head."}
    turned = replace(
        usual, state={**usual.state, **heads}, class_names=tuple(names[k] for k in order)
    )
    first, second = (lifecycle.evaluate(one, task="tiny", run=RUN) for one in (usual, turned))
    assert first.correct == second.correct
    assert 0 < sum(first.correct) < len(first.correct)
    assert lifecycle.compare(usual, turned, task="tiny", run=RUN).difference.value == 0


def test_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    monkeypatch.setattr("learngene_zoo.tasks.catalogue.check_name", lambda name: None)
    for seed, name in enumerate(("one", "other")):
        model(seed).save(tmp_path / name)
    words = ["compare", "one", "other", "--task", "tiny", "--threads", "1"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert "accuracy on 12 test images of tiny" in result.stdout
    assert "McNemar p = " in result.stdout
    row = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert (row["first"], row["second"], row["images"]) == ("one", "other", 12)
    assert row["difference"] == pytest.approx(row["second_value"] - row["first_value"])
    assert row["first_params"] == model(0).cost().params


def test_the_interval_of_miou_holds_95_of_100_resamplings() -> None:
    """One model is right on every pixel of half of the images, the other on none: the share of a
    binomial draw.
    """
    right = np.arange(400) % 2 == 0
    rows = [
        np.stack([np.where(hit, 100, 0), np.full(400, 100)], axis=1)
        for hit in (right & False, right)
    ]
    dense = replace(TASK, kind="segmentation", class_names=("all",))
    values = (0.0, 0.5)
    first, second = (
        Judged(
            Evaluation(
                task="t", split="test", value=value, interval=(0, 1), images=400, correct=()
            ),
            part,
        )
        for value, part in zip(values, rows)
    )
    gain = comparison._resample_gain(dense, first, second)
    half = 1.96 * (0.5 * 0.5 / 400) ** 0.5
    assert gain.value == 0.5
    assert gain.high - 0.5 == pytest.approx(half, rel=0.08)
    assert 0.5 - gain.low == pytest.approx(half, rel=0.08)
