"""What a grid is made of: arms, cells, and the row that a finished cell leaves in the results file. Cold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from learngene_zoo.artifacts.records import Control
from learngene_zoo.recipe import Recipe
from learngene_zoo.settings import Json, fingerprint, to_json


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One competitor: a method with settings, or the control of one. Arms of one extraction share its learngene."""

    name: str  # its name in every table; one in a grid
    method: str
    preset: str = "mini"
    settings: Mapping[str, Json] = field(default_factory=dict)  # of the extractor, what differs from the preset
    expand: Mapping[str, Json] = field(default_factory=dict)  # of the expander, what differs from its defaults
    control: Control | None = None  # what descendants inherit is destroyed in this way before they are trained
    ancestries: tuple[str, ...] = ()  # () is the bundled one
    tasks: tuple[str, ...] = ()  # what the extraction sees; () is the method's default
    leave_out: bool = False  # the extraction does not see the cell's own task

    def tasks_for(self, task: str) -> tuple[str, ...]:
        """What the extraction for a cell on `task` sees."""
        return tuple(name for name in self.tasks if name != task) if self.leave_out else self.tasks


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One descendant of one arm, trained on one task with one seed and one budget, then judged once."""

    arm: Arm
    task: str
    layers: int
    seed: int  # of the extraction and of the training, both
    recipe: Recipe  # with its own complete schedule; 0 epochs: untrained
    width: int | None = None  # None: the learngene's
    split: Literal["validation", "test"] = "test"
    look: bool = True  # also measure, on the same split, what it knows before any training
    size: Mapping[str, Json] = field(default_factory=dict)  # settings of the expander that name it where layers do not

    @property
    def key(self) -> str:
        """What tells this cell from every other: a hash of all that changes its numbers."""
        told = to_json(self)
        return fingerprint(told if self.size else {name: told[name] for name in told if name != "size"})

    @property
    def extraction(self) -> Arm:
        """The arm whose extraction this cell's descendant comes from; cells with equal ones and one seed share it."""
        return replace(self.arm, name="", control=None, expand={}, tasks=self.arm.tasks_for(self.task), leave_out=False)


def label(size: Mapping[str, Json]) -> str:
    """A size in words: `low 3, high 3`."""
    return ", ".join(f"{name} {value}" for name, value in size.items())


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the results file. A failed cell has an `error` and no numbers."""

    key: str
    arm: str
    method: str
    control: str | None
    task: str
    layers: int
    width: int
    seed: int
    epochs: int
    lr: float
    images: int  # training images of the fine-tuning
    split: str
    size: str = ""  # how the expander's settings name it, where layers alone do not
    error: str | None = None
    metric: str = "accuracy"  # or mIoU
    value: float | None = None
    correct: str | None = None  # which images were right: hexadecimal, four images a digit, in the order of the split
    evaluated: int = 0  # images of the split
    untrained: float | None = None  # the metric before any training
    probe: float | None = None  # nearest class mean of its features before training: what it knows without a head
    params: int = 0  # of the descendant
    flops: int = 0
    stored_params: int = 0  # of the learngene, in numbers: what must be kept to build any size
    extraction_seconds: float = 0.0
    extraction_images: int = 0  # images seen by the extraction, over all epochs
    seconds: float = 0.0  # of the fine-tuning
    machine: str = ""
    finished: str = ""  # UTC, ISO 8601
