"""The record of a method, its registry, and the method of a learngene."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal, TypeVar, get_args

from learngene_zoo.artifacts.records import OWN_PACKAGES, LearngeneConfig
from learngene_zoo.artifacts.shelf import BUNDLED as BUNDLED
from learngene_zoo.artifacts.shelf import is_ours
from learngene_zoo.errors import BadFile, BadPlugin, WrongCall, unknown
from learngene_zoo.families.family import load_family
from learngene_zoo.families.spec import FAMILIES, Spec
from learngene_zoo.method.contract import Expander, Extractor
from learngene_zoo.method.sizes import AXES
from learngene_zoo.registry import Plugins
from learngene_zoo.settings import (
    Recipe,
    from_json,
)
from learngene_zoo.tasks.catalogue import DEFAULT_TASKS, SOURCE_TASK, tasks_named

T = TypeVar("T")


Tasks = Literal["none", "one", "many"]


@dataclass(frozen=True, kw_only=True)
class Finetuning:
    """The training of a method's descendants in its paper: a recipe, and learning rates by task."""

    recipe: Recipe
    # Other tasks: as `lgzoo finetune` has it for the width.
    task_lr: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of the zoo; packages name it by entry point in the group `learngene_zoo.methods`.

    Raises `BadPlugin` for a record that no command could use.
    """

    name: str
    title: str  # one line for `lgzoo list`
    paper: str  # authors, title, venue, year; empty if there is none
    expander: Expander  # with its default settings
    # "mini" is the default; check_method runs "smoke"; "paper" is the paper's.
    presets: Mapping[str, Extractor]
    ancestries: tuple[int, int | None] = (1, 1)  # least and most (None: any number)
    families: tuple[str, ...] = ("vit",)  # the families of ancestry models that it takes
    tasks: Tasks = "many"  # training tasks of the extraction; "one" and "many" need at least one
    details: type | None = (
        None  # the frozen dataclass in `config.details` of its learngenes, see `details_of`
    )
    inherits: bool = True  # whether descendants inherit tensors
    plot: str | None = (
        None  # "package.module:function", which draws: (learngene, expander) -> matplotlib Figure
    )
    # Presets of `lgzoo finetune`, as "paper".
    finetuning: Mapping[str, Finetuning] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fault in _faults(self):
            raise BadPlugin(f"the record of the method {self.name!r} is wrong: {fault}")

    @property
    def extractor(self) -> Extractor:
        """Return the extractor with the default preset's settings."""
        return self.presets["mini"]

    def preset(self, name: str | None) -> Extractor:
        """Return the extractor with the settings of a preset; "mini" if none is named.

        Raises `WrongCall` for an unknown preset.
        """
        if name is not None and name not in self.presets:
            raise unknown(f"preset of {self.name}", name, self.presets)
        return self.presets[name] if name else self.extractor

    def sources(self, named: Sequence[str]) -> list[str]:
        """Return the ancestry models of an extraction, by default the bundled one.

        Raises `WrongCall` for a wrong number.
        """
        least, most = self.ancestries
        sources = list(named) or [BUNDLED] * least
        if len(sources) < least or (most is not None and len(sources) > most):
            expected = (
                f"{least}"
                if most == least
                else f"{least} or more"
                if most is None
                else f"{least} to {most}"
            )
            raise WrongCall(
                f"{self.name} takes {expected} ancestries (--ancestry), not {len(sources)}"
            )
        return sources

    def references(
        self, named: Sequence[str], sources: Sequence[str] = (BUNDLED,), option: str = "--task"
    ) -> list[str]:
        """Return the tasks of an extraction: those named, else the defaults.

        Args:
            named: names of tasks; the name of a suite stands for its tasks.
            sources: the ancestry models. Only bundled ones have default tasks.
            option: the name of the argument in messages.

        Raises:
            WrongCall: for a wrong number of tasks, and if none is named and there are no defaults.
        """
        other = next((source for source in sources if not is_ours(source)), None)
        if self.tasks != "none" and not named and other is not None:
            raise WrongCall(
                f"no task is named; with an ancestry model of your own ({other}), name the data to "
                f"extract from, such as {option} folder:PATH (lgzoo list tasks)"
            )
        defaults = {"none": (), "one": (SOURCE_TASK,), "many": DEFAULT_TASKS}
        references = tasks_named(named) or list(defaults[self.tasks])
        if self.tasks == "none" and references:
            raise WrongCall(f"{self.name} does not train on a task; leave out {option}")
        if self.tasks == "one" and len(references) != 1:
            raise WrongCall(f"{self.name} trains on one task, not {len(references)}")
        return references


