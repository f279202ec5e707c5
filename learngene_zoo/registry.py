"""The registry: a read-only view of the entry points in a group. Imports register nothing.

A bare checkout (torch.hub) has no metadata; there the same tables are read from pyproject.toml. A
plugin that fails to import, or claims a name that another one has, is refused by name; every other
plugin works.
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
    """The object that an entry point refers to."""

    @property
    def name(self) -> str:
        """Return the name, which is the same as the entry point's."""


T = TypeVar("T", bound=Named)


@dataclass(frozen=True)
class Broken:
    """A plugin that cannot be used, with the reason."""

    name: str
    reference: str
    reason: str


@dataclass(frozen=True)
class PluginEntry:
    """An entry point of a plugin.

    `reference` is `package.module:ATTRIBUTE`, `package` the distribution that it belongs to.
    """

    name: str
    reference: str
    package: str

    @property
    def in_tree(self) -> bool:
        """Return whether it belongs to this project."""
        return self.package == PROJECT


@dataclass(frozen=True)
class Plugins(Generic[T]):
    """The plugins of a group, each of them a `kind`; messages call one a `word`."""

    group: str
    word: str
    kind: type[T]

    def find_all(self) -> tuple[PluginEntry, ...]:
        """Return every entry point of the group, sorted by name; nothing is imported."""
        return _find_entry_points(self.group, entry_points, _stamps())

    def references(self) -> dict[str, str]:
        """Return the usable names and their references, sorted by name; nothing is imported."""
        refused = {(plugin.name, plugin.reference) for plugin in self.list_refused()}
        return {
            p.name: p.reference for p in self.find_all() if (p.name, p.reference) not in refused
        }

    def list_refused(self) -> list[Broken]:
        """Return plugins that claim the name of another one.

        If one of them belongs to this project, only the others are refused, else all of them.
        """
        claims: dict[str, list[PluginEntry]] = {}
        for point in self.find_all():
            claims.setdefault(point.name, []).append(point)
        return [refused for points in claims.values() for refused in self._refuse_claims(points)]

    def _refuse_claims(self, points: list[PluginEntry]) -> list[Broken]:
        if len(points) < 2:
            return []
        claimed = " and ".join(f"{p.reference} of {p.package}" for p in points)
        reason = (
            f"{len(points)} packages claim the {self.word} {points[0].name!r} ({claimed}); "
            "uninstall all but one"
        )
        return [
            Broken(point.name, point.reference, reason) for point in points if not point.in_tree
        ]

    def load(self, name: str) -> T:
        """Load the plugin of that name.

        Raises `WrongCall` for an unknown one, and `BadFile` for one that cannot be used.
        """
        references = self.references()
        if name not in references:
            self.refuse(name, self.list_refused())
            raise unknown(self.word, name, references)
        return self._load_checked(name, references[name])

    @staticmethod
    def refuse(name: str, broken: Iterable[Broken]) -> None:
        """Raise `BadFile` with its reason if the plugin of that name is among the broken ones."""
        for plugin in broken:
            if plugin.name == name:
                raise BadFile(plugin.reason)

    def _load_checked(self, name: str, reference: str) -> T:
        try:
            plugin = EntryPoint(name, reference, self.group).load()
        except ZooError:
            raise
        except (Exception, SystemExit) as error:  # a stranger's plugin may raise anything on import
            raise BadFile(
                f"the plugin of {self.word} {name!r} ({reference}) fails to import: {error!r}"
            ) from error
        if not isinstance(plugin, self.kind):
            raise BadFile(
                f"expected a learngene_zoo {self.kind.__name__} at {reference}, got "
                f"{type(plugin).__name__}"
            )
        if plugin.name != name:
            raise BadFile(
                f"{reference} is registered as {name!r} but its own name is {plugin.name!r}"
            )
        return plugin

    def load_all(self) -> tuple[list[T], list[Broken]]:
        """Return every plugin that loads, and every one that does not, with the reason."""
        good: list[T] = []
        broken = self.list_refused()
        for name, reference in self.references().items():
            try:
                good.append(self.load(name))
            except ZooError as error:
                broken.append(Broken(name, reference, str(error)))
        return good, broken

    def package_of(self, name: str) -> dict[str, str]:
        """Return the package of a plugin, with its version; empty for one of this project."""
        reference = self.references().get(name)
        points = [
            point for point in self.find_all() if (point.name, point.reference) == (name, reference)
        ]
        return {point.package: version(point.package) for point in points if not point.in_tree}


def _stamps() -> tuple[tuple[str, int], ...]:
    """Return the search path of packages with the times of the last changes."""
    return tuple((path, os.stat(path).st_mtime_ns) for path in sys.path if os.path.exists(path))


# Reading the metadata of all packages takes longer than building a small model.
@lru_cache(maxsize=2)
def _find_entry_points(
    group: str, points: Callable[..., Iterable[EntryPoint]], stamps: tuple[tuple[str, int], ...]
) -> tuple[PluginEntry, ...]:
    """Return the entry points of a group.

    A checkout's table replaces that of an installed version of this project.
    """
    tables = checkout_tables()
    entries = {
        PluginEntry(name, reference, PROJECT) for name, reference in tables.get(group, {}).items()
    }
    for point in points(group=group):
        package = point.dist.name if point.dist is not None else "an unknown package"
        if not (tables and package == PROJECT):
            entries.add(PluginEntry(point.name, point.value, package))
    once = {
        (point.name, point.reference): point
        for point in sorted(entries, key=lambda point: point.in_tree)
    }
    return tuple(once[key] for key in sorted(once))


def checkout_tables() -> Mapping[str, Mapping[str, str]]:
    """Return the entry points in pyproject.toml by group, if this package is a checkout."""
    path = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if not path.is_file():
        return {}
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    tables: Mapping[str, Mapping[str, str]] = project.get("entry-points", {})
    return tables if project.get("name") == PROJECT else {}
