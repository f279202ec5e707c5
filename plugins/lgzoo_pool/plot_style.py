"""The colours of the pictures: Okabe and Ito's, which people with any kind of colour vision tell apart. Cold."""

from __future__ import annotations

INK, QUIET_INK, PAPER, LINE = "#1a1b1e", "#5d6168", "#ffffff", "#c9ced3"
STITCH = "#cc79a7"
ANCHORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9")


def colour_of(anchor: int) -> str:
    """An anchor's colour."""
    return ANCHORS[anchor % len(ANCHORS)]


def tint(colour: str, share: float = 0.2) -> str:
    """So much of a colour on white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in parts)
