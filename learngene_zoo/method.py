"""The seam: what a method is. Cold.

An extractor and an expander are functions with named settings; the frozen dataclass is the configuration. Everything
the command line, the artifacts and the cards know of a method comes from the `Method` record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from learngene_zoo.cost import Convention, Cost, cost
from learngene_zoo.settings import Json
from learngene_zoo.spec import ViTSpec

if TYPE_CHECKING:
    from learngene_zoo.ancestry import Ancestry
    from learngene_zoo.descendant import Descendant
    from learngene_zoo.learngene import Learngene, LearngeneConfig
    from learngene_zoo.run import Run
    from learngene_zoo.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Target:
    """What to build. What is None comes from the learngene."""

    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    classes: int | None = None
    image_size: int | None = None
    task: str | None = None
    dense: bool | None = None  # one class per pixel instead of one per image, as segmentation tasks ask

    def apply(self, spec: ViTSpec) -> ViTSpec:
        """`spec` with what this target names. Raises `WrongCall` for an impossible shape."""
        sizes = ("layers", "width", "heads", "classes", "image_size", "dense")
        return spec.with_(**{name: getattr(self, name) for name in sizes})


@dataclass(frozen=True, kw_only=True)
class Member:
    """One descendant that an expander can build: its shape, and the expander's settings that lead to it."""

    spec: ViTSpec
    settings: Mapping[str, Json] = field(default_factory=dict)

    def cost(self, convention: Convention = "exact") -> Cost:
        """Parameters and FLOPs of this member."""
        return cost(self.spec, convention)

    @property
    def target(self) -> Target:
        """The target that names this member's shape; of stitched ones, with `settings`, exactly this member."""
        spec = self.spec
        return Target(
            layers=spec.layers,
            width=spec.width,
            heads=spec.heads,
            classes=spec.classes,
            image_size=spec.image_size,
            dense=spec.dense,
        )


@dataclass(frozen=True, kw_only=True)
class Extractor(ABC):
    """From ancestry models (and tasks) to a learngene. Subclasses are frozen dataclasses; their fields are the settings."""

    @abstractmethod
    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """The config that an extraction would write, as far as it is known beforehand. Cold."""

    @abstractmethod
    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Do it. The caller adds provenance (settings, ancestries, tasks, seed, versions) to the config."""


@dataclass(frozen=True, kw_only=True)
class Expander(ABC):
    """From a learngene to descendants of many sizes."""

    @abstractmethod
    def family(self, config: LearngeneConfig) -> Iterable[Member]:
        """Every descendant of a finite documented grid; `config.spec` holds the classes and image size asked for. Cold."""

    @abstractmethod
    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build one descendant. Raises `WrongCall` for a size this learngene cannot reach."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a part of an extraction takes, known before it is begun: images through so many layers of the ancestry's width."""

    depends: Json  # all that the part depends on beside its seed: where parts are shared, equal ones are done once
    images: int  # over all epochs
    trained: float  # layers that each passes forward and back
    asked: float = 0.0  # layers that each passes forward only


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of the zoo: what `plugins` register, by entry point, in the group `learngene_zoo.methods`."""

    name: str
    title: str  # one line for `lgzoo list`
    paper: str  # authors, title, venue, year; "" for a control
    expander: Expander  # with its default settings
    presets: Mapping[str, Extractor]  # "mini" is the default; "smoke" is what check_method runs; "paper" the paper's
    ancestries: tuple[int, int | None] = (1, 1)  # least and most (None: any number)
    tasks: Literal["none", "one", "many"] = "many"  # what the extraction trains on; "one" and "many" need at least one
    uses_tasks: Callable[[Extractor], bool] = lambda extractor: True  # False where settings make data needless
    # From the settings, the ancestries and the tasks' numbers of training images; None: the ancestry is trained on each task.
    work: Callable[[Extractor, Sequence[ViTSpec], Sequence[int]], Iterable[Work]] | None = None
    plot: str | None = None  # "package.module:function" (learngene, path, expander) -> None, draws the learngene

    @property
    def extractor(self) -> Extractor:
        """The extractor with the default preset's settings."""
        return self.presets["mini"]
