"""`Task`: a named data set with a role, and `Split`, one part of it. Cold.

A task knows everything about its data but holds none of it: a split is opened when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from learngene_zoo.errors import unknown
from learngene_zoo.learngene import TaskRecord
from learngene_zoo.view import View

if TYPE_CHECKING:
    import numpy as np

    from learngene_zoo.tasks.catalogue import Entry

SPLITS = ("train", "validation", "test")


class Split(Protocol):
    """Images with labels. It can be pickled, so that worker processes can read it."""

    @property
    def labels(self) -> np.ndarray:
        """The class of every image, int64 (N,), known without decoding one image."""

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """The images at `indices`: one uint8 tensor (N, C, H, W) if all have one size, else a list of uint8 (C, H, W).

        Raises `BadData` that names the file or row which cannot be read.
        """


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set and how its images are presented to a model. `open_split` is called with "train", "validation", "test"."""

    name: str
    title: str
    kind: Literal["classification", "segmentation"] = "classification"
    classes: int
    class_names: tuple[str, ...]
    image_size: int
    channels: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    flip: bool = False  # whether a mirrored image keeps its label
    licence: str = "unknown"
    source: str = "built in"
    revision: str | None = None
    sizes: Mapping[str, int]  # images of train, validation and test
    open_split: Callable[[str], Split] = field(repr=False, compare=False)

    @property
    def view(self) -> View:
        """Images at the task's own size and with its own normalisation."""
        return View(image_size=self.image_size, channels=self.channels, mean=self.mean, std=self.std)

    @property
    def record(self) -> TaskRecord:
        """What an artifact remembers of this data."""
        return TaskRecord(
            name=self.name,
            source=self.source,
            kind=self.kind,
            classes=self.classes,
            images=self.sizes["train"],
            revision=self.revision,
            licence=self.licence,
        )

    def split(self, name: str) -> Split:
        """The images of "train", "validation" or "test". Raises `WrongCall` for another name."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        return self.open_split(name)


def built_in(entry: Entry, class_names: Sequence[str], open_split: Callable[[str], Split], **changes: Any) -> Task:
    """The task of a catalogue entry; `changes` are fields that are known only once its data is found."""
    settings: dict[str, Any] = {
        "name": entry.name,
        "title": entry.title,
        "classes": entry.classes,
        "class_names": tuple(class_names),
        "image_size": entry.image_size,
        "flip": entry.flip,
        "licence": entry.licence,
        "source": entry.source,
        "sizes": dict(entry.sizes),
        "open_split": open_split,
    }
    return Task(**{**settings, **changes})
