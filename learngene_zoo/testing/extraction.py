"""The laws of extractors: ancestry models, seeds, parts, records, and resuming after a kill."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.errors import BadFile
from learngene_zoo.method.checks import check_learngene, check_returned
from learngene_zoo.method.contract import Extractor, Method
from learngene_zoo.method.installed import parse_details
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs import cache
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import Task
from learngene_zoo.tasks.unlabelled.opening import remove_labels
from learngene_zoo.testing.laws import (
    copy_state,
    describe,
    find_difference,
    forbid_hot_imports,
    iterate_members,
    report_broken_law,
    report_broken_promise,
    require,
)
from learngene_zoo.training import loop
from learngene_zoo.training.loop import Engine

SEED = 3
EXTRACTOR = "the extractor condenses every ancestry model that its outline accepts"
OUTLINE = "the outline accepts an ancestry model, or refuses it with WrongCall"
UNLABELLED = "an extraction that uses no labels takes images without labels"
RESUMED = "an extraction that is killed and resumed writes the same learngene"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One extraction that is checked against the laws."""

    method: Method
    extractor: Extractor
    ancestries: Sequence[Ancestry]
    tasks: Sequence[Task]

    def extract(self) -> Learngene:
        """Return the extractor's learngene, with the name of its method; write nothing."""
        shape = describe(self.ancestries[0].spec)
        with report_broken_promise(self.method, EXTRACTOR, f"an ancestry model with {shape}"):
            result = self.extractor(self.ancestries, self.tasks, Run(seed=SEED))
        with report_broken_promise(
            self.method, "the extractor returns a learngene of finite tensors by name", shape
        ):
            learngene = check_returned(self.extractor, Learngene, result)
            check_learngene(self.method.name, learngene)
        if not isinstance(learngene.config, LearngeneConfig):
            return learngene  # `check_outline` reports the type
        # As the verb does: the tokenizer of a text model.
        learngene = replace(learngene, files=self.ancestries[0].files)
        return learngene.with_config(method=self.method.name)

    def outline(self) -> LearngeneConfig:
        """Return the extractor's outline for these ancestry models."""
        return self.extractor.outline([ancestry.spec for ancestry in self.ancestries])


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """A learngene, with the number of training steps and the parts of its extraction."""

    learngene: Learngene
    steps: int  # of training
    parts: list[tuple[Any, ...]]  # the arguments of `compute_key`, of every part


class Killed(BaseException):
    """A simulated SIGKILL."""


def check_extraction(case: Case) -> Extracted:
    """Check that an extraction returns a learngene and leaves its ancestry models unchanged."""
    method, before = case.method, [copy_state(ancestry.state) for ancestry in case.ancestries]
    parts: list[tuple[Any, ...]] = []
    with _record_parts(parts), _kill_after(None) as steps:
        learngene = case.extract()
    for ancestry, state in zip(case.ancestries, before):
        changed = find_difference(ancestry.state, state)
        require(
            not changed,
            method,
            f"changed its ancestry model: {changed}; clone a tensor before it is changed",
        )
    return Extracted(learngene=learngene, steps=len(steps), parts=parts)


def check_unlabelled(case: Case) -> None:
    """Check that a method with `uses_labels=False` extracts from images without labels."""
    if case.method.uses_labels or not case.tasks:
        return
    tasks = [remove_labels(task) for task in case.tasks]
    with report_broken_promise(case.method, UNLABELLED):
        case.extractor(case.ancestries, tasks, Run(seed=SEED))


def check_outline(case: Case, written: Learngene) -> None:
    """Check that the outline predicts the written learngene, without importing torch."""
    method = case.method
    with (
        report_broken_promise(method, OUTLINE, describe(case.ancestries[0].spec)),
        forbid_hot_imports(method, "outline"),
    ):
        outline = case.outline()
        require(
            isinstance(outline, LearngeneConfig),
            method,
            f"outlines {outline!r}; expected a LearngeneConfig",
        )
        first = list(islice(iterate_members(method, outline), 1))
    require(
        outline.spec == written.config.spec,
        method,
        f"outlines {outline.spec} but writes {written.config.spec}",
    )
    require(bool(first), method, "plans no descendant from its outline")
    kind: Any = method.details
    undeclared = kind is None and bool(written.config.details)
    require(not undeclared, method, "writes details; declare their type as `details` of the method")
    for config in (outline, written.config) if kind is not None else ():
        with report_broken_law(method, "writes details that it cannot read", BadFile):
            parse_details(config, kind)


def check_parts(method: Method, parts: Sequence[tuple[Any, ...]]) -> None:
    """Check that every setting of a part changes its key."""
    for name, settings, inputs, seed in parts:
        frozen = settings is None or getattr(
            getattr(settings, "__dataclass_params__", None), "frozen", False
        )
        require(
            frozen, method, f"passes {settings!r} to its part {name}; expected a frozen dataclass"
        )
        key = cache.compute_key(name, settings, inputs, seed)
        for field, changed in _iterate_variants(settings):
            differs = cache.compute_key(name, changed, inputs, seed) != key
            require(
                differs,
                method,
                f"has a setting {field} that does not change the key of its part {name}",
            )


