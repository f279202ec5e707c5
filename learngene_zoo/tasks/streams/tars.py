"""Open `wds:PATTERN`: images and labels in tars, in the format of WebDataset, read in order.

A sample consists of consecutive files with the same key, such as `00042.jpg` and `00042.cls`.
Nothing is unpacked to disk or unpickled. Python's `tarfile` takes a damaged header for the end of
the archive, so that a data set would silently shrink; here it is an error.
"""

import os
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.runs.progress import show_progress
from learngene_zoo.storage import parse_json
from learngene_zoo.tasks.labels import LABEL_COLUMNS, SPLIT_COLUMN, list_classes, read_label
from learngene_zoo.tasks.layout import normalize_name
from learngene_zoo.tasks.listing import list_suffixes
from learngene_zoo.tasks.splits.roles import group_files_by_split
from learngene_zoo.tasks.stamps import FileStamp
from learngene_zoo.tasks.streams.facts import (
    FACTS,
    Facts,
    load_facts,
    make_stream_task,
)
from learngene_zoo.tasks.streams.places import (
    is_remote,
    list_tars,
    open_file,
    read_class_names,
    read_sizes,
)
from learngene_zoo.tasks.streams.tally import Tally, check_trained, divide_stream, list_untested
from learngene_zoo.tasks.task import Sample, Stream, Task

IMAGES = ("jpg", "jpeg", "png", "webp")
MASK = "seg.png"
LABELS = ("cls", "json")  # in order of preference
MAX_LABEL = 1000  # characters
MAX_LABEL_BYTES = 2**20  # a record may contain captions beside the label
PICKLES = ("pyd", "pkl", "pickle", "pth", "pt", "ckpt", "joblib")


@dataclass
class Group:
    """The files of one sample, and the content of those that were read."""

    key: str
    tar: str
    names: dict[str, str] = field(default_factory=dict)  # by kind
    data: dict[str, bytes] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """The kind of its image. Raises `BadData` if it has none or several."""
        kinds = [kind for kind in IMAGES if kind in self.names]
        kinds = kinds or [kind for kind in self.names if f".{kind}" in list_suffixes()]
        if len(kinds) != 1:
            got = ", ".join(self.names)
            raise BadData(
                f"{self.where} has {len(kinds)} images (its files: {got}); expected one of "
                f"{', '.join(IMAGES)}"
            )
        return kinds[0]

    @property
    def labelled_by(self) -> str:
        """The kind of the file with its label or mask. Raises `BadData` if there is none."""
        for kind in (*LABELS, MASK):
            if kind in self.names:
                return kind
        raise BadData(f"{self.where} has no label; add {self.key}.cls, or a .json with a label")

    @property
    def where(self) -> str:
        """The tar and the key, for errors."""
        return f"{self.tar}: {self.key}"

    def label(self) -> str:
        """Return the label; integers without leading zeros. Raises `BadData`."""
        kind = self.labelled_by
        where = f"{self.tar}: {self.names[kind]}"
        try:
            text = self.data[kind].decode("utf-8").strip()
            value = _read_record_label(parse_json(self.data[kind])) if kind == "json" else text
        except ValueError:
            raise BadData(f"{where} cannot be read as {kind}; write it again") from None
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            expected = (
                f"a field {', '.join(LABEL_COLUMNS)}" if kind == "json" else "a number or a name"
            )
            raise BadData(f"{where} holds no label; expected {expected}")
        text = normalize_name(str(value))
        if len(text) > MAX_LABEL:
            raise BadData(
                f"{where} holds a label of {len(text)} characters; expected at most {MAX_LABEL}"
            )
        if text.startswith("-") and text[1:].isdecimal():
            raise BadData(
                f"{where} holds {text}, which is not a class; leave out images without a label"
            )
        return str(int(text)) if text.isdecimal() else text

    def split_word(self) -> str:
        """Return the split that the JSON record names, "" if it names none."""
        with suppress(ValueError, RecursionError):
            record = parse_json(self.data["json"]) if "json" in self.data else None
            word = record.get(SPLIT_COLUMN) if isinstance(record, dict) else None
            return word if isinstance(word, str) and len(word) <= MAX_LABEL else ""
        return ""


def _read_record_label(record: object) -> object:
    """Return the label in a record; None if it has no usable label."""
    if not isinstance(record, dict):
        return None
    value = next((record[key] for key in LABEL_COLUMNS if key in record), None)
    try:
        label = read_label(value)
    except ValueError:
        return None
    return str(label) if isinstance(label, bool) else label


