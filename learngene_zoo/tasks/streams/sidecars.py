"""What may lie beside tars: `classes.txt` or `classes.json`, and `sizes.json` or `_info.json` with the images of each tar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.own_data import split_name
from learngene_zoo.tasks.streams.places import is_remote, opened
from learngene_zoo.tasks.task import SPLITS

CLASSES = ("classes.txt", "classnames.txt", "classes.json")
SIZES = ("sizes.json", "_info.json")
MOST_BYTES = 64 * 2**20


def class_names(place: str, offline: bool) -> tuple[str, ...] | None:
    """The classes in a file beside the tar at `place`, in order; None without one. Raises `BadData` for a wrong one."""
    for name in CLASSES:
        where, data = _beside(place, name, offline)
        if data is not None:
            lines = data.decode("utf-8", "replace").splitlines()
            names = (
                _listed(_parsed(where, data)) if name.endswith(".json") else tuple(filter(None, map(str.strip, lines)))
            )
            if names is None or len(set(names)) != len(names):
                raise BadData(
                    f"{where} is no list of classes, each once; write one a line, in the order of their numbers"
                )
            return names
    return None


def sizes(place: str, offline: bool) -> dict[str, int]:
    """Images of the tars that a file beside `place` counts, by the name of the tar. Raises `BadData` for a wrong one."""
    for name in SIZES:
        where, data = _beside(place, name, offline)
        if data is not None:
            found = _counted(_parsed(where, data))
            if found is None:
                raise BadData(
                    f'{where} does not say how many images each tar holds; write {{"train-000.tar": 1000, …}}'
                )
            return found
    return {}


def _beside(place: str, name: str, offline: bool) -> tuple[str, bytes | None]:
    """Where a file lies beside a tar, or above the folder of its split; and what it holds, None if there is none."""
    path, mark, query = place.partition("?") if is_remote(place) else (place, "", "")
    folder = path.replace("\\", "/").rpartition("/")[0] or "."
    above, _, last = folder.rpartition("/")
    for top in [folder, above or "."] if split_name(last) in SPLITS else [folder]:
        where = f"{top}/{name}{mark}{query}"
        data = _content(where, offline)
        if data is not None:
            return where, data
    return name, None


def _content(where: str, offline: bool) -> bytes | None:
    if not is_remote(where) and not Path(where).is_file():
        return None
    try:
        file = opened(where, offline)
    except BadData:
        return None  # an address with nothing behind it
    try:
        return file.read(MOST_BYTES)
    finally:
        file.close()


def _parsed(where: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise BadData(f"{where} is not valid JSON; write it anew") from None


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


def _counted(found: Any) -> dict[str, int] | None:
    """{tar: images}, or {"splits": {…: {"filenames": […], "shard_lengths": […]}}} as timm writes it."""
    if isinstance(found, dict) and isinstance(found.get("splits"), dict):
        parts = [part for part in found["splits"].values() if isinstance(part, dict)]
        found = {
            key: count for part in parts for key, count in zip(part.get("filenames", ()), part.get("shard_lengths", ()))
        }
    good = isinstance(found, dict) and all(isinstance(count, int) and count >= 0 for count in found.values())
    return found if good else None
