"""Two processes of torchrun, imitated one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def imitate_processes(
    compute: Callable[[], T], gather: str, monkeypatch: pytest.MonkeyPatch, count: int = 2
) -> T:
    """Return the result of `compute` in the first of several processes that share all batches.

    Args:
        compute: reads a sample of a task and gathers values.
        gather: the name of `gather_values` where it is called.
        monkeypatch: of the test.
        count: of the processes.
    """
    gathered: list[list[Any]] = []

    def keep(value: Any) -> list[Any]:
        gathered[-1].append(value)
        return [value]

    with monkeypatch.context() as patch:
        patch.setattr("learngene_zoo.tasks.epochs.get_world_size", lambda: count)
        for number in reversed(range(count)):
            patch.setattr("learngene_zoo.tasks.epochs.rank", lambda number=number: number)
            patch.setattr(gather, keep)
            gathered.append([])
            compute()
        calls = zip(*reversed(gathered))
        patch.setattr(gather, lambda value: list(next(calls)))
        return compute()
