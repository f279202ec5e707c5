"""Open the tasks that are made by rules: each text is a function of task, split and index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from learngene_zoo.plugin import Entry, Task, build_task, derive_seed
from lgzoo_words.draws import Draws
from lgzoo_words.rules import RULES, Text


@dataclass(frozen=True)
class WrittenSplit:
    """A split whose texts are written when they are read. The classes alternate."""

    name: str
    key: int
    count: int

    @property
    def labels(self) -> np.ndarray:
        """The class of every text, int64 (N,)."""
        return np.arange(self.count, dtype=np.int64) % 2

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, indices: Sequence[int]) -> list[Text]:
        """Return the texts or pairs at these indices."""
        write = RULES[self.name]
        return [write(index % 2, Draws(self.key, index)) for index in indices]


def open_rules(entry: Entry, class_names: Sequence[str], version: int) -> Task:
    """Open a task that is made by rules; another version has other texts."""
    return build_task(entry, class_names, partial(_open_split, entry, version))


def _open_split(entry: Entry, version: int, split: str) -> WrittenSplit:
    key = derive_seed(version, "words", entry.name, split)
    return WrittenSplit(entry.name, key, entry.sizes[split])
