"""`source`: counterpart of ImageNet. Contours mixed with the held-out classes of nine families,
labelled with class and attributes.

It has no class of a target task, and no digits. An image is a function of (split, index); the split
has a million of them, and none is stored. The class of an index follows a fixed timetable, so that
all labels are known without drawing.

Attributes are further labels of an image. A number lies between -1 and 1, a category counts from 0;
where an attribute has no meaning (the lobes of a texture) its value is NaN, and the losses ignore
it. Shapes: N images, A attributes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from learngene_zoo.plugin import Attribute, Entry, Samples, Task, build_task, derive_seed
from lgzoo_mini.suite import SIZE, Drawn, Generator, Picture, generator

# Number of images of each family among 20 consecutive ones: more for families with more classes
# or harder ones. The bundled ancestry model was trained on these families in this order, so later
# generators are not added.
TURNS = {
    "contours": 4, "objects": 2, "wings": 1, "figures": 1, "textures": 3, "signs": 2, "glyphs": 3,
    "numbers": 1,
    "motion": 1, "petals": 2,
}  # fmt: skip
ATTRIBUTES = (
    Attribute("lobes", classes=13),  # lobes of the main contour, 0 to 12
    # log2 of cycles per image of a texture or a contour's ripple: 0.5 -> -1, 16 -> 1
    Attribute("frequency"),
    Attribute("amplitude"),  # of a ripple, or contrast of a texture, 0 -> -1, largest -> 1
    Attribute("ink_hue_x"),  # cosine and sine of the hue of the foreground
    Attribute("ink_hue_y"),
    Attribute("paper_hue_x"),  # cosine and sine of the hue of the background
    Attribute("paper_hue_y"),
    Attribute("x"),  # centre of the main object, -1 left (top) to 1 right (bottom)
    Attribute("y"),
    Attribute("size"),  # its diameter as a share of the image: 0 -> -1, 1 -> 1
    # Cosine and sine of its rotation (of twice the angle for symmetric things)
    Attribute("angle_x"),
    Attribute("angle_y"),
    Attribute("texture", classes=12),  # kind of texture: the index in textures.KINDS
    Attribute("glyph", classes=160),  # index of the held-out glyph
)
COLUMN = {attribute.name: place for place, attribute in enumerate(ATTRIBUTES)}


class Timetable(NamedTuple):
    """The schedule of families, int64 (turns,) each; a round has one image for each turn.

    Attributes:
        family: index of the family at this turn.
        rank: index of the turn among those of its family.
        turns: number of turns of the family in a round.
        first: first label of the family.
        classes: number of classes of the family.
    """

    family: np.ndarray
    rank: np.ndarray
    turns: np.ndarray
    first: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class Mixture:
    """The held-out classes of several families in a fixed timetable.

    Of `sum(turns)` consecutive images, `turns[family]` are of each family.
    """

    name: str
    turns: Mapping[str, int]

    @cached_property
    def families(self) -> tuple[Generator, ...]:
        """The generators, in the order of their labels."""
        return tuple(generator(name) for name in self.turns)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """`family/class` for every label."""
        return tuple(
            f"{family.name}/{name}" for family in self.families for name in family.held_out
        )

    @cached_property
    def timetable(self) -> Timetable:
        """The timetable, computed once."""
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
        """Return the class at every index, int64 (N,). Classes of a family are equally frequent."""
        table = self.timetable
        round_N, turn_N = np.divmod(indices_N, len(table.family))
        return (
            table.first[turn_N]
            + (round_N * table.turns[turn_N] + table.rank[turn_N]) % table.classes[turn_N]
        )

    def parts(self, split: str, indices_N: np.ndarray) -> Iterator[tuple[np.ndarray, Picture]]:
        """Yield the images at these indices family by family, with their positions, int64."""
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
    """Return the class at every index, int64 (N,)."""
    return SOURCE.labels_of(indices_N)


def draw(split: str, indices_N: np.ndarray) -> Samples:
    """Draw images uint8 (N, 3, SIZE, SIZE) with attributes (N, A)."""
    images = torch.empty(len(indices_N), 3, SIZE, SIZE, dtype=torch.uint8)
    attributes_NA = np.full((len(indices_N), len(ATTRIBUTES)), np.nan, dtype=np.float32)
    for places, made in SOURCE.parts(split, indices_N):
        images[torch.from_numpy(places)] = made.images
        for name, values in made.attributes.items():
            attributes_NA[places, COLUMN[name]] = values
    return Samples(images, attributes=torch.from_numpy(attributes_NA))


def open_task(entry: Entry) -> Task:
    """Return the task of its catalogue entry. Images are drawn when they are read."""
    return build_task(
        entry,
        SOURCE.class_names,
        lambda name: Drawn(name, entry.sizes[name], draw, labels_of),
        attributes=ATTRIBUTES,
    )