def _iterate_variants(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of a settings record with one leaf changed, and the leaf's name.

    Copies are not validated.
    """
    for field in fields(settings) if settings is not None else ():
        value = getattr(settings, field.name)
        inner = _iterate_variants(value) if is_dataclass(value) else [("", _change_value(value))]
        for name, other in inner:
            changed = copy(settings)
            object.__setattr__(changed, field.name, other)
            yield f"{field.name}.{name}" if name else field.name, changed


def _change_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, tuple):
        return (*value, 1)
    return 1 if value is None else f"{value}'"


def check_record(case: Case, expected: Extracted, folder: Path) -> Learngene:
    """Check that an extraction killed halfway and resumed writes the same learngene.

    Its recorded settings must rebuild the extractor. Returns the learngene as it was read again.
    """
    method, extractor = case.method, case.extractor
    with report_broken_promise(method, RESUMED):
        resumed = _extract_with_a_kill(case, expected, folder / "learngene")
    if not _are_same(resumed, expected.learngene):
        _say_why(case, expected.learngene, resumed)
    with report_broken_promise(method, "the learngene that is written can be read again"):
        loaded = load_learngene(folder / "learngene")
    written, meant = (to_json(gene.with_config(tensors=()).config) for gene in (loaded, resumed))
    require(written == meant, method, "has a config that does not survive being written")
    changed = find_difference(loaded.state, resumed.state)
    require(not changed, method, f"has tensors that do not survive being written: {changed}")
    with report_broken_promise(method, "the recorded settings rebuild the extractor"):
        rebuilt = from_json(type(extractor), loaded.config.settings, "settings")
    require(
        rebuilt == extractor, method, f"records settings that rebuild {rebuilt}, not {extractor}"
    )
    return loaded


def _are_same(first: Learngene, second: Learngene) -> bool:
    records = [
        (gene.config.spec, gene.config.details, gene.config.metrics) for gene in (first, second)
    ]
    return records[0] == records[1] and not find_difference(first.state, second.state)


def _extract_with_a_kill(case: Case, expected: Extracted, out: Path) -> Learngene:
    """Return the learngene of an extraction that is killed after half of its training steps.

    Without training it is killed after its last part; without parts it is not killed.
    """
    sources = {f"ancestry-{i}": ancestry for i, ancestry in enumerate(case.ancestries)}
    data = {task.name: task for task in case.tasks}

    def open_data(reference: str, **options: Any) -> Task:
        return data[reference] if reference in data else open_task(reference, **options)

    def extract(resume: bool) -> Learngene:
        arguments: dict[str, Any] = {
            "ancestries": list(sources),
            "tasks": list(data),
            "extractor": case.extractor,
        }
        return lifecycle.extract(
            case.method.name, **arguments, out=out, run=Run(seed=SEED, resume=resume)
        )

    with (
        mock.patch("learngene_zoo.lifecycle.extraction.check_source", return_value=None),
        mock.patch(
            "learngene_zoo.pretrained.ancestry.open_ancestry", lambda source, **_: sources[source]
        ),
        mock.patch("learngene_zoo.lifecycle.extraction.open_task", open_data),
    ):
        steps, parts = expected.steps, len(expected.parts)
        if not (steps or parts):
            return extract(resume=False)
        try:
            with _kill_after(steps // 2) if steps else _kill_after_parts(parts):
                extract(resume=False)
        except Killed:
            return extract(resume=True)
        unit = "training steps" if steps else "parts"
        require(False, case.method, f"takes another number of {unit} with the same seed")
        raise AssertionError


def _say_why(case: Case, first: Learngene, resumed: Learngene) -> None:
    """Raise `AssertionError` that names the cause: the seed or the resume."""
    method, again = case.method, case.extract()
    changed = find_difference(again.state, first.state)
    require(
        not changed,
        method,
        f"extracts two different learngenes with the same seed: {changed}; draw random "
        "numbers with a generator whose seed is derive_seed(run.seed, NAME)",
    )
    require(
        again.config == first.config,
        method,
        f"writes two configs with the same seed: {again.config}, {first.config}",
    )
    changed = find_difference(resumed.state, first.state) or "its details or metrics"
    require(False, method, f"extracts another learngene when it is killed and resumed: {changed}")


@contextmanager
def _record_parts(parts: list[tuple[Any, ...]]) -> Iterator[None]:
    """Add the arguments of every part's key to `parts` within."""
    key_of = cache.compute_key

    def record_key(*arguments: Any) -> str:
        parts.append(arguments)
        return key_of(*arguments)

    with mock.patch.object(cache, "compute_key", record_key):
        yield


@contextmanager
def _kill_after(steps: int | None) -> Iterator[list[int]]:
    """Write a checkpoint after every training step within, and raise `Killed` after `steps`.

    With None, training is never killed. Yields the list of the numbers of the steps.
    """
    save = Engine.save
    steps_taken: list[int] = []

    def save_or_kill(self: Engine, step: int) -> float:
        if len(steps_taken) == steps:
            raise Killed
        steps_taken.append(step)
        return save(self, step)

    hours = SimpleNamespace(monotonic=count(0, 3600).__next__)
    with mock.patch.object(Engine, "save", save_or_kill), mock.patch.object(loop, "time", hours):
        yield steps_taken


@contextmanager
def _kill_after_parts(parts: int) -> Iterator[None]:
    """Raise `Killed` within as soon as the result of that many parts is written."""
    save, numbers = cache.save_result, count(1)

    def save_and_kill(*arguments: Any) -> None:
        save(*arguments)
        if next(numbers) == parts:
            raise Killed

    with mock.patch.object(cache, "save_result", save_and_kill):
        yield
