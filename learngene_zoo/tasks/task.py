"""Define a task, a named data set: its splits are images or texts read one by one (`Split`), or
images read in order (`Stream`).

A task has all facts about its data but no samples: a split is opened when it is needed. The facts
that are known before the task is opened are an `Entry` of the catalogue and, for data of the Hub, a
`HubSource`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from learngene_zoo.artifacts.records import TargetTask, TaskRecord
from learngene_zoo.errors import BadData, Unavailable, WrongCall, refuse_unknown
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.settings import Json, to_json
from learngene_zoo.text import MAX_NAME_LENGTH, is_text

if TYPE_CHECKING:
    import numpy as np
    import torch

SPLITS = ("train", "validation", "test")
# The names of columns after the path of a table of texts, as in csv:reviews.csv:text=body.
COLUMNS = re.compile(r":((?:text|label)=[^=,]+(?:,(?:text|label)=[^=,]+)*)$")
# Suffixes of the files of tables, by the kind of their reference (`csv:PATH`).
TABLES = {"parquet": (".parquet",), "csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson")}
KIND_OF = {suffix: kind for kind, suffixes in TABLES.items() for suffix in suffixes}
Kind = Literal["classification", "segmentation", "text"]
MetricName = Literal["accuracy", "matthews", "F1"]
IGNORED = 255  # in a mask: a pixel that is ignored in training and evaluation


@dataclass(frozen=True)
class Attribute:
    """A further label of an image: one of `classes` categories, or a number if that is None."""

    name: str
    classes: int | None = None


class Samples(NamedTuple):
    """Samples of a split that has masks (in a segmentation task) or attributes."""

    images: torch.Tensor | Sequence[torch.Tensor]  # uint8 (N, C, H, W), or (C, H, W) each
    # uint8 (N, H, W), or (H, W) each; 255 is ignored
    masks: torch.Tensor | Sequence[torch.Tensor] | None = None
    # float32 (N, len(task.attributes)); NaN where one has no meaning
    attributes: torch.Tensor | None = None


class Split(Protocol):
    """Images or texts with labels. It must be picklable, so that worker processes can read it."""

    @property
    def labels(self) -> np.ndarray:
        """The class of every image, int64 (N,), known without decoding; zeros with masks."""

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the images at `indices`: uint8 (N, C, H, W), or a list of (C, H, W).

        A list is returned if the sizes differ; with masks or attributes it is `Samples`. Of a text
        task it is a list of texts, or of pairs of texts.

        Raises `BadData` that names the file or row which cannot be read.
        """


class Sample(NamedTuple):
    """An encoded image, or a text; if it comes from a stream, with its label or mask."""

    image: Any  # an argument of `tasks.images.decode_image`; or a text, or a pair of texts
    where: str  # names the image or text in errors
    label: int = 0
    mask: bytes | None = None  # an encoded picture of classes, in a segmentation task


