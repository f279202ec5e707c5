"""Functions for learngenes: plan, extract, expand, plot."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.arguments import refuse_unknown_arguments
from learngene_zoo.artifacts.learngene import Learngene, load_learngene, read_config
from learngene_zoo.artifacts.own_data import LocalOrigin, find_origin, open_for_artifact, remember
from learngene_zoo.artifacts.records import (
    CONTROLS,
    LEARNGENES,
    SOURCES,
    TASKS,
    Control,
    LearngeneConfig,
    TargetTask,
    find_package_of_method,
    is_own_data,
    list_versions,
    parse_reference,
    parse_references,
)
from learngene_zoo.atomic import check_file, claim, digest_of, new_file, resolve_path
from learngene_zoo.errors import BadData, BadPlugin, Refused, WrongCall, refuse_unknown
from learngene_zoo.families.family import Convention
from learngene_zoo.families.spec import TextSpec
from learngene_zoo.lifecycle.training_warnings import warn
from learngene_zoo.method.contract import (
    METHODS,
    Expander,
    Extractor,
    Method,
    check_axes,
    check_built,
    check_descendant,
    check_family,
    check_learngene,
    describe_random_tensors,
    find_method,
    list_members,
    report_failure,
)
from learngene_zoo.method.rates import describe_changes
from learngene_zoo.method.sizes import (
    Budget,
    Member,
    Target,
    parse_sizes,
)
from learngene_zoo.pretrained.sources import check_source
from learngene_zoo.runs.folder import check_start, produce
from learngene_zoo.runs.progress import say
from learngene_zoo.runs.run import Run, check_has_device, is_first
from learngene_zoo.settings import list_settings, merge_synonyms, to_json, with_settings
from learngene_zoo.tasks.catalogue import (
    expand_suites,
    find_entry,
    locate_task,
    open_task,
    say_notes,
)
from learngene_zoo.tasks.task import Entry, check_inputs, check_kind, stamp_tasks
from learngene_zoo.text import quote_word

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.tasks.task import Task

T = TypeVar("T")
# Words of the command line for arguments of `extract`.
EXTRACT_SYNONYMS = {"ancestry": "ancestries", "task": "tasks", "img_size": "image_size"}


@refuse_unknown_arguments
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
    """List every descendant that a method would build from these ancestries.

    For an existing learngene, list those that it builds. They are sorted by cost, smallest first.

    Args:
        name: a method or a learngene.
        extractor: settings of the extraction; default: the method's.
        expander: settings of the expansion; default: the method's.
        ancestries: sources of ancestry models.
        target: narrows the list (layers, width, heads) or sets classes and image size.
        budget: bounds of the built model. Latency is not measured.
        pool: as for `extract`.
        convention: how the FLOPs for `budget` and the order are counted.
        offline: read only files that are cached.

    Raises:
        WrongCall: if `target` names a size that all descendants have in common, or if none fits.
    """
    from learngene_zoo.pretrained.ancestry import read_ancestry_spec

    if str(name) in METHODS.references():
        method = METHODS.load(str(name))
        extractor = extractor or method.extractor
        size = target.image_size if target else None
        specs = [
            read_ancestry_spec(source, offline=offline).with_(image_size=size).with_pool(pool)
            for source in method.sources(parse_references("ancestries", ancestries, SOURCES))
        ]
        for spec in specs:
            check_family(method, spec)
        with report_failure(method.name):
            config = replace(extractor.outline(specs), method=method.name)
    else:
        folder = shelf.find(name, offline=offline)
        config = read_config(folder)
        method = find_method(config, folder)
    members = list_members(config, expander or method.expander, target or Target())
    if budget:
        from learngene_zoo.lifecycle.latency import require_fitting

        if budget.max_latency is not None:
            raise WrongCall(
                "plan does not measure latency; leave out max_latency, or use it with expand"
            )
        members = require_fitting(members, budget)
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
    **settings: Any,
) -> Learngene:
    """Condense ancestry models into a learngene by the method `name`.

    The result records everything that is needed to repeat the extraction.

    Args:
        name: the method.
        ancestries: sources of ancestry models; default: the bundled one.
        tasks: tasks to extract from; images without labels if the method uses none. Descendants
            are for the first task, if it has labels. They may be left out only with the bundled
            ancestry model.
        extractor: the settings. None: those of the preset for these ancestry models
            (`Method.adapt_preset`).
        preset: a preset of the method; default: "mini".
        image_size: of the ancestry models while they are condensed, and of descendants. None: the
            ancestry models' default.
        pool: the input of their heads; "avg" drops SigLIP's pooling by attention. None: their
            default.
        out: folder to write the learngene to.
        run: how to compute.
        force: replace existing content of `out`.
        settings: settings of the extractor by name (`top=3`), and the words of the command line:
            `ancestry`, `task` and `img_size`.

    Raises:
        WrongCall: for an unknown setting, and for settings and models that do not fit each other.
        BadPlugin: for tensors that cannot be stored.
        MethodFailed: for any other error in the code of the method.
    """
    run = run or Run()
    method = METHODS.load(name)
    given, extractor = extractor, extractor or method.preset(preset)
    arguments = {
        "ancestries": ancestries or None,
        "tasks": tasks or None,
        "image_size": image_size,
        **{word: settings.pop(word) for word in EXTRACT_SYNONYMS if word in settings},
    }
    arguments, typed = merge_synonyms(arguments, EXTRACT_SYNONYMS), settings
    ancestries, tasks = arguments.get("ancestries", ()), arguments.get("tasks", ())
    image_size = arguments.get("image_size")
    _check_setting_names(typed, extractor)
    extractor = with_settings(extractor, typed)
    named = parse_references("tasks", tasks, TASKS)
    sources = method.sources(parse_references("ancestries", ancestries, SOURCES))
    if out is not None:
        _check_apart(out, *map(Path, sources))
    check_start(out, run, force)
    check_has_device(run)
    for source in sources:
        check_source(source)
    needs, is_read = _list_references(method, extractor, named, sources)
    _check_outline(method, extractor, sources, image_size, pool)
    from learngene_zoo.pretrained.ancestry import find_origins_of_models, open_ancestry

    served = partial(check_family, method)
    opened = [
        open_ancestry(source, image_size=image_size, pool=pool, offline=run.offline, accept=served)
        for source in sources
    ]
    specs = [ancestry.spec for ancestry in opened]
    # Refuses impossible settings before anything is written.
    adapted = ""
    with report_failure(name):
        if given is None:
            before = extractor
            extractor = with_settings(method.adapt_preset(preset, specs), typed)
            if extractor != before:
                adapted = describe_changes(before, extractor)
        extractor.outline(specs)
    require_labels = method.uses_labels or method.tasks == "none"
    opened_tasks = [
        open_task(reference, offline=run.offline, require_labels=require_labels)
        for reference in needs
    ]
    for task in opened_tasks:
        check_inputs(task, opened[0].input_format if opened else None)
    data = opened_tasks if is_read else []
    purpose = opened_tasks[0].purpose if named and opened_tasks[0].is_labelled else None
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
        if adapted:
            say(run, adapted)
        with report_failure(name), suggest_check(dict(zip(needs, opened_tasks))):
            learngene = check_returned(extractor, Learngene, extractor(opened, data, run))
            check_learngene(name, learngene)
        learngene = replace(learngene, files=opened[0].files if opened else {})
        package = METHODS.package_of(name)
        return learngene.with_config(
            method=method.name,
            method_title=method.title if package else "",
            settings=to_json(extractor),
            ancestries=tuple(ancestry.record for ancestry in opened),
            tasks=tuple(task.record for task in data),
            purpose=purpose,
            seed=run.seed,
            device=run.device_name,
            versions={**list_versions(), **package},
        )

    origins = {
        **locate_own_data(dict(zip(needs, opened_tasks, strict=True))),
        **find_origins_of_models([ancestry.record for ancestry in opened]),
    }
    stamps = partial(stamp_tasks, data)
    learngene = produce(
        make,
        load_learngene,
        out=out,
        verb="extract",
        settings=settings,
        run=run,
        force=force,
        data=stamps,
    )
    for text in learngene.list_warnings():
        warn(text)
    return remember(learngene, origins, load_learngene, out) if origins else learngene


@contextmanager
def suggest_check(tasks: Mapping[str, Task]) -> Iterator[None]:
    """Add to `BadData`, which names the first image that cannot be read, the command that lists all
    such images of the user's own data.

    That command needs labels.

    Args:
        tasks: the tasks whose images are read, by reference.
    """
    try:
        yield
    except BadData as error:
        readable = [
            reference
            for reference, task in tasks.items()
            if is_own_data(reference) and task.is_labelled and not task.is_text
            if task.open_stream is None
        ]
        if not readable or "--check-images" in str(error):
            raise
        command = f"lgzoo doctor --task {quote_word(readable[0])} --check-images"
        raise BadData(f"{error} ({command} lists all)") from error


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

    Args:
        learngene: a learngene or a reference to one.
        target: sizes and task. The task, and so the head, is the learngene's unless another is
            named.
        budget: bounds, if the size is to be chosen.
        expander: the settings; default: the method's.
        control: replaces inherited tensors: "shuffled" permutes the entries of each; "stem" keeps
            only patch embedding, tokens, positions and final norm, "stem_fan_in" too, with blocks
            of standard deviation 1/sqrt(fan in).
        out: folder to write the descendant to.
        run: how to compute.
        force: replace existing content of `out`.
        sizes: sizes, budgets and the expander's settings by name (`layers=7`,
            `max_params=20_000_000`, and timm's words `depth`, `embed_dim`, `num_heads`,
            `num_classes`, `img_size`), as numbers or as on the command line ("20M").

    Raises:
        WrongCall: for a size that this learngene cannot be expanded to.
        BadPlugin: if the expander builds another size than the target's, or tensors that are not
            those of a model of this size.
        MethodFailed: for any other error in the code of the method.
    """
    run = run or Run()
    if control is not None and control not in CONTROLS:
        raise refuse_unknown("control", control, CONTROLS)
    if out is not None:
        claim(Path(out), force or run.resume)
    source, config = _read_config(learngene, run.offline)
    folder = source if isinstance(source, Path) else source.folder
    default = expander or find_method(config, folder or "it").expander
    target, budget, configured = parse_sizes(target or Target(), budget or Budget(), default, sizes)
    # Refuses impossible sizes before torch is imported, which opening the tensors does.
    config.spec.with_(image_size=target.image_size)  # raises if patches do not tile it
    check_axes(configured, config.spec, target)
    with report_failure(config.method):
        configured.check_target(config, target)
    if out is not None:
        _check_apart(out, folder)
    named = target.task
    target, class_names = _adapt_to_task(target, configured, config, run)
    if budget:
        from learngene_zoo.lifecycle.latency import choose, measure_latency

        member = choose(
            list_members(config, configured, target),
            budget,
            lambda member: measure_latency(member.spec, run),
        )
        configured = with_settings(configured, member.settings)
        target = replace(member.target, task=target.task)
    check_axes(configured, config.spec, target)
    from learngene_zoo.artifacts.descendant import Descendant, apply_control, load_descendant

    gene = shelf.open_learngene(source, offline=run.offline)
    task, typed = target.task, [named, *to_json(configured).values()]
    is_unnamed = task is not None and is_own_data(task) and task not in typed
    with open_for_artifact(gene, [str(task)] if is_unnamed else ()):
        with report_failure(config.method):
            descendant = check_returned(configured, Descendant, configured(gene, target, run))
            check_built(configured, config.spec, target, descendant.spec)
            check_descendant(config.method, descendant)
        if note := describe_random_tensors(config.method, descendant):
            say(run, f"note: {note}")
        origins = {
            **_find_origins(task, named if out is not None else None, run),
            **_find_origins_of_ancestries(gene.config, run),
        }
    control = control or gene.config.control
    if control is not None:
        descendant = apply_control(descendant, control, run.seed)
    provenance = {**_record_provenance(gene, configured, control, run), **descendant.provenance}
    names = class_names or descendant.class_names
    descendant = replace(
        descendant,
        task=task,
        class_names=names,
        view=gene.config.view,
        provenance=provenance,
        files={**gene.files, **descendant.files},
    )
    return remember(_write_descendant(descendant, out, run, force), origins, load_descendant, out)


