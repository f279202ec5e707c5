"""Draws of a text: independent uniform numbers that are a function of seed and index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from learngene_zoo.plugin import draw_uniform

T = TypeVar("T")
MAX_DRAWS = 48  # of one text


class Draws:
    """The draws of one text, used one after the other."""

    def __init__(self, key: int, index: int) -> None:
        self._values: Iterator[float] = iter(draw_uniform(key, [index], MAX_DRAWS)[0].tolist())

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options, each with the same probability."""
        return options[int(next(self._values) * len(options))]

    def pick_two(self, options: Sequence[T]) -> tuple[T, T]:
        """Return two different options; each ordered pair has the same probability."""
        first = int(next(self._values) * len(options))
        second = (first + 1 + int(next(self._values) * (len(options) - 1))) % len(options)
        return options[first], options[second]

    def happens(self, probability: float = 0.5) -> bool:
        """Return true with a probability."""
        return next(self._values) < probability
