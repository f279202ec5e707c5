"""The verbs that ask models, and change nothing: compare, predict, probe, recommend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.timm_model import open_model
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.lifecycle.learngenes import expand
from learngene_zoo.lifecycle.models import open_answering, open_task_for, own_run
from learngene_zoo.lifecycle.rates import choose_fit
from learngene_zoo.method import Budget, Member, Target, family, method_of
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Json, to_json, with_settings
from learngene_zoo.tasks.catalogue import open_task

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.exported import ExportedModel
    from learngene_zoo.artifacts.shelf import Learngene
    from learngene_zoo.artifacts.timm_model import TimmModel
    from learngene_zoo.comparison import Comparison
    from learngene_zoo.families.spec import Fit
    from learngene_zoo.recommendation import Candidate
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.training.predict import Prediction
    from learngene_zoo.training.probes import ProbeResult


def compare(
    first: str | Path | Descendant | TimmModel,
    second: str | Path | Descendant | TimmModel,
    *,
    task: str | None = None,
    split: Literal["train", "validation", "test"] = "test",
    timed: bool = False,
    run: Run | None = None,
) -> Comparison:
    """Two models on the same images of a task (default: the one that the first was trained for), and what each costs.

    `timed` also measures latencies. Raises `WrongCall` as `evaluate` does, for either.
    """
    from learngene_zoo.comparison import compare as measured

    run = run or own_run()
    one, other = (open_model(model, offline=run.offline) for model in (first, second))
    data = open_task_for(one, task, "compare", run)
    return measured(one, other, data, split, run, timed=timed)


def probe(
    model: str | Path | Descendant | TimmModel,
    *,
    task: str | None = None,
    kind: Literal["ridge", "knn"] = "ridge",
    split: Literal["validation", "test"] = "test",
    shots: Sequence[int | None] = (None,),
    draws: int = 5,
    k: int | None = None,
    images: int | None = None,
    image_size: int | None = None,
    fit: Fit | None = None,
    run: Run | None = None,
) -> list[ProbeResult]:
    """Measure what a model's features say of a task, without training the model (`training.probes`).

    Args:
        model: any that `evaluate` takes but an exported file; or an ancestry model, as `extract` takes it, with or without
            a head.
        task: default as of `evaluate`.
        kind: a ridge regression onto the classes, or the nearest training images.
        shots: training images of each class that the probe is fitted to, one result for each; None: all.
        draws: how often a number of shots is drawn.
        k: neighbours that vote. None: 20, or 5 where a class has fewer than 20 training images on average.
        images: the probe sees at most so many of the training images. None: all.
        image_size: of an ancestry model, in pixels. None: its own.
        fit: what happens to pictures that are not square. None: as `finetune` would do it.

    Raises:
        WrongCall: for a task with a class per pixel, and as `evaluate` does.
        BadData: if the training images show fewer than two classes.
        TrainingFailed: for features that are not finite.
    """
    from learngene_zoo.tasks.splits import with_validation
    from learngene_zoo.training.probes import compute_features, run_probe

    run = run or own_run()
    opened = _open_probed(model, image_size, run)
    data = open_task_for(opened, task, "evaluate", run)
    if data.dense:
        raise WrongCall(f"{data.name} has a class for every pixel; a probe needs one for every image")
    if split == "validation":
        data = with_validation(data)
    module, shown = opened.model(), opened.with_fit(fit or choose_fit(opened, data)).input_format
    train = compute_features(module, data, "train", shown, run, images=images)
    held_out = compute_features(module, data, split, shown, run)
    return [
        run_probe(train, held_out, data, split, kind, shots=count, draws=draws, k=k, seed=run.seed) for count in shots
    ]


def _open_probed(model: str | Path | Descendant | TimmModel, image_size: int | None, run: Run) -> Any:
    """Open a model whose features are measured: any, or an ancestry model, at a size of its own."""
    from learngene_zoo.artifacts.ancestry import open_ancestry
    from learngene_zoo.artifacts.descendant import assemble

    if not isinstance(model, str | Path):
        return model
    try:
        if image_size is None:
            return open_model(model, offline=run.offline)
    except (BadFile, WrongCall) as error:
        reason: Exception | None = error
    else:
        reason = None
    try:
        ancestry = open_ancestry(str(model), image_size=image_size, offline=run.offline)
    except (BadFile, WrongCall):
        if reason is not None:
            raise reason from None
        raise
    record = ancestry.record
    provenance: dict[str, Json] = {"ancestries": [to_json(record)]}
    return assemble(
        ancestry.spec,
        ancestry.state,
        seed=run.seed,
        mean=record.mean,
        std=record.std,
        view=record.view,
        provenance=provenance,
    )


def predict(
    model: str | Path | Descendant | TimmModel | ExportedModel,
    images: str | Path | Iterable[str | Path],
    *,
    top: int = 5,
    batch_size: int = 32,
    run: Run | None = None,
) -> list[Prediction]:
    """The classes of pictures in files, the `top` most probable of each.

    A picture that cannot be read has an `error`. Raises `WrongCall` for a model without a class per image.
    """
    from learngene_zoo.training.predict import predict as predicted

    run = run or own_run()
    paths = [images] if isinstance(images, (str, Path)) else images
    return list(predicted(open_answering(model, run), paths, run, top=top, batch_size=batch_size))


def recommend(
    task: str,
    learngenes: str | Path | Sequence[str | Path] = (),
    *,
    budget: Budget | None = None,
    images: int | None = 1_000,
    sizes: int = 3,
    run: Run | None = None,
    report: Callable[[str, Member, float, int, int], None] = lambda *_: None,
) -> list[Candidate]:
    """What to build for the pictures of a task, best first, judged by a probe before anything is trained.

    Of each of `learngenes` (default: all on the shelf) up to `sizes` descendants within `budget` are built and probed on the
    same `images` of the training split (None: all); see `recommendation.ranked`. `report` is called after each with the
    learngene, the size, its probe, and how many of how many are done. Raises `WrongCall` if nothing fits, and for a
    task with a class per pixel.
    """
    from learngene_zoo.recommendation import ranked

    run = run or own_run()
    listed = [learngenes] if isinstance(learngenes, (str, Path)) else list(learngenes) or shelf.learngenes()
    data = open_task(task, offline=run.offline)
    opened = [shelf.open_learngene(named, offline=run.offline) for named in listed]
    members = _offered(opened, data, budget or Budget(), sizes)
    if not members:
        raise WrongCall(f"none of {shelf.some([str(named) for named in listed])} has a descendant within these budgets")

    def built() -> Iterator[tuple[str, Member, Descendant]]:
        for activity.done, (gene, member) in enumerate(members):
            expander = with_settings(method_of(gene.config, gene.folder or "it").expander, member.settings)
            descendant = expand(gene, target=replace(member.target, task=task), expander=expander, run=run)
            yield shelf.reference(gene.folder) if gene.folder else gene.config.method, member, descendant

    done = count(1)

    def count_and_report(name: str, member: Member, probe: float) -> None:
        report(name, member, probe, next(done), len(members))

    with report_activity("building and probing models", len(members)) as activity:
        return ranked(built(), data, run, images=images, report=count_and_report)


def _offered(learngenes: Iterable[Learngene], task: Task, budget: Budget, sizes: int) -> list[tuple[Learngene, Member]]:
    """Up to `sizes` members of each learngene that fit the budget, with a head for the task."""
    from learngene_zoo.latency import fitting
    from learngene_zoo.recommendation import spread

    target = Target(classes=task.classes, dense=task.dense)
    found = []
    for gene in learngenes:
        expander = method_of(gene.config, gene.folder or "it").expander
        members = fitting(family(gene.config, expander, target), budget)
        found += [(gene, member) for member in spread(members, sizes)]
    return found
