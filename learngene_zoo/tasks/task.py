"""`Task`: a named data set with a role, and `Split`, one part of it. Cold.

A task knows everything about its data but holds none of it: a split is opened when it is asked for.

`Entry`: one row of the catalogue, known without opening anything. Cold.

`Stream`: one split of a task that is read in order, a shard at a time, and never held as a whole. Cold.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from learngene_zoo.artifacts.records import TaskRecord
from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.families.spec import InputFormat
from learngene_zoo.settings import Json, to_json

if TYPE_CHECKING:
    import numpy as np


if TYPE_CHECKING:
    import numpy as np
    import torch

    pass  # MERGED
    pass  # MERGED

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Attribute:
    """Something a picture can be asked beside its class: one of `classes` categories, or, without them, a number."""

    name: str
    classes: int | None = None


class Samples(NamedTuple):
    """What a split gives that has more than images: masks of a segmentation task, or attributes."""

    images: torch.Tensor | Sequence[torch.Tensor]  # uint8 (N, C, H, W), or (C, H, W) each
    masks: torch.Tensor | Sequence[torch.Tensor] | None = None  # uint8 (N, H, W), or (H, W) each; 255 is ignored
    attributes: torch.Tensor | None = None  # float32 (N, len(task.attributes)); NaN where one has no meaning


class Split(Protocol):
    """Images with labels. It can be pickled, so that worker processes can read it."""

    @property
    def labels(self) -> np.ndarray:
        """The class of every image, int64 (N,), known without decoding one image; zeros where masks are the labels."""

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """The images at `indices`: one uint8 tensor (N, C, H, W) if all have one size, else a list of uint8 (C, H, W).

        With masks or attributes: `Samples`.

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
    attributes: tuple[Attribute, ...] = ()  # what training on it also learns; evaluation asks the class alone
    flip: bool = False  # whether a mirrored image keeps its label
    licence: str = "unknown"
    source: str = "built in"
    revision: str | None = None
    sizes: Mapping[str, int]  # images of train, validation and test
    notes: tuple[str, ...] = ()  # what was found while opening it that people should know
    open_split: Callable[[str], Split] = field(repr=False, compare=False)
    open_stream: Callable[[str], Stream] | None = field(default=None, repr=False, compare=False)  # see tasks.batches

    @property
    def input_format(self) -> InputFormat:
        """Images at the task's own size and with its own normalisation."""
        return InputFormat(image_size=self.image_size, channels=self.channels, mean=self.mean, std=self.std)

    @property
    def dense(self) -> bool:
        """Whether it asks for a class of every pixel, which takes a dense model."""
        return self.kind == "segmentation"

    @property
    def identity(self) -> Json:
        """What tells its data from that of other tasks."""
        return [to_json(self.record), self.image_size, self.channels, list(self.mean), list(self.std), self.flip]

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

    def stream(self, name: str) -> Stream:
        """The images of a split, of a task that is read in order. Raises `WrongCall` for another name or another task."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        if self.open_stream is None:
            raise WrongCall(f"{self.name} is no stream; ask for its split")
        return self.open_stream(name)


def built_in(entry: Entry, class_names: Sequence[str], open_split: Callable[[str], Split], **changes: Any) -> Task:
    """The task of a catalogue entry; `changes` are fields that are known only once its data is found."""
    settings: dict[str, Any] = {
        "name": entry.name,
        "title": entry.title,
        "kind": entry.kind,
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


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A task that has a name. `module` is the one, below `learngene_zoo.tasks`, whose `open_named(entry, offline)` opens it."""

    name: str
    title: str
    classes: int
    sizes: Mapping[str, int]
    licence: str
    description: str
    module: str
    kind: Literal["classification", "segmentation"] = "classification"
    flip: bool = False
    source: str = "built in"
    image_size: int = 32


def split_sizes(train: int, validation: int, test: int) -> dict[str, int]:
    """Images of each split."""
    return {"train": train, "validation": validation, "test": test}


class Sample(NamedTuple):
    """One image as it is stored, not decoded, and what belongs to it."""

    image: Any  # what `decoding.decoded` takes
    label: int
    where: str  # names it in an error
    mask: bytes | None = None  # an encoded picture of classes, of a segmentation task


class Stream(Protocol):
    """The images of a split in shards. Image i of the split is the one that reading the shards one by one meets i-th."""

    @property
    def counts(self) -> Sequence[int]:
        """How many images each shard holds."""

    def read(self, shard: int, wanted: np.ndarray) -> Generator[Sample | None]:
        """The images of a shard in order, up to the last one that is wanted; None in the place of those that are not.

        `wanted` is bool (counts[shard],). Raises `BadData` that names the shard and the image which cannot be used.
        """
