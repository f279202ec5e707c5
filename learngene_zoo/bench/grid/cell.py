"""The parts of a grid: arms, cells, and the extractions that cells share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from learngene_zoo.artifacts.records import Control
from learngene_zoo.method.contract import Expander, Extractor
from learngene_zoo.method.installed import METHODS
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import OMIT_DEFAULT, Json, Recipe, fingerprint, to_json, with_settings

if TYPE_CHECKING:
    from learngene_zoo.families.spec import Spec

LEARNGENES = "learngenes"  # the folder of a bench with its learngenes
# The start of a new head: a ridge regression of the model's features (training/heads.py), or
# random weights.
HeadStart = Literal["ridge", "random"]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One competitor: a method with settings, or a control.

    Arms of one extraction share its learngene.
    """

    name: str  # its name in every table, unique in a grid
    method: str
    preset: str = "mini"
    # of the extractor, where they differ from the preset
    settings: Mapping[str, Json] = field(default_factory=dict)
    # of the expander, where they differ from its defaults
    expand: Mapping[str, Json] = field(default_factory=dict)
    control: Control | None = None  # destroys parts of the descendants before training
    ancestries: tuple[str, ...] = ()  # () is the bundled one
    tasks: tuple[str, ...] = ()  # of the extraction; () is the method's default
    leave_out: bool = False  # the extraction does not see the cell's own task
    # of ancestry models and descendants; None: their own
    image_size: int | None = field(default=None, metadata=OMIT_DEFAULT)

    @property
    def extractor(self) -> Extractor:
        """Return the extractor: the preset with the settings."""
        return with_settings(METHODS.load(self.method).preset(self.preset), self.settings)

    def adapt_extractor(self, ancestries: Sequence[Spec]) -> Extractor:
        """Return the extractor for ancestry models: the preset, adapted to them, with the settings.

        An extraction has it.
        """
        preset = METHODS.load(self.method).adapt_preset(self.preset, ancestries)
        return with_settings(preset, self.settings)

    @property
    def expander(self) -> Expander:
        """Return the expander with the settings."""
        return with_settings(METHODS.load(self.method).expander, self.expand)

    def tasks_for(self, task: str) -> tuple[str, ...]:
        """Return the tasks of the extraction for a cell on `task`."""
        return tuple(name for name in self.tasks if name != task) if self.leave_out else self.tasks


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One descendant of one arm, trained on one task with one seed and budget, evaluated once."""

    arm: Arm
    task: str
    layers: int
    seed: int  # of the extraction and of the training, unless the two fields below name others
    recipe: Recipe  # with its own complete schedule; 0 epochs: untrained
    width: int | None = None  # None: the learngene's
    split: Literal["validation", "test"] = "test"
    look: bool = True  # also measure it on the same split before any training
    # expander's settings and `MORE_AXES` that name it with the layers
    size: Mapping[str, Json] = field(default_factory=dict)
    extraction_seed: int | None = None  # None: `seed`
    training_seed: int | None = None  # None: derived from `seed` and the task
    version: int = 1  # of the suite that draws the task's test images
    # the stamps of the user's own data that it reads, by task
    data: Mapping[str, str] = field(default_factory=dict)
    head: HeadStart = "random"  # the start of a head that is not inherited
    # package, version and digest of the code of a method that is not of this project
    code: str = ""

    @property
    def key(self) -> str:
        """Return a hash of all fields that change the cell's numbers; it identifies the cell."""
        values = to_json(self)
        # These fields came later: without them, older results keep their keys.
        added: dict[str, Json] = {
            "size": {},
            "extraction_seed": None,
            "training_seed": None,
            "version": 1,
            "data": {},
            "head": "random",
            "code": "",
        }
        return fingerprint(
            {
                name: value
                for name, value in values.items()
                if name not in added or value != added[name]
            }
        )

    @property
    def extraction(self) -> Extraction:
        """Return the extraction that provides the cell's learngene."""
        tasks = self.arm.tasks_for(self.task)
        arm = replace(self.arm, name="", control=None, expand={}, tasks=tasks, leave_out=False)
        seed = self.seed if self.extraction_seed is None else self.extraction_seed
        data = {name: self.data[name] for name in tasks if name in self.data}
        return Extraction(arm=arm, seed=seed, data=data, code=self.code)

    @property
    def at(self) -> Size:
        """Return the cell's size."""
        return Size(self.layers, self.width, self.size)

    @property
    def draws(self) -> int:
        """Return the seed of every random draw after the extraction.

        It is equal for all arms, sizes and budgets, so they have equal images and heads.
        """
        derived = derive_seed(self.seed, "trial", self.task)
        return derived if self.training_seed is None else self.training_seed


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """One extraction of a grid, shared by the cells whose arms agree in all that it depends on."""

    arm: Arm  # without a name, a control and the expander's settings
    seed: int
    # the stamps of the user's own data among its tasks
    data: Mapping[str, str] = field(default_factory=dict)
    code: str = ""  # see `Cell`

    @property
    def key(self) -> str:
        """Return the name of the extraction's folder."""
        # without them, older extractions keep their keys
        stamps: list[Json] = [dict(self.data)] if self.data else []
        stamps += [self.code] if self.code else []
        return f"{self.arm.method}-{fingerprint([to_json(self.arm), self.seed, *stamps])}"

    def folder(self, out: Path) -> Path:
        """Return the folder where the learngene is saved."""
        return out / LEARNGENES / self.key

    def record(self, out: Path) -> Path:
        """Return the path of the file that records the cost."""
        return out / LEARNGENES / f"{self.key}.cost.json"


class Size(NamedTuple):
    """A size by its layers and width, or by the expander's settings where those do not suffice."""

    layers: int
    width: int | None = None  # None: the learngene's
    size: Mapping[str, Json] = {}

    def __str__(self) -> str:
        return label(self.size) or f"{self.layers} layers" + (
            f" of width {self.width}" if self.width else ""
        )


MORE_AXES = ("heads", "mlp_ratio")  # axes that a size may name beside layers and width


def is_plain(size: Mapping[str, Json]) -> bool:
    """Return whether layers, or layers and width, name this size."""
    return "layers" in size and set(size) <= {"layers", "width"}


def label(size: Mapping[str, Json]) -> str:
    """Return a size in words: `low 3, high 3`."""
    return ", ".join(f"{name} {value}" for name, value in size.items())
