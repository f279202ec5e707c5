"""Colours of N pictures, float32 (N, 3) from 0 to 1, drawn so that what is painted can be told from what is behind it."""

from __future__ import annotations

import numpy as np

from learngene_zoo.tasks.mini.canvas import Number
from learngene_zoo.tasks.mini.dice import Dice


def hsv(hue: np.ndarray, saturation: Number, value: Number) -> np.ndarray:
    """Colours (N, 3) of a hue (0 to 1, around), a saturation and a value (0 to 1 each)."""
    turn = hue.astype(np.float32) * np.float32(6)
    bright = np.broadcast_to(np.asarray(value, dtype=np.float32), hue.shape)
    depth = bright * np.asarray(saturation, dtype=np.float32)
    channels = []
    for start in (5, 3, 1):
        place = np.mod(turn + np.float32(start), np.float32(6))
        channels.append(bright - depth * np.clip(np.minimum(place, 4 - place), 0, 1))
    return np.stack(channels, axis=1)


def lightness(colour_N3: np.ndarray) -> np.ndarray:
    """How light a colour looks, float32 (N,): the weights of ITU-R BT.601."""
    return 0.299 * colour_N3[:, 0] + 0.587 * colour_N3[:, 1] + 0.114 * colour_N3[:, 2]


def apart(ink_N3: np.ndarray, paper_N3: np.ndarray, least: float = 0.3) -> np.ndarray:
    """`ink_N3` moved towards white or black until its lightness is at least `least` away from the paper's."""
    ink, paper = lightness(ink_N3), lightness(paper_N3)
    up = np.where(np.abs(ink - paper) < np.float32(1e-3), paper < np.float32(0.5), ink > paper)
    up = np.where(paper + np.float32(least) > 1, False, np.where(paper < np.float32(least), True, up))
    goal = paper + np.where(up, np.float32(least), np.float32(-least))
    lighter = np.clip((goal - ink) / np.maximum(1 - ink, np.float32(1e-3)), 0, 1)
    darker = np.clip((ink - goal) / np.maximum(ink, np.float32(1e-3)), 0, 1)
    towards = np.where(up, lighter, darker)[:, None]
    return ink_N3 + towards * (up[:, None].astype(np.float32) - ink_N3)


def any_colour(
    dice: Dice, saturation: tuple[float, float] = (0.0, 1.0), value: tuple[float, float] = (0.15, 1.0)
) -> np.ndarray:
    """A colour of any hue. Takes 3 draws."""
    return hsv(dice.share(), dice.between(*saturation), dice.between(*value))


def ink_and_paper(dice: Dice, least: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Two colours of clearly different lightness. Takes 6 draws."""
    paper = any_colour(dice)
    return apart(any_colour(dice), paper, least), paper


def mix(first_N3: np.ndarray, second_N3: np.ndarray, share: Number) -> np.ndarray:
    """The first colour with a share of the second."""
    part = np.asarray(share, dtype=np.float32)
    return first_N3 + (part[:, None] if part.ndim else part) * (second_N3 - first_N3)


def hue_of(colour_N3: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of a colour's hue times its saturation: 0 for grey. float32 (N,) each."""
    red, green, blue = colour_N3[:, 0], colour_N3[:, 1], colour_N3[:, 2]
    across = red - 0.5 * (green + blue)
    up = np.float32(3**0.5 / 2) * (green - blue)
    length = np.sqrt(across * across + up * up) + np.float32(0.05)
    return across / length, up / length
