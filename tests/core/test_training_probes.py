"""Probes against independent computations, on random numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.errors import BadData, TrainingFailed, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training.probes import (
    FEW_SHOT_PENALTY,
    Features,
    calibrate_scale,
    choose_neighbours,
    classify_by_neighbours,
    compute_features,
    draw_shots,
    fit_ridge,
    is_right_left_out,
    run_probe,
)

SPEC = ViTSpec(layers=2, width=16, heads=2, classes=3, image_size=16, patch_size=8)


def draw_features(images: int, width: int, classes: int = 3, seed: int = 0) -> Features:
    generator = np.random.default_rng(seed)
    labels_N = np.arange(images) % classes
    means_KD = generator.normal(size=(classes, width))
    values_ND = means_KD[labels_N] + 1.5 * generator.normal(size=(images, width)) * np.linspace(
        0.1, 3, width
    )
    return Features(values_ND.astype(np.float32), labels_N)


def solve_directly(
    features: Features, classes: int, penalty: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and intercept from the normal equations of standardised features.

    The intercept is not penalised.
    """
    values = features.values.astype(np.float64)
    mean, std = values.mean(axis=0), values.std(axis=0)
    extended = np.concatenate([(values - mean) / std, np.ones((len(values), 1))], axis=1)
    damping = penalty * len(values) * np.diag([1.0] * values.shape[1] + [0.0])
    solved = np.linalg.solve(
        extended.T @ extended + damping, extended.T @ np.eye(classes)[features.labels]
    )
    weight = (solved[:-1] / std[:, None]).T
    return weight, solved[-1] - weight @ mean


@pytest.mark.parametrize("shape", [(40, 5), (12, 30), (30, 30)])
@pytest.mark.parametrize("penalty", [1e-2, 1.0])
def test_the_ridge_regression_solves_the_normal_equations(
    shape: tuple[int, int], penalty: float
) -> None:
    features = draw_features(*shape)
    ridge = fit_ridge(features, 3, penalty)
    weight, bias = solve_directly(features, 3, penalty)
    assert np.allclose(ridge.weight, weight, atol=1e-7)
    assert np.allclose(ridge.bias, bias, atol=1e-7)
    assert ridge.predict(features.values).shape == (shape[0], 3)


@pytest.mark.parametrize("shape", [(24, 5), (12, 30)])
def test_predictions_without_an_image_are_those_of_a_regression_on_the_others(
    shape: tuple[int, int],
) -> None:
    """The features are standardised by all images, as in the closed form."""
    features = draw_features(*shape)
    values = features.values.astype(np.float64)
    standard = (values - values.mean(axis=0)) / values.std(axis=0)
    targets = np.eye(3)[features.labels]
    predictions = fit_ridge(features, 3, 0.1).left_out
    damping = 0.1 * len(values) * np.diag([1.0] * values.shape[1] + [0.0])
    extended = np.concatenate([standard, np.ones((len(values), 1))], axis=1)
    for index in range(len(values)):
        others = np.arange(len(values)) != index
        rows = extended[others]
        solved = np.linalg.solve(rows.T @ rows + damping, rows.T @ targets[others])
        assert np.allclose(predictions[index], extended[index] @ solved, atol=1e-6)


@pytest.mark.parametrize("shape", [(24, 5), (12, 30)])
def test_without_an_intercept_the_mean_of_the_features_is_not_removed(
    shape: tuple[int, int],
) -> None:
    """Weights and leave-one-out predictions follow from the normal equations."""
    features = draw_features(*shape)
    values = features.values.astype(np.float64) + 2
    ridge = fit_ridge(Features(values, features.labels), 3, 0.1, intercept=False)
    rows, std = values / values.std(axis=0), values.std(axis=0)
    targets, damping = np.eye(3)[features.labels] - 1 / 3, 0.1 * len(values)

    def solve(kept: np.ndarray) -> np.ndarray:
        gram = rows[kept].T @ rows[kept] + damping * np.eye(rows.shape[1])
        return np.linalg.solve(gram, rows[kept].T @ targets[kept])

    everything = np.ones(len(values), dtype=bool)
    assert np.allclose(ridge.weight, (solve(everything) / std[:, None]).T, atol=1e-7)
    assert np.array_equal(ridge.bias, np.zeros(3))
    for index in range(len(values)):
        others = np.arange(len(values)) != index
        assert np.allclose(ridge.left_out[index], rows[index] @ solve(others), atol=1e-6)


