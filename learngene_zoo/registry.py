"""Which methods there are: a read-only view of the entry points in the group `learngene_zoo.methods`."""

from __future__ import annotations

import importlib

from learngene_zoo.entry_points import Broken, Plugins
from learngene_zoo.method import Method

GROUP = "learngene_zoo.methods"
METHODS = Plugins(GROUP, "method", Method)


def references() -> dict[str, str]:
    """Names of methods and where each is found (`package.module:ATTRIBUTE`), sorted by name; nothing is imported."""
    return METHODS.references()


def load(name: str) -> Method:
    """The method of that name. Raises `WrongCall` if there is none and `BadFile` if its plugin cannot be used."""
    return METHODS.load(name)


def methods() -> tuple[list[Method], list[Broken]]:
    """Every method that loads, and every one that does not, with the reason."""
    return METHODS.load_all()


def resolve(reference: str) -> object:
    """What `package.module:attribute` names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)
