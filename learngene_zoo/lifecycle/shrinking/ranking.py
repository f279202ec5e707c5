"""Comparison of the original with the candidates of `shrink` before any training.

With labels, by a linear probe of the training images. Without labels, by how well a ridge map
predicts the original's features of held-out images from the candidate's. Models of texts are
compared in the same ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from learngene_zoo.intervals import Z95, Gain, compute_interval
from learngene_zoo.lifecycle.analyse import assemble_ancestry
from learngene_zoo.lifecycle.rates import choose_fit
from learngene_zoo.lifecycle.recommendation import RankedDescendant, sort_candidates
from learngene_zoo.runs.cache import Part, compute_once
from learngene_zoo.runs.progress import say
from learngene_zoo.text import count_noun
from learngene_zoo.training.evaluate import convert_rows
from learngene_zoo.training.feature_map import measure_map_errors
from learngene_zoo.training.objectives import choose_metric
from learngene_zoo.training.probes import (
    compute_features,
    fit_ridge,
    is_right_left_out,
    predict_linear,
)

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.lifecycle.shrinking.candidates import ShrinkCandidate
    from learngene_zoo.lifecycle.shrinking.request import ShrinkRequest
    from learngene_zoo.runs.run import Run
    from learngene_zoo.settings import Json
    from learngene_zoo.storage import StateDict
    from learngene_zoo.tasks.task import Task

Models = Iterable[tuple["ShrinkCandidate", "Descendant"]]
ORIGINAL = "original"


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The candidates, best first, and the results of the original model."""

    candidates: Sequence[RankedDescendant]  # `learngene` is the name of the candidate
    probe: float  # of the original
    interval: tuple[float, float]
    validation: float | None  # accuracy, or the task's metric, of the original's probe
    validation_images: int
    original: Part | None = None  # the probe of the original, see `_probe_part`
    test: float | None = None  # the result of this probe on test images, see `evaluate_original`
    test_interval: tuple[float, float] | None = None


def rank_by_probe(
    request: ShrinkRequest, original: Descendant, models: Models, run: Run
) -> Ranking:
    """Rank the candidates by a linear probe of the same training images.

    All probes read the inputs of the head, those of the original too. The validation result of the
    original is that of a probe of the features that it has without a head: a head of texts may read
    others, for which the original was not trained, and a drop below these would look too small.

    Args:
        request: the request, with a task.
        original: the pretrained model.
        models: the candidates, which are built one after the other.
        run: the run, for its folder.

    Raises:
        BadData, TrainingFailed: as `compute_features` does.
    """
    task, images = request.task, request.config.probe_images
    assert task is not None, "without one, candidates are ranked by features"
    original_part = _probe_once(ORIGINAL, original, task, images, run, is_validated=True)
    right_N, answers_M2 = (original_part.state[name].numpy() for name in ("right", "answers"))
    headless = ""
    if task.is_text:  # a head may read other features than those of a model without one
        headed = original.for_task(task.name, task.class_names, seed=run.seed)
        headed_part = _probe_once(f"{ORIGINAL}-with-head", headed, task, images, run)
        headed_N = headed_part.state["right"].numpy()
        if not np.array_equal(right_N, headed_N):
            headless = f" (of its features without a head {right_N.mean():.3f})"
        right_N = headed_N
    metric = choose_metric(task)
    rows_MR = convert_rows(metric, answers_M2)
    say(run, f"original: linear probe {right_N.mean():.3f}{headless}")
    probes = []
    for candidate, model in models:
        state = _probe_once(candidate.name, model, task, images, run).state
        probes.append((candidate.name, candidate.member, state["right"].numpy()))
        say(run, f"{_describe(candidate)}: linear probe {probes[-1][2].mean():.3f}")
    return Ranking(
        candidates=sort_candidates(probes),
        probe=float(right_N.mean()),
        interval=compute_interval(int(right_N.sum()), len(right_N)),
        validation=metric.value(rows_MR.sum(axis=0), len(rows_MR)),
        validation_images=len(rows_MR),
        original=original_part,
    )


def evaluate_original(request: ShrinkRequest, ranking: Ranking, run: Run) -> Ranking:
    """Return the ranking with the result of the original's probe on the test images.

    It is the probe whose validation result the ranking has. Without a task, there is none.

    Raises:
        BadData, TrainingFailed: as `compute_features` does.
    """
    if request.task is None or ranking.original is None:
        return ranking
    original = assemble_ancestry(request.ancestry, run.seed)
    model = original.with_fit(choose_fit(original, request.task))
    part = compute_once(
        _at_same_images(run, f"probes/{ORIGINAL}-test"),
        "shrink.test",
        _test_part,
        None,
        [model, request.task, ranking.original],
    )
    record: Any = part.record
    low, high = record["interval"]
    return replace(ranking, test=record["value"], test_interval=(low, high))


