"""The interface of methods: extractors, expanders, the record of a method, and their registry.

An extractor and an expander are functions with named settings; the frozen dataclass is the
configuration. The command line, the artifacts and the cards use only the `Method` record of a
method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, get_args

from learngene_zoo.artifacts.records import LearngeneConfig, find_package_of_method
from learngene_zoo.artifacts.shelf import BUNDLED as BUNDLED
from learngene_zoo.artifacts.shelf import is_ours
from learngene_zoo.errors import (
    BadFile,
    BadPlugin,
    MethodFailed,
    WrongCall,
    WrongTensor,
    ZooError,
    is_shortage,
    refuse_unknown,
)
from learngene_zoo.families.family import load_family
from learngene_zoo.families.spec import FAMILIES, Spec
from learngene_zoo.method.sizes import AXES, Member, Target
from learngene_zoo.registry import Plugins
from learngene_zoo.settings import (
    Recipe,
    check_bounds,
    find_lost_settings,
    from_json,
    list_settings,
    with_settings,
)
from learngene_zoo.storage import CONFIG
from learngene_zoo.tasks.catalogue import DEFAULT_TASKS, SOURCE_TASK, expand_suites
from learngene_zoo.text import count_noun

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.runs.run import Run
    from learngene_zoo.storage import StateDict
    from learngene_zoo.tasks.task import Task

T = TypeVar("T")
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

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> Iterable[Work]:
        """Estimate the cost, part by part.

        It follows from the ancestries' shapes and the tasks' numbers of training images.
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

        By default these are the `axes` that the model has: models of texts have no image size.
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


def check_axes(expander: Expander, spec: Spec, target: Target) -> None:
    """Raise `WrongCall` if `target` differs from `spec` in a size that the expander cannot change.

    `spec` is the learngene's.
    """
    axes = expander.list_axes(spec)
    for name, value in target.axes().items():
        if name not in axes and getattr(spec, name) not in (None, value):
            free = ", ".join(axis for axis in AXES if axis in axes)
            raise WrongCall(
                f"{name} is {value}, but all descendants of this learngene have {name} "
                f"{getattr(spec, name)}; sizes that can be chosen: {free}"
            )


def check_built(expander: Expander, spec: Spec, target: Target, built_spec: Spec) -> None:
    """Raise `BadPlugin` unless `built_spec` has the sizes that `target` names.

    `spec` is the shape of the learngene that it was built from.
    """
    axes = expander.list_axes(spec)
    fixed = {name: getattr(spec, name) for name in AXES if name not in axes}
    for name, value in {**fixed, **target.axes()}.items():
        if getattr(built_spec, name) != value:
            kind, got = type(expander), getattr(built_spec, name)
            raise BadPlugin(
                f"{kind.__module__}.{kind.__qualname__} built a model with {name} {got} instead of "
                f"{value}; `axes` of an expander holds the sizes that it can change, and no others"
            )


def check_learngene(name: str, learngene: Learngene) -> None:
    """Raise `BadPlugin` for a tensor of the learngene of a method that could not be read again.

    Tensors that are still in a file are not read: reading them checks that they are finite.
    """
    for tensor_name, fault in _find_faults_of_tensors(learngene.state):
        raise BadPlugin(f"{describe_method(name)} returned the tensor {tensor_name} {fault}")


def check_descendant(name: str, descendant: Descendant) -> None:
    """Raise `BadPlugin` unless the tensors that a method built are those of the model's shape.

    Tensors that are still in a file are not read: reading them checks that they are finite.
    """
    from learngene_zoo.families.tensors import check_state

    for tensor_name, fault in _find_faults_of_tensors(descendant.state):
        raise BadPlugin(f"{describe_method(name)} built the tensor {tensor_name} {fault}")
    try:
        check_state(
            descendant.state, descendant.spec, f"the model that {describe_method(name)} built"
        )
    except BadFile as error:
        raise BadPlugin(str(error)) from None
    for tensor_name in sorted(descendant.inherited - set(descendant.state)):
        raise BadPlugin(
            f"{describe_method(name)} records the tensor {tensor_name!r} as inherited, which its "
            "model does not have"
        )


def describe_random_tensors(name: str, descendant: Descendant) -> str:
    """Return which tensors are random that should probably be inherited; "" if there are none.

    These are all tensors, if a method that inherits gave none, or tensors of partly inherited
    blocks.

    A method may leave whole blocks, or what is before and after them, to the initialisation. A
    random tensor among inherited ones of its block is probably one that the method forgot. Equal
    numbers, such as the scales and shifts of a norm whose own ones were merged into the layers
    after it, are not random.
    """
    from learngene_zoo.families.family import get_table

    if not descendant.inherited and METHODS.load(name).inherits:
        return f"all weights of this model are random, as {describe_method(name)} gave none"
    table = get_table(descendant.spec)
    blocks = {tensor_name: table.block_of(tensor_name) for tensor_name in descendant.state}
    begun = {blocks.get(tensor_name) for tensor_name in descendant.inherited} - {None}
    drawn = [
        tensor_name
        for tensor_name, block in blocks.items()
        if block in begun
        and tensor_name not in descendant.inherited
        and descendant.state[tensor_name].unique().numel() > 1
    ]
    if not drawn:
        return ""
    more = f" and {count_noun(len(drawn) - 1, 'more tensor')}" if drawn[1:] else ""
    return (
        f"{drawn[0]}{more} of partly inherited blocks {'are' if more else 'is'} random, as "
        f"{describe_method(name)} does not build {'them' if more else 'it'}"
    )


