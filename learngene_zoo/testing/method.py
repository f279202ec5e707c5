"""The contract of a method: `check_method` checks all of its laws."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from learngene_zoo.cli import expand, extract, main, plan
from learngene_zoo.cli.sections import SettingOption, TrainingOption
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.method.contract import Expander, Extractor, Method
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.registry import METHOD_GROUP
from learngene_zoo.settings import from_json, list_settings, to_json
from learngene_zoo.tasks import catalogue
from learngene_zoo.tasks.task import Task
from learngene_zoo.testing.expansion import check_family, check_members, check_sizes
from learngene_zoo.testing.extraction import (
    OUTLINE,
    Case,
    check_extraction,
    check_outline,
    check_parts,
    check_record,
    check_unlabelled,
)
from learngene_zoo.testing.laws import (
    SLOW,
    describe,
    make_tiny_ancestry,
    make_tiny_task,
    report_broken_law,
    report_broken_promise,
    require,
)


def check_method(
    method: Method,
    *,
    extractor: Extractor | None = None,
    ancestry: Ancestry | None = None,
    tasks: Sequence[Task] | None = None,
) -> None:
    """Check the whole contract of a registered method, on tiny models.

    Takes a few seconds, and four extractions.

    Args:
        method: the method.
        extractor: settings to use (default: the preset "smoke").
        ancestry: ancestry model (default: the examples of the method's families, of which the
            extractor's outline can refuse all but the first).
        tasks: tasks to extract from (default: tiny ones).
    """
    check_registration(method)
    check_import(method)
    with report_broken_promise(
        method, "its settings survive JSON and hide no option of the command line"
    ):
        check_settings(method)
    check_adapted_presets(method, ancestry)
    extractor = extractor or method.presets["smoke"]
    with report_broken_promise(method, "the extractor says whether it needs tasks"):
        has_tasks = extractor.needs_tasks()
    with report_broken_promise(method, "its families are known"):
        first, *other_models = [
            make_tiny_ancestry(spec=spec)
            for name in method.families
            for spec in load_family(name).examples
        ]
    cases = [
        Case(
            method=method,
            extractor=extractor,
            ancestries=make_ancestries(method, ancestry_model),
            tasks=choose_tasks(method, tasks, ancestry_model.spec) if has_tasks else [],
        )
        for ancestry_model in ([first, *other_models] if ancestry is None else [ancestry])
    ]
    with _make_openable([task for case in cases for task in case.tasks]):
        check_whole(cases[0])
        for case in cases[1:]:
            check_shape(case)


def check_registration(method: Method) -> None:
    """Check that a method is registered under its name."""
    with report_broken_law(
        method,
        "is not registered under its name (install its package, with an entry point of this name "
        f"in the group {METHOD_GROUP})",
        WrongCall,
    ):
        registered = METHODS.load(method.name)
    require(
        registered == method,
        method,
        f"is not the one that is registered under this name ({registered.title!r}); give it "
        "another name, or name its record in the entry point",
    )


def check_import(method: Method) -> None:
    """Check that the module of a registered method imports none of `SLOW`, in a new process."""
    reference = METHODS.references().get(method.name, "")
    if not reference:  # one that a test has put in place of the registered ones
        return
    code = (
        "import importlib, sys; importlib.import_module(sys.argv[1]); "
        "print(*(name for name in sys.argv[2:] if name in sys.modules))"
    )
    module = reference.partition(":")[0]
    with report_broken_promise(method, "its module can be imported", module):
        imported = subprocess.run(
            [sys.executable, "-c", code, module, *SLOW],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
    require(
        not imported,
        method,
        f"imports {', '.join(imported)} with its module {module}, so that every listing waits for "
        "it; import heavy modules in the functions that need them",
    )


def check_adapted_presets(method: Method, ancestry: Ancestry | None) -> None:
    """Check that every preset stays an extractor of its type for a wide ancestry model.

    Args:
        method: the method.
        ancestry: the ancestry model of the other laws. None: those of the method's families.
    """
    examples = [spec for name in method.families for spec in load_family(name).examples]
    first = examples[0] if ancestry is None else ancestry.spec
    wide = first.with_(width=WIDE * first.width, heads=WIDE * first.heads)
    specs = [wide] * max(1, method.ancestries[0])
    for name, preset in method.presets.items():
        with report_broken_promise(method, f"adapt takes the preset {name}"):
            adapted = preset.adapt(specs)
        require(
            type(adapted) is type(preset),
            method,
            f"has an adapt that makes {type(adapted).__name__} of the preset {name}",
        )


def check_settings(method: Method) -> None:
    """Check that settings survive JSON, check their bounds, and shadow no common option.

    That they are fields is checked when the record is made.
    """
    taken_names = list_common_options(method)
    for part, settings in (("extractor", method.extractor), ("expander", method.expander)):
        shadows = sorted({setting.name for setting in list_settings(settings)} & taken_names)
        require(
            not shadows,
            method,
            f"has a setting of its {part} that shadows the common option {', '.join(shadows)}",
        )
        unchecked = find_unchecked_bounds(settings)
        require(
            not unchecked,
            method,
            f"does not check the bounds of {unchecked}, a setting of its {part}; call "
            "super().__post_init__() in its __post_init__",
        )
        again = from_json(type(settings), to_json(settings), part)
        is_equal = again == settings
        require(
            is_equal,
            method,
            f"has settings of its {part} that do not survive JSON: {settings} became {again}",
        )


def find_unchecked_bounds(settings: Extractor | Expander) -> str:
    """Return the name of a setting whose bounds a new instance does not check; "" for none.

    A `__post_init__` that does not call that of its base class loses the check.
    """
    for setting in list_settings(settings):
        beyond = None if setting.bounds is None else setting.bounds.find_outside()
        if beyond is None or len(setting.path) > 1:
            continue
        try:
            replace(settings, **{setting.name: (beyond,) if setting.repeated else beyond})
        except WrongCall:
            continue
        return setting.name
    return ""


WIDE = 16  # times the first example's width and heads, in `check_adapted_presets`


def list_common_options(method: Method) -> set[str]:
    """Return the names of the command line's options in commands with a method's settings."""
    commands = (
        main.main,
        extract.build(method),
        plan.build(method),
        expand.command,
        expand.plot_command,
    )
    every = [option for command in commands for option in command.params]
    settings = (SettingOption.section, TrainingOption.section)
    own_options = [option for option in every if getattr(option, "section", "") not in settings]
    names = {name for option in own_options for name in (*option.opts, *option.secondary_opts)}
    return {"help"} | {name.lstrip("-").replace("-", "_") for name in names}


def check_whole(case: Case) -> None:
    """Check all laws."""
    method, extracted = case.method, check_extraction(case)
    check_parts(method, extracted.parts)
    check_outline(case, extracted.learngene)
    check_unlabelled(case)
    with tempfile.TemporaryDirectory() as folder:
        written = check_record(case, extracted, Path(folder))
        # In memory, so that a change of it would be detected.
        learngene = replace(written, state=dict(written.state))
        members = check_family(method, learngene.config)
        check_members(method, learngene, members, Path(folder))
        check_sizes(method, learngene, members)


def check_shape(case: Case) -> None:
    """Check the laws that depend on the ancestry model's shape, unless the outline refuses it."""
    spec = case.ancestries[0].spec
    with report_broken_promise(case.method, OUTLINE, describe(spec)):
        try:
            case.outline()
        except WrongCall:
            return
    extracted = check_extraction(case)
    check_outline(case, extracted.learngene)
    members = check_family(case.method, extracted.learngene.config)
    with tempfile.TemporaryDirectory() as folder:
        check_members(case.method, extracted.learngene, [members[0], members[-1]], Path(folder))


@contextmanager
def _make_openable(tasks: Sequence[Task]) -> Iterator[None]:
    """Put these tasks into the catalogue within, as an expander may open its learngene's data."""
    data, named = {task.name: task for task in tasks}, catalogue._open_named
    with mock.patch.object(
        catalogue, "_open_named", lambda name, offline: data.get(name) or named(name, offline)
    ):
        yield


def make_ancestries(method: Method, first: Ancestry) -> list[Ancestry]:
    """Return the minimum number of ancestry models.

    Each additional one has different weights and one more head than the one before.
    """
    spec, count = first.spec, method.ancestries[0]
    wider = [
        make_tiny_ancestry(
            more, spec, heads=spec.heads + more, width=spec.width + more * spec.head_width
        )
        for more in range(1, count)
    ]
    return [first, *wider][:count]


def choose_tasks(method: Method, tasks: Sequence[Task] | None, spec: Spec) -> list[Task]:
    """Return the given tasks, or tiny ones of images or texts, as the model takes."""
    if tasks is not None:
        return list(tasks)
    kind, size = ("texts", 0) if isinstance(spec, TextSpec) else ("tiny", 16)
    made = [make_tiny_task(f"{kind}-a", image_size=size), make_tiny_task(f"{kind}-b", 4, size)]
    return made[: {"none": 0, "one": 1, "many": 2}[method.tasks]]
