"""The verbs that ask models, and change nothing: compare, predict, recommend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.timm_model import open_model
from learngene_zoo.errors import WrongCall
from learngene_zoo.lifecycle.learngenes import expand
from learngene_zoo.lifecycle.models import open_answering, open_task_for, own_run
from learngene_zoo.method import Budget, Member, Target, family, method_of
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.tasks.catalogue import open_task

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.exported import ExportedModel
    from learngene_zoo.artifacts.shelf import Learngene
    from learngene_zoo.artifacts.timm_model import TimmModel
    from learngene_zoo.comparison import Comparison
    from learngene_zoo.recommendation import Candidate
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.training.predict import Prediction


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