def test_a_constant_feature_takes_the_place_of_an_intercept() -> None:
    features = draw_features(200, 4)
    labels = np.where(features.labels == 2, 1, features.labels)  # classes of unequal sizes
    constant = np.concatenate([features.values, np.full((200, 1), 5.0, dtype=np.float32)], axis=1)
    plain = fit_ridge(Features(features.values, labels), 2, 1e-4)
    folded = fit_ridge(Features(constant, labels), 2, 1e-4, intercept=False)
    difference = plain.predict(features.values) - folded.predict(constant)
    assert np.abs(difference - difference.mean(axis=1, keepdims=True)).max() < 1e-3


def test_the_penalty_is_the_one_whose_predictions_are_most_likely() -> None:
    features = draw_features(60, 40)
    chosen = fit_ridge(features, 3)
    losses = {}
    for penalty in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0):
        ridge = fit_ridge(features, 3, penalty)
        losses[penalty] = calibrate_scale(ridge.left_out, features.labels)[1]
    assert calibrate_scale(chosen.left_out, features.labels)[1] <= min(losses.values())
    assert max(losses.values()) > 1.05 * min(losses.values())


@pytest.mark.parametrize("scale", [2.0, 9.0, 40.0])
def test_the_scale_is_the_one_that_labels_were_drawn_with(scale: float) -> None:
    generator = np.random.default_rng(1)
    values_NK = generator.uniform(0, 1, size=(3000, 4))
    chance_NK = np.exp(scale * values_NK)
    chance_NK /= chance_NK.sum(axis=1, keepdims=True)
    labels_N = (generator.random((3000, 1)) < chance_NK.cumsum(axis=1)).argmax(axis=1)
    assert calibrate_scale(values_NK, labels_N)[0] == pytest.approx(scale, rel=0.25)
    assert calibrate_scale(0.05 * np.eye(4)[labels_N], labels_N)[0] == pytest.approx(
        100, rel=0.01
    )  # the bound
    assert calibrate_scale(-np.eye(4)[labels_N], labels_N)[0] == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("num_images", [40, 400])
def test_probabilities_of_predictions_without_an_error_stay_below_one(num_images: int) -> None:
    generator = np.random.default_rng(0)
    labels_N = np.arange(num_images) % 4
    values_ND = 3 * generator.normal(size=(4, 32))[labels_N]
    values_ND += generator.normal(size=values_ND.shape)
    ridge = fit_ridge(Features(values_ND, labels_N), 4)
    assert (ridge.left_out.argmax(axis=1) == labels_N).all()
    chance_NK = np.exp(ridge.scale * ridge.left_out)
    chance_NK /= chance_NK.sum(axis=1, keepdims=True)
    mean = chance_NK[np.arange(num_images), labels_N].mean()
    assert mean == pytest.approx(num_images / (num_images + 1), abs=0.5 / num_images)
    assert calibrate_scale(ridge.left_out, labels_N)[0] > 5 * ridge.scale


def test_neighbours_vote_by_their_similarity() -> None:
    train = Features(
        np.array([[1, 0], [0.9, 0.1], [0, 2], [0.1, 1]], np.float32), np.array([0, 1, 2, 2])
    )
    queries = np.array([[5, 0], [0, 0.1], [1, 1.05]], np.float32)
    assert classify_by_neighbours(train, queries, 3, 1).tolist() == [0, 2, 2]
    for k in (2, 3, 4, 9):
        votes = np.zeros((3, 3))
        for query, row in enumerate(queries):
            cosines = (
                train.values @ row / np.linalg.norm(train.values, axis=1) / np.linalg.norm(row)
            )
            for nearest in np.argsort(-cosines)[:k]:
                votes[query, train.labels[nearest]] += np.exp(cosines[nearest] / 0.07)
        assert (
            classify_by_neighbours(train, queries, 3, k).tolist() == votes.argmax(axis=1).tolist()
        )
    assert (choose_neighbours(239, 12), choose_neighbours(240, 12)) == (5, 20)


def test_shots_are_drawn_of_every_class_and_use_the_penalty_of_big_vision() -> None:
    train, held_out, task = (
        draw_features(50, 8),
        draw_features(30, 8, seed=0),
        replace(make_tiny_task(classes=3)),
    )
    first, second = draw_shots(train, 5, 1), draw_shots(train, 5, 2)
    assert np.bincount(first.labels).tolist() == [5, 5, 5]
    assert not np.array_equal(first.values, second.values)
    assert np.bincount(draw_shots(train, 17, 1).labels).tolist() == [17, 17, 16]
    probe = run_probe(train, held_out, task, "test", "ridge", shots=5, draws=3, seed=7)
    assert (probe.training_images, probe.draws, probe.shots, probe.k) == (15, 3, 5, None)
    from learngene_zoo.seeds import derive_seed

    shares = []
    for draw in range(3):
        seen = draw_shots(train, 5, derive_seed(7, "shots", draw))
        weight, bias = solve_directly(seen, 3, FEW_SHOT_PENALTY / 15)
        shares.append(
            ((held_out.values @ weight.T + bias).argmax(axis=1) == held_out.labels).mean()
        )
    assert probe.value == pytest.approx(np.mean(shares))
    assert probe.interval[0] < probe.value < probe.interval[1]


