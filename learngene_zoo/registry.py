"""Which methods there are: a read-only view of the entry points in the group `learngene_zoo.methods`. Cold.

Nothing registers by being imported. In a bare checkout (torch.hub) no metadata exists; then the same table is read out
of pyproject.toml.
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from learngene_zoo.errors import BadFile, WrongCall, ZooError, unknown
from learngene_zoo.method import Method

GROUP = "learngene_zoo.methods"
PROJECT = "learngene-zoo"


@dataclass(frozen=True)
class Broken:
    """A registered method that cannot be used, and why."""

    name: str
    reference: str
    reason: str


def references() -> dict[str, str]:
    """Method names and where each is found (`package.module:ATTRIBUTE`), sorted by name; nothing is imported.

    A checkout's own table is what counts for it, whichever version of this project is installed beside it. Raises
    `WrongCall` if two different references claim one name.
    """
    return dict(_references(entry_points, _stamps()))


def _stamps() -> tuple[tuple[str, int], ...]:
    """Where packages are looked for, and when something was last installed or removed there."""
    return tuple((place, os.stat(place).st_mtime_ns) for place in sys.path if os.path.exists(place))


@lru_cache(maxsize=1)  # reading the metadata of all packages takes longer than building a small model
def _references(
    points: Callable[..., Iterable[EntryPoint]], stamps: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, str], ...]:
    found = dict(_checkout())
    of_checkout = bool(found)
    for point in points(group=GROUP):
        if found.setdefault(point.name, point.value) == point.value:
            continue
        if not (of_checkout and point.dist is not None and point.dist.name == PROJECT):
            raise WrongCall(
                f"two methods are named {point.name!r}: {found[point.name]} and {point.value}; uninstall one of them"
            )
    return tuple(sorted(found.items()))


def _checkout() -> list[tuple[str, str]]:
    """The table of pyproject.toml, if this package lies in a checkout of the project."""
    path = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if not path.is_file():
        return []
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    if project.get("name") != PROJECT:
        return []
    return list(project.get("entry-points", {}).get(GROUP, {}).items())


def load(name: str) -> Method:
    """The method of that name. Raises `WrongCall` if there is none and `BadFile` if its plugin cannot be imported."""
    known = references()
    if name not in known:
        raise unknown("method", name, known)
    try:
        method = EntryPoint(name, known[name], GROUP).load()
    except ZooError:
        raise
    except Exception as error:  # a stranger's plugin may raise anything on import
        raise BadFile(f"the plugin of method {name!r} ({known[name]}) fails to import: {error!r}") from error
    if not isinstance(method, Method):
        raise BadFile(f"{known[name]} is a {type(method).__name__}, not a learngene_zoo Method")
    if method.name != name:
        raise BadFile(f"{known[name]} is registered as {name!r} but names itself {method.name!r}")
    return method


def methods() -> tuple[list[Method], list[Broken]]:
    """Every method that loads, and every one that does not with the reason."""
    good: list[Method] = []
    broken: list[Broken] = []
    for name, reference in references().items():
        try:
            good.append(load(name))
        except BadFile as error:
            broken.append(Broken(name, reference, str(error)))
    return good, broken


def resolve(reference: str) -> object:
    """What `package.module:attribute` names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)
