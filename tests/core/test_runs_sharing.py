"""Results that several calls share: opened once, closed when others are needed and at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest

from learngene_zoo.runs.sharing import is_sharing, open_shared, share_results


@contextmanager
def open_logged(log: list[str], value: str) -> Iterator[str]:
    log.append(f"open {value}")
    try:
        yield value
    finally:
        log.append(f"close {value}")


def read(log: list[str], value: str, name: str = "test.value", seed: int = 0) -> str:
    with open_shared(name, partial(open_logged, log, value), inputs=[value], seed=seed) as result:
        return result


def test_results_are_opened_for_each_call_unless_they_are_shared() -> None:
    log: list[str] = []
    assert not is_sharing()
    assert [read(log, "a"), read(log, "a")] == ["a", "a"]
    assert log == ["open a", "close a"] * 2
    log.clear()
    with share_results():
        assert is_sharing()
        assert [read(log, "a"), read(log, "a")] == ["a", "a"]
        assert log == ["open a"]
    assert log == ["open a", "close a"]
    assert not is_sharing()


def test_a_result_of_another_key_replaces_the_one_of_its_name() -> None:
    log: list[str] = []
    with share_results():
        read(log, "a")
        read(log, "b", name="test.other")
        read(log, "c")
        assert log == ["open a", "open b", "close a", "open c"]
        read(log, "c", seed=1)
        assert log[4:] == ["close c", "open c"]
        log.clear()
    assert sorted(log) == ["close b", "close c"]


def test_results_are_closed_after_an_error() -> None:
    log: list[str] = []

    def fail() -> AbstractContextManager[str]:
        raise ValueError("no result")

    def call() -> None:
        with share_results():
            read(log, "a")
            with open_shared("test.failing", fail):
                pass

    with pytest.raises(ValueError, match="no result"):
        call()
    assert log == ["open a", "close a"]
    assert not is_sharing()


def test_sharing_within_sharing_is_its_own() -> None:
    log: list[str] = []
    with share_results():
        read(log, "a")
        with share_results():
            read(log, "a")
        read(log, "a")
    assert log == ["open a", "open a", "close a", "close a"]
