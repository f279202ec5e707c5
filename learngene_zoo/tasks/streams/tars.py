"""`wds:PATTERN`: images and labels in tars, as WebDataset writes them, read in order."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.tasks.splits import files_by_split
from learngene_zoo.tasks.streams.archive import LABELS, MASK, Group, groups
from learngene_zoo.tasks.streams.facts import Facts, classes_of, kept, progress, stream_task
from learngene_zoo.tasks.streams.places import class_names, is_remote, opened, places_of, sizes
from learngene_zoo.tasks.task import Sample, Stream, Task


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
    masks = _first_label(name, splits["train"]) == MASK
    names, counts = class_names(splits["train"][0]), _counts_beside(splits)
    if names is None or counts is None:
        facts = _counted(name, splits, masks)
        counts = dict(zip((place for own in splits.values() for place in own), facts["counts"], strict=True))
        if names is None and masks:
            raise BadData(
                f"{name} holds masks and no list of classes; put a classes.txt beside the tars, one class a line"
            )
        names = names or classes_of(name, facts["labels"])
    numbers = None if masks else _numbers(names)
    found: dict[str, Stream] = {
        split: Tars(tuple(own), tuple(counts[place] for place in own), numbers) for split, own in splits.items()
    }
    return stream_task(name, found, names, kind="segmentation" if masks else "classification")


def _first_label(name: str, places: Sequence[str]) -> str:
    """The kind of file that labels the first training image. Raises `BadData` if there is no image."""
    for place in places:
        with closing(read(place, lambda number, kind: False)) as samples:
            for group in samples:
                return group.labelled_by
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
        counts: list[int] = []
        labels: dict[str, set[str]] = {split: set() for split in splits}
        for split, place in progress(places, f"counting the images of {name}"):
            counts.append(0)
            for group in read(place, lambda number, kind: kind in LABELS):
                counts[-1] += 1
                if group.image and not masks:
                    labels[split].add(group.label())
        return {"name": name, "counts": counts, "labels": {split: sorted(own) for split, own in labels.items()}}

    places = [(split, place) for split, own in splits.items() for place in own]
    return kept("tars", [f"{split} {_stamp(place)}" for split, place in places], find)


def _stamp(place: str) -> str:
    """What changes when the tar does; of a remote one only the address is known."""
    if is_remote(place):
        return place
    facts = os.stat(place)
    return f"{os.path.abspath(place)} {facts.st_size} {facts.st_mtime_ns}"


def _numbers(names: Sequence[str]) -> dict[str, int]:
    """The number of every label: the name of a class, or its place in the list unless a class is called that."""
    return {**{str(place): place for place in range(len(names))}, **{name: place for place, name in enumerate(names)}}
