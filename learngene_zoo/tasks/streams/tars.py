"""`wds:PATTERN`: images and labels in tars, as WebDataset writes them, read in order.

A sample is consecutive files that share a key, such as `00042.jpg` and `00042.cls`. Nothing is unpacked to disk or unpickled.
Python's `tarfile` takes a damaged header for the end of the archive, so that a data set would silently shrink; here it is an error.
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
from learngene_zoo.runs.progress import progress
from learngene_zoo.storage import parse_json
from learngene_zoo.tasks.labels import LABEL_COLUMNS, SPLIT_COLUMN, read_label
from learngene_zoo.tasks.layout import normalize_name
from learngene_zoo.tasks.listing import list_suffixes
from learngene_zoo.tasks.splits import files_by_split
from learngene_zoo.tasks.stamps import FileStamp
from learngene_zoo.tasks.streams.facts import FACTS, Facts, classes_of, kept, stream_task
from learngene_zoo.tasks.streams.places import class_names, is_remote, opened, places_of, sizes
from learngene_zoo.tasks.streams.tally import Tally, check_trained, divide_stream, note_untested
from learngene_zoo.tasks.task import Sample, Stream, Task

IMAGES = ("jpg", "jpeg", "png", "webp")
MASK = "seg.png"
LABELS = ("cls", "json")  # in order of preference
MOST_LABEL = 1000  # characters
MOST_LABEL_BYTES = 2**20  # a record may hold captions beside the label
PICKLES = ("pyd", "pkl", "pickle", "pth", "pt", "ckpt", "joblib")


@dataclass
class Group:
    """The files of one sample, and the bytes of those that were read."""

    key: str
    tar: str
    names: dict[str, str] = field(default_factory=dict)  # by kind
    data: dict[str, bytes] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """The kind of its image. Raises `BadData` if it has none or several."""
        found = [kind for kind in IMAGES if kind in self.names]
        found = found or [kind for kind in self.names if f".{kind}" in list_suffixes()]
        if len(found) != 1:
            got = ", ".join(self.names)
            raise BadData(
                f"{self.where} has {len(found)} images (its files: {got}); expected one of {', '.join(IMAGES)}"
            )
        return found[0]

    @property
    def labelled_by(self) -> str:
        """The kind of the file that holds its label or mask. Raises `BadData` if there is none."""
        for kind in (*LABELS, MASK):
            if kind in self.names:
                return kind
        raise BadData(f"{self.where} has no label; add {self.key}.cls, or a .json with a label")

    @property
    def where(self) -> str:
        """The tar and the key."""
        return f"{self.tar}: {self.key}"

    def label(self) -> str:
        """The label, whole numbers without leading zeros. Raises `BadData`."""
        kind = self.labelled_by
        where = f"{self.tar}: {self.names[kind]}"
        try:
            text = self.data[kind].decode("utf-8").strip()
            value = _label_in(parse_json(self.data[kind])) if kind == "json" else text
        except ValueError:
            raise BadData(f"{where} cannot be read as {kind}; write it again") from None
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            expected = f"a field {', '.join(LABEL_COLUMNS)}" if kind == "json" else "a number or a name"
            raise BadData(f"{where} holds no label; expected {expected}")
        text = normalize_name(str(value))
        if len(text) > MOST_LABEL:
            raise BadData(f"{where} holds a label of {len(text)} characters; expected at most {MOST_LABEL}")
        if text.startswith("-") and text[1:].isdecimal():
            raise BadData(f"{where} holds {text}, which is not a class; leave out images without a label")
        return str(int(text)) if text.isdecimal() else text

    def split_word(self) -> str:
        """What the record of the sample says about its split; "" if it says nothing."""
        with suppress(ValueError, RecursionError):
            record = parse_json(self.data["json"]) if "json" in self.data else None
            word = record.get(SPLIT_COLUMN) if isinstance(record, dict) else None
            return word if isinstance(word, str) and len(word) <= MOST_LABEL else ""
        return ""


def _label_in(record: object) -> object:
    """The label in a record, None if it has none that can be read."""
    if not isinstance(record, dict):
        return None
    value = next((record[key] for key in LABEL_COLUMNS if key in record), None)
    try:
        label = read_label(value)
    except ValueError:
        return None
    return str(label) if isinstance(label, bool) else label


class _Header(tarfile.TarInfo):
    """A header; `tarfile` itself ends quietly at a damaged or a missing one."""

    @classmethod
    def fromtarfile(cls, archive: Any) -> Any:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the zeros that end an archive
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None


def groups(file: Any, name: str, wanted: Callable[[int, str], bool]) -> Iterator[Group]:
    """The samples of an open tar called `name`. Files of kind k of sample number n are read where `wanted(n, k)`.

    Raises `BadData` for a damaged tar, a link, a pickle, and two files of one name.
    """
    group, number, last = None, -1, "its beginning"
    try:
        with _opened(file) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # else it keeps every header
                last = member.name
                key, kind = _parts(member, name)
                if not kind:
                    continue
                if group is None or key != group.key:
                    if group is not None:
                        yield group
                    group, number = Group(key, name), number + 1
                if kind in group.names:
                    raise BadData(f"{name}: {member.name} is there twice; give every image a name of its own")
                group.names[kind] = member.name
                if kind in LABELS and member.size > MOST_LABEL_BYTES:
                    raise BadData(f"{name}: {member.name} has {member.size} bytes; expected a label")
                if wanted(number, kind):
                    content = archive.extractfile(member)
                    group.data[kind] = content.read() if content else b""
    except (tarfile.TarError, OverflowError, ValueError) as error:  # the last two for sizes that no file has
        reason = str(error).replace("unexpected end of data", "it ends too early")
        raise BadData(f"{name} is damaged or cut short after {last} ({reason}); download or write it again") from None
    if group is not None:
        yield group


def _opened(file: Any) -> Any:
    return tarfile.open(fileobj=file, mode="r:" if file.seekable() else "r|", tarinfo=_Header)


def _parts(member: tarfile.TarInfo, tar: str) -> tuple[str, str]:
    """Key and kind: "a/7.seg.png" is "a/7" and "seg.png". The kind is "" for a folder, a hidden file, or one without a dot."""
    if member.isdir():
        return member.name, ""
    if not member.isreg():
        raise BadData(f"{tar}: {member.name} is a link or a device; replace it by the file itself")
    folder, slash, file = member.name.rpartition("/")
    stem, _, kind = file.partition(".")
    if not stem:
        return member.name, ""
    if kind.lower().rpartition(".")[2] in PICKLES:
        raise BadData(f"{tar}: {member.name} may hold a pickle, which is never opened; leave it out")
    return f"{folder}{slash}{stem}", kind.lower()


@dataclass(frozen=True)
class Tars:
    """Tars with `counts` images each. `numbers` has the number of every label; None: there are masks instead."""

    places: tuple[str, ...]
    counts: tuple[int, ...]
    numbers: Mapping[str, int] | None

    def read(self, shard: int, wanted: np.ndarray) -> Generator[Sample | None]:
        """As every `Stream`. Files that are not wanted are skipped, without being read if the tar is local."""
        place, count, last = self.places[shard], self.counts[shard], int(np.flatnonzero(wanted)[-1])
        found = 0
        for group in read(place, lambda number, kind: number <= last and bool(wanted[number])):
            if found <= last:
                yield self._sample(group) if wanted[found] else None
            elif last < count - 1:
                return  # only the last wanted image of the tar says whether the count is right
            found += 1
        if found != count:
            raise BadData(
                f"{place} holds {found} images and {count} were counted; if it was changed, correct the file with the "
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
            raise BadData(f"{group.where} has the label {label}, which is none of the {classes} classes")
        return Sample(image, group.where, self.numbers[label])


def read(place: str, wanted: Callable[[int, str], bool]) -> Generator[Group]:
    """The samples of the tar at `place`. Raises `BadData` or `Unavailable`."""
    with opened(place) as file:
        yield from groups(file, place, wanted)


def open_tars(pattern: str, offline: bool) -> Task:
    """The task in the tars that a pattern names. Raises `BadData`, `WrongCall`, or `Unavailable` if they are remote."""
    name, places = f"wds:{pattern}", places_of(pattern)
    if offline and any(map(is_remote, places)):
        raise Unavailable(f"{name} is not available offline; download the tars and name the files")
    splits = files_by_split(name, places)
    first = _first_sample(name, splits["train"])
    masks = first.labelled_by == MASK
    names, counts = class_names(splits["train"][0]), _counts_beside(splits)
    facts = None
    if names is None or counts is None or first.split_word():
        facts = _counted(name, splits, masks)
        counts = {place: count for split in splits for place, count in zip(splits[split], facts["counts"][split])}
        if names is None and masks:
            raise BadData(
                f"{name} holds masks and no list of classes; put a classes.txt beside the tars, one class a line"
            )
        names = names or classes_of(name, facts["labels"])
    numbers = None if masks else _numbers(names)
    found: dict[str, Stream] = {
        split: Tars(tuple(own), tuple(counts[place] for place in own), numbers) for split, own in splits.items()
    }
    notes: list[str] = []
    if facts is not None:
        found = divide_stream(found, facts)
        notes += note_untested(facts, names, numbers or {})
    stamp = FileStamp(_name_places(splits), partial(_list_facts, names, tuple(counts.items())))
    kind = "segmentation" if masks else "classification"
    task = stream_task(name, found, names, notes, kind=kind, stamp=stamp)
    if facts is not None:
        check_trained(name, facts)
    return task


def _name_places(splits: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return each tar by its split and its name, one far away by its address, as a stamp takes them."""
    return [
        (f"{split}/{place if is_remote(place) else os.path.basename(place)}", place)
        for split, places in splits.items()
        for place in places
    ]