@refuse_unknown_arguments
def plot(
    learngene: str | Path | Learngene,
    path: str | Path,
    *,
    expander: Expander | None = None,
    force: bool = False,
) -> Path:
    """Draw a learngene, as PNG or SVG by the suffix of `path`.

    If the picture highlights one descendant, the expander's settings select it.
    """
    path = Path(path)
    check_file(path, force)
    from learngene_zoo import plotting

    plotting.check_suffix(path)
    source, config = _read_config(learngene)
    method = find_method(config, source if isinstance(source, Path) else source.folder or "it")
    if method.plot is None:
        names = ", ".join(other.name for other in METHODS.load_all()[0] if other.plot is not None)
        raise WrongCall(
            f"the method {method.name} cannot draw its learngenes; methods that can: {names}"
        )
    gene = shelf.open_learngene(source)
    draw: Any = resolve_name(method.plot)
    with new_file(path, force) as draft, plotting.style():
        plotting.save(draw(gene, expander or method.expander), draft)
    return path


def _list_references(
    method: Method, extractor: Extractor, named: Sequence[str], sources: Sequence[str]
) -> tuple[list[str], bool]:
    """Return the tasks that an extraction opens, and whether it reads their samples.

    Else the first of the named ones is only the purpose of the descendants.
    """
    if extractor.needs_tasks() and method.tasks != "none":
        return method.references(named, sources), True
    if named and method.tasks != "none":
        method.references(named, sources)  # raises for a wrong number of tasks
    return expand_suites(named)[:1], False


