"""Stages, and the order in which they grow: which ancestry block becomes which block of a descendant. Cold.

LSAMD, section "Expansion". Blocks are counted from 1, as in the paper. A stage is a maximal run of adjacent kept blocks:
(1, 4, 5, 7, 8) has the stages (1), (4, 5) and (7, 8). A descendant with more layers than kept blocks repeats blocks
inside the stages, one layer at a time, the stages taking turns.

The paper prints the orders for 6 and 7 layers only. Taking turns beyond that is this package's reading; its other
candidate, all additions into one stage, contradicts the printed order of 7 layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from learngene_zoo.plugin import WrongCall

Stage = tuple[int, ...]
Expansion = Literal["neighbor", "cyclic"]
Priority = Literal[
    "last-middle-first",
    "last-first-middle",
    "middle-last-first",
    "middle-first-last",
    "first-last-middle",
    "first-middle-last",
]


def stages(kept: Sequence[int]) -> list[Stage]:
    """The maximal runs of consecutive numbers in `kept`, which is ascending."""
    runs: list[Stage] = []
    for block in kept:
        if runs and block == runs[-1][-1] + 1:
            runs[-1] += (block,)
        else:
            runs.append((block,))
    return runs


def turns(count: int, priority: Priority = "last-middle-first") -> list[int]:
    """The stages' positions, 0 to `count` - 1, in the order in which they take additions.

    With more than three stages "middle" is all inner ones, the last of them first; with two there is no middle, and a
    single stage is all there is.
    """
    positions = {"first": [0], "middle": list(range(count - 2, 0, -1)), "last": [count - 1] if count > 1 else []}
    return [position for word in priority.split("-") for position in positions[word]]


def grown(stage: Stage, additions: int, expansion: Expansion = "neighbor") -> Stage:
    """The stage with so many blocks more: its last one repeated (neighbor), or the whole stage again (cyclic).

    (7, 8) grows by two to (7, 8, 8, 8) or to (7, 8, 7, 8).
    """
    if expansion == "neighbor":
        return stage + stage[-1:] * additions
    return tuple(stage[i % len(stage)] for i in range(len(stage) + additions))


def order(
    kept: Sequence[int],
    layers: int,
    *,
    expansion: Expansion = "neighbor",
    priority: Priority = "last-middle-first",
) -> tuple[int, ...]:
    """For each of `layers` blocks of a descendant the ancestry block it inherits, counted from 1.

    Raises `WrongCall` for fewer layers than kept blocks, which the paper leaves undefined.
    """
    missing = layers - len(kept)
    if missing < 0:
        raise WrongCall(
            f"{layers} layers are fewer than the {len(kept)} blocks this learngene keeps; ask for {len(kept)} or more, "
            f"or extract again with --top {layers}"
        )
    parts = stages(kept)
    rounds = turns(len(parts), priority)
    additions = [0] * len(parts)
    for addition in range(missing):
        additions[rounds[addition % len(parts)]] += 1
    return tuple(block for part, more in zip(parts, additions) for block in grown(part, more, expansion))
