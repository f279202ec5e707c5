"""Errors for unknown arguments of the public functions.

A separate module because functions of several layers use it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from learngene_zoo.errors import WrongCall, refuse_unknown

# Functions that do what an option of a command does, by the command's function and the option.
OTHER_FUNCTIONS = {"evaluate": {"probe": "learngene_zoo.probe(model, kind=...)"}}
P = ParamSpec("P")
R = TypeVar("R")


def refuse_unknown_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with a `WrongCall` instead of a `TypeError` for an unknown argument.

    The error names the nearest known one. For functions without `**settings`, which check these.
    """
    code = function.__code__  # type: ignore[attr-defined]  # `inspect` takes longer to import
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name in OTHER_FUNCTIONS.get(function.__name__, {}):
                other = OTHER_FUNCTIONS[function.__name__][name]
                raise WrongCall(f"{function.__name__} has no argument {name!r}; call {other}")
            if name not in names:
                raise refuse_unknown("argument", name, names)
        return function(*args, **kwargs)

    return call