def _check_setting_names(names: Iterable[str], extractor: Extractor) -> None:
    """Raise `WrongCall` for a name that is neither a setting nor an argument of `extract`."""
    settings = {setting.name for setting in list_settings(extractor)}
    arguments = {"ancestry", "task", "preset", "image_size", "pool", "out", "run", "force"}
    for name in names:
        if name not in settings:
            raise refuse_unknown("setting", name, settings | arguments)


def _read_config(
    learngene: str | Path | Learngene, offline: bool = False
) -> tuple[Path | Learngene, LearngeneConfig]:
    """Return a learngene or its folder, and its config, without opening its tensors."""
    if isinstance(learngene, Learngene):
        return learngene, learngene.config
    parse_reference("learngene", learngene, LEARNGENES)
    folder = shelf.find(learngene, offline=offline)
    return folder, read_config(folder)


def check_returned(function: Extractor | Expander, kind: type[T], result: object) -> T:
    """Return the result of a plugin's `function`. Raises `BadPlugin` if it is not a `kind`."""
    if not isinstance(result, kind):
        name = f"{type(function).__module__}.{type(function).__qualname__}"
        raise BadPlugin(f"{name} returned {type(result).__name__}; expected {kind.__name__}")
    return result


def _check_outline(
    method: Method,
    extractor: Extractor,
    sources: Sequence[str],
    image_size: int | None,
    pool: str | None,
) -> None:
    """Raise `WrongCall` for settings that these ancestry models rule out, before torch is imported.

    Only those of timm and the bundled ones, whose shapes are known without a file.
    """
    from learngene_zoo.pretrained.ancestry import read_ancestry_spec

    if all(shelf.is_ours(source) or source.startswith("timm:") for source in sources):
        specs = [
            read_ancestry_spec(source).with_(image_size=image_size).with_pool(pool)
            for source in sources
        ]
        for spec in specs:
            check_family(method, spec)
        with report_failure(method.name):
            extractor.outline(specs)


