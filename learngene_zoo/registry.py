"""Plugins: a read-only view of the entry points in a group. Importing a module registers nothing.

A bare checkout (torch.hub) has no package metadata; its entry points are read from pyproject.toml.
A plugin that fails to import, or uses the name of another plugin, is refused by name; every other
plugin works. The environment variable `LGZOO_PLUGINS` restricts the plugins to some of them.
"""

import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from importlib.metadata import (
    EntryPoint,
    EntryPoints,
    PackageNotFoundError,
    entry_points,
    requires,
    version,
)
from pathlib import Path
from types import ModuleType
from typing import Generic, Protocol, TypeVar

from learngene_zoo.errors import BadFile, WrongCall, ZooError, find_nearest, refuse_unknown
from learngene_zoo.version import __version__

PROJECT = "learngene-zoo"
METHOD_GROUP, SUITE_GROUP = GROUPS = ("learngene_zoo.methods", "learngene_zoo.suites")
# Names of plugins or of their packages, separated by commas. A group of which it names no plugin
# is not restricted.
CHOICE = "LGZOO_PLUGINS"


class Named(Protocol):
    """An object that an entry point refers to."""

    @property
    def name(self) -> str:
        """The name, equal to that of the entry point."""


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

    Attributes:
        name: name of the entry point.
        reference: `package.module:ATTRIBUTE`.
        package: the distribution that the entry point belongs to.
    """

    name: str
    reference: str
    package: str

    @property
    def in_tree(self) -> bool:
        """Whether the plugin belongs to this project."""
        return self.package == PROJECT

    @property
    def names(self) -> set[str]:
        """The names by which `LGZOO_PLUGINS` can choose it."""
        packages = set() if self.in_tree else {self.package}
        return {self.name, self.reference.partition(":")[0].partition(".")[0], *packages}


@dataclass(frozen=True)
class Plugins(Generic[T]):
    """All plugins of a group.

    Attributes:
        group: name of the group of entry points.
        word: the word for a plugin in messages, such as "method".
        kind: class of the plugins.
    """

    group: str
    word: str
    kind: type[T]

    def find_all(self) -> tuple[PluginEntry, ...]:
        """Return the entry points of the group, sorted by name, without importing anything.

        Raises `WrongCall` for a name in `LGZOO_PLUGINS` that no plugin has.
        """
        points = self._find_installed()
        chosen = read_choice()
        if not chosen:
            return points
        others = (_find_entry_points(group, entry_points, _list_stamps()) for group in GROUPS)
        known = {name for group in (points, *others) for point in group for name in point.names}
        for name in chosen:
            if name not in known:
                close = find_nearest(name, known)
                hint = f"did you mean {close}?" if close else "lgzoo list methods --all lists them"
                raise WrongCall(f"{CHOICE}: no plugin named {name!r}; {hint}")
        return tuple(point for point in points if point.names & set(chosen)) or points

    def _find_installed(self) -> tuple[PluginEntry, ...]:
        """Return the entry points of the group, whatever `LGZOO_PLUGINS` chooses."""
        return _find_entry_points(self.group, entry_points, _list_stamps())

    def list_in_tree(self) -> set[str]:
        """Return the names of the plugins that belong to this project."""
        return {name for name, points in self._find_claims().items() if points[0].in_tree}

    def list_left_out(self) -> list[str]:
        """Return the names of the plugins that `LGZOO_PLUGINS` leaves out."""
        used = {point.name for point in self.find_all()}
        return sorted({point.name for point in self._find_installed()} - used)

    def is_installed(self, name: str) -> bool:
        """Return whether a plugin of that name is installed, whatever `LGZOO_PLUGINS` chooses."""
        return name in {point.name for point in self._find_installed()}

    def references(self) -> dict[str, str]:
        """Return the references of the usable plugins by name, without importing anything."""
        return {
            name: points[0].reference
            for name, points in self._find_claims().items()
            if len(points) == 1 or points[0].in_tree
        }

    def _find_claims(self) -> dict[str, list[PluginEntry]]:
        """Return the entry points of each name, that of this project first."""
        claims: dict[str, list[PluginEntry]] = {}
        for point in sorted(self.find_all(), key=lambda point: (point.name, not point.in_tree)):
            claims.setdefault(point.name, []).append(point)
        return claims

    def list_refused(self) -> list[Broken]:
        """Return a row for each name that several packages use.

        If a plugin of this project has the name, only the others are refused, otherwise all of
        them.
        """
        return [
            self._describe_claims(name, points)
            for name, points in self._find_claims().items()
            if len(points) > 1
        ]

    def _describe_claims(self, name: str, points: list[PluginEntry]) -> Broken:
        refused = [point for point in points if not point.in_tree]
        claimed = " and ".join(f"{p.reference} of {p.package}" for p in points)
        # A package with the name of its plugin does not tell the plugins apart.
        choice = next((p.package for p in refused if p.package != name), "")
        chosen = f", or choose one with {CHOICE}={choice}, which leaves out all others"
        reason = (
            f"{len(points)} packages claim the {self.word} {name!r} ({claimed}); uninstall all but "
            f"one{chosen if choice else ''}"
        )
        if refused != points:
            reason = (
                f"{refused[0].reference} of {refused[0].package} is not used, as learngene_zoo has "
                f"a {self.word} {name!r} of its own; rename it"
            )
        return Broken(name, " and ".join(point.reference for point in refused), reason)

    def load(self, name: str) -> T:
        """Load a plugin by name.

        Raises:
            WrongCall: for an unknown name, and for one that `LGZOO_PLUGINS` leaves out.
            BadFile: for a plugin that cannot be used.
        """
        references = self.references()
        if not isinstance(name, str):
            own = getattr(name, "name", None)
            if isinstance(own, str):
                raise WrongCall(f"the {self.word} is given as an object; give its name, {own!r}")
            raise WrongCall(f"the {self.word} is {name!r:.40}; expected the name of one")
        if name not in references:
            self.check_unused(name)
            raise refuse_unknown(self.word, name, references)
        return self._load_checked(name, references[name])

    def check_unused(self, name: str) -> None:
        """Raise the reason if plugins of that name are installed, but none of them is used.

        Raises:
            WrongCall: `LGZOO_PLUGINS` leaves it out.
            BadFile: several packages claim the name.
        """
        if name in self.references():
            return
        self.refuse(name, self.list_refused())
        if self.is_installed(name):
            raise WrongCall(
                f"{CHOICE} leaves out the {self.word} {name!r}; add its name to the variable, or "
                "unset it"
            )

    @staticmethod
    def refuse(name: str, broken: Iterable[Broken]) -> None:
        """Raise `BadFile` with the reason if the plugin of that name is among the broken ones."""
        for plugin in broken:
            if plugin.name == name:
                raise BadFile(plugin.reason)

    def _load_checked(self, name: str, reference: str) -> T:
        package = self._package_at(name, reference)
        where = f"{reference} of the package {package}" if package else reference
        words = f"the plugin of {self.word} {name!r} ({where})"
        remedy = f"; correct the package, or uninstall {package}" if package else ""
        try:
            plugin = EntryPoint(name, reference, self.group).load()
        except WrongCall as error:  # as of a default that is out of bounds
            raise BadFile(f"{words} cannot be used: {error}{remedy}") from error
        except ZooError:
            raise
        except (Exception, SystemExit) as error:  # a plugin may raise any error on import
            needed = _describe_unmet(package)
            is_setting = isinstance(error, TypeError) and "unexpected keyword argument" in str(
                error
            )
            hint = " (is it an annotated field of a dataclass?)" if is_setting else ""
            raise BadFile(
                f"{words} {needed}fails to import: {type(error).__name__}: {error}{hint}{remedy}"
            ) from error
        if not isinstance(plugin, self.kind):
            named = isinstance(plugin, type | ModuleType)
            got = f"{type(plugin).__name__} {plugin.__name__}" if named else type(plugin).__name__
            raise BadFile(
                f"expected a learngene_zoo {self.kind.__name__} at {where}, got {got}; the entry "
                f"point names a {self.kind.__name__} as MODULE:NAME"
            )
        if plugin.name != name:
            raise BadFile(
                f"{reference} is registered as {name!r} but its name is {plugin.name!r}; use the"
                " same name in both"
            )
        return plugin

    def load_all(self) -> tuple[list[T], list[Broken]]:
        """Return the plugins that load, and those that do not with the reasons."""
        good: list[T] = []
        broken = self.list_refused()
        for name, reference in self.references().items():
            try:
                good.append(self._load_checked(name, reference))
            except ZooError as error:
                broken.append(Broken(name, reference, str(error)))
        return good, broken

    def describe_code(self, name: str) -> str:
        """Return package, version and a digest of the code of a plugin; "" for one of this project.

        The digest is of the Python files of the plugin's top module or package as they are now.
        """
        reference = self.references().get(name)
        packages = self.package_of(name)
        if reference is None or not packages:
            return ""
        digest = _hash_code(reference.partition(":")[0].partition(".")[0])
        return f"{' '.join(*packages.items())} ({digest})"

    def package_of(self, name: str) -> dict[str, str]:
        """Return the package of a plugin with its version, or {} for a plugin of this project."""
        package = self._package_at(name, self.references().get(name))
        return {package: version(package)} if package else {}

    def describe(self, name: str) -> str:
        """Return the words for a plugin in a message, with its package if it is not of this
        project.
        """
        packages = ", ".join(self.package_of(name))
        words = f"the {self.word} {name or 'unnamed'!r}"
        return f"{words} of the package {packages}" if packages else words

    def _package_at(self, name: str, reference: str | None) -> str:
        """Return the package of an entry point; "" for one of this project."""
        point = next(
            (p for p in self.find_all() if (p.name, p.reference) == (name, reference)), None
        )
        return "" if point is None or point.in_tree else point.package


def _describe_unmet(package: str) -> str:
    """Return the version of this project that a package needs if this is another one, else ""."""
    from packaging.requirements import InvalidRequirement, Requirement

    if not package:
        return ""
    with suppress(PackageNotFoundError, InvalidRequirement):
        for line in requires(package) or ():
            needed = Requirement(line)
            is_ours = re.sub(r"[-_.]+", "-", needed.name).lower() == PROJECT
            is_needed = needed.marker is None or needed.marker.evaluate({"extra": ""})
            limits = needed.specifier
            if is_ours and is_needed and not limits.contains(__version__, prereleases=True):
                bounds = ",".join(sorted(map(str, limits), reverse=True))  # ">=2" before "<3"
                return f"needs {PROJECT}{bounds}, and this is {__version__}; it "
    return ""


def _hash_code(module: str) -> str:
    """Return a digest of the Python files of a top module or package, without importing it."""
    from importlib.util import find_spec

    spec = find_spec(module)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    files = [(path.relative_to(top), path) for top in folders for path in top.rglob("*.py")]
    if not folders and spec is not None and spec.origin is not None:
        files = [(Path(module), Path(spec.origin))]
    digest = sha256()
    for name, path in sorted(files):
        digest.update(f"{name.as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def read_choice() -> list[str]:
    """Return the names in `LGZOO_PLUGINS`; without any, all plugins are used."""
    return [name for word in os.environ.get(CHOICE, "").split(",") if (name := word.strip())]


def _list_stamps() -> tuple[tuple[str, int], ...]:
    """Return the folders and files of `sys.path` with their modification times."""
    stamps = []
    for path in sys.path:
        with suppress(OSError, ValueError):
            stamps.append((path, os.stat(path).st_mtime_ns))
    return tuple(stamps)


# Reading the metadata of all packages takes longer than building a small model.
@lru_cache(maxsize=1)
def _read_entry_points(
    points: Callable[[], EntryPoints], stamps: tuple[tuple[str, int], ...]
) -> EntryPoints:
    """Return the entry points of all groups; the arguments are those of `_find_entry_points`."""
    return points()


@lru_cache(maxsize=2)
def _find_entry_points(
    group: str, points: Callable[[], EntryPoints], stamps: tuple[tuple[str, int], ...]
) -> tuple[PluginEntry, ...]:
    """Return the entry points of a group, sorted by name.

    The entry points of a checkout replace those of an installed version of this project.

    Args:
        group: name of the group.
        points: `importlib.metadata.entry_points`.
        stamps: part of the cache key, so that packages installed later are found.
    """
    tables = read_checkout_tables()
    entries = {
        PluginEntry(name, reference, PROJECT) for name, reference in tables.get(group, {}).items()
    }
    # A package's name is read from its metadata, which takes as long as importing a module.
    name_of = cache(lambda package: package.name if package is not None else "an unknown package")
    for point in _read_entry_points(points, stamps).select(group=group):
        package = name_of(point.dist)
        if not (tables and package == PROJECT):
            entries.add(PluginEntry(point.name, point.value, package))
    once = {
        (point.name, point.reference): point
        for point in sorted(entries, key=lambda point: point.in_tree)
    }
    return tuple(once[key] for key in sorted(once))


def read_checkout_tables() -> Mapping[str, Mapping[str, str]]:
    """Return the entry points in pyproject.toml by group; {} if this package is not a checkout."""
    path = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if not path.is_file():
        return {}
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    tables: Mapping[str, Mapping[str, str]] = project.get("entry-points", {})
    return tables if project.get("name") == PROJECT else {}
