"""The registry of methods, and error messages that name a method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from learngene_zoo.artifacts.records import LearngeneConfig, find_package_of_method
from learngene_zoo.errors import (
    BadFile,
    BadPlugin,
    MethodFailed,
    WrongCall,
    WrongTensor,
    ZooError,
    describe_crash,
    is_shortage,
)
from learngene_zoo.families.family import load_family
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.contract import Method
from learngene_zoo.registry import METHOD_GROUP, Plugins
from learngene_zoo.settings import from_json
from learngene_zoo.storage import CONFIG

T = TypeVar("T")

METHODS = Plugins(METHOD_GROUP, "method", Method)


def describe_method(name: str) -> str:
    """Return the words for a method in a message, with its package if it is not of this project."""
    return METHODS.describe(name)


@contextmanager
def report_failure(name: str) -> Iterator[None]:
    """Report an error in the code of a method as `MethodFailed`, with its name and package.

    Errors of this package, and those that are due to a lack of memory, disk space, open files or
    rights, are raised as they are. But `WrongTensor` becomes `BadPlugin`, and a `WrongCall` in a
    method that is not of this project names the method.
    """
    try:
        yield
    except WrongTensor as error:
        raise BadPlugin(f"{describe_method(name)} built a wrong tensor: {error}") from error
    except Exception as error:
        if type(error) is WrongCall and METHODS.package_of(name):
            raise WrongCall(f"{error} (raised by {describe_method(name)})") from error
        if isinstance(error, ZooError) or is_shortage(error):
            raise
        raise MethodFailed(describe_crash(f"{describe_method(name)} failed", error)) from error


def find_method(config: LearngeneConfig, where: object) -> Method:
    """Return the method of a learngene at `where`.

    Raises `BadFile` for one that cannot be used, that `LGZOO_PLUGINS` leaves out, or that is not
    installed, with the package that it came from, if the learngene records it; and for details that
    the method cannot read.
    """
    name = config.method
    if not name:
        raise WrongCall(
            f"{where} names no method; lg.extract names it, or learngene.with_config(method=...)"
        )
    try:
        METHODS.check_unused(name)
    except WrongCall as error:
        raise BadFile(f"{where} was made by the method {name!r}; {error}") from None
    if name not in METHODS.references():
        named = sorted(find_package_of_method(config.versions))
        package = (
            f"the package that it names ({', '.join(named)}), if you trust it"
            if named
            else "its plugin"
        )
        raise BadFile(
            f"{where} was made by the method {name!r}, which is not installed; install {package}"
        )
    method = METHODS.load(name)
    if method.details is not None:
        _read_details(
            config, method.details, f"{where / CONFIG}: " if isinstance(where, Path) else ""
        )
    return method


def parse_details(config: LearngeneConfig, kind: type[T]) -> T:
    """Decode the record of a method in a learngene's `details`.

    Raises `BadFile` if it is not a `kind`, with the versions of the method's package that wrote the
    learngene and that is installed.
    """
    return _read_details(config, kind)


def _read_details(config: LearngeneConfig, kind: type[T], where: str = "") -> T:
    name = config.method or "unnamed"
    try:
        return from_json(kind, dict(config.details), f"{where}details of the {name} learngene")
    except BadFile as error:
        versions = {
            "written by": find_package_of_method(config.versions),
            "installed is": METHODS.package_of(name),
        }
        known = [
            f"{words} {package} {number}"
            for words, packages in versions.items()
            for package, number in packages.items()
        ]
        raise BadFile("; ".join([str(error), *known])) from error


def check_family(method: Method, spec: Spec) -> None:
    """Raise `WrongCall` for an ancestry model of a family that the method does not support."""
    if spec.family not in method.families:
        is_text = load_family(spec.family).transformers is not None
        if all((load_family(name).transformers is None) == is_text for name in method.families):
            kinds = ("text", "image") if is_text else ("image", "text")
            raise WrongCall(
                f"{method.name} does not support {kinds[0]} models, only {kinds[1]} models; "
                f"methods that do: lgzoo list methods --family {spec.family}"
            )
        alternatives = ", ".join(
            sorted(other.name for other in METHODS.load_all()[0] if spec.family in other.families)
        )
        supported = "; ".join(load_family(name).supported for name in method.families)
        raise WrongCall(
            f"{method.name} does not support models of the family {spec.family!r}, only "
            f"{supported}; methods that do: {alternatives or 'none'}"
        )