def _list_facts(names: Sequence[str], counts: Sequence[tuple[str, int]]) -> Iterator[bytes]:
    """Yield the classes and the number of images in each tar."""
    yield "\n".join(names).encode()
    yield " ".join(str(count) for _, count in counts).encode()


def _first_sample(name: str, places: Sequence[str]) -> Group:
    """The first training image, with its record but without the image. Raises `BadData` if there is none."""
    for place in places:
        with closing(read(place, lambda number, kind: kind == "json" and number == 0)) as samples:
            for group in samples:
                return group
    raise BadData(f"{name} has no training images; add some")


def _counts_beside(splits: Mapping[str, Sequence[str]]) -> dict[str, int] | None:
    """The images of every tar, from the files beside them; None if those do not name every tar."""
    counts: dict[str, int] = {}
    for places in splits.values():
        beside = sizes(places[0])
        for place in places:
            *_, folder, name = ("", *place.partition("?")[0].replace("\\", "/").split("/"))
            count = beside.get(f"{folder}/{name}", beside.get(name))
            if count is None:
                return None
            counts[place] = count
    return counts


def _counted(name: str, splits: Mapping[str, Sequence[str]], masks: bool) -> Facts:
    """The images of every tar, in order, and the distinct labels of each split, from reading every header and label."""

    def find() -> Facts:
        tally = Tally()
        for split, place in progress(places, f"counting the images of {name}"):
            tally.begin(split)
            for group in read(place, lambda number, kind: kind in LABELS):
                tally.add(split, group.label() if group.image and not masks else "", group.split_word())
        return tally.facts(name)

    places = [(split, place) for split, own in splits.items() for place in own]
    return kept("tars", [FACTS, *(f"{split} {_stamp(place)}" for split, place in places)], find)


def _stamp(place: str) -> str:
    """What changes when the tar does; of a remote one only the address is known."""
    if is_remote(place):
        return place
    facts = os.stat(place)
    return f"{os.path.abspath(place)} {facts.st_size} {facts.st_mtime_ns}"


def _numbers(names: Sequence[str]) -> dict[str, int]:
    """The number of every label: the name of a class, or its place in the list unless a class is called that."""
    return {**{str(place): place for place in range(len(names))}, **{name: place for place, name in enumerate(names)}}