PRESETS = ("mini", "smoke")  # that every method has


def _faults(method: Method) -> Iterator[str]:
    if not (isinstance(method.name, str) and method.name.isidentifier()):
        yield f"name is {method.name!r}; expected letters, digits and underscores"
    if method.tasks not in get_args(Tasks):
        yield f"tasks is {method.tasks!r}; expected one of {', '.join(get_args(Tasks))}"
    if not (
        isinstance(method.families, tuple)
        and method.families
        and set(method.families) <= set(FAMILIES)
    ):
        yield f"families is {method.families!r}; expected a tuple of some of {', '.join(FAMILIES)}"
    if not _is_range(method.ancestries):
        yield (
            f"ancestries is {method.ancestries!r}; "
            "expected the least and the greatest number, or (least, None)"
        )
    if method.details is not None and not (
        isinstance(method.details, type) and is_dataclass(method.details)
    ):
        yield f"details is {method.details!r}; expected a dataclass or None"
    if method.plot is not None and not (isinstance(method.plot, str) and ":" in method.plot):
        yield f"plot is {method.plot!r}; expected 'package.module:function' or None"
    if not all(isinstance(preset, Finetuning) for preset in method.finetuning.values()):
        yield f"finetuning is {method.finetuning!r}; expected a mapping from names to Finetuning"
    yield from _faults_of_presets(method.presets)
    yield from _faults_of_expander(method.expander)


def _is_range(numbers: Any) -> bool:
    try:
        least, most = numbers
        return least >= 0 and (most is None or most >= least)
    except (TypeError, ValueError):
        return False


def _faults_of_presets(presets: Any) -> Iterator[str]:
    if not isinstance(presets, Mapping):
        yield f"presets is {presets!r}; expected a mapping from names to extractors"
        return
    absent = [name for name in PRESETS if name not in presets]
    if absent:
        yield f"it lacks the preset {' and '.join(absent)}"
    for name, preset in presets.items():
        if not isinstance(preset, Extractor):
            yield f"its preset {name} is {preset!r}; expected an Extractor"
    kinds = sorted({type(preset).__name__ for preset in presets.values()})
    if len({type(preset) for preset in presets.values()}) > 1:
        yield f"its presets are of several types, {', '.join(kinds)}; expected one"


def _faults_of_expander(expander: Any) -> Iterator[str]:
    if not isinstance(expander, Expander):
        yield f"expander is {expander!r}; expected an Expander"
        return
    strange = sorted(set(expander.axes) - set(AXES))
    if strange:
        yield f"axes of its expander has {strange[0]!r}; expected some of {', '.join(AXES)}"


METHODS = Plugins("learngene_zoo.methods", "method", Method)


def method_of(config: LearngeneConfig, where: object) -> Method:
    """Return the method of a learngene at `where`.

    Raises `BadFile` for one that cannot be used or is not installed, with the package that it came
    from, if the learngene records it.
    """
    name = config.method
    if not name:
        raise WrongCall(
            f"{where} names no method; lg.extract names it, or learngene.with_config(method=...)"
        )
    if name not in METHODS.references() and name not in {
        plugin.name for plugin in METHODS.list_refused()
    }:
        named = sorted(set(config.versions) - set(OWN_PACKAGES))
        package = (
            f"the package that it names ({', '.join(named)}), if you trust it"
            if named
            else "its plugin"
        )
        raise BadFile(
            f"{where} was made by the method {name!r}, which is not installed; "
            f"install {package} (lgzoo list methods)"
        )
    return METHODS.load(name)


def details_of(config: LearngeneConfig, kind: type[T]) -> T:
    """Decode the record of a method in a learngene's `details`.

    Raises `BadFile` if it is not a `kind`.
    """
    return from_json(
        kind, dict(config.details), f"details of the {config.method or 'unnamed'} learngene"
    )


def check_family(method: Method, spec: Spec) -> None:
    """Raise `WrongCall` for an ancestry model of a family that the method does not support."""
    if spec.family not in method.families:
        alternatives = ", ".join(
            sorted(other.name for other in METHODS.load_all()[0] if spec.family in other.families)
        )
        supported = "; ".join(load_family(name).supported for name in method.families)
        raise WrongCall(
            f"{method.name} does not support models of the family {spec.family!r}, only "
            f"{supported}; methods that do: {alternatives or 'none'}"
        )
