"""The registry: a read-only view of the entry points in a group. Nothing registers by being imported.

A bare checkout (torch.hub) has no metadata; there the same tables are read out of pyproject.toml. A plugin that fails
to import, or claims a name that is taken, is refused by name; every other plugin works.
"""

import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from learngene_zoo.errors import BadFile, ZooError, unknown

PROJECT = "learngene-zoo"


class Named(Protocol):
    """What an entry point refers to."""

    @property
    def name(self) -> str:
        """The same as the entry point's."""


T = TypeVar("T", bound=Named)


@dataclass(frozen=True)
class Broken:
    """A plugin that cannot be used, and why."""

    name: str
    reference: str
    reason: str


@dataclass(frozen=True)
class Found:
    """An entry point: `reference` is `package.module:ATTRIBUTE`, `package` the distribution it belongs to."""

    name: str
    reference: str
    package: str

    @property
    def in_tree(self) -> bool:
        """Whether it belongs to this project."""
        return self.package == PROJECT


@dataclass(frozen=True)
class Plugins(Generic[T]):
    """The plugins of a group, each of them a `kind`; `word` names one of them in messages."""

    group: str
    word: str
    kind: type[T]

    def found(self) -> tuple[Found, ...]:
        """Every entry point of the group, sorted by name; nothing is imported."""
        return _found(self.group, entry_points, _stamps())

    def references(self) -> dict[str, str]:
        """The names that can be used and what each refers to, sorted by name; nothing is imported."""
        refused = {(plugin.name, plugin.reference) for plugin in self.refused()}
        return {p.name: p.reference for p in self.found() if (p.name, p.reference) not in refused}

    def refused(self) -> list[Broken]:
        """Plugins that claim the name of another one: of two strangers both, else those that are not of this project."""
        claims: dict[str, list[Found]] = {}
        for point in self.found():
            claims.setdefault(point.name, []).append(point)
        return [refused for points in claims.values() for refused in self._refused(points)]

    def _refused(self, points: list[Found]) -> list[Broken]:
        if len(points) < 2:
            return []
        claimed = " and ".join(f"{p.reference} of {p.package}" for p in points)
        reason = f"{len(points)} packages claim the {self.word} {points[0].name!r} ({claimed}); uninstall all but one"
        return [Broken(point.name, point.reference, reason) for point in points if not point.in_tree]

    def load(self, name: str) -> T:
        """The plugin of that name. Raises `WrongCall` for an unknown one, and `BadFile` for one that cannot be used."""
        known = self.references()
        if name not in known:
            self.refuse(name, self.refused())
            raise unknown(self.word, name, known)
        return self._checked(name, known[name])

    @staticmethod
    def refuse(name: str, broken: Iterable[Broken]) -> None:
        """Raise `BadFile` with its reason if the plugin of that name is among the broken ones."""
        for plugin in broken:
            if plugin.name == name:
                raise BadFile(plugin.reason)

    def _checked(self, name: str, reference: str) -> T:
        try:
            plugin = EntryPoint(name, reference, self.group).load()
        except ZooError:
            raise
        except (Exception, SystemExit) as error:  # a stranger's plugin may raise anything on import
            raise BadFile(f"the plugin of {self.word} {name!r} ({reference}) fails to import: {error!r}") from error
        if not isinstance(plugin, self.kind):
            raise BadFile(f"expected a learngene_zoo {self.kind.__name__} at {reference}, got {type(plugin).__name__}")
        if plugin.name != name:
            raise BadFile(f"{reference} is registered as {name!r} but its own name is {plugin.name!r}")
        return plugin

    def load_all(self) -> tuple[list[T], list[Broken]]:
        """Every plugin that loads, and every one that does not, with the reason."""
        good: list[T] = []
        broken = self.refused()
        for name, reference in self.references().items():
            try:
                good.append(self.load(name))
            except ZooError as error:
                broken.append(Broken(name, reference, str(error)))
        return good, broken

    def package_of(self, name: str) -> dict[str, str]:
        """The package that brings a plugin, and its version; empty for a plugin of this project."""
        reference = self.references().get(name)
        points = [point for point in self.found() if (point.name, point.reference) == (name, reference)]
        return {point.package: version(point.package) for point in points if not point.in_tree}


def _stamps() -> tuple[tuple[str, int], ...]:
    """Where packages are searched for, and when something was last installed or removed there."""
    return tuple((place, os.stat(place).st_mtime_ns) for place in sys.path if os.path.exists(place))


@lru_cache(maxsize=2)  # reading the metadata of all packages takes longer than building a small model
def _found(
    group: str, points: Callable[..., Iterable[EntryPoint]], stamps: tuple[tuple[str, int], ...]
) -> tuple[Found, ...]:
    """The entry points of a group. A checkout's own table replaces that of an installed version of this project."""
    tables = checkout_tables()
    found = {Found(name, reference, PROJECT) for name, reference in tables.get(group, {}).items()}
    for point in points(group=group):
        package = point.dist.name if point.dist is not None else "an unknown package"
        if not (tables and package == PROJECT):
            found.add(Found(point.name, point.value, package))
    once = {(point.name, point.reference): point for point in sorted(found, key=lambda point: point.in_tree)}
    return tuple(once[key] for key in sorted(once))


def checkout_tables() -> Mapping[str, Mapping[str, str]]:
    """The tables of pyproject.toml by group, if this package lies in a checkout of the project."""
    path = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if not path.is_file():
        return {}
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    tables: Mapping[str, Mapping[str, str]] = project.get("entry-points", {})
    return tables if project.get("name") == PROJECT else {}