def rank_by_features(
    request: ShrinkRequest,
    original: Descendant,
    models: Models,
    run: Run,
    folder: str = "features",
) -> Ranking:
    """Rank the candidates by R² of a ridge map from their features to the original's.

    Args: as `rank_by_probe`; no labels are used. The features are the inputs of the head. The parts
        of the candidates are in `folder`.
    """
    task, images = request.images, request.config.probe_images
    name = f"features/{ORIGINAL}"
    targets = compute_once(
        _at_same_images(run, name), "shrink.features", _compute_part, None, [original, task, images]
    )
    results: list[tuple[ShrinkCandidate, np.ndarray]] = []
    for candidate, model in models:
        part_run = _at_same_images(run, f"{folder}/{candidate.name}")
        inputs = [model, task, images, targets]
        state = compute_once(part_run, "shrink.feature_map", _map_part, None, inputs).state
        errors_M = state["errors"].numpy()
        results.append((candidate, errors_M))
        value = 1 - float(errors_M.mean())
        say(run, f"{_describe(candidate)}: R² of the original's features {value:.3f}")
    results.sort(key=lambda item: (float(item[1].mean()), item[0].member.cost()))
    best_M = results[0][1]
    return Ranking(
        candidates=[_rank(candidate, errors_M, best_M) for candidate, errors_M in results],
        probe=1.0,
        interval=(1.0, 1.0),
        validation=None,
        validation_images=len(best_M),
    )


def _describe(candidate: ShrinkCandidate) -> str:
    spec = candidate.member.spec
    return f"{candidate.method}, {count_noun(spec.layers, 'layer')} of width {spec.width}"


def _rank(candidate: ShrinkCandidate, errors_M: np.ndarray, best_M: np.ndarray) -> RankedDescendant:
    """Return the R² of a candidate, and its difference to the best with a normal interval."""
    value, half = 1 - float(errors_M.mean()), _compute_half_width(errors_M)
    gain, gain_half = float((best_M - errors_M).mean()), _compute_half_width(best_M - errors_M)
    return RankedDescendant(
        learngene=candidate.name,
        member=candidate.member,
        probe=value,
        interval=(value - half, min(1.0, value + half)),
        images=len(errors_M),
        difference=Gain(gain, gain - gain_half, gain + gain_half),
    )


def _compute_half_width(values_M: np.ndarray) -> float:
    """Return half the width of the 95 % interval of a mean."""
    return Z95 * float(values_M.std(ddof=1)) / len(values_M) ** 0.5 if len(values_M) > 1 else 0.0


def _at_same_images(run: Run, name: str) -> Run:
    """Return a part of the run with the run's seed, so that all parts draw the same images."""
    return replace(run.part(name), seed=run.seed)


def _probe_once(
    name: str, model: Descendant, task: Task, images: int, run: Run, *, is_validated: bool = False
) -> Part:
    part_run = _at_same_images(run, f"probes/{name}")
    model = model.with_fit(choose_fit(model, task))
    inputs = [model, task, images, is_validated]
    return compute_once(part_run, "shrink.probes", _probe_part, None, inputs)


def _probe_part(
    _: None, model: Descendant, task: Task, images: int, is_validated: bool, run: Run
) -> tuple[StateDict, None]:
    """Return which training images are classified correctly, each left out of the fit (`right`).

    If `is_validated`, also class and predicted class of each validation image, int64 (M, 2)
    (`answers`), and `weight` and `bias` of the probe.
    """
    module, image_format = model.model(), model.input_format
    train = compute_features(module, task, "train", image_format, run, images=images)
    state = {"right": torch.from_numpy(is_right_left_out(train))}
    if is_validated:
        held_out = compute_features(module, task, "validation", image_format, run)
        probe = fit_ridge(train, task.classes)
        predicted_M = probe.predict(held_out.values).argmax(axis=1)
        state["answers"] = torch.from_numpy(np.stack([held_out.labels, predicted_M], axis=1))
        state |= {"weight": torch.from_numpy(probe.weight), "bias": torch.from_numpy(probe.bias)}
    return state, None


def _test_part(
    _: None, model: Descendant, task: Task, probe: Part, run: Run
) -> tuple[StateDict, Json]:
    """Return the metric of a probe on the test images, and its 95 % interval."""
    features = compute_features(model.model(), task, "test", model.input_format, run)
    weight_KD, bias_K = (probe.state[name].numpy() for name in ("weight", "bias"))
    predicted_M = predict_linear(features.values, weight_KD, bias_K).argmax(axis=1)
    metric = choose_metric(task)
    rows_MR = convert_rows(metric, np.stack([features.labels, predicted_M], axis=1))
    value = metric.value(rows_MR.sum(axis=0), len(rows_MR))
    return {}, {"value": value, "interval": list(metric.interval(rows_MR))}


def _compute_features(model: Descendant, task: Task, images: int, run: Run) -> tuple[Any, Any]:
    module, image_format = model.model(), model.input_format
    return (
        compute_features(module, task, "train", image_format, run, images=images).values,
        compute_features(module, task, "validation", image_format, run, images=images).values,
    )


def _compute_part(
    _: None, model: Descendant, task: Task, images: int, run: Run
) -> tuple[StateDict, None]:
    """Return the features of training and of held-out images."""
    train_ND, held_out_MD = _compute_features(model, task, images, run)
    return {
        "train": torch.from_numpy(train_ND),
        "held_out": torch.from_numpy(held_out_MD),
    }, None


def _map_part(
    _: None, model: Descendant, task: Task, images: int, targets: Part, run: Run
) -> tuple[StateDict, None]:
    """Return the error of the ridge map for each held-out image."""
    train_ND, held_out_MD = _compute_features(model, task, images, run)
    target_NF, held_out_MF = (targets.state[name].numpy() for name in ("train", "held_out"))
    errors_M = measure_map_errors(train_ND, target_NF, held_out_MD, held_out_MF)
    return {"errors": torch.from_numpy(errors_M)}, None