class _Header(tarfile.TarInfo):
    """The header of a member; a damaged one is an error, which `tarfile` takes for the end."""

    @classmethod
    def fromtarfile(cls, archive: Any) -> Any:
        try:
            return super().fromtarfile(archive)
        # The zero blocks that end an archive.
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None


def iterate_groups(file: Any, name: str, is_wanted: Callable[[int, str], bool]) -> Iterator[Group]:
    """Yield the samples of an open tar.

    Args:
        file: the open tar.
        name: its path or address.
        is_wanted: takes the number of a sample and a kind, and returns whether to read its file of
            that kind.

    Raises:
        BadData: for a damaged tar, a link, a pickle, or two files with the same name.
    """
    group, number, last_name = None, -1, "its beginning"
    try:
        with _open_tar(file) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # otherwise every header stays in memory
                last_name = member.name
                key, kind = _split_name(member, name)
                if not kind:
                    continue
                if group is None or key != group.key:
                    if group is not None:
                        yield group
                    group, number = Group(key, name), number + 1
                if kind in group.names:
                    raise BadData(
                        f"{name} contains {member.name} twice; give every image another name"
                    )
                group.names[kind] = member.name
                if kind in LABELS and member.size > MAX_LABEL_BYTES:
                    raise BadData(
                        f"{name}: {member.name} has {member.size} bytes; expected a label"
                    )
                if is_wanted(number, kind):
                    content = archive.extractfile(member)
                    group.data[kind] = content.read() if content else b""
    except (
        tarfile.TarError,
        OverflowError,
        ValueError,
    ) as error:  # the last two for impossible sizes
        reason = str(error).replace("unexpected end of data", "it ends too early")
        raise BadData(
            f"{name} is damaged or cut short after {last_name} ({reason}); download or write it "
            "again"
        ) from None
    if group is not None:
        yield group


def _open_tar(file: Any) -> Any:
    return tarfile.open(fileobj=file, mode="r:" if file.seekable() else "r|", tarinfo=_Header)


def _split_name(member: tarfile.TarInfo, tar: str) -> tuple[str, str]:
    """Split a name into key and kind: "a/7.seg.png" into "a/7" and "seg.png".

    The kind is "" for a folder, a hidden file, or one without a dot.
    """
    if member.isdir():
        return member.name, ""
    if not member.isreg():
        raise BadData(f"{tar}: {member.name} is a link or a device; replace it by the file itself")
    folder, slash, file = member.name.rpartition("/")
    stem, _, kind = file.partition(".")
    if not stem:
        return member.name, ""
    if kind.lower().rpartition(".")[2] in PICKLES:
        raise BadData(
            f"{tar}: {member.name} may hold a pickle, which is never opened; leave it out"
        )
    return f"{folder}{slash}{stem}", kind.lower()


@dataclass(frozen=True)
class Tars:
    """Tars with `counts` images each.

    `numbers` maps every label to the number of its class; it is None if there are masks.
    """

    places: tuple[str, ...]
    counts: tuple[int, ...]
    numbers: Mapping[str, int] | None

    def read(self, shard: int, selected: np.ndarray) -> Generator[Sample | None]:
        """Yield the samples as `Stream.read` does.

        Unselected files are skipped; those of a local tar are not read.
        """
        tar, count, last = self.places[shard], self.counts[shard], int(np.flatnonzero(selected)[-1])
        number_of_group = 0
        for group in read_tar(tar, lambda number, kind: number <= last and bool(selected[number])):
            if number_of_group <= last:
                yield self._sample(group) if selected[number_of_group] else None
            elif last < count - 1:
                return  # the count can be checked only after the last image of the tar
            number_of_group += 1
        if number_of_group != count:
            raise BadData(
                f"{tar} holds {number_of_group} images and {count} were counted; if it was "
                "changed, correct the file with the "
                "counts, or empty the folder LGZOO_CACHE (else ~/.cache/learngene_zoo)"
            )

    def _sample(self, group: Group) -> Sample:
        image = group.data[group.image]
        if self.numbers is None:
            if MASK not in group.data:
                raise BadData(f"{group.where} has no mask; add {group.key}.{MASK}")
            return Sample(image, group.where, mask=group.data[MASK])
        label = group.label()
        if label not in self.numbers:
            classes = len(set(self.numbers.values()))
            raise BadData(
                f"{group.where} has the label {label}, which is not one of the {classes} classes"
            )
        return Sample(image, group.where, self.numbers[label])


def read_tar(tar: str, is_wanted: Callable[[int, str], bool]) -> Generator[Group]:
    """Yield the samples of a tar. Raises `BadData` or `Unavailable`."""
    with open_file(tar) as file:
        yield from iterate_groups(file, tar, is_wanted)


