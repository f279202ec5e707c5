"""`Entry`: one row of the catalogue, known without opening anything. Cold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A task that has a name. `module` is the one, below `learngene_zoo.tasks`, whose `open_named(entry, offline)` opens it."""

    name: str
    title: str
    classes: int
    sizes: Mapping[str, int]
    licence: str
    description: str
    module: str
    kind: Literal["classification", "segmentation"] = "classification"
    flip: bool = False
    source: str = "built in"
    image_size: int = 32


def split_sizes(train: int, validation: int, test: int) -> dict[str, int]:
    """Images of each split."""
    return {"train": train, "validation": validation, "test": test}