class Stream(Protocol):
    """The images of a split in shards, which are read in order and never fully in memory.

    Image i of the split is the i-th one when the shards are read one after the other.
    """

    @property
    def counts(self) -> Sequence[int]:
        """The number of images in each shard."""

    def read(self, shard: int, selected: np.ndarray) -> Generator[Sample | None]:
        """Yield the images of a shard in order up to the last selected one, None for the others.

        `selected` is bool (counts[shard],). Raises `BadData` that names the shard and the image
        which cannot be used.
        """


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set; of images also their format.

    A text task has an `image_size` of 0 and no format: the tokenizer is that of a model.
    `open_split` takes "train", "validation" or "test".
    """

    name: str
    title: str
    kind: Kind = "classification"
    classes: int
    class_names: tuple[str, ...]
    image_size: int = 0
    channels: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    attributes: tuple[
        Attribute, ...
    ] = ()  # further training targets; evaluation uses only the class
    flip: bool = False  # whether a mirrored image keeps its label
    metric: MetricName = "accuracy"  # of a task with one class per sample
    licence: str = "unknown"
    source: str = "built in"
    revision: str | None = None
    sizes: Mapping[str, int]  # number of images or texts in train, validation and test
    cut_splits: tuple[str, ...] = ()  # the splits that were cut from the training samples
    notes: tuple[str, ...] = ()  # for users of the data
    # Of texts in a table: the column of the texts, or the two of pairs, and that of the labels
    text_columns: tuple[str, ...] = ()
    label_column: str | None = None
    open_split: Callable[[str], Split] = field(repr=False, compare=False)
    # see tasks.loader
    open_stream: Callable[[str], Stream] | None = field(default=None, repr=False, compare=False)
    # Returns the stamp of data that can change, see `tasks.stamps.stamp_task`.
    stamp: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.is_text != (self.image_size == 0):
            raise WrongCall(
                f"the task {self.name} of kind {self.kind} has an image_size of {self.image_size}; "
                "expected 0 for texts, and at least 1 for images"
            )
        for text in (self.name, self.source, self.licence, *self.class_names):
            if not is_text(text):
                raise BadData(f"{self.name}: {text!r} is not text in UTF-8; rename it")
        for text in self.class_names:
            if len(text) > MAX_NAME_LENGTH:
                raise BadData(
                    f"{self.name:.80}: the class {text[:30]!r}... has {len(text):,} characters; "
                    "expected at most "
                    f"{MAX_NAME_LENGTH}: rename it"
                )

    @property
    def input_format(self) -> InputFormat:
        """The task's image size and normalisation. Raises `WrongCall` for a text task."""
        if self.is_text:
            raise WrongCall(
                f"{self.name} is a text task; texts have no format without a model's tokenizer"
            )
        return InputFormat(
            image_size=self.image_size, channels=self.channels, mean=self.mean, std=self.std
        )

    @property
    def dense(self) -> bool:
        """Whether every pixel has a class, which needs a dense model."""
        return self.kind == "segmentation"

    @property
    def is_text(self) -> bool:
        """Whether the samples are texts instead of images."""
        return self.kind == "text"

    @property
    def sample_noun(self) -> str:
        """What a sample is called in messages."""
        return "text" if self.is_text else "image"

    @property
    def is_labelled(self) -> bool:
        """Whether the images have labels; if not, all of them have the class 0."""
        return self.classes > 1 or self.dense

    @property
    def identity(self) -> Json:
        """JSON that distinguishes this data from that of other tasks."""
        if self.is_text:
            stamp = [] if self.stamp is None else [self.stamp()]
            return [to_json(self.record), self.metric, *stamp]
        fields = [self.image_size, self.channels, list(self.mean), list(self.std), self.flip]
        return [to_json(self.record), *fields, *([self.stamp()] if self.stamp is not None else [])]

    @property
    def record(self) -> TaskRecord:
        """The record of this task in an artifact."""
        return TaskRecord(
            name=self.name,
            source=self.source,
            kind=self.kind,
            classes=self.classes,
            images=self.sizes["train"],
            revision=self.revision,
            licence=self.licence,
        )

    @property
    def purpose(self) -> TargetTask:
        """The record of this task in a learngene, as the target task of its descendants."""
        return TargetTask(
            task=self.name, classes=self.classes, class_names=self.class_names, dense=self.dense
        )

    def split(self, name: str) -> Split:
        """Return the samples of "train", "validation" or "test".

        Raises `WrongCall` for another name.
        """
        if name not in SPLITS:
            raise refuse_unknown("split", name, SPLITS)
        return self.open_split(name)

    def stream(self, name: str) -> Stream:
        """Return the images of a split of a streamed task.

        Raises `WrongCall` for another name or a task that is not streamed.
        """
        if name not in SPLITS:
            raise refuse_unknown("split", name, SPLITS)
        if self.open_stream is None:
            raise WrongCall(f"{self.name} is not streamed; use task.split")
        return self.open_stream(name)


def check_inputs(task: Task | Entry, input_format: InputFormat | TextFormat | None = None) -> None:
    """Check that a model takes the samples of a task, images or texts.

    Args:
        task: the task, or its entry in the catalogue.
        input_format: the format of the model's inputs; None for models that take images.

    Raises:
        WrongCall: if it does not.
    """
    check_kind(task, isinstance(input_format, TextFormat))


def check_kind(task: Task | Entry, takes_texts: bool) -> None:
    """Raise `WrongCall` if a model takes texts and the task has images, or the reverse."""
    is_text = task.kind == "text"
    if takes_texts != is_text:
        taken = "texts" if takes_texts else "images"
        raise WrongCall(
            f"{task.name} is {name_kind(is_text)} task, and the model takes {taken}; give "
            f"{name_kind(takes_texts)} task, or {name_kind(is_text)} model"
        )


def name_kind(is_text: bool) -> str:
    """Return the word for the kind of a model or task, with its article."""
    return "a text" if is_text else "an image"


def stamp_task(task: Task) -> str:
    """Return the stamp of a task's data; "" for data that cannot change (built in or pinned).

    Raises `BadData` if a file cannot be read.
    """
    return task.stamp() if task.stamp is not None else ""


def stamp_tasks(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the stamps of the tasks whose data can change, by name."""
    stamps = {task.name: stamp_task(task) for task in tasks}
    return {name: stamp for name, stamp in stamps.items() if stamp}


# Facts that are known without opening a task.


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the catalogue: a named task."""

    name: str
    title: str
    classes: int
    sizes: Mapping[str, int]
    licence: str
    description: str
    kind: Kind = "classification"
    flip: bool = False  # whether a mirrored image keeps its label
    metric: MetricName = "accuracy"
    source: str = "built in"
    image_size: int = 32  # 0 for texts
    notes: tuple[str, ...] = ()  # for users of the data


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """A data set of the Hub and the settings for reading it."""

    reference: str  # org/name[:config][@revision]
    # First digits of the commit that was reviewed, if the revision is a branch that can move
    pin: str = ""
    # For each split, the stored split that is used for it
    roles: Mapping[str, str] = field(default_factory=dict)
    label: str | None = None  # the label column, if the features do not determine it
    also_classes: tuple[int, ...] = ()  # further numbers of classes that are accepted
    alternative: str = ""  # the remedy if the Hub is not available

    @contextmanager
    def or_alternative(self) -> Iterator[None]:
        """Add the alternative to the message of an `Unavailable` error raised inside."""
        try:
            yield
        except Unavailable as error:
            if not self.alternative:
                raise
            raise Unavailable(f"{error}; or {self.alternative}") from None
