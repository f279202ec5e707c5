"""The interface of methods: extractors, expanders, and the record of a method.

An extractor and an expander are functions with named settings; the frozen dataclass is the
configuration. The command line, the artifacts and the cards use only the `Method` record of a
method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.artifacts.shelf import BUNDLED, is_ours
from learngene_zoo.errors import BadPlugin, WrongCall, refuse_unknown
from learngene_zoo.families.spec import FAMILIES, Spec
from learngene_zoo.method.sizes import AXES, Member, Target
from learngene_zoo.settings import (
    Recipe,
    check_bounds,
    find_lost_settings,
    list_settings,
    with_settings,
)
from learngene_zoo.tasks.catalogue import DEFAULT_TASKS, SOURCE_TASK, expand_suites
from learngene_zoo.text import count_noun, name_option

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.runs.run import Run
    from learngene_zoo.tasks.task import Task

Tasks = Literal["none", "one", "many"]
PRESETS = ("mini", "smoke")  # that every method has
PAPER = "paper"  # the preset with the settings of the method's paper
# Arguments of `lifecycle.extract`, which takes settings by name beside them.
ARGUMENTS = frozenset({"name", "ancestries", "tasks", "extractor", "run"})


@dataclass(frozen=True, kw_only=True)
class Extractor(ABC):
    """A function from ancestry models (and tasks) to a learngene.

    Subclasses are frozen dataclasses, whose fields are the settings.
    """

    def __post_init__(self) -> None:
        check_bounds(self)

    @abstractmethod
    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config of an extraction, as far as it is known beforehand.

        Raises `WrongCall` for impossible settings. Needs plain numbers only: it must not import
        torch.
        """

    @abstractmethod
    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Extract a learngene.

        The caller adds provenance (settings, ancestries, tasks, seed, versions) to the config.
        """

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the extractor with the settings of a preset changed to suit these ancestry models.

        An extraction calls it before the settings that the user names are set, but not for the
        preset "paper". `adapt_rates` changes learning rates. By default nothing is changed.
        """
        return self

    def needs_tasks(self) -> bool:
        """Return whether these settings need any data."""
        return True

    def list_further_tasks(self, ancestries: Sequence[Spec]) -> Sequence[str]:
        """Return the tasks that the extraction opens itself, beside those that it is given.

        An interrupted extraction does not continue after one of them changed. By default there are
        none.
        """
        return ()

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> Iterable[Work]:
        """Estimate the cost, part by part.

        It follows from the ancestries' shapes and the numbers of training images of the tasks that
        the extraction is given, without those of `list_further_tasks`.
        """
        return ()