def _check_apart(out: str | Path, *sources: Path | None) -> None:
    """Raise `Refused` if `out` is one of the inputs, which `force` would overwrite."""
    for source in sources:
        if source is not None and resolve_path(Path(out)) == resolve_path(source):
            raise Refused(
                f"{out} is also an input of this command; choose another output with out=PATH"
            )


def _check_distinct(tasks: Sequence[Task]) -> None:
    """Raise `WrongCall` if two tasks have one name, which would mix up their parts of a run."""
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongCall(f"the task {twice[0]} is given twice; give each task once")


def _adapt_to_task(
    target: Target, expander: Expander, config: LearngeneConfig, run: Run
) -> tuple[Target, tuple[str, ...]]:
    """Return the target with the classes of its task, per pixel or per image; and their names.

    If no task is named it is that of the learngene, whose classes are recorded, unless `target`
    names others. The names are known if the task is the learngene's or the user's own data.
    """
    purpose = config.purpose
    if purpose is not None and "classes" in expander.axes and _agree(target, purpose):
        chosen = replace(target, task=purpose.task, classes=purpose.classes, dense=purpose.dense)
        return chosen, purpose.class_names
    if target.task is None or not (target.classes is None or target.dense is None):
        return target, ()
    entry = find_entry(target.task) or open_task(target.task, offline=run.offline)
    check_kind(entry, isinstance(config.spec, TextSpec))
    dense = entry.kind == "segmentation" if target.dense is None else target.dense
    chosen = replace(
        target, classes=entry.classes if target.classes is None else target.classes, dense=dense
    )
    names = () if isinstance(entry, Entry) or entry.classes != chosen.classes else entry.class_names
    return chosen, names


