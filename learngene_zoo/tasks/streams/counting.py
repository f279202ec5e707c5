"""How many images each tar holds and which labels they have: told by a file beside them, else counted once and kept.

Kept in `LGZOO_CACHE`, else ~/.cache/learngene_zoo, under a name that changes with the tars' sizes and times.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learngene_zoo.errors import BadData
from learngene_zoo.runs.distributed import is_first
from learngene_zoo.tasks.streams.archive import Archive
from learngene_zoo.tasks.streams.places import is_remote, opened
from learngene_zoo.tasks.streams.samples import LABELS, MASK, Group, groups

VARIABLE = "LGZOO_CACHE"


@dataclass(frozen=True)
class Counted:
    """What reading every header told. `masks` says that there are masks instead of labels."""

    counts: dict[str, int]  # by place
    labels: dict[str, list[str]]  # the distinct ones of each split
    masks: bool


def counted(splits: Mapping[str, Sequence[str]], name: str, offline: bool) -> Counted:
    """The images and labels of the tars of each split. Raises `BadData` for one that cannot be used."""
    places = [(split, place) for split, own in splits.items() for place in own]
    kept_in = cache_file("tars", [f"{split} {_stamp(place)}" for split, place in places])
    kept = read_cache(kept_in)
    if kept is not None:
        counts = {place: count for (_, place), count in zip(places, kept["counts"], strict=True)}
        return Counted(counts, kept["labels"], kept["masks"])
    found = Counted({}, {split: [] for split in splits}, first_kind(splits, offline) == MASK)
    labels: dict[str, set[str]] = {split: set() for split in splits}
    for split, place in progress(places, f"counting the images of {name}"):
        found.counts[place] = 0
        with closing(opened(place, offline)) as file:
            for group in _groups(Archive(file, place)):
                found.counts[place] += 1
                if group.image and not found.masks:
                    labels[split].add(group.label())
    found.labels.update({split: sorted(own) for split, own in labels.items()})
    write_cache(
        kept_in, {"name": name, "counts": list(found.counts.values()), "labels": found.labels, "masks": found.masks}
    )
    return found


def first_kind(splits: Mapping[str, Sequence[str]], offline: bool) -> str | None:
    """Which kind of file says what the first training image is; None if there is no image."""
    for place in splits["train"]:
        with closing(opened(place, offline)) as file:
            group = next(_groups(Archive(file, place)), None)
        if group is not None:
            return group.labelled_by
    return None


def _groups(archive: Archive) -> Iterator[Group]:
    """Its samples, of which only the labels are read."""
    return groups(archive, lambda number, kind: kind in LABELS)


def classes_of(name: str, labels: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The labels of the training images, by number if all are numbers, else by name.

    Raises `BadData` if another split has others.
    """
    train = set(labels["train"])
    for split, own in labels.items():
        strange = sorted(set(own) - train)
        if strange:
            raise BadData(f"{name}: class {strange[0]!r} of {split} is not in train; give both the same classes")
    return tuple(sorted(train, key=int if all(map(str.isdecimal, train)) else None))


def _stamp(place: str) -> str:
    """What changes when the tar does; of one far away only its address is known."""
    if is_remote(place):
        return place
    facts = os.stat(place)
    return f"{os.path.abspath(place)} {facts.st_size} {facts.st_mtime_ns}"


def cache_file(kind: str, stamps: Sequence[str]) -> Path:
    """Where the facts about what these stamps describe are kept."""
    top = os.environ.get(VARIABLE)
    folder = Path(top).expanduser() if top else Path.home() / ".cache" / "learngene_zoo"
    return folder / kind / f"{hashlib.sha256(chr(10).join(stamps).encode()).hexdigest()[:32]}.json"


def read_cache(file: Path) -> dict[str, Any] | None:
    """What was kept, None if nothing was or it is damaged."""
    with suppress(OSError, ValueError):
        kept = json.loads(file.read_bytes())
        return kept if isinstance(kept, dict) else None
    return None


def write_cache(file: Path, facts: dict[str, Any]) -> None:
    """Keep it, whole or not at all; a place that cannot be written is no fault, only slower the next time."""
    draft = file.with_suffix(f".{os.getpid()}.tmp")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(facts), encoding="utf-8")
        os.replace(draft, file)


def progress(items: Sequence[Any], title: str) -> Iterator[Any]:
    """The same items; where somebody looks, a bar on stderr."""
    from rich.console import Console
    from rich.progress import track

    quiet = not (sys.stderr.isatty() and is_first())
    yield from track(items, title, console=Console(stderr=True), transient=True, disable=quiet)