@dataclass(frozen=True, kw_only=True)
class Expander(ABC):
    """A function from a learngene to descendants of many sizes.

    `axes` are the sizes that it can change. A target that names another one is refused before the
    expander is called, unless the learngene has that size.
    """

    axes: ClassVar[frozenset[str]] = frozenset({"layers", "classes", "image_size"})

    def __post_init__(self) -> None:
        check_bounds(self)

    def list_axes(self, spec: Spec) -> frozenset[str]:
        """Return the sizes that can be changed in descendants of a learngene of this shape.

        By default these are the `axes` that the model has: text models have no image size.
        """
        return frozenset(axis for axis in self.axes if getattr(spec, axis) is not None)

    def list_size_settings(self, spec: Spec) -> tuple[str, ...]:
        """Return the settings with which `family` has further sizes, for a learngene's shape."""
        return ()

    @abstractmethod
    def family(self, config: LearngeneConfig) -> Iterable[Member]:
        """Return every descendant of a finite, documented grid.

        They have the classes and image size of `config.spec`. Needs plain numbers only: it must not
        import torch.
        """

    def work(self, config: LearngeneConfig, spec: Spec, images: Sequence[int]) -> Iterable[Work]:
        """Estimate the cost of building a descendant, part by part, if it is more than copying.

        Args:
            config: of the learngene, or as `Extractor.outline` returns it.
            spec: the shape of the descendant.
            images: the numbers of training images of the tasks of the extraction.
        """
        return ()

    def check_target(self, config: LearngeneConfig, target: Target) -> None:  # noqa: B027
        """Raise `WrongCall` for a size that cannot be built, if the config shows it.

        It is called before the tensors are opened. Needs plain numbers only: it must not import
        torch. By default nothing is checked beyond `axes`.
        """

    @abstractmethod
    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build one descendant.

        Raises `WrongCall` for a size that this learngene cannot be expanded to.
        """


@dataclass(frozen=True, kw_only=True)
class Work:
    """The estimated cost of a part of an extraction or of an expansion.

    Layers are counted in layers of the ancestry's width. A part with equations to solve runs on the
    processor, also where a GPU trains.
    """

    images: int  # training images over all epochs
    trained: float  # layers that each image passes forward and back
    frozen: float = 0.0  # layers that each image passes forward only, as of a teacher
    # Multiply-adds of sums over tokens and of solving equations; those in float64 count twice.
    solved: float = 0.0


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
    # Whether the extraction uses the labels of its tasks. If not, images without labels will do.
    uses_labels: bool = True
    details: type | None = (
        None  # the frozen dataclass in `config.details` of its learngenes, see `parse_details`
    )
    inherits: bool = True  # whether descendants inherit tensors
    plot: str | None = (
        None  # "package.module:function", which draws: (learngene, expander) -> matplotlib Figure
    )
    # Presets of `lgzoo finetune`, as "paper".
    finetuning: Mapping[str, Finetuning] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fault in _find_faults(self):
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
            raise refuse_unknown(f"preset of {self.name}", name, self.presets)
        return self.presets[name] if name else self.extractor

    def adapt_preset(self, name: str | None, ancestries: Sequence[Spec]) -> Extractor:
        """Return the extractor with the settings of a preset for these ancestry models.

        The settings of the preset "paper" are the paper's for every ancestry model.

        Raises `WrongCall` for an unknown preset.
        """
        extractor = self.preset(name)
        return extractor if name == PAPER else extractor.adapt(ancestries)

    def sources(self, named: Sequence[str]) -> list[str]:
        """Return the ancestry models of an extraction, by default the bundled one.

        Raises `WrongCall` for a wrong number.
        """
        least, most = self.ancestries
        sources = list(named) or [BUNDLED] * least
        if len(sources) < least or (most is not None and len(sources) > most):
            bounds = f"{least} or more" if most is None else f"{least} to {most}"
            expected = (
                count_noun(least, "ancestry model")
                if most == least
                else f"{bounds} ancestry models"
            )
            raise WrongCall(
                f"{self.name} takes {expected} ({name_option('ancestries')}), not {len(sources)}"
            )
        return sources

    def references(
        self, named: Sequence[str], sources: Sequence[str] = (BUNDLED,), option: str = "tasks"
    ) -> list[str]:
        """Return the tasks of an extraction: those named, else the defaults.

        Args:
            named: names of tasks; the name of a suite stands for its tasks.
            sources: the ancestry models. Only bundled ones have default tasks.
            option: the name of the argument in messages, as in Python.

        Raises:
            WrongCall: for a wrong number of tasks, and if none is named and there are no defaults.
        """
        other = next((source for source in sources if not is_ours(source)), None)
        if self.tasks != "none" and not named and other is not None:
            raise WrongCall(
                f"no task is named; with an ancestry model of your own ({other}), name the data to "
                f"extract from, such as {name_option(option, 'folder:PATH')} (lgzoo list tasks)"
            )
        defaults = {"none": (), "one": (SOURCE_TASK,), "many": DEFAULT_TASKS}
        references = expand_suites(named) or list(defaults[self.tasks])
        if self.tasks == "none" and references:
            raise WrongCall(
                f"{self.name} does not train on a task; leave out {name_option(option)}"
            )
        if self.tasks == "one" and len(references) != 1:
            raise WrongCall(f"{self.name} trains on one task, not {len(references)}")
        return references


def _find_faults(method: Method) -> Iterator[str]:
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
    elif method.details is not None:
        yield from _find_faults_of_details(method.details)
    if method.plot is not None and not (isinstance(method.plot, str) and ":" in method.plot):
        yield f"plot is {method.plot!r}; expected 'package.module:function' or None"
    if not all(isinstance(preset, Finetuning) for preset in method.finetuning.values()):
        yield f"finetuning is {method.finetuning!r}; expected a mapping from names to Finetuning"
    yield from _find_faults_of_presets(method.presets)
    yield from _find_faults_of_expander(method.expander)


def _is_range(numbers: Any) -> bool:
    try:
        least, most = numbers
        return least >= 0 and (most is None or most >= least)
    except (TypeError, ValueError):
        return False


def _find_faults_of_details(details: type) -> Iterator[str]:
    for fault in find_lost_settings(details):
        yield f"a value of the details is not stored: {fault}"
    for entry in fields(details):
        if not entry.init:
            yield f"the field {entry.name} of the details has init=False and cannot be read again"


def _find_faults_of_presets(presets: Any) -> Iterator[str]:
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
    first = next(iter(presets.values()), None)
    yield from _find_faults_of_settings(first)
    if is_dataclass(first):
        for name in sorted(ARGUMENTS & {field.name for field in fields(first)}):
            yield f"its extractor has a setting {name}, an argument of `extract`; rename the field"


def _find_faults_of_expander(expander: Any) -> Iterator[str]:
    if not isinstance(expander, Expander):
        yield f"expander is {expander!r}; expected an Expander"
        return
    strange = sorted(set(expander.axes) - set(AXES))
    if strange:
        yield f"axes of its expander has {strange[0]!r}; expected some of {', '.join(AXES)}"
    yield from _find_faults_of_settings(expander)


def _find_faults_of_settings(settings: Any) -> Iterator[str]:
    try:
        if is_dataclass(settings):
            values = {setting.name: setting.default for setting in list_settings(settings)}
            with_settings(settings, values)  # raises for a default of another type
            for fault in find_lost_settings(settings):
                yield f"a value is not a setting: {fault}"
    except (TypeError, NameError) as error:  # a type that is not allowed, or not defined
        yield str(error)
    except WrongCall as error:
        yield f"{type(settings).__name__}: {error}"
