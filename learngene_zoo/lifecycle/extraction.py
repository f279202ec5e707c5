"""`extract`: condense ancestry models into a learngene."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.own_data import LocalOrigin, remember
from learngene_zoo.artifacts.records import (
    SOURCES,
    TASKS,
    TargetTask,
    is_own_data,
    list_versions,
    parse_references,
)
from learngene_zoo.atomic import check_apart
from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.spec import parse_image_size
from learngene_zoo.lifecycle.training_warnings import warn
from learngene_zoo.method.checks import check_layer_decay, check_learngene, check_returned
from learngene_zoo.method.contract import Extractor, Method
from learngene_zoo.method.installed import METHODS, check_family, report_failure
from learngene_zoo.method.rates import describe_changes
from learngene_zoo.pretrained.sources import check_source
from learngene_zoo.runs.folder import check_start, produce
from learngene_zoo.runs.progress import say
from learngene_zoo.runs.run import Run, check_has_device, parse_run
from learngene_zoo.settings import (
    Json,
    check_setting_names,
    check_type,
    merge_synonyms,
    to_json,
    with_settings,
)
from learngene_zoo.tasks.catalogue import expand_suites, locate_own_data, open_task, say_notes
from learngene_zoo.tasks.task import check_inputs, stamp_tasks
from learngene_zoo.text import quote_word

if TYPE_CHECKING:
    from learngene_zoo.families.spec import Spec
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.tasks.task import Task


# Of `extract`, for the error about an unknown one.
ARGUMENTS = ("ancestry", "task", "preset", "image_size", "pool", "out", "run", "force")
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
    run, method = parse_run(run), METHODS.load(name)
    check_type("extractor", extractor, Extractor, optional=True)
    named, given, image_size = _merge_arguments(ancestries, tasks, image_size, settings)
    chosen = extractor or method.preset(preset)
    check_setting_names(settings, [chosen], ARGUMENTS)
    chosen = with_settings(chosen, settings)
    sources = method.sources(given)
    if out is not None:
        check_apart(out, *map(Path, sources))
    check_start(out, run, force)
    check_has_device(run)
    for source in sources:
        check_source(source)
    references, reads_tasks = _list_references(method, chosen, named, sources)
    adapt = partial(
        _adapt_settings, method, preset, chosen, settings=settings if extractor is None else None
    )
    _check_outline(method, adapt, sources, image_size, pool)
    opened = _open_ancestries(method, sources, image_size, pool, run)
    chosen, note = adapt([ancestry.spec for ancestry in opened])
    extraction = PreparedExtraction(
        method=method,
        extractor=chosen,
        ancestries=opened,
        image_size=image_size,
        pool=pool,
        tasks=_open_tasks(method, references, reads_tasks, opened, run),
        further_tasks=_open_further_tasks(method, chosen, opened, references, run),
        reads_tasks=reads_tasks,
        is_for_task=bool(named),
        note=note,
    )
    origins = extraction.find_origins()
    learngene = produce(
        extraction.condense,
        load_learngene,
        out=out,
        verb="extract",
        settings=extraction.describe(),
        run=run,
        force=force,
        data=partial(stamp_tasks, [*extraction.data, *extraction.further_tasks]),
    )
    for text in learngene.list_warnings():
        warn(text)
    return remember(learngene, origins, load_learngene, out) if origins else learngene


@dataclass(frozen=True, kw_only=True)
class PreparedExtraction:
    """An extraction whose inputs are open and checked.

    Attributes:
        method: the method.
        extractor: its settings.
        ancestries: the ancestry models.
        image_size: of the ancestry models. None: their default.
        pool: the input of their heads. None: their default.
        tasks: tasks by reference.
        further_tasks: the tasks that the method opens itself.
        reads_tasks: whether the method reads their samples.
        is_for_task: whether descendants are for the first task, if it has labels.
        note: a line on settings that were adapted to the ancestry models, or nothing.
    """

    method: Method
    extractor: Extractor
    ancestries: Sequence[Ancestry]
    image_size: int | None
    pool: str | None
    tasks: Mapping[str, Task]
    further_tasks: Sequence[Task]
    reads_tasks: bool
    is_for_task: bool
    note: str = ""

    @property
    def data(self) -> list[Task]:
        """The tasks whose samples are read."""
        return list(self.tasks.values()) if self.reads_tasks else []

    @property
    def purpose(self) -> TargetTask | None:
        """What descendants are for. None: nothing yet."""
        first = next(iter(self.tasks.values())) if self.is_for_task else None
        return None if first is None or not first.is_labelled else first.purpose

    def describe(self) -> dict[str, Json]:
        """Return what identifies the result; an interrupted extraction continues if it is equal."""
        name = self.method.name
        further: list[Json] = [to_json(task.record) for task in self.further_tasks]
        return {
            "method": name,
            "settings": to_json(self.extractor),
            "ancestries": [
                [ancestry.record.source, ancestry.record.sha256] for ancestry in self.ancestries
            ],
            "tasks": [to_json(task.record) for task in self.data],
            **({"further_tasks": further} if further else {}),
            **({"image_size": self.image_size} if self.image_size else {}),
            **({"pool": self.pool} if self.pool else {}),
            **({"purpose": to_json(self.purpose)} if self.purpose else {}),
            **({"code": code} if (code := METHODS.describe_code(name)) else {}),
        }

    def condense(self, run: Run) -> Learngene:
        """Run the method and return the learngene with the record of this extraction."""
        method = self.method
        run = replace(run, code=METHODS.describe_code(method.name))
        say_notes(list(self.tasks.values()), run)
        if self.note:
            say(run, self.note)
        with report_failure(method.name), suggest_check(self.tasks):
            returned = self.extractor(self.ancestries, self.data, run)
            learngene = check_returned(self.extractor, Learngene, returned)
            check_learngene(method.name, learngene)
        learngene = replace(learngene, files=self.ancestries[0].files if self.ancestries else {})
        package = METHODS.package_of(method.name)
        return learngene.with_config(
            method=method.name,
            method_title=method.title if package else "",
            settings=to_json(self.extractor),
            ancestries=tuple(ancestry.record for ancestry in self.ancestries),
            tasks=tuple(task.record for task in self.data),
            purpose=self.purpose,
            seed=run.seed,
            device=run.device_name,
            versions={**list_versions(), **package},
        )

    def find_origins(self) -> dict[str, LocalOrigin]:
        """Return the locations of local data and models by the names in the record."""
        from learngene_zoo.pretrained.ancestry import find_origins_of_models

        return {
            **locate_own_data(self.tasks),
            **find_origins_of_models([ancestry.record for ancestry in self.ancestries]),
        }


def _merge_arguments(
    ancestries: str | Sequence[str],
    tasks: str | Sequence[str],
    image_size: int | None,
    settings: dict[str, Any],
) -> tuple[list[str], list[str], int | None]:
    """Return the references to tasks, the sources of ancestry models, and the image size.

    Takes the command line's words for them out of `settings`. Raises `WrongCall` for an argument
    that is given under two names.
    """
    words = {word: settings.pop(word) for word in EXTRACT_SYNONYMS if word in settings}
    arguments: dict[str, Any] = {
        "ancestries": ancestries or None,
        "tasks": tasks or None,
        "image_size": image_size,
    }
    arguments = merge_synonyms({**arguments, **words}, EXTRACT_SYNONYMS)
    return (
        parse_references("tasks", arguments.get("tasks", ()), TASKS),
        parse_references("ancestries", arguments.get("ancestries", ()), SOURCES),
        parse_image_size(arguments.get("image_size")),
    )


def _open_ancestries(
    method: Method, sources: Sequence[str], image_size: int | None, pool: str | None, run: Run
) -> list[Ancestry]:
    """Open the ancestry models. Raises `WrongCall` for a family that the method does not serve."""
    from learngene_zoo.pretrained.ancestry import open_ancestry

    served = partial(check_family, method)
    return [
        open_ancestry(source, image_size=image_size, pool=pool, offline=run.offline, accept=served)
        for source in sources
    ]


def _adapt_settings(
    method: Method,
    preset: str | None,
    extractor: Extractor,
    specs: Sequence[Spec],
    settings: Mapping[str, Any] | None,
) -> tuple[Extractor, str]:
    """Return the preset for these ancestry models with the named settings, and a note on changes.

    Raises `WrongCall` for impossible settings.

    Args:
        method: the method.
        preset: the name of the preset.
        extractor: the preset with the named settings, before it is adapted.
        specs: the shapes of the ancestry models.
        settings: the settings that the caller named. None: the extractor is the caller's and is not
            adapted.
    """
    adapted = extractor
    with report_failure(method.name):
        if settings is not None:
            adapted = with_settings(method.adapt_preset(preset, specs), settings)
        note = "" if adapted == extractor else describe_changes(extractor, adapted)
        check_layer_decay(adapted, specs)
        adapted.outline(specs)
    return adapted, note


def _open_tasks(
    method: Method,
    references: Sequence[str],
    reads_tasks: bool,
    ancestries: Sequence[Ancestry],
    run: Run,
) -> dict[str, Task]:
    """Open the tasks, and return them by reference.

    Raises `WrongCall` for inputs that the first ancestry model cannot read, and for equal tasks.
    """
    require_labels = method.uses_labels or method.tasks == "none"
    tasks = [
        open_task(reference, offline=run.offline, require_labels=require_labels)
        for reference in references
    ]
    for task in tasks:
        check_inputs(task, ancestries[0].input_format if ancestries else None)
    if reads_tasks:
        _check_distinct(tasks)
    return dict(zip(references, tasks, strict=True))


def _open_further_tasks(
    method: Method,
    extractor: Extractor,
    ancestries: Sequence[Ancestry],
    given: Sequence[str],
    run: Run,
) -> list[Task]:
    """Open the tasks that the method opens itself, without those that are `given` to it."""
    with report_failure(method.name):
        further = extractor.list_further_tasks([ancestry.spec for ancestry in ancestries])
    return [open_task(name, offline=run.offline) for name in further if name not in given]


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
    with report_failure(method.name):
        needs_tasks = extractor.needs_tasks()
    if needs_tasks and method.tasks != "none":
        return method.references(named, sources), True
    if named and method.tasks != "none":
        method.references(named, sources)  # raises for a wrong number of tasks
    return expand_suites(named)[:1], False


def _check_outline(
    method: Method,
    adapt: Callable[[Sequence[Spec]], object],
    sources: Sequence[str],
    image_size: int | None,
    pool: str | None,
) -> None:
    """Raise `WrongCall` for settings that these ancestry models rule out, before torch is imported.

    Only those of timm and the bundled ones, whose shapes are known without a file. `adapt` adapts
    the settings to shapes, and checks them.
    """
    from learngene_zoo.pretrained.ancestry import read_ancestry_spec

    if all(shelf.is_ours(source) or source.startswith("timm:") for source in sources):
        specs = [
            read_ancestry_spec(source).with_(image_size=image_size).with_pool(pool)
            for source in sources
        ]
        for spec in specs:
            check_family(method, spec)
        adapt(specs)


def _check_distinct(tasks: Sequence[Task]) -> None:
    """Raise `WrongCall` if two tasks have one name, which would mix up their parts of a run."""
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongCall(f"the task {twice[0]} is given twice; give each task once")
