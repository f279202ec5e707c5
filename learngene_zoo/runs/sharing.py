"""Share intermediate results between the calls of a block, such as all expansions of `recommend`.

    with share_results():
        for target in targets:
            expand(learngene, target=target)

A plugin opens what several of its calls can use with `open_shared`. Within such a block the result
stays open for the next call; elsewhere it is closed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from learngene_zoo.runs.cache import compute_key

T = TypeVar("T")


@dataclass(frozen=True)
class _Held:
    """An open result, and the stack that closes it."""

    key: str
    result: Any
    stack: ExitStack


_held_results: ContextVar[dict[str, _Held] | None] = ContextVar("held results", default=None)


@contextmanager
def share_results() -> Iterator[None]:
    """Keep the last result of each name that `open_shared` opens within; close them at the end."""
    held: dict[str, _Held] = {}
    token = _held_results.set(held)
    try:
        yield
    finally:
        _held_results.reset(token)
        with ExitStack() as stack:
            for entry in held.values():
                stack.push(entry.stack)


def is_sharing() -> bool:
    """Return whether results of `open_shared` are kept for later calls."""
    return _held_results.get() is not None


@contextmanager
def open_shared(
    name: str,
    open_result: Callable[[], AbstractContextManager[T]],
    settings: Any = None,
    inputs: Sequence[Any] = (),
    seed: int = 0,
) -> Iterator[T]:
    """Yield the result of `open_result()`, or the one that an earlier call has opened.

    Within `share_results` the result stays open until one of the same name and of another key is
    needed, so at most one of each name exists. Its user must not change it.

    Args:
        name: of the result, "method.result".
        open_result: opens it. The result depends on settings, inputs and seed alone.
        settings: a frozen dataclass, or None.
        inputs: as those of `compute_once`.
        seed: of the run.

    Raises:
        TypeError: for an input that has no identity.
    """
    held = _held_results.get()
    if held is None:
        with open_result() as result:
            yield result
        return
    key = compute_key(name, settings, inputs, seed)
    if name in held and held[name].key != key:
        held.pop(name).stack.close()
    if name not in held:
        with ExitStack() as stack:
            result = stack.enter_context(open_result())
            held[name] = _Held(key, result, stack.pop_all())
    yield held[name].result
