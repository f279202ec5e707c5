"""The interface of methods: their records, the sizes that they build, and budgets.

An extractor and an expander are functions with named settings; the frozen dataclass is the
configuration. The command line, the artifacts and the cards use only the `Method` record of a
method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.artifacts.shelf import BUNDLED as BUNDLED
from learngene_zoo.errors import BadPlugin, WrongCall
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.sizes import AXES, Member, Target
from learngene_zoo.settings import (
    check_bounds,
    settings_of,
)

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.runs.run import Run
    from learngene_zoo.tasks.task import Task


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

    @abstractmethod
    def family(self, config: LearngeneConfig) -> Iterable[Member]:
        """Return every descendant of a finite, documented grid.

        They have the classes and image size of `config.spec`. Needs plain numbers only: it must not
        import torch.
        """

    @abstractmethod
    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build one descendant.

        Raises `WrongCall` for a size that this learngene cannot be expanded to.
        """


@dataclass(frozen=True, kw_only=True)
class Work:
    """The estimated cost of a part of an extraction.

    Layers are counted in layers of the ancestry's width.
    """

    images: int  # training images over all epochs
    trained: float  # layers that each image passes forward and back
    frozen: float = 0.0  # layers that each image passes forward only, as of a teacher


def check_axes(expander: Expander, spec: Spec, target: Target) -> None:
    """Raise `WrongCall` if `target` differs from `spec` in a size that the expander cannot change.

    `spec` is the learngene's.
    """
    for name, value in target.axes().items():
        if name not in expander.axes and value != getattr(spec, name):
            free = ", ".join(axis for axis in AXES if axis in expander.axes)
            raise WrongCall(
                f"{name} is {value}, but all descendants of this learngene have {name} "
                f"{getattr(spec, name)}; sizes that can be chosen: {free}"
            )


def check_built(expander: Expander, spec: Spec, target: Target, built_spec: Spec) -> None:
    """Raise `BadPlugin` unless `built_spec` has the sizes that `target` names.

    `spec` is the shape of the learngene that it was built from.
    """
    fixed = {name: getattr(spec, name) for name in AXES if name not in expander.axes}
    for name, value in {**fixed, **target.axes()}.items():
        if getattr(built_spec, name) != value:
            kind, got = type(expander), getattr(built_spec, name)
            raise BadPlugin(
                f"{kind.__module__}.{kind.__qualname__} built a model with {name} {got} instead of "
                f"{value}; `axes` of an expander holds the sizes that it can change, and no others"
            )


def family(config: LearngeneConfig, expander: Expander, target: Target) -> list[Member]:
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
        s.name: s.default for s in settings_of(expander) if s.optional and s.default is not None
    }
    return [
        member
        for member in expander.family(replace(config, spec=spec))
        if all(getattr(member.spec, name) == value for name, value in sizes.items())
        and all(member.settings.get(name, value) == value for name, value in fixed.items())
    ]
