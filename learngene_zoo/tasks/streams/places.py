"""Where tars are: paths, folders, wildcards, `{000..009}` ranges, and addresses; and opening one."""

from __future__ import annotations

import re
from glob import glob
from itertools import islice
from pathlib import Path
from typing import cast

from learngene_zoo.errors import BadData, Unavailable, WrongCall
from learngene_zoo.tasks.own_data import split_name
from learngene_zoo.tasks.streams.archive import Readable
from learngene_zoo.tasks.task import SPLITS

MOST_PLACES = 100_000
INNERMOST = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(\d+)\.\.(\d+)")
WILDCARD = re.compile(r"[*?\[]")


def is_remote(place: str) -> bool:
    """Whether it is an address."""
    return place.startswith(("https://", "http://"))


def places_of(pattern: str) -> list[str]:
    """The tars that a pattern names, in order, each once. Raises `WrongCall` or `BadData`."""
    if pattern.startswith("pipe:") or ("://" in pattern and not is_remote(pattern)):
        raise WrongCall(f"wds:{pattern}: only paths and https:// are opened, and no command is run")
    found = [place for name in braces(pattern) for place in ([name] if is_remote(name) else _local(name))]
    other = next((place for place in found if not place.partition("?")[0].endswith(".tar")), None)
    if other is not None:
        raise BadData(f"{other} is no .tar; name plain tars (unpack a .gz, whose images are compressed already)")
    if not found:
        raise BadData(f"wds:{pattern} names no tar; give a folder of .tar files or a name with {{000..009}}")
    return list(dict.fromkeys(found))


def braces(pattern: str) -> list[str]:
    """The names of a pattern as a shell would write them out: `{000..009}` counts, `{train,val}` lists. Raises `WrongCall`.

    The innermost brace goes first; where it is in a list, the list's other names come several times, and are kept once.
    """
    names = [pattern]
    while any(INNERMOST.search(name) for name in names):
        made = (better for name in names for better in _without_one(name))
        names = list(dict.fromkeys(islice(made, MOST_PLACES + 1)))
        if len(names) > MOST_PLACES:
            raise WrongCall(f"{pattern} names more than {MOST_PLACES} tars; is a range wrong?")
    return names


def _without_one(name: str) -> list[str]:
    found = INNERMOST.search(name)
    if found is None:
        return [name]
    counted = RANGE.fullmatch(found[1])
    if counted is None:
        choices = found[1].split(",")
    else:
        first, last = int(counted[1]), int(counted[2])
        if not first <= last < first + MOST_PLACES:
            raise WrongCall(f"{{{found[1]}}} counts down or too far; write the smaller number first")
        choices = [str(number).zfill(len(counted[1])) for number in range(first, last + 1)]
    return [name[: found.start()] + choice + name[found.end() :] for choice in choices]


def _local(name: str) -> list[str]:
    path = Path(name).expanduser()
    if path.is_dir():
        return sorted(str(file) for file in path.rglob("*.tar"))
    if path.is_file():
        return [str(path)]
    if WILDCARD.search(name):
        return sorted(glob(str(path)))
    raise BadData(f"there is no file or folder {path}; name tars, a folder of them, or a pattern with {{000..009}}")


def by_split(places: list[str], pattern: str) -> dict[str, list[str]]:
    """The tars of each split, by a word in the name or the folder; all are `train` where none has one. Raises `BadData`."""
    words = {place: _split(place) for place in places}
    named = [word for word in words.values() if word]
    if named and len(named) < len(places):
        lost = next(place for place, word in words.items() if not word)
        raise BadData(f"{lost} is of no split; put train, val or test into its name, as the others have")
    found: dict[str, list[str]] = {}
    for place, word in words.items():
        found.setdefault(word or "train", []).append(place)
    if "train" not in found:
        raise BadData(f"wds:{pattern} has no training tars, only {', '.join(sorted(found))}; name those too")
    return found


def _split(place: str) -> str:
    """The split that a tar's name, or its folder's, says; "" if neither does."""
    folder, _, file = place.partition("?")[0].replace("\\", "/").rpartition("/")
    for words in (re.split("[^a-zA-Z]+", file), [folder.rpartition("/")[2]]):
        known = [split_name(word) for word in words if split_name(word) in SPLITS]
        if known:
            return known[0]
    return ""


def opened(place: str, offline: bool = False) -> Readable:
    """A tar, at its beginning. Raises `BadData` or `Unavailable`."""
    if is_remote(place):
        if offline:
            raise Unavailable(f"{place} cannot be had offline; fetch it and name the file")
        from learngene_zoo.tasks.streams.remote import Remote

        return Remote(place)
    try:
        return cast(Readable, open(place, "rb"))
    except OSError as error:
        raise BadData(f"{place} cannot be read: {error.strerror}") from None
