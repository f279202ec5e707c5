"""`forms`: the larger source task. Four kinds of forms made for it, and the held-out classes of eight families of `source`.

`wings` and `petals` are left out entirely, so that their target tasks say what a model learnt of pictures it never saw the like
of. A picture is a function of (split, index); none is stored. The class of an index follows a fixed timetable. Shapes: N pictures.
"""

from functools import cache

import numpy as np
import torch

from learngene_zoo.plugin import Entry, Task, built_in, derive_seed
from lgzoo_mini.source import Timetable
from lgzoo_mini.suite import SIZE, Drawn, Generator, generator

# Of 32 pictures in a row, how many each kind or family has; 20 are of the new kinds.
TURNS = {
    "gestures": 8, "silhouettes": 6, "fractals": 3, "composites": 3, "contours": 2, "objects": 1, "figures": 1,
    "textures": 2, "signs": 1, "glyphs": 3, "numbers": 1, "motion": 1,
}  # fmt: skip


@cache
def families() -> tuple[Generator, ...]:
    """The generators, in the order of their labels."""
    return tuple(generator(name) for name in TURNS)


@cache
def class_names() -> tuple[str, ...]:
    """`family/class` of every label."""
    return tuple(f"{family.name}/{name}" for family in families() for name in family.held_out)


@cache
def timetable() -> Timetable:
    """Computed once; a label is then arithmetic."""
    classes = np.array([len(family.held_out) for family in families()])
    turns = np.array(list(TURNS.values()))
    family = np.repeat(np.arange(len(turns)), turns)
    rank = np.concatenate([np.arange(count) for count in turns])
    return Timetable(family, rank, turns[family], (np.cumsum(classes) - classes)[family], classes[family])


def labels_of(indices_N: np.ndarray) -> np.ndarray:
    """The class at every index, int64 (N,). The classes of one family are equally frequent."""
    table = timetable()
    round_N, turn_N = np.divmod(indices_N, len(table.family))
    return table.first[turn_N] + (round_N * table.turns[turn_N] + table.rank[turn_N]) % table.classes[turn_N]


def draw(split: str, indices_N: np.ndarray) -> torch.Tensor:
    """uint8 (N, 3, SIZE, SIZE). Each family's pictures are made together, then put in order."""
    labels_N, table = labels_of(indices_N), timetable()
    turns_N = indices_N % len(table.family)
    images = torch.empty(len(indices_N), 3, SIZE, SIZE, dtype=torch.uint8)
    for number in np.unique(table.family[turns_N]):
        family, places = families()[number], np.flatnonzero(table.family[turns_N] == number)
        local = labels_N[places] - table.first[turns_N[places]] + len(family.classes)
        made = family.pictures(local, derive_seed(0, "forms", split, family.name), indices_N[places])
        images[torch.from_numpy(places)] = made.images
    return images


def open_task(entry: Entry) -> Task:
    """The task of its catalogue entry. Nothing is drawn yet."""
    return built_in(entry, class_names(), lambda name: Drawn(name, entry.sizes[name], draw, labels_of))
