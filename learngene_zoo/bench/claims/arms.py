"""Check that the arms of a claim can be run, before anything is extracted or trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.bench.claims.cells import build_arm, list_sizes, make_space
from learngene_zoo.bench.claims.file import Claim
from learngene_zoo.bench.grid.cell import Arm, Cell, Size
from learngene_zoo.bench.grid.grid import list_members, select_members
from learngene_zoo.bench.running.trial import find_size
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.checks import check_axes
from learngene_zoo.method.installed import METHODS, check_family
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks import catalogue
from learngene_zoo.tasks.task import Entry, Task, check_kind


def check_arms(claim: Claim, path: Path, offline: bool = False) -> None:
    """Check that every arm has valid settings, takes the tasks and can build the sizes.

    Sizes are checked as far as the outline of an extraction shows them.

    Args:
        claim: the claim.
        path: the claim's file, for the message.
        offline: whether nothing may be downloaded.

    Raises:
        WrongCall: an arm cannot be run as described; the message names file, arm and field.
    """
    with _locate(str(path), "targets"):
        targets = [_find_task(name, offline) for name in claim.targets]
    for name in claim.arms:
        where = f"{path}: arm {name!r}"
        arm, config = _outline_arm(claim, name, where, offline)
        with _locate(where, "targets"):
            for target in targets:
                check_kind(target, takes_texts=config.spec.image_size is None)
        with _locate(where, "tasks"):
            _check_tasks(arm, claim, config.spec, offline)
        with _locate(where, "sizes" if claim.sizes else "layers"):
            for size in list_sizes(claim, name):
                _check_size(arm, size, config, targets[0], offline)


@contextmanager
def _locate(where: str, field: str) -> Iterator[None]:
    """Add file, arm and field to an error about a claim."""
    try:
        yield
    except WrongCall as error:
        raise WrongCall(f"{where}, {field}: {error}; correct the file") from error


def _find_task(name: str, offline: bool) -> Task | Entry:
    """Return the task's entry in the catalogue, or the opened task of the user's own data."""
    return catalogue.find_entry(name) or catalogue.open_task(name, offline=offline)


def _outline_arm(claim: Claim, name: str, where: str, offline: bool) -> tuple[Arm, LearngeneConfig]:
    """Return an arm with the draws of the first seed, and the config of its extraction."""
    method = METHODS.load(claim.arms[name].method)
    with _locate(where, "preset"):
        method.preset(claim.arms[name].preset)
    rate = claim.tuning.lr[0] if claim.tuning and name in make_space(claim).arms else None
    with _locate(where, "settings"):
        arm = build_arm(claim, name, 0, rate)
        arm.extractor  # noqa: B018
    with _locate(where, "expand"):
        arm.expander  # noqa: B018
    with _locate(where, "ancestries"):
        specs = [
            read_ancestry_spec(source, offline=offline).with_(image_size=arm.image_size)
            for source in method.sources(arm.ancestries)
        ]
        for spec in specs:
            check_family(method, spec)
    with _locate(where, "settings"):
        return arm, replace(arm.adapt_extractor(specs).outline(specs), method=method.name)


def _check_tasks(arm: Arm, claim: Claim, spec: Spec, offline: bool) -> None:
    """Check the tasks of the extractions, one for each target if the target is left out.

    They are the method's default tasks if the arm names none.
    """
    if not arm.extractor.needs_tasks():
        return
    method, checked = METHODS.load(arm.method), set[str]()
    for target in claim.targets:
        tasks = arm.tasks_for(target)
        if arm.tasks and not tasks:
            raise WrongCall(f"leave_out leaves no task of {', '.join(arm.tasks)}")
        names = method.references(tasks, method.sources(arm.ancestries), "tasks")
        unseen = [target] if arm.leave_out else claim.targets
        seen = [] if claim.seen else [name for name in names if name in unseen]
        if seen:
            raise WrongCall(
                f"the extraction trains on {', '.join(names)}, so it sees the target {seen[0]!r}; "
                "give other tasks, or set seen = true"
            )
        for name in set(names) - checked:
            check_kind(_find_task(name, offline), takes_texts=spec.image_size is None)
        checked.update(names)


def _check_size(
    arm: Arm, size: Size, config: LearngeneConfig, task: Task | Entry, offline: bool
) -> None:
    """Check that the expander can build a size: of its family, or else by its own check."""
    axes = size.size or {"layers": size.layers, **({"width": size.width} if size.width else {})}
    if select_members(list_members(arm, offline), axes):
        return
    cell = Cell(arm=arm, task=task.name, seed=0, recipe=Recipe(), **size._asdict())
    target, expander = find_size(cell, config, task.classes)
    check_axes(expander, config.spec, target)
    with suppress(BadFile):  # some checks need what only a finished extraction records
        expander.check_target(config, target)
