"""`letters`: which of the 26 Latin letters, capital or small, in any of twelve faces."""

from __future__ import annotations

from functools import partial
from string import ascii_uppercase
from typing import TYPE_CHECKING

from learngene_zoo.tasks.fonts import FACES
from learngene_zoo.tasks.glyphs import Drawing, GlyphSplit, in_faces
from learngene_zoo.tasks.painting import Style
from learngene_zoo.tasks.task import Task, built_in

if TYPE_CHECKING:
    from learngene_zoo.tasks.catalogue import Entry

STYLE = Style()


def drawings(split: str) -> list[list[Drawing]]:
    """Every letter in both cases and all faces, the same for each split."""
    return [in_faces(letter, list(FACES)) + in_faces(letter.lower(), list(FACES)) for letter in ascii_uppercase]


def open_named(entry: Entry, offline: bool) -> Task:
    """The task of this catalogue entry; nothing is drawn yet."""
    return built_in(entry, tuple(ascii_uppercase), partial(open_split, dict(entry.sizes)))


def open_split(sizes: dict[str, int], name: str) -> GlyphSplit:
    """One split of `letters`."""
    return GlyphSplit("letters", name, sizes[name], len(ascii_uppercase), drawings, STYLE)