def test_one_class_and_counts_below_one_are_refused() -> None:
    features = draw_features(9, 4)
    alone = Features(features.values, np.zeros(9, dtype=np.int64))
    for call in (lambda: fit_ridge(alone, 3), lambda: is_right_left_out(alone)):
        with pytest.raises(BadData, match="9 samples of one class; a linear probe needs at least"):
            call()
    for counts in ({"shots": 0}, {"shots": 1, "draws": 0}, {"k": 0}, {"k": -1}):
        with pytest.raises(WrongCall, match=f"{[*counts][-1]} is .*; expected at least 1"):
            run_probe(features, features, make_tiny_task(), "test", "knn", **counts)


def test_counts_are_refused_before_the_model_is_opened() -> None:
    for counts in ({"shots": [1, 0]}, {"draws": 0}, {"k": 0}, {"images": -1}):
        with pytest.raises(WrongCall, match=f"{next(iter(counts))} is .*; expected at least 1"):
            lifecycle.probe("no/model", task="digits", **counts)  # type: ignore[arg-type]
    for counts in ({"draws": None}, {"k": 2.5}, {"images": "all"}, {"k": True}):
        with pytest.raises(WrongCall, match=f"{next(iter(counts))} is .*; expected a whole number"):
            lifecycle.probe("no/model", task="digits", **counts)  # type: ignore[arg-type]


def make_model() -> Descendant:
    return assemble(SPEC, {}, seed=0, scheme="fan_in")


def test_features_are_the_inputs_of_the_head_in_the_order_of_the_split() -> None:
    descendant, task = make_model(), make_tiny_task(classes=3)
    model = descendant.model()
    features = compute_features(model, task, "test", descendant.input_format, Run())
    assert features.values.shape == (task.sizes["test"], 16)
    assert features.labels.tolist() == task.split("test").labels.tolist()
    from learngene_zoo.training.evaluate import judge

    answers = judge(model, task, "test", descendant.input_format, Run()).rows[:, 1]
    with torch.no_grad():
        logits = model.head(torch.from_numpy(features.values))
    assert logits.argmax(dim=1).tolist() == answers.tolist()
    few = compute_features(model, task, "train", descendant.input_format, Run(), images=7)
    assert len(few.labels) == 7


def test_features_that_are_not_finite_are_an_error() -> None:
    model, task = make_model(), make_tiny_task(classes=3)
    broken = model.with_state({**model.state, "norm.bias": torch.full((16,), torch.nan)})
    with pytest.raises(TrainingFailed, match="features are not finite for 7 of 7 images of tiny"):
        compute_features(broken.model(), task, "train", model.input_format, Run(), images=7)


@pytest.mark.slow
def test_the_verb_measures_models_and_ancestry_models(tmp_path: Path) -> None:
    descendant = lifecycle.expand("closed_form-mini", layers=3, task="digits")
    (ridge,) = lifecycle.probe(descendant, task="digits", images=200)
    assert ridge.training_images == 200
    assert ridge.value > 0.5
    few = lifecycle.probe(
        "bundled", task="digits", kind="knn", shots=(1, 5), draws=2, image_size=32
    )
    assert [item.shots for item in few] == [1, 5]
    assert 0.3 < few[0].value < few[1].value
    with pytest.raises(WrongCall, match="a class for every pixel"):
        lifecycle.probe(descendant, task="scenes")
    with pytest.raises(WrongCall, match="nowhere"):
        lifecycle.probe(str(tmp_path / "nowhere"), task="digits")


def test_the_progress_of_features_names_their_split(monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []

    def note(title: str, *args: Any) -> Any:
        titles.append(title)
        return report_activity(title, *args)

    monkeypatch.setattr("learngene_zoo.training.probes.report_activity", note)
    model, task = make_model(), make_tiny_task(classes=3)
    for split in ("train", "validation"):
        compute_features(model.model(), task, split, model.input_format, Run(), images=7)
    assert titles == [
        f"features of {split} images of tiny, batch" for split in ("train", "validation")
    ]