def _find_faults_of_tensors(state: StateDict) -> Iterator[tuple[object, str]]:
    """Yield the names of tensors that cannot be stored, each with the value and the expectation."""
    import torch

    from learngene_zoo.storage import MAX_TENSOR_NAME, Tensors, is_finite

    if isinstance(state, Tensors):
        for name in state:
            if not state.is_floating(name):
                yield name, "of another type; expected floating-point numbers"
        return
    for name, tensor in state.items():
        if not isinstance(name, str) or len(name) > MAX_TENSOR_NAME:
            expected = f"a string of at most {MAX_TENSOR_NAME} characters"
            yield f"{name!r:.80}", f"by this name; expected {expected}"
        elif not isinstance(tensor, torch.Tensor):
            kind = type(tensor)
            yield name, f"of type {kind.__module__}.{kind.__qualname__}; expected a torch.Tensor"
        elif tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            yield name, f"of type {tensor.dtype}; expected floating-point numbers of 16 to 64 bits"
        elif not is_finite(tensor.detach()):
            yield name, "with values that are not finite; expected finite numbers"


def list_members(config: LearngeneConfig, expander: Expander, target: Target) -> list[Member]:
    """Return the members of an expander's grid with the sizes that `target` names.

    A member is left out if its settings differ from an optional setting that `expander` has. Raises
    `WrongCall` if `target` names a size that the expander cannot change.
    """
    check_axes(expander, config.spec, target)
    spec = config.spec.with_(
        classes=target.classes, image_size=target.image_size, dense=target.dense
    )
    sizes = target.axes()
    fixed = {
        s.name: s.default for s in list_settings(expander) if s.optional and s.default is not None
    }
    with report_failure(config.method):
        members = list(expander.family(replace(config, spec=spec)))
    return [
        member
        for member in members
        if all(getattr(member.spec, name) == value for name, value in sizes.items())
        and all(member.settings.get(name, value) == value for name, value in fixed.items())
    ]


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
        references = expand_suites(named) or list(defaults[self.tasks])
        if self.tasks == "none" and references:
            raise WrongCall(f"{self.name} does not train on a task; leave out {option}")
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


METHODS = Plugins("learngene_zoo.methods", "method", Method)


def describe_method(name: str) -> str:
    """Return the words for a method in a message, with its package if it is not of this project."""
    packages = ", ".join(METHODS.package_of(name))
    return f"the method {name or 'unnamed'!r}" + (f" of the package {packages}" if packages else "")


def check_returned(function: Extractor | Expander, kind: type[T], result: object) -> T:
    """Return the result of a plugin's `function`. Raises `BadPlugin` if it is not a `kind`."""
    if not isinstance(result, kind):
        name = f"{type(function).__module__}.{type(function).__qualname__}"
        raise BadPlugin(f"{name} returned {type(result).__name__}; expected {kind.__name__}")
    return result


@contextmanager
def report_failure(name: str) -> Iterator[None]:
    """Report an error in the code of a method as `MethodFailed`, with its name and package.

    Errors of this package, and those that are due to a lack of memory, disk space or open files,
    are raised as they are. But `WrongTensor` becomes `BadPlugin`, and a `WrongCall` in a method
    that is not of this project names the method.
    """
    try:
        yield
    except WrongTensor as error:
        raise BadPlugin(f"{describe_method(name)} built a wrong tensor: {error}") from error
    except Exception as error:
        if type(error) is WrongCall and METHODS.package_of(name):
            raise WrongCall(f"{error} (raised by {describe_method(name)})") from error
        if isinstance(error, ZooError) or is_shortage(error):
            raise
        raise MethodFailed(
            f"{describe_method(name)} failed: {type(error).__name__}: {error}; "
            "run again with --debug to see the traceback"
        ) from error


def find_method(config: LearngeneConfig, where: object) -> Method:
    """Return the method of a learngene at `where`.

    Raises `BadFile` for one that cannot be used, that `LGZOO_PLUGINS` leaves out, or that is not
    installed, with the package that it came from, if the learngene records it; and for details that
    the method cannot read.
    """
    name = config.method
    if not name:
        raise WrongCall(
            f"{where} names no method; lg.extract names it, or learngene.with_config(method=...)"
        )
    try:
        METHODS.check_unused(name)
    except WrongCall as error:
        raise BadFile(f"{where} was made by the method {name!r}; {error}") from None
    if name not in METHODS.references():
        named = sorted(find_package_of_method(config.versions))
        package = (
            f"the package that it names ({', '.join(named)}), if you trust it"
            if named
            else "its plugin"
        )
        raise BadFile(
            f"{where} was made by the method {name!r}, which is not installed; "
            f"install {package} (lgzoo list methods)"
        )
    method = METHODS.load(name)
    if method.details is not None:
        _read_details(
            config, method.details, f"{where / CONFIG}: " if isinstance(where, Path) else ""
        )
    return method


def parse_details(config: LearngeneConfig, kind: type[T]) -> T:
    """Decode the record of a method in a learngene's `details`.

    Raises `BadFile` if it is not a `kind`, with the versions of the method's package that wrote the
    learngene and that is installed.
    """
    return _read_details(config, kind)


def _read_details(config: LearngeneConfig, kind: type[T], where: str = "") -> T:
    name = config.method or "unnamed"
    try:
        return from_json(kind, dict(config.details), f"{where}details of the {name} learngene")
    except BadFile as error:
        versions = {
            "written by": find_package_of_method(config.versions),
            "installed is": METHODS.package_of(name),
        }
        known = [
            f"{words} {package} {number}"
            for words, packages in versions.items()
            for package, number in packages.items()
        ]
        raise BadFile("; ".join([str(error), *known])) from error


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
