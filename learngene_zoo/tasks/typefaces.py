"""`typefaces`: which of eight faces two or three letters are set in. The splits share no letter group."""

from __future__ import annotations

from functools import cache, partial
from string import ascii_letters
from typing import TYPE_CHECKING

from learngene_zoo.run import derive_seed
from learngene_zoo.tasks.draws import uniform
from learngene_zoo.tasks.glyphs import Drawing, GlyphSplit
from learngene_zoo.tasks.painting import Style
from learngene_zoo.tasks.task import Task, built_in

if TYPE_CHECKING:
    from learngene_zoo.tasks.catalogue import Entry

FACES = (
    "Sans",
    "Sans Bold",
    "Sans Oblique",
    "Serif",
    "Serif Bold",
    "Serif Italic",
    "Mono",
    "Mono Bold",
)
GROUPS = {"train": (0, 180), "validation": (180, 220), "test": (220, 280)}
# An oblique face is a sheared one, a bold one is wider: little of either may be left to chance.
STYLE = Style(rotation=0.05, shear=0.03, stretch=0.05, zoom=(0.95, 1.1), shift=0.08)


@cache
def groups() -> tuple[str, ...]:
    """All groups of letters, each once, in a fixed order."""
    count = GROUPS["test"][1]
    draws = uniform(derive_seed(0, "typefaces", "groups"), range(2 * count), 4)
    made = ["".join(ascii_letters[int(draw * 52)] for draw in row[: 2 + int(row[3] * 2)]) for row in draws.tolist()]
    return tuple(dict.fromkeys(made))[:count]


def drawings(split: str) -> list[list[Drawing]]:
    """For every face all groups of this split."""
    return [[(face, group) for group in groups()[slice(*GROUPS[split])]] for face in FACES]


def open_named(entry: Entry, offline: bool) -> Task:
    """The task of this catalogue entry; nothing is drawn yet."""
    return built_in(entry, FACES, partial(open_split, dict(entry.sizes)))


def open_split(sizes: dict[str, int], name: str) -> GlyphSplit:
    """One split of `typefaces`."""
    return GlyphSplit("typefaces", name, sizes[name], len(FACES), drawings, STYLE)
