"""`extract`: condense ancestry models into a learngene."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.own_data import remember
from learngene_zoo.artifacts.records import (
    SOURCES,
    TASKS,
    is_own_data,
    list_versions,
    parse_references,
)
from learngene_zoo.atomic import check_apart
from learngene_zoo.errors import BadData, WrongCall, refuse_unknown
from learngene_zoo.lifecycle.training_warnings import warn
from learngene_zoo.method.checks import check_learngene, check_returned
from learngene_zoo.method.contract import Extractor, Method
from learngene_zoo.method.installed import METHODS, check_family, report_failure
from learngene_zoo.method.rates import describe_changes
from learngene_zoo.pretrained.sources import check_source
from learngene_zoo.runs.folder import check_start, produce
from learngene_zoo.runs.progress import say
from learngene_zoo.runs.run import Run, check_has_device
from learngene_zoo.settings import list_settings, merge_synonyms, to_json, with_settings
from learngene_zoo.tasks.catalogue import expand_suites, locate_own_data, open_task, say_notes
from learngene_zoo.tasks.task import check_inputs, stamp_tasks
from learngene_zoo.text import quote_word

if TYPE_CHECKING:
    from learngene_zoo.tasks.task import Task


# Words of the command line for arguments of `extract`.
EXTRACT_SYNONYMS = {"ancestry": "ancestries", "task": "tasks", "img_size": "image_size"}


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
        check_apart(out, *map(Path, sources))
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
        **({"code": code} if (code := METHODS.describe_code(name)) else {}),
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


def _check_distinct(tasks: Sequence[Task]) -> None:
    """Raise `WrongCall` if two tasks have one name, which would mix up their parts of a run."""
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongCall(f"the task {twice[0]} is given twice; give each task once")