def locate_own_data(opened: Mapping[str, Task]) -> dict[str, LocalOrigin]:
    """Return the locations of the user's own data among tasks, by their references."""
    return {
        reference: locate_task(task, reference)
        for reference, task in opened.items()
        if is_own_data(reference)
    }


def _find_origins(task: str | None, named: str | None, run: Run) -> dict[str, LocalOrigin]:
    """Return the location of the data that a descendant names as its task.

    It comes from the user's reference, or from the origins stored for the learngene.
    """
    if task is None or not is_own_data(task):
        return {}
    if task == named:
        return locate_own_data({task: open_task(task, offline=run.offline)})
    origin = find_origin(task)
    return {task: origin} if origin else {}


def _find_origins_of_ancestries(config: LearngeneConfig, run: Run) -> dict[str, LocalOrigin]:
    """Return the locations of the ancestry models that are known: named now, or stored."""
    stored = {record.source: find_origin(record.source) for record in config.ancestries}
    origins = {source: origin for source, origin in stored.items() if origin is not None}
    if run.ancestry is not None and len(config.ancestries) == 1:
        from learngene_zoo.pretrained.ancestry import find_origins_of_models

        (record,) = config.ancestries
        for origin in find_origins_of_models([replace(record, source=run.ancestry)]).values():
            origins[record.source] = origin
    return origins


def _agree(target: Target, purpose: TargetTask) -> bool:
    """Return whether a target leaves its task to the learngene and has no other classes than it."""
    same = target.classes in (None, purpose.classes) and target.dense in (None, purpose.dense)
    return target.task is None and same


def _record_provenance(
    gene: Learngene, expander: Expander, control: Control | None, run: Run
) -> dict[str, Any]:
    package = find_package_of_method(gene.config.versions)
    return {
        "method": gene.config.method,
        **({"method_package": package} if package else {}),
        **({"method_title": gene.config.method_title} if gene.config.method_title else {}),
        "learngene": shelf.make_reference(gene.folder) if gene.folder else "in memory",
        "settings": to_json(expander),
        **({"control": control} if control else {}),
        "ancestries": to_json(gene.config.ancestries),
        "seed": run.seed,
        "versions": list_versions(),
    }


def _write_descendant(
    descendant: Descendant, out: str | Path | None, run: Run, force: bool
) -> Descendant:
    """Write a descendant to `out`, if it is given, in the first process; return the descendant.

    With `run.resume`, an equal one that exists is left as it is.
    """
    if out is not None and is_first():
        folder = Path(out)
        if not (run.resume and folder.is_dir() and _is_at(descendant, folder)):
            descendant.save(folder, force)
    return descendant


def _is_at(descendant: Descendant, folder: Path) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        return digest_of(descendant.save(Path(scratch) / "made")) == digest_of(folder)
