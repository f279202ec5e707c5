"""Levels: which block of an auxiliary model imitates which block of the ancestry model. Cold.

Learngene Pool, section "Distillation": low, middle and high level are a third, two thirds and all of a model's depth. Of 12
blocks they are the 4th, 8th and 12th, of 6 the 2nd, 4th and 6th.
"""

from __future__ import annotations

from learngene_zoo.plugin import WrongCall

LEVELS = 3  # low, middle and high


def levels(blocks: int, count: int) -> tuple[int, ...]:
    """The blocks, counted from 0, at the last `count` of the levels of a model: (1, 3, 5) of 6, (5,) for one.

    A third that is no whole number is rounded to the nearest one. Raises `WrongCall` for another number of levels, and for a
    model with fewer blocks than levels.
    """
    if not 0 <= count <= LEVELS:
        raise WrongCall(f"{count} levels cannot be distilled; there are low, middle and high: choose 0 to {LEVELS}")
    if blocks < count:
        raise WrongCall(f"a model of {blocks} blocks has no {count} levels; distil fewer levels, or take more blocks")
    return tuple((2 * level * blocks + LEVELS) // (2 * LEVELS) - 1 for level in range(LEVELS - count + 1, LEVELS + 1))


def pairs(student: int, ancestry: int, count: int) -> tuple[tuple[int, int], ...]:
    """(block of the student, block of the ancestry model) at each of `count` levels, given how many blocks each has."""
    return tuple(zip(levels(student, count), levels(ancestry, count)))