def open_tars(pattern: str, offline: bool) -> Task:
    """Open the task in the tars that match a pattern.

    Raises `BadData`, `WrongCall`, or `Unavailable` if remote tars cannot be read.
    """
    name, tars = f"wds:{pattern}", list_tars(pattern)
    if offline and any(map(is_remote, tars)):
        raise Unavailable(f"{name} is not available offline; download the tars and name the files")
    splits, notes = group_files_by_split(name, tars)
    first = _read_first_sample(name, splits["train"])
    masks = first.labelled_by == MASK
    names, counts = read_class_names(splits["train"][0]), _read_counts(splits)
    facts = None
    if names is None or counts is None or first.split_word():
        facts = _count_images(name, splits, masks)
        counts = {
            tar: count
            for split in splits
            for tar, count in zip(splits[split], facts["counts"][split])
        }
        if names is None and masks:
            raise BadData(
                f"{name} holds masks and no list of classes; put a classes.txt beside the tars, "
                "one class per line"
            )
        names = names or list_classes(name, facts["labels"])
    numbers = None if masks else _number_labels(names)
    streams: dict[str, Stream] = {
        split: Tars(tuple(paths), tuple(counts[tar] for tar in paths), numbers)
        for split, paths in splits.items()
    }
    if facts is not None:
        streams = divide_stream(streams, facts)
        notes = (*notes, *list_untested(facts, names, numbers or {}))
    stamp = FileStamp(name_tars(splits), partial(_list_facts, names, tuple(counts.items())))
    kind = "segmentation" if masks else "classification"
    task = make_stream_task(name, streams, names, notes, kind=kind, stamp=stamp)
    if facts is not None:
        check_trained(name, facts)
    return task


def name_tars(splits: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return (split/name, path) of each tar for a stamp; of a remote one split/address."""
    return [
        (f"{split}/{tar if is_remote(tar) else os.path.basename(tar)}", tar)
        for split, tars in splits.items()
        for tar in tars
    ]


def _list_facts(names: Sequence[str], counts: Sequence[tuple[str, int]]) -> Iterator[bytes]:
    """Yield the classes and the number of images in each tar."""
    yield "\n".join(names).encode()
    yield " ".join(str(count) for _, count in counts).encode()


def _read_first_sample(name: str, tars: Sequence[str]) -> Group:
    """Return the first training image, with its record but without the image's content.

    Raises `BadData` if there is none.
    """
    for tar in tars:
        with closing(read_tar(tar, lambda number, kind: kind == "json" and number == 0)) as samples:
            for group in samples:
                return group
    raise BadData(f"{name} has no training images; add some")


def _read_counts(splits: Mapping[str, Sequence[str]]) -> dict[str, int] | None:
    """Return the number of images of every tar, from the files beside them.

    None if those do not list every tar.
    """
    counts: dict[str, int] = {}
    for tars in splits.values():
        beside = read_sizes(tars[0])
        for tar in tars:
            *_, folder, name = ("", *tar.partition("?")[0].replace("\\", "/").split("/"))
            count = beside.get(f"{folder}/{name}", beside.get(name))
            if count is None:
                return None
            counts[tar] = count
    return counts


def _count_images(name: str, splits: Mapping[str, Sequence[str]], masks: bool) -> Facts:
    """Count the images of every tar and list the labels, by reading all headers and labels."""

    def find() -> Facts:
        tally = Tally()
        for split, tar in show_progress(pairs, f"counting the images of {name}"):
            tally.begin(split)
            for group in read_tar(tar, lambda number, kind: kind in LABELS):
                tally.add(
                    split, group.label() if group.image and not masks else "", group.split_word()
                )
        return tally.facts(name)

    pairs = [(split, tar) for split, tars in splits.items() for tar in tars]
    return load_facts(
        "tars", [FACTS, *(f"{split} {make_stamp(tar)}" for split, tar in pairs)], find
    )


def make_stamp(tar: str) -> str:
    """Return a text that changes when the tar does; for a remote one its address."""
    if is_remote(tar):
        return tar
    facts = os.stat(tar)
    return f"{os.path.abspath(tar)} {facts.st_size} {facts.st_mtime_ns}"


def _number_labels(names: Sequence[str]) -> dict[str, int]:
    """Return the number of every label: the name of a class, or its index.

    If names are numbers other than their own indices, labels are names only: with both, some labels
    would be read as names and others as indices.
    """
    numbers = {name: index for index, name in enumerate(names)}
    if any(name.isdecimal() and name != str(index) for name, index in numbers.items()):
        return numbers
    return {**{str(index): index for index in range(len(names))}, **numbers}
