"""`wds:PATTERN`: images and labels in tars, as WebDataset writes them; read in order, nothing unpacked, nothing unpickled."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.tasks.streams.archive import Archive
from learngene_zoo.tasks.streams.counting import Counted, classes_of, counted, first_kind
from learngene_zoo.tasks.streams.parts import completed, told
from learngene_zoo.tasks.streams.places import by_split, is_remote, opened, places_of
from learngene_zoo.tasks.streams.samples import MASK, Group, groups
from learngene_zoo.tasks.streams.sidecars import class_names, sizes
from learngene_zoo.tasks.streams.task import stream_task
from learngene_zoo.tasks.task import Sample, Stream, Task


@dataclass(frozen=True)
class Tars:
    """Tars with so many images each. `numbers` has the number of every label; without it there are masks."""

    places: tuple[str, ...]
    counts: tuple[int, ...]
    numbers: Mapping[str, int] | None

    def read(self, shard: int, wanted: np.ndarray) -> Generator[Sample | None]:
        """As of every stream. What is not wanted is skipped without being read where the tar is a file."""
        place, count, last = self.places[shard], self.counts[shard], int(np.flatnonzero(wanted)[-1])
        found = 0
        with closing(opened(place)) as file:
            for group in groups(Archive(file, place), lambda number, kind: number <= last and bool(wanted[number])):
                if found <= last:
                    yield self._sample(group) if wanted[found] else None
                elif last < count - 1:
                    return  # the rest is not asked for
                found += 1
        if found != count:
            raise BadData(
                f"{place} holds {found} images and {count} were counted; if it was changed, correct the file that counts "
                "them, or empty the folder that LGZOO_CACHE names (else ~/.cache/learngene_zoo)"
            )

    def _sample(self, group: Group) -> Sample:
        image = group.data[group.image]
        if self.numbers is None:
            if MASK not in group.data:
                raise BadData(f"{group.where} has no mask; add {group.key}.{MASK}")
            return Sample(image, 0, group.where, group.data[MASK])
        label = group.label()
        if label not in self.numbers:
            raise BadData(
                f"{group.where} has the label {label}, which is none of the {len(set(self.numbers.values()))} classes"
            )
        return Sample(image, self.numbers[label], group.where)


def open_tars(pattern: str, offline: bool) -> Task:
    """The task in the tars that a pattern names. Raises `BadData`, `WrongCall`, or `Unavailable` if it is far away."""
    name, places = f"wds:{pattern}", places_of(pattern)
    if offline and any(map(is_remote, places)):
        raise Unavailable(f"{name} is far away and cannot be had offline; fetch the tars and name the files")
    splits = by_split(places, pattern)
    kind = first_kind(splits, offline)
    if kind is None:
        raise BadData(f"{name} has no training images; put some there")
    names, counts = class_names(splits["train"][0], offline), _told(splits, offline)
    if names is None or counts is None:
        facts = counted(splits, name, offline)
        counts, names = facts.counts, names or _names(name, facts)
    _check(name, names)
    numbers = None if kind == MASK else _numbers(names)
    found: dict[str, Stream] = {
        split: Tars(tuple(own), tuple(counts[place] for place in own), numbers) for split, own in splits.items()
    }
    return stream_task(
        name,
        completed(name, found),
        names,
        notes=told(found),
        kind="segmentation" if kind == MASK else "classification",
    )


def _told(splits: Mapping[str, Sequence[str]], offline: bool) -> dict[str, int] | None:
    """The images of every tar, by the files beside them; None if they do not name every one."""
    counts: dict[str, int] = {}
    for places in splits.values():
        beside = sizes(places[0], offline)
        for place in places:
            parts = place.partition("?")[0].replace("\\", "/").split("/")
            known = next((beside[name] for name in ("/".join(parts[-2:]), parts[-1]) if name in beside), None)
            if known is None:
                return None
            counts[place] = known
    return counts


def _names(name: str, facts: Counted) -> tuple[str, ...]:
    if facts.masks:
        raise BadData(f"{name} holds masks and no list of classes; put a classes.txt beside the tars, one class a line")
    return classes_of(name, facts.labels)


def _check(name: str, names: Sequence[str]) -> None:
    if len(names) < 2:
        raise BadData(f"{name} has one class ({', '.join(names) or 'none'}); a task needs at least two")


def _numbers(names: Sequence[str]) -> dict[str, int]:
    """The number of every label: a class's name, or its place in the list unless a class is called like that."""
    return {**{str(place): place for place in range(len(names))}, **{name: place for place, name in enumerate(names)}}
