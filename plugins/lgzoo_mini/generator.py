"""`Generator`: one family of pictures, and `Generated`, a split of them. Every picture is a function of (task, split, index).

A generator knows the classes of its target task and, after them, held-out classes of the same family, which only the task
`source` shows. Shapes: N pictures, K draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from learngene_zoo.plugin import Task, built_in, derive_seed, noise, uniform

if TYPE_CHECKING:
    from learngene_zoo.plugin import Entry

SIZE = 32  # pixels of a picture's side
GRAIN = 3 * SIZE * SIZE  # values of noise per picture


class Picture(NamedTuple):
    """Pictures uint8 (N, 3, SIZE, SIZE), and attributes by name, float32 (N,) each; `source` uses them (`source.ATTRIBUTES`)."""

    images: torch.Tensor
    attributes: Mapping[str, np.ndarray] = {}


# class numbers int64 (N,), draws float32 (N, K) in [0, 1), grain uint8 (N, GRAIN) -> pictures. It computes element by
# element (no matrix product over N), so that a picture does not depend on the others it is made with.
Paint = Callable[[np.ndarray, np.ndarray, np.ndarray], Picture]


@dataclass(frozen=True, kw_only=True)
class Generator:
    """One family of pictures. Class c is `classes[c]`, and from `len(classes)` on one of `held_out`."""

    name: str
    classes: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    streams: int  # random draws per picture
    paint: Paint

    def pictures(self, classes_N: np.ndarray, key: int, indices: Sequence[int] | np.ndarray) -> Picture:
        """The pictures at `indices` of these classes; `key` distinguishes tasks and splits."""
        grain = noise(derive_seed(key, "grain"), indices, GRAIN)
        return self.paint(classes_N, uniform(key, indices, self.streams), grain)


@dataclass(frozen=True)
class Generated:
    """`images` pictures of a generator's target classes, in equal numbers. It holds no pictures, so it is cheap to pickle."""

    generator: Generator
    name: str  # of the split
    images: int

    @property
    def labels(self) -> np.ndarray:
        """int64 (N,)."""
        return np.arange(self.images, dtype=np.int64) % len(self.generator.classes)

    @cached_property
    def _key(self) -> int:
        return derive_seed(0, self.generator.name, self.name)

    def __len__(self) -> int:
        return self.images

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        """uint8 (N, 3, SIZE, SIZE)."""
        indices_N = np.asarray(indices, dtype=np.int64)
        return self.generator.pictures(indices_N % len(self.generator.classes), self._key, indices_N).images


def generator(name: str) -> Generator:
    """The generator of a family: the constant in the module of that name, in capitals."""
    found: Generator = getattr(import_module(f"lgzoo_mini.{name}"), name.upper())
    return found


def open_generated(entry: Entry) -> Task:
    """The task of the generator that is named like a catalogue entry. Nothing is drawn yet."""
    drawn = generator(entry.name)
    return built_in(entry, drawn.classes, lambda name: Generated(drawn, name, entry.sizes[name]))


_TRIES = 20_000


def varieties(family: str, choices: Sequence[int], rows: int, differing: int) -> np.ndarray:
    """int64 (rows, features): in column f a number below `choices[f]`; any two rows differ in at least `differing` columns.

    A function of its arguments: rows are drawn in turn and kept if they are far enough from all before.
    """
    draws = np.random.Generator(np.random.PCG64(derive_seed(0, family, "classes")))
    kept = np.empty((0, len(choices)), dtype=np.int64)
    for row in draws.integers(0, choices, size=(_TRIES, len(choices))):
        if ((kept != row).sum(axis=1) >= differing).all():
            kept = np.concatenate([kept, row[None]])
        if len(kept) == rows:
            return kept
    raise AssertionError(f"{family}: only {len(kept)} of {rows} classes differ in {differing} of {choices}")
