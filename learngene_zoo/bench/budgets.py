"""How much a bench measures if it is not told: `--budget quick`, `standard` or `full`. Cold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from learngene_zoo.recipe import Recipe

RECIPE = Recipe(images=1000, batch_size=50, lr=1e-3, clip=1.0)  # of every cell, but for its epochs


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is measured; `--layers`, `--epochs`, `--seeds`, `--images` and `--task` replace each its own."""

    layers: tuple[int, ...]
    epochs: tuple[int, ...]
    seeds: int
    images: int | None  # training images of a cell; None: all there are
    tasks: tuple[str, ...] = ()  # of the suite, where it has them; (): all
    most_tasks: int | None = None


Name = Literal["quick", "standard", "full"]

BUDGETS: dict[Name, Budget] = {
    # Minutes of two cores: whether everything works, and a first look. No extraction sees these tasks by default.
    "quick": Budget(
        layers=(6,), epochs=(4,), seeds=2, images=1000, tasks=("figures", "textures", "numbers"), most_tasks=3
    ),
    # An afternoon of two cores.
    "standard": Budget(layers=(6, 9, 12), epochs=(1, 4, 16), seeds=3, images=1000),
    # For a GPU, or a cluster: the papers' depths, every budget, all images.
    "full": Budget(layers=tuple(range(5, 16)), epochs=(1, 2, 4, 8, 16), seeds=5, images=None),
}


def some_of(budget: Budget, tasks: Sequence[str]) -> tuple[str, ...]:
    """The tasks of a suite that a budget measures: its own where the suite has them, else the first so many."""
    named = tuple(task for task in tasks if task in budget.tasks)
    return named or tuple(tasks)[: budget.most_tasks]
