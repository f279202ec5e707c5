"""Where tars are, and what may lie beside them.

A pattern is a path, a folder, a wildcard, or a path or address with `{000..009}` ranges. Beside the tars may lie `classes.txt` or
`classes.json`, and `sizes.json` or `_info.json` with the number of images in each tar.
"""

import json
import os
import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Any

from learngene_zoo.errors import BadData, Unavailable, WrongCall
from learngene_zoo.tasks.splits import split_name
from learngene_zoo.tasks.task import SPLITS

MOST_PLACES = 100_000
MOST_BYTES = 64 * 2**20  # of a file beside the tars
INNERMOST = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(\d+)\.\.(\d+)")
WILDCARD = re.compile(r"[*?\[]")
CLASSES = ("classes.txt", "classnames.txt", "classes.json")
SIZES = ("sizes.json", "_info.json")


def is_remote(place: str) -> bool:
    """Whether it is an address."""
    return place.startswith(("https://", "http://"))


def opened(place: str, offline: bool = False) -> Any:
    """A binary file at its beginning, with `read`, `seekable` and `close`. Raises `BadData` or `Unavailable`."""
    if is_remote(place):
        if offline:
            raise Unavailable(f"{place} is not available offline; download it and name the file")
        from learngene_zoo.tasks.streams.remote import Remote

        return Remote(place)
    try:
        return open(place, "rb")
    except OSError as error:
        raise BadData(f"{place} cannot be read: {error.strerror}") from None


def places_of(pattern: str) -> list[str]:
    """The tars that a pattern names, in order, each once. Raises `WrongCall` or `BadData`."""
    if pattern.startswith("pipe:") or ("://" in pattern and not is_remote(pattern)):
        raise WrongCall(f"wds:{pattern}: only paths and https:// addresses are opened, and no command is run")
    found = [place for name in braces(pattern) for place in ([name] if is_remote(name) else _local(name))]
    other = next((place for place in found if not place.partition("?")[0].endswith(".tar")), None)
    if other is not None:
        raise BadData(f"{other} is not a .tar; name uncompressed tars (unpack a .gz: images are compressed already)")
    if not found:
        raise BadData(f"wds:{pattern} matches no tar; give a folder of .tar files or a name with {{000..009}}")
    return list(dict.fromkeys(found))


def braces(pattern: str) -> list[str]:
    """The names that a shell would make of a pattern: `{000..009}` counts, `{train,val}` lists. Raises `WrongCall`.

    The innermost brace is expanded first; where it stands in a list, the list's other names come several times and are kept once.
    """
    found = INNERMOST.search(pattern)
    if found is None:
        return [pattern]
    names: dict[str, None] = {}
    for choice in _choices(found[1]):
        names |= dict.fromkeys(braces(pattern[: found.start()] + choice + pattern[found.end() :]))
        if len(names) > MOST_PLACES:
            raise WrongCall(f"{pattern} names more than {MOST_PLACES} tars; correct the range")
    return list(names)


def _choices(inner: str) -> Sequence[str]:
    counted = RANGE.fullmatch(inner)
    if counted is None:
        return inner.split(",")
    first, last = int(counted[1]), int(counted[2])
    if not first <= last < first + MOST_PLACES:
        raise WrongCall(
            f"{{{inner}}} counts down or names more than {MOST_PLACES} tars; write the smaller number first"
        )
    return [str(number).zfill(len(counted[1])) for number in range(first, last + 1)]


def _local(name: str) -> list[str]:
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return sorted(str(file) for file in path.rglob("*.tar"))
    if path.is_file():
        return [str(path)]
    if WILDCARD.search(name):
        return sorted(glob(str(path)))
    raise BadData(f"there is no file or folder {path}; name tars, a folder of them, or a pattern with {{000..009}}")


