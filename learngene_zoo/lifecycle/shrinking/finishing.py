"""Healing and fine-tuning of the best candidates of `shrink`, and the choice of the winner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import WrongCall
from learngene_zoo.lifecycle.analyse import assemble_ancestry
from learngene_zoo.lifecycle.finetuning import finetune
from learngene_zoo.lifecycle.healing import heal
from learngene_zoo.lifecycle.opening import resume_if_begun
from learngene_zoo.lifecycle.shrinking.building import MODELS
from learngene_zoo.lifecycle.shrinking.candidates import ShrinkCandidate
from learngene_zoo.lifecycle.shrinking.request import ShrinkRequest
from learngene_zoo.lifecycle.shrinking.trainings import ShrinkTraining, summarise_training
from learngene_zoo.lifecycle.training_warnings import MIN_VALIDATION
from learngene_zoo.runs.progress import print_note
from learngene_zoo.runs.run import Run

if TYPE_CHECKING:
    from learngene_zoo.lifecycle.shrinking.ranking import Ranking

HEALED, FINETUNED = "healed", "finetuned"  # folders of intermediate results


@dataclass(frozen=True, kw_only=True)
class FinishedCandidate:
    """A candidate after healing and fine-tuning."""

    path: Path
    # Accuracy, or the task's metric, on validation images; without a task, R² after healing.
    value: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)  # of the fine-tuning
    training: ShrinkTraining | None = None


def finish_candidates(
    request: ShrinkRequest,
    ranking: Ranking,
    candidates: Sequence[ShrinkCandidate],
    work: Path,
    run: Run,
) -> dict[str, FinishedCandidate]:
    """Heal and fine-tune the best candidates, and return them by name."""
    names = choose_tries(request, ranking)
    paths = {name: work / MODELS / name for name in names}
    if request.config.is_healing(request.task):
        paths = {name: _heal(request, name, path, work, run) for name, path in paths.items()}
    if request.task is not None:
        chosen = {candidate.name: candidate for candidate in candidates}
        return {
            name: _finetune(request, chosen[name], path, work, run) for name, path in paths.items()
        }
    values = _measure_healed(request, candidates, paths, run)
    return {
        name: FinishedCandidate(path=path, value=values.get(name)) for name, path in paths.items()
    }


def _heal(request: ShrinkRequest, name: str, start: Path, work: Path, run: Run) -> Path:
    """Heal a candidate and return its folder; one that cannot be healed stays as it is."""
    from learngene_zoo.runs.progress import say

    path = work / HEALED / name
    say(run, f"healing {name}")
    try:
        heal(
            start,
            request.images_reference,
            teacher=request.source,
            task=request.reference,
            out=path,
            run=resume_if_begun(path, run),
            epochs=request.config.heal_epochs,
        )
    except WrongCall as error:
        say(run, f"{name} is not healed: {error}")
        return start
    return path


def _finetune(
    request: ShrinkRequest, candidate: ShrinkCandidate, start: Path, work: Path, run: Run
) -> FinishedCandidate:
    """Fine-tune a candidate, and print which epoch is kept."""
    from learngene_zoo.runs.progress import say

    path = work / FINETUNED / candidate.name
    is_trained = request.tuning.get("epochs") != 0
    say(run, f"{'fine-tuning' if is_trained else 'evaluating'} {candidate.title}")
    model = finetune(
        start, task=request.reference, out=path, run=resume_if_begun(path, run), **request.tuning
    )
    assert request.task is not None, "without one, nothing is fine-tuned"
    metrics: Any = model.provenance["metrics"]
    value = metrics[f"validation_{request.task.metric}"]
    training = summarise_training(candidate.title, model.provenance, request.task.sample_noun)
    if training is not None:
        say(run, training.describe())
    return FinishedCandidate(path=path, value=value, metrics=metrics, training=training)


def _measure_healed(
    request: ShrinkRequest,
    candidates: Sequence[ShrinkCandidate],
    paths: Mapping[str, Path],
    run: Run,
) -> dict[str, float]:
    """Return R² of the original's features for each candidate that was healed, by name."""
    from learngene_zoo.artifacts.descendant import load_descendant
    from learngene_zoo.lifecycle.shrinking.ranking import rank_by_features

    healed = [
        (candidate, load_descendant(paths[candidate.name]))
        for candidate in candidates
        if candidate.name in paths and paths[candidate.name].parent.name == HEALED
    ]
    if not healed:
        return {}
    original = assemble_ancestry(request.ancestry, run.seed)
    ranking = rank_by_features(request, original, healed, run, "healed_features")
    return {item.learngene: item.probe for item in ranking.candidates}


def choose_tries(request: ShrinkRequest, ranking: Ranking) -> list[str]:
    """Return the names of the candidates to heal and fine-tune.

    They are the best ones; with `max_drop`, the smallest of those with a probe that is at most so
    much below the original's.
    """
    count, most = request.config.tries, request.config.max_drop
    if most is not None:
        near = [item for item in ranking.candidates if is_within(ranking.probe, item.probe, most)]
        by_size = sorted(near, key=lambda item: item.member.cost())
        if by_size:
            return [item.learngene for item in by_size[:count]]
        print_note(
            f"no candidate's probe is within {most:g} points of the original's; the best ones are "
            "fine-tuned",
            "max_drop",
        )
    return [item.learngene for item in ranking.candidates[:count]]


def is_within(original: float, value: float, max_drop: float) -> bool:
    """Return whether an accuracy is at most `max_drop` points below the original's."""
    return 100 * (original - value) <= max_drop + 1e-9


def choose_winner(
    request: ShrinkRequest, ranking: Ranking, finished: Mapping[str, FinishedCandidate]
) -> str:
    """Return the name of the candidate with the best value; of equals the smallest.

    With `max_drop`, return the smallest one that keeps it, if there is one. Candidates without a
    value, which were not changed, are in the order of the ranking. Fewer than `MIN_VALIDATION`
    validation images say less than the probe of the training images: then the mean of both counts,
    weighted by their numbers of images.
    """
    ordered = sorted(ranking.candidates, key=lambda item: item.member.cost())
    values = {
        item.learngene: value
        for item in ordered
        if item.learngene in finished and (value := finished[item.learngene].value) is not None
    }
    most, original = request.config.max_drop, ranking.validation
    if original is not None and _has_few_images(request, ranking):
        probes = {item.learngene: item.probe for item in ordered}
        values = {
            name: _average(request, ranking, probes[name], value) for name, value in values.items()
        }
        original = _average(request, ranking, ranking.probe, original)
    if most is not None and original is not None:
        for name, value in values.items():
            if is_within(original, value, most):
                return name
    return max(values, key=values.__getitem__) if values else next(iter(finished))


def _has_few_images(request: ShrinkRequest, ranking: Ranking) -> bool:
    """Return whether validation images are few, and their results comparable with the probe's."""
    task = request.task
    is_accuracy = task is not None and task.metric == "accuracy"
    return is_accuracy and ranking.validation_images < MIN_VALIDATION


def _average(request: ShrinkRequest, ranking: Ranking, probe: float, validation: float) -> float:
    """Return the mean of both accuracies, weighted by their numbers of images."""
    assert request.task is not None
    probed = min(request.config.probe_images, request.task.sizes["train"])
    judged = ranking.validation_images
    return (probed * probe + judged * validation) / (probed + judged)
