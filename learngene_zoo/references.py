"""Checks of arguments that name a task, a model or a learngene."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from learngene_zoo.errors import WrongCall

TASKS = 'a name such as "digits", or data such as "folder:PATH"'
LEARNGENES = (
    'a folder, a name of the shelf such as "lsamd", organisation/name@revision, a Learngene'
)
MODELS = (
    'a folder, "timm:NAME", organisation/name@revision, or a model that this package returned (a '
    "module of timm is saved as a folder by timm.models.save_for_hf)"
)
SOURCES = '"timm:NAME", "hf-hub:ORG/REPO@REV", a folder or a .safetensors file'


def parse_reference(argument: str, value: Any, expected: str) -> str:
    """Return a reference as a string; it may be a path.

    Args:
        argument: name of the argument, for the error.
        value: the reference.
        expected: the accepted values, for the error.

    Raises:
        WrongCall: for a value that is neither a string nor a path.
    """
    if isinstance(value, (str, Path)):
        return str(value)
    raise WrongCall(f"{argument} is of type {type(value).__name__}; expected {expected}")


def parse_task(value: Any, argument: str = "task") -> str | None:
    """Return the reference of a task; None if none is given. Raises as `parse_reference`."""
    return None if value is None else parse_reference(argument, value, TASKS)


def parse_references(argument: str, value: Any, expected: str) -> list[str]:
    """Return one or several references as a list. Raises as `parse_reference`."""
    if isinstance(value, (list, tuple)):
        return [parse_reference(argument, item, expected) for item in value]
    return [parse_reference(argument, value, expected)]


def check_model(argument: str, value: Any) -> None:
    """Raise `WrongCall` for a value that is neither a reference nor a model of this package."""
    if not hasattr(value, "input_format"):
        parse_reference(argument, value, MODELS)
