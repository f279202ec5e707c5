"""Building of the candidates of `shrink` by `extract` and `expand`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.own_data import recall, remember
from learngene_zoo.artifacts.records import is_own_data
from learngene_zoo.errors import TrainingFailed, WrongCall
from learngene_zoo.lifecycle.expansion import expand
from learngene_zoo.lifecycle.extraction import extract
from learngene_zoo.lifecycle.opening import resume_if_begun
from learngene_zoo.lifecycle.shrinking.candidates import (
    Offers,
    ShrinkCandidate,
    choose_candidates,
    describe_too_large,
    select_affordable,
)
from learngene_zoo.lifecycle.shrinking.request import ShrinkConfig, ShrinkRequest
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Budget
from learngene_zoo.runs.cache import compute_once
from learngene_zoo.runs.run import Run, describe_machine
from learngene_zoo.settings import Json, list_settings, with_settings
from learngene_zoo.tasks.catalogue import locate_task

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.own_data import LocalOrigin
    from learngene_zoo.method.contract import Extractor
    from learngene_zoo.storage import StateDict

CANDIDATES = "candidates"  # the part of the run that chooses them
MODELS, LEARNGENES = "descendants", "learngenes"  # folders of intermediate results


def list_candidates(request: ShrinkRequest, run: Run) -> list[ShrinkCandidate]:
    """Return the candidates; a resumed run has those that it began with."""
    inputs = [request.offers, request.budget, describe_machine(run)]
    part = compute_once(
        run.part(CANDIDATES), "shrink.candidates", _choose_part, request.config, inputs
    )
    choices: Any = part.record
    return [
        ShrinkCandidate(method=method, member=request.offers[method][index], number=number)
        for number, (method, index) in enumerate(choices, start=1)
    ]


def _choose_part(
    config: ShrinkConfig, offers: Offers, budget: Budget, _machine: str, run: Run
) -> tuple[StateDict, Json]:
    """Return the method of each candidate, and its index among the method's offers."""
    chosen = choose_within_budget(offers, budget, config, run)
    return {}, [
        [candidate.method, list(offers[candidate.method]).index(candidate.member)]
        for candidate in chosen
    ]


def choose_within_budget(
    offers: Offers, budget: Budget, config: ShrinkConfig, run: Run
) -> list[ShrinkCandidate]:
    """Return the candidates within a budget. Latency is measured now if it is bounded."""
    from learngene_zoo.lifecycle.latency import measure_latency
    from learngene_zoo.runs.progress import say

    fitting = select_affordable(offers, budget, lambda spec: measure_latency(spec, run).seconds)
    if fitting and (text := describe_too_large(offers, fitting)):
        say(run, text)
    return choose_candidates(fitting, config.candidates, is_spread=config.max_drop is not None)


def build_candidates(
    request: ShrinkRequest, candidates: Sequence[ShrinkCandidate], work: Path, run: Run
) -> Iterator[tuple[ShrinkCandidate, Descendant]]:
    """Yield the candidates with their models, one after the other.

    A candidate that its method refuses to build, and one with the tensors of an earlier one, is
    left out with a line of progress.
    """
    from learngene_zoo.runs.progress import say
    from learngene_zoo.storage import fingerprint_of_state

    names: dict[str, str] = {}  # titles of the candidates by the hash of their tensors
    for candidate in candidates:
        try:
            model = _build(request, candidate, work, run)
        except (WrongCall, TrainingFailed) as error:
            say(run, f"{candidate.title} is left out: {error}")
            continue
        key = fingerprint_of_state(model.state)
        if key in names:
            say(run, f"{candidate.title} is left out: it equals {names[key]}")
            continue
        names[key] = candidate.title
        yield candidate, model
    if not names:
        raise TrainingFailed("no candidate could be built; the lines above have the reasons")


def _build(request: ShrinkRequest, candidate: ShrinkCandidate, work: Path, run: Run) -> Descendant:
    """Extract the learngene of a candidate, unless that is done, and expand it."""
    from learngene_zoo.artifacts.descendant import load_descendant

    path, gene = work / MODELS / candidate.name, work / LEARNGENES / candidate.method
    if path.is_dir():
        return _restore_origins(request, path)
    method, member = METHODS.load(candidate.method), candidate.member
    extract(
        method.name,
        ancestries=request.source,
        tasks=[] if method.tasks == "none" else [request.images_reference],
        extractor=with_settings(method.extractor, keep_streams(method.extractor)),
        image_size=request.image_size,
        out=gene,
        run=resume_if_begun(gene, run),
    )
    expand(
        gene,
        target=replace(member.target, task=request.reference),
        expander=with_settings(method.expander, member.settings),
        out=path,
        run=resume_if_begun(path, run),
    )
    return load_descendant(path)


def _restore_origins(request: ShrinkRequest, path: Path) -> Descendant:
    """Return a candidate that an interrupted run has built, and store the locations that it needs.

    A run that is killed right after it has written a model may not have stored them.
    """
    from learngene_zoo.artifacts.descendant import load_descendant

    model = load_descendant(path)
    return model if recall(model) else remember(model, list_origins(request), load_descendant, path)


def list_origins(request: ShrinkRequest) -> dict[str, LocalOrigin]:
    """Return the locations of the ancestry model and of the user's own data."""
    from learngene_zoo.pretrained.ancestry import find_origins_of_models

    origins = find_origins_of_models([request.ancestry.record])
    task, reference = request.task, request.reference
    if task is not None and reference is not None and is_own_data(task.name):
        origins = {task.name: locate_task(task, reference), **origins}
    return origins


def keep_streams(extractor: Extractor) -> dict[str, bool]:
    """Return the setting by which all expansions of a learngene share its recorded streams."""
    names = {setting.name for setting in list_settings(extractor)}
    return {"keep_streams": True} if "keep_streams" in names else {}
