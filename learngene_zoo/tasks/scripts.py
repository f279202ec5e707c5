"""`scripts`: which writing system a letter belongs to. No letter of the training images is seen in the others.

Letters that look like one of another script (Latin A, Greek Alpha) are left out: nobody could tell.
"""

from __future__ import annotations

import unicodedata
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from learngene_zoo.run import derive_seed
from learngene_zoo.tasks.fonts import BOX, covered, mask
from learngene_zoo.tasks.glyphs import Drawing, GlyphSplit, in_faces
from learngene_zoo.tasks.painting import Style
from learngene_zoo.tasks.task import Task, built_in

if TYPE_CHECKING:
    from learngene_zoo.tasks.catalogue import Entry

SCRIPTS = (
    "LATIN",
    "GREEK",
    "CYRILLIC",
    "ARMENIAN",
    "GEORGIAN",
    "HEBREW",
    "ARABIC",
    "CANADIAN",
    "TIFINAGH",
    "NKO",
    "LAO",
    "OGHAM",
)
FACES = ("Sans", "Sans Bold")
STYLE = Style()
SHARES = {"train": (0.0, 0.6), "validation": (0.6, 0.75), "test": (0.75, 1.0)}
AT_MOST = 100  # letters of one script
ALIKE = 0.93  # cosine of two masks


def _script(letter: str) -> str | None:
    """Its writing system if it is a plain letter, by its Unicode name."""
    if unicodedata.category(letter) not in ("Ll", "Lu", "Lo") or ord(letter) > 0xFAFF:
        return None
    words = unicodedata.name(letter, "").split()
    return words[0] if words and words[0] in SCRIPTS and "WITH" not in words else None


def _shape(letter: str) -> torch.Tensor:
    coarse = functional.avg_pool2d(mask("Sans", letter)[None].float(), BOX // 16).flatten()
    return coarse / coarse.norm().clamp_min(1e-6)


@cache
def alphabets() -> dict[str, tuple[str, ...]]:
    """The letters of each script, in an order fixed by their code points, none alike one of another script."""
    letters = [letter for letter in sorted(covered("Sans")) if _script(letter)]
    shapes = torch.stack([_shape(letter) for letter in letters])
    names = [_script(letter) or "" for letter in letters]
    numbers = torch.tensor([SCRIPTS.index(name) for name in names])
    foreign = numbers[:, None] != numbers[None]
    ambiguous = ((shapes @ shapes.T > ALIKE) & foreign).any(dim=1)
    found: dict[str, list[str]] = {name: [] for name in SCRIPTS}
    for letter, name, drop, shape in zip(letters, names, ambiguous.tolist(), shapes, strict=True):
        if not drop and shape.any():
            found[name].append(letter)
    return {name: _shuffled(name, row)[:AT_MOST] for name, row in found.items()}


def _shuffled(name: str, letters: list[str]) -> tuple[str, ...]:
    order = np.random.Generator(np.random.PCG64(derive_seed(0, "scripts", name))).permutation(len(letters))
    return tuple(letters[place] for place in order)


def letters_of(split: str, script: str) -> tuple[str, ...]:
    """The letters that one split draws of one script; the three splits share none."""
    letters = alphabets()[script]
    first, last = (round(share * len(letters)) for share in SHARES[split])
    return letters[first:last]


def drawings(split: str) -> list[list[Drawing]]:
    """For every script its letters of this split."""
    return [[drawn for letter in letters_of(split, script) for drawn in in_faces(letter, FACES)] for script in SCRIPTS]


def open_named(entry: Entry, offline: bool) -> Task:
    """The task of this catalogue entry; nothing is drawn yet."""
    names = tuple("N'Ko" if script == "NKO" else script.capitalize() for script in SCRIPTS)
    return built_in(entry, names, partial(open_split, dict(entry.sizes)))


def open_split(sizes: dict[str, int], name: str) -> GlyphSplit:
    """One split of `scripts`."""
    return GlyphSplit("scripts", name, sizes[name], len(SCRIPTS), drawings, STYLE)
