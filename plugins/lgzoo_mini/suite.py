"""The nine target tasks of the suite: a generator's target classes, in the numbers that the catalogue says."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from learngene_zoo.plugin import Task, built_in
from lgzoo_mini.generator import Generated, Generator

if TYPE_CHECKING:
    from learngene_zoo.plugin import Entry


def generator(name: str) -> Generator:
    """The generator of a family: the constant in its module that is named like the task, in capitals."""
    found: Generator = getattr(import_module(f"lgzoo_mini.{name}"), name.upper())
    return found


def open_named(entry: Entry, offline: bool) -> Task:
    """The task of this catalogue entry; nothing is drawn yet."""
    return built_in(entry, generator(entry.name).classes, partial(open_split, entry.name, dict(entry.sizes)))


def open_split(task: str, sizes: dict[str, int], name: str) -> Generated:
    """One split of one of the nine."""
    return Generated(generator(task), name, sizes[name])
