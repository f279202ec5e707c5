"""`characters`: which of 200 letters and signs of many scripts. The bundled ancestry model learnt to see on it.

Chosen so that no two look alike at 32 pixels (DejaVu Sans, cosine of their masks below 0.9); no digits, those are left to
the task `digits`. The choice is written down, not computed, so that the classes never move.
"""

from __future__ import annotations

import unicodedata
from functools import cache, partial
from typing import TYPE_CHECKING

from learngene_zoo.tasks.glyphs import Drawing, GlyphSplit, in_faces
from learngene_zoo.tasks.painting import Style
from learngene_zoo.tasks.task import Task, built_in

if TYPE_CHECKING:
    from learngene_zoo.tasks.catalogue import Entry

CODE_POINTS = (
    "41 43 46 48 4A 4C 4E 51 53 55 57 59 61 64 66 6B 6E C6 DE F0 14A 186 190 196 1A2 1A6 1A9 1B7 1C7 1F1 1F6 241 "
    "263 26E 276 278 281 289 28E 296 29E 2AD 372 394 3A8 3B2 3BC 3C2 3CF 3D6 3DE 3E0 3F0 3FB 402 409 40C 40F 416 "
    "423 429 42E 447 44C 452 45B 464 468 46C 470 48D 4A8 4CB 502 506 514 517 533 535 538 53A 53E 540 543 546 54A "
    "54C 550 554 564 569 56D 574 577 57A 5D1 5D3 5E2 5E6 5E8 5EA 628 62B 62F 631 633 637 642 644 646 649 683 691 "
    "6A9 6B1 6BB 6C6 7CE 7D1 7D3 7D6 7DE 7E4 E84 E96 E99 E9C EA7 EAF EB3 EC1 EC4 10A1 10A5 10A8 10AA 10AC 10B5 "
    "10BE 10C3 10D1 10D4 10DA 10E0 10E4 10F4 1402 1406 140B 140D 1412 1414 1417 1419 141F 1425 142C 1433 1438 "
    "143D 1440 1444 144F 1457 1459 145C 1D0E 1D12 1D17 1D1A 1D1E 20A0 20BA 2192 2197 2199 219D 21B0 21B2 21B5 "
    "21B7 2D00 2D08 2D0F 2D12 2D15 2D1F 2D21 2D24 2D3E 2D44 2D47 2D4B 2D52 2D57 2D5E 2D63 A64C A662 A666"
)
FACES = ("Sans", "Sans Bold", "Serif", "Mono")
STYLE = Style(rotation=0.2, shear=0.12, zoom=(0.95, 1.25), shift=0.1, noise=0.1)


@cache
def characters() -> tuple[str, ...]:
    """The 200 characters in the order of their classes."""
    found: list[str] = []
    for item in CODE_POINTS.split():
        first, _, last = item.partition("-")
        found.extend(map(chr, range(int(first, 16), int(last or first, 16) + 1)))
    return tuple(found)


def drawings(split: str) -> list[list[Drawing]]:
    """Every character in each face that has it, the same for each split."""
    return [in_faces(character, FACES) for character in characters()]


def open_named(entry: Entry, offline: bool) -> Task:
    """The task of this catalogue entry; nothing is drawn yet."""
    names = tuple(f"{c} {unicodedata.name(c).lower()}" for c in characters())
    return built_in(entry, names, partial(open_split, dict(entry.sizes)))


def open_split(sizes: dict[str, int], name: str) -> GlyphSplit:
    """One split of `characters`."""
    return GlyphSplit("characters", name, sizes[name], len(characters()), drawings, STYLE)