def by_split(places: Sequence[str], pattern: str) -> dict[str, list[str]]:
    """The tars of each split, by a word in their name or folder; all are `train` if none has one. Raises `BadData`."""
    words = {place: _split(place) for place in places}
    named = [word for word in words.values() if word]
    if named and len(named) < len(places):
        lost = next(place for place, word in words.items() if not word)
        raise BadData(f"{lost} belongs to no split; put train, val or test into its name, as in the others")
    found: dict[str, list[str]] = {}
    for place, word in words.items():
        found.setdefault(word or "train", []).append(place)
    if "train" not in found:
        raise BadData(f"wds:{pattern} has no training tars, only {', '.join(sorted(found))}; name those too")
    return found


def _split(place: str) -> str:
    """The split that the name of a tar, or of its folder, says; "" if neither does."""
    folder, _, file = place.partition("?")[0].replace("\\", "/").rpartition("/")
    for words in (re.split("[^a-zA-Z]+", file), [folder.rpartition("/")[2]]):
        known = [split_name(word) for word in words if split_name(word) in SPLITS]
        if known:
            return known[0]
    return ""


# The files beside the tars.


def class_names(place: str, offline: bool) -> tuple[str, ...] | None:
    """The classes in a file beside the tar at `place`, in order; None if there is no such file. Raises `BadData`."""
    where, data = _beside(place, CLASSES, offline)
    if data is None:
        return None
    lines = data.decode("utf-8", "replace").splitlines()
    names = (
        _listed(_parsed(where, data))
        if where.endswith(".json") or ".json?" in where
        else tuple(filter(None, map(str.strip, lines)))
    )
    if names is None or len(set(names)) != len(names):
        raise BadData(f"{where} is not a list of distinct classes; write one a line, in the order of their numbers")
    return names


def sizes(place: str, offline: bool) -> dict[str, int]:
    """The images of each tar by its name, as a file beside `place` says; empty if there is none. Raises `BadData`."""
    where, data = _beside(place, SIZES, offline)
    if data is None:
        return {}
    found = _parsed(where, data)
    if isinstance(found, dict) and isinstance(found.get("splits"), dict):  # as timm writes it
        parts = [part for part in found["splits"].values() if isinstance(part, dict)]
        found = {k: n for part in parts for k, n in zip(part.get("filenames", ()), part.get("shard_lengths", ()))}
    if not isinstance(found, dict) or not all(isinstance(count, int) and count >= 0 for count in found.values()):
        raise BadData(f'{where} does not say how many images each tar holds; expected {{"train-000.tar": 1000, …}}')
    return found


def _beside(place: str, names: Sequence[str], offline: bool) -> tuple[str, bytes | None]:
    """The first of these files beside a tar, or above the folder of its split, and what it holds; None if there is none."""
    path, mark, query = place.partition("?") if is_remote(place) else (place, "", "")
    folder = path.replace("\\", "/").rpartition("/")[0] or "."
    above, _, last = folder.rpartition("/")
    for name in names:
        for top in [folder, above or "."] if split_name(last) in SPLITS else [folder]:
            where = f"{top}/{name}{mark}{query}"
            data = _content(where, offline)
            if data is not None:
                return where, data
    return "", None


def _content(where: str, offline: bool) -> bytes | None:
    if not is_remote(where) and not Path(where).is_file():
        return None
    try:
        file = opened(where, offline)
    except BadData:
        return None  # nothing at that address
    try:
        data: bytes = file.read(MOST_BYTES)
        return data
    finally:
        file.close()


def _parsed(where: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise BadData(f"{where} is not valid JSON; write it again") from None


def _listed(found: Any) -> tuple[str, ...] | None:
    """A list of names, {name: number} or {number: name}, in the order of the numbers."""
    if isinstance(found, dict):
        turned = {str(number): name for name, number in found.items()} if _numbers(found.values()) else found
        if not _numbers(turned):
            return None
        found = [turned[key] for key in sorted(turned, key=int)]
    return tuple(map(str, found)) if isinstance(found, list) else None


def _numbers(keys: Any) -> bool:
    """Whether they are 0, 1, 2, … in any order."""
    texts = [str(key) for key in keys]
    return all(map(str.isdecimal, texts)) and sorted(map(int, texts)) == list(range(len(texts)))
