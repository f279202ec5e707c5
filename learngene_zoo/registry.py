"""Which methods there are: a read-only view of the entry points in the group `learngene_zoo.methods`.

A method whose record contradicts itself is refused by name, as a plugin that fails to import is.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from importlib.metadata import version
from typing import Any, get_args

from learngene_zoo.artifacts.records import OWN_PACKAGES, LearngeneConfig
from learngene_zoo.entry_points import Broken, Plugins
from learngene_zoo.errors import BadFile, BadPlugin
from learngene_zoo.families.spec import FAMILIES
from learngene_zoo.method import AXES, Expander, Extractor, Method, Tasks

GROUP = "learngene_zoo.methods"
PRESETS = ("mini", "smoke")  # that every method has


def check_method_record(method: Method) -> None:
    """Raises `BadPlugin` for a record that no command could use."""
    for fault in _faults(method):
        raise BadPlugin(f"the record of the method {method.name!r} is wrong: {fault}")


def _faults(method: Method) -> Iterator[str]:
    if not (isinstance(method.name, str) and method.name.isidentifier()):
        yield f"name is {method.name!r}; expected letters, digits and underscores"
    if method.tasks not in get_args(Tasks):
        yield f"tasks is {method.tasks!r}; expected one of {', '.join(get_args(Tasks))}"
    if not (isinstance(method.families, tuple) and method.families and set(method.families) <= set(FAMILIES)):
        yield f"families is {method.families!r}; expected a tuple of some of {', '.join(FAMILIES)}"
    if not _is_range(method.ancestries):
        yield f"ancestries is {method.ancestries!r}; expected the least and the greatest number, or (least, None)"
    if method.details is not None and not (isinstance(method.details, type) and is_dataclass(method.details)):
        yield f"details is {method.details!r}; expected a dataclass or None"
    if method.plot is not None and not (isinstance(method.plot, str) and ":" in method.plot):
        yield f"plot is {method.plot!r}; expected 'package.module:function' or None"
    yield from _faults_of_presets(method.presets)
    yield from _faults_of_expander(method.expander)


def _is_range(numbers: Any) -> bool:
    try:
        least, most = numbers
        return least >= 0 and (most is None or most >= least)
    except (TypeError, ValueError):
        return False


def _faults_of_presets(presets: Any) -> Iterator[str]:
    if not isinstance(presets, Mapping):
        yield f"presets is {presets!r}; expected a mapping from names to extractors"
        return
    absent = [name for name in PRESETS if name not in presets]
    if absent:
        yield f"it lacks the preset {' and '.join(absent)}"
    for name, preset in presets.items():
        if not isinstance(preset, Extractor):
            yield f"its preset {name} is {preset!r}; expected an Extractor"
    kinds = sorted({type(preset).__name__ for preset in presets.values()})
    if len({type(preset) for preset in presets.values()}) > 1:
        yield f"its presets are of several types, {', '.join(kinds)}; expected one"


def _faults_of_expander(expander: Any) -> Iterator[str]:
    if not isinstance(expander, Expander):
        yield f"expander is {expander!r}; expected an Expander"
        return
    strange = sorted(set(expander.axes) - set(AXES))
    if strange:
        yield f"axes of its expander has {strange[0]!r}; expected some of {', '.join(AXES)}"


METHODS = Plugins(GROUP, "method", Method, check_method_record)


def references() -> dict[str, str]:
    """Names of methods and where each is found (`package.module:ATTRIBUTE`), sorted by name; nothing is imported."""
    return METHODS.references()


def load(name: str) -> Method:
    """The method of that name. Raises `WrongCall` if there is none and `BadFile` if its plugin cannot be used."""
    return METHODS.load(name)


def method_of(config: LearngeneConfig, where: object) -> Method:
    """The method of a learngene, which lies at `where`.

    Raises `BadFile` for one that cannot be used or is not installed: with the package that brought it, if the learngene says so.
    """
    name = config.method
    if name not in references() and name not in {plugin.name for plugin in METHODS.refused()}:
        named = sorted(set(config.versions) - set(OWN_PACKAGES))
        package = f"the package that it names ({', '.join(named)}), if you trust it" if named else "its plugin"
        raise BadFile(
            f"{where} was made by the method {name!r}, which is not installed; install {package} (lgzoo list methods)"
        )
    return load(name)


def package_of(name: str) -> dict[str, str]:
    """The package that brings a method, and its version; empty for a method of this project."""
    reference = references().get(name)
    points = [point for point in METHODS.found() if (point.name, point.reference) == (name, reference)]
    return {point.package: version(point.package) for point in points if not point.in_tree}


def methods() -> tuple[list[Method], list[Broken]]:
    """Every method that loads, and every one that does not, with the reason."""
    return METHODS.load_all()


def resolve(reference: str) -> object:
    """What `package.module:attribute` names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)
