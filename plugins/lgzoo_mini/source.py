"""`source`: ImageNet's counterpart. Contours mixed with the held-out classes of nine families,
labelled with class and attributes.

No class of a target task is among its classes, and no digit. A picture is a function of (split,
index); a million of them exist, and none is stored. The class of an index follows a fixed
timetable, so that all labels are known at once.

Attributes are further labels of a picture. A number lies between -1 and 1, a category counts from
0; where an attribute has no meaning (the lobes of a texture) its value is NaN, and the losses leave
it out. Shapes: N pictures, A attributes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from learngene_zoo.plugin import Attribute, Entry, Samples, Task, built_in, derive_seed
from lgzoo_mini.suite import SIZE, Drawn, Generator, Picture, generator

# Of twenty pictures in a row, how many each family has: more where there are more classes or more
# to learn. The bundled ancestry model was trained on these families in this order; generators that
# are added later do not join.
TURNS = {
    "contours": 4, "objects": 2, "wings": 1, "figures": 1, "textures": 3, "signs": 2, "glyphs": 3,
    "numbers": 1,
    "motion": 1, "petals": 2,
}  # fmt: skip
ATTRIBUTES = (
    Attribute("lobes", classes=13),  # of the main contour, 0 to 12
    # Of a texture or a contour's ripple, log2 of cycles per picture: 0.5 -> -1, 16 -> 1
    Attribute("frequency"),
    Attribute("amplitude"),  # of that ripple or contrast of that texture, 0 -> -1, largest -> 1
    Attribute("ink_hue_x"),  # cosine and sine of the hue of what is drawn
    Attribute("ink_hue_y"),
    Attribute("paper_hue_x"),  # and of what it is drawn on
    Attribute("paper_hue_y"),
    Attribute("x"),  # centre of the main object, -1 left (top) to 1 right (bottom)
    Attribute("y"),
    Attribute("size"),  # its diameter as a share of the picture: 0 -> -1, 1 -> 1
    # Cosine and sine of its rotation (of twice the angle for what has no head)
    Attribute("angle_x"),
    Attribute("angle_y"),
    Attribute("texture", classes=12),  # kind of texture: the index in textures.KINDS
    Attribute("glyph", classes=160),  # which of the held-out glyphs
)
COLUMN = {attribute.name: place for place, attribute in enumerate(ATTRIBUTES)}


class Timetable(NamedTuple):
    """The families of the turns of a round, int64 (turns,) each.

    For each turn: its family, which of the family's turns it is, and of that family the turns of a
    round, the first label, and the number of classes.
    """

    family: np.ndarray
    rank: np.ndarray
    turns: np.ndarray
    first: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class Mixture:
    """The held-out classes of several families by a fixed timetable: of `sum(turns)` pictures in a
    row, `turns[family]` each.
    """

    name: str
    turns: Mapping[str, int]

    @cached_property
    def families(self) -> tuple[Generator, ...]:
        """The generators, in the order of their labels."""
        return tuple(generator(name) for name in self.turns)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """`family/class` of every label."""
        return tuple(
            f"{family.name}/{name}" for family in self.families for name in family.held_out
        )

    @cached_property
    def timetable(self) -> Timetable:
        """Computed once; a label is then arithmetic."""
        classes, turns = (
            np.array([len(family.held_out) for family in self.families]),
            np.array(list(self.turns.values())),
        )
        family = np.repeat(np.arange(len(turns)), turns)
        rank = np.concatenate([np.arange(count) for count in turns])
        return Timetable(
            family, rank, turns[family], (np.cumsum(classes) - classes)[family], classes[family]
        )

    def labels_of(self, indices_N: np.ndarray) -> np.ndarray:
        """The class at every index, int64 (N,). The classes of one family are equally frequent."""
        table = self.timetable
        round_N, turn_N = np.divmod(indices_N, len(table.family))
        return (
            table.first[turn_N]
            + (round_N * table.turns[turn_N] + table.rank[turn_N]) % table.classes[turn_N]
        )

    def parts(self, split: str, indices_N: np.ndarray) -> Iterator[tuple[np.ndarray, Picture]]:
        """The pictures at these indices, each family's made together: with their places among the
        indices, int64.
        """
        labels_N, table = self.labels_of(indices_N), self.timetable
        turns_N = indices_N % len(table.family)
        for number in np.unique(table.family[turns_N]):
            family, places = self.families[number], np.flatnonzero(table.family[turns_N] == number)
            local = labels_N[places] - table.first[turns_N[places]] + len(family.classes)
            yield (
                places,
                family.pictures(
                    local, derive_seed(0, self.name, split, family.name), indices_N[places]
                ),
            )


SOURCE = Mixture("source", TURNS)


def labels_of(indices_N: np.ndarray) -> np.ndarray:
    """The class at every index, int64 (N,)."""
    return SOURCE.labels_of(indices_N)


def draw(split: str, indices_N: np.ndarray) -> Samples:
    """uint8 (N, 3, SIZE, SIZE) with attributes (N, A)."""
    images = torch.empty(len(indices_N), 3, SIZE, SIZE, dtype=torch.uint8)
    attributes_NA = np.full((len(indices_N), len(ATTRIBUTES)), np.nan, dtype=np.float32)
    for places, made in SOURCE.parts(split, indices_N):
        images[torch.from_numpy(places)] = made.images
        for name, values in made.attributes.items():
            attributes_NA[places, COLUMN[name]] = values
    return Samples(images, attributes=torch.from_numpy(attributes_NA))


def open_task(entry: Entry) -> Task:
    """The task of its catalogue entry. Nothing is drawn yet."""
    return built_in(
        entry,
        SOURCE.class_names,
        lambda name: Drawn(name, entry.sizes[name], draw, labels_of),
        attributes=ATTRIBUTES,
    )
