"""Errors for unknown arguments of the public functions.

A separate module because functions of several layers use it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from learngene_zoo.errors import refuse_unknown

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
            if name not in names:
                raise refuse_unknown("argument", name, names)
        return function(*args, **kwargs)

    return call
