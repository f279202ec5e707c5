"""The verbs of learngenes: plan, extract, expand, plot."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.own_data import LocalOrigin, find_origin, remember, serving
from learngene_zoo.artifacts.records import Control, LearngeneConfig, Purpose, versions
from learngene_zoo.artifacts.shelf import Learngene
from learngene_zoo.artifacts.sources import check_source
from learngene_zoo.atomic import check_file, claim, digest_of, new_file, resolved
from learngene_zoo.errors import BadPlugin, Refused, WrongCall
from learngene_zoo.families.family import Convention
from learngene_zoo.method import (
    METHODS,
    Budget,
    Expander,
    Extractor,
    Member,
    Target,
    check_axes,
    check_built,
    check_family,
    family,
    method_of,
    named_sizes,
)
from learngene_zoo.runs.folder import check_start, produce
from learngene_zoo.runs.run import Run, is_first
from learngene_zoo.settings import to_json, with_settings
from learngene_zoo.tasks.catalogue import find_entry, is_own_data, locate_task, open_task, tasks_named
from learngene_zoo.tasks.stamps import stamp_tasks
from learngene_zoo.tasks.task import Entry

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.tasks.task import Task

T = TypeVar("T")


def plan(
    name: str | Path,
    *,
    extractor: Extractor | None = None,
    expander: Expander | None = None,
    ancestries: str | Sequence[str] = (),
    target: Target | None = None,
    budget: Budget | None = None,
    pool: str | None = None,
    convention: Convention = "exact",
    offline: bool = False,
) -> list[Member]:
    """Every descendant that a method would build from these ancestries, or that an existing learngene builds.

    Sorted by cost, smallest first. `target` narrows the list (layers, width, heads) or sets classes and image size.
    `pool` is as for `extract`. Those within `budget` only, which counts the built model by any `convention`; a plan builds nothing, so latency is not
    measured. Raises `WrongCall` if `target` names a size that the method's descendants all have in common, or if none fits.
    """
    from learngene_zoo.artifacts.ancestry import ancestry_spec

    if str(name) in METHODS.references():
        method = METHODS.load(str(name))
        extractor = extractor or method.extractor
        size = target.image_size if target else None
        specs = [
            ancestry_spec(source, offline=offline).with_(image_size=size).with_pool(pool)
            for source in method.sources(_listed(ancestries))
        ]
        for spec in specs:
            check_family(method, spec)
        config = replace(extractor.outline(specs), method=method.name)
    else:
        folder = shelf.find(name, offline=offline)
        config = shelf.read_config(folder)
        method = method_of(config, folder)
    members = family(config, expander or method.expander, target or Target())
    if budget:
        from learngene_zoo.latency import affordable

        if budget.max_latency is not None:
            raise WrongCall("a plan builds nothing, so it knows no latency; leave out max_latency, or use it in expand")
        members = affordable(members, budget)
    return sorted(members, key=lambda member: member.cost(convention))


def extract(
    name: str,
    *,
    ancestries: str | Sequence[str] = (),
    tasks: str | Sequence[str] = (),
    extractor: Extractor | None = None,
    preset: str | None = None,
    image_size: int | None = None,
    pool: str | None = None,
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
) -> Learngene:
    """Condense ancestry models into a learngene by the method `name`.

    `extractor` holds the settings; without it those of the preset are used (default: "mini"). The result records
    everything that is needed to repeat it. `image_size` (default: the ancestry models' own) is that of the ancestry models
    while they are condensed, and of descendants. `pool` (default: their own) is what their heads read: "avg" drops SigLIP's
    pooling by attention. Its descendants are for the first of `tasks`, which may be left out only with the
    bundled ancestry model.
    """
    run = run or Run()
    method = METHODS.load(name)
    extractor = extractor or method.preset(preset)
    named, sources = _listed(tasks), method.sources(_listed(ancestries))
    if out is not None:
        _check_apart(out, *map(Path, sources))
    check_start(out, run, force)
    looks = method.tasks != "none"  # else a task only says what descendants are for
    references = method.references(named, sources) if looks and (named or extractor.needs_tasks()) else []
    for source in sources:
        check_source(source)
    from learngene_zoo.artifacts.ancestry import open_ancestry, origins_of_models
    from learngene_zoo.training.trackers import say_notes

    served = partial(check_family, method)
    opened = [
        open_ancestry(source, image_size=image_size, pool=pool, offline=run.offline, accept=served)
        for source in sources
    ]
    extractor.outline([ancestry.spec for ancestry in opened])  # refuses impossible settings before anything is written
    needs = references if references and extractor.needs_tasks() else tasks_named(named)[:1]
    opened_tasks = [open_task(reference, offline=run.offline) for reference in needs]
    data = opened_tasks if references and extractor.needs_tasks() else []
    purpose = opened_tasks[0].purpose if named else None
    _check_distinct(data)
    settings = {
        "method": name,
        "settings": to_json(extractor),
        "ancestries": [[ancestry.record.source, ancestry.record.sha256] for ancestry in opened],
        "tasks": [to_json(task.record) for task in data],
        **({"image_size": image_size} if image_size else {}),
        **({"pool": pool} if pool else {}),
        **({"purpose": to_json(purpose)} if purpose else {}),
    }

    def make(run: Run) -> Learngene:
        say_notes(opened_tasks, run)
        made = returned(extractor, Learngene, extractor(opened, data, run))
        return made.with_config(
            method=method.name,
            settings=to_json(extractor),
            ancestries=tuple(ancestry.record for ancestry in opened),
            tasks=tuple(task.record for task in data),
            purpose=purpose,
            seed=run.seed,
            device=run.device_name,
            versions={**versions(), **METHODS.package_of(name)},
        )

    origins = {**_origins(opened_tasks, needs), **origins_of_models([ancestry.record for ancestry in opened])}
    stamps = partial(stamp_tasks, data)
    made = produce(
        make, shelf.load_learngene, out=out, verb="extract", settings=settings, run=run, force=force, data=stamps
    )
    return remember(made, origins, shelf.load_learngene, out)


def expand(
    learngene: str | Path | Learngene,
    *,
    target: Target | None = None,
    budget: Budget | None = None,
    expander: Expander | None = None,
    control: Control | None = None,
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
    **sizes: Any,
) -> Descendant:
    """Build one descendant of a learngene: by size, or the largest that fits a budget.

    Sizes, budgets and the expander's settings can also be given by name (`layers=7`, `max_params=20_000_000`, and
    timm's words `depth`, `embed_dim`, `num_heads`, `num_classes`, `img_size`), as numbers or as on the command line ("20M"). `control` replaces what is inherited,
    see `artifacts.descendant.controlled`. The task, and so the head, is the learngene's own unless another is named. Raises `WrongCall` for a size that this learngene cannot be expanded to, and
    `BadPlugin` if the expander builds another one than it was given.
    """
    run = run or Run()
    if out is not None:
        claim(Path(out), force or run.resume)
    from learngene_zoo.artifacts.descendant import Descendant, controlled, load_descendant

    gene = shelf.open_learngene(learngene, offline=run.offline)
    expander = expander or method_of(gene.config, gene.folder or "it").expander
    target, budget, expander = named_sizes(target or Target(), budget or Budget(), expander, sizes)
    if out is not None:
        _check_apart(out, gene.folder)
    named = target.task
    target, class_names = _for_task(target, expander, gene.config, run)
    if budget:
        from learngene_zoo.latency import choose, latency

        member = choose(family(gene.config, expander, target), budget, lambda member: latency(member.spec, run))
        expander = with_settings(expander, member.settings)
        target = replace(member.target, task=target.task)
    check_axes(expander, gene.config.spec, target)
    typed = [named, *to_json(expander).values()]
    unnamed = [task for task in (target.task,) if task is not None and is_own_data(task) and task not in typed]
    with serving(gene, "expand", unnamed):
        made = returned(expander, Descendant, expander(gene, target, run))
        origins = _origins_for(target.task, named if out is not None else None, run)
    check_built(expander, gene.config.spec, target, made.spec)
    control = control or gene.config.control
    if control is not None:
        made = controlled(made, control, run.seed)
    provenance = {**_provenance(gene, expander, control, run), **made.provenance}
    names = class_names or made.class_names
    made = replace(made, task=target.task, class_names=names, view=gene.config.view, provenance=provenance)
    return remember(_written(made, out, run, force), origins, load_descendant, out)


def plot(
    learngene: str | Path | Learngene, path: str | Path, *, expander: Expander | None = None, force: bool = False
) -> Path:
    """Draw a learngene as its method does, as PNG or SVG by the suffix of `path`.

    Where the picture highlights one descendant, it is the one that the expander's settings name.
    """
    path = Path(path)
    check_file(path, force)
    from learngene_zoo import plotting

    plotting.check_suffix(path)
    gene = shelf.open_learngene(learngene)
    method = method_of(gene.config, gene.folder or "it")
    if method.plot is None:
        drawn = ", ".join(other.name for other in METHODS.load_all()[0] if other.plot is not None)
        raise WrongCall(f"the method {method.name} draws no picture of its learngenes; these do: {drawn}")
    draw: Any = resolve_name(method.plot)
    with new_file(path, force) as draft, plotting.style():
        plotting.save(draw(gene, expander or method.expander), draft)
    return path


def returned(function: Extractor | Expander, kind: type[T], made: object) -> T:
    """What a plugin's `function` made. Raises `BadPlugin` if it is not a `kind`."""
    if not isinstance(made, kind):
        name = f"{type(function).__module__}.{type(function).__qualname__}"
        raise BadPlugin(f"{name} returned {type(made).__name__}; expected {kind.__name__}")
    return made


def _check_apart(out: str | Path, *sources: Path | None) -> None:
    """Raises `Refused` if `out` is what is read: with `force`, what took longer to make would be gone."""
    for source in sources:
        if source is not None and resolved(Path(out)) == resolved(source):
            raise Refused(f"{out} is also what this command reads; choose another place with -o")


def _check_distinct(tasks: Sequence[Task]) -> None:
    """Raises `WrongCall` if two tasks have one name: their parts of the run would be mixed up."""
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongCall(f"the task {twice[0]} is named twice; name each once")


def _for_task(target: Target, expander: Expander, config: LearngeneConfig, run: Run) -> tuple[Target, tuple[str, ...]]:
    """The target with the classes of its task, one of them per pixel or per image as the task has it; and their names.

    If no task is named it is that of the learngene, whose classes are recorded, unless `target` names others. The names are
    known if the task is the learngene's or the user's own data.
    """
    purpose = config.purpose
    if purpose is not None and "classes" in expander.axes and _agree(target, purpose):
        chosen = replace(target, task=purpose.task, classes=purpose.classes, dense=purpose.dense)
        return chosen, purpose.class_names
    if target.task is None or not (target.classes is None or target.dense is None):
        return target, ()
    found = find_entry(target.task) or open_task(target.task, offline=run.offline)
    dense = found.kind == "segmentation" if target.dense is None else target.dense
    chosen = replace(target, classes=found.classes if target.classes is None else target.classes, dense=dense)
    names = () if isinstance(found, Entry) or found.classes != chosen.classes else found.class_names
    return chosen, names


def _origins(tasks: Sequence[Task], references: Sequence[str]) -> dict[str, LocalOrigin]:
    """Return where the data lie that the user named, by their references."""
    own = [(task, reference) for task, reference in zip(tasks, references, strict=True) if is_own_data(reference)]
    return {reference: locate_task(task, reference) for task, reference in own}


def _origins_for(task: str | None, named: str | None, run: Run) -> dict[str, LocalOrigin]:
    """Return where the data lie that a descendant names as its task: the user's word, or what the learngene is known for."""
    if task is None or not is_own_data(task):
        return {}
    if task == named:
        return _origins([open_task(task, offline=run.offline)], [task])
    origin = find_origin(task)
    return {task: origin} if origin else {}


def _agree(target: Target, purpose: Purpose) -> bool:
    """Whether a target leaves its task to the learngene, and names no other classes than that task has."""
    same = target.classes in (None, purpose.classes) and target.dense in (None, purpose.dense)
    return target.task is None and same


def _listed(references: str | Sequence[str]) -> Sequence[str]:
    """A single reference as a list of one."""
    return [references] if isinstance(references, str) else references


def _provenance(gene: Learngene, expander: Expander, control: Control | None, run: Run) -> dict[str, Any]:
    return {
        "method": gene.config.method,
        "learngene": shelf.reference(gene.folder) if gene.folder else "in memory",
        "settings": to_json(expander),
        **({"control": control} if control else {}),
        "ancestries": to_json(gene.config.ancestries),
        "seed": run.seed,
        "versions": versions(),
    }


def _written(made: Descendant, out: str | Path | None, run: Run, force: bool) -> Descendant:
    """What was made; with `out`, written there by the first process. With `run.resume`, an equal one there is left as it is."""
    if out is not None and is_first():
        place = Path(out)
        if not (run.resume and place.is_dir() and _is_at(made, place)):
            made.save(place, force)
    return made


def _is_at(made: Descendant, place: Path) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        return digest_of(made.save(Path(scratch) / "made")) == digest_of(place)
