"""Views of the families of `forms`: pose, surface, light and clutter, which carry no information
about the class.

Shapes as in `canvas`. Every function takes its draws from `dice` and states their number.
"""

from typing import NamedTuple

import numpy as np
import torch

from lgzoo_mini.painting.canvas import (
    Dice,
    any_colour,
    apart,
    blur,
    clutter,
    finish,
    gradient,
    hills,
    mix,
    over,
    shade,
    stripes,
)
from lgzoo_mini.painting.shapes import PICTURE, Frame, cover, frame, half_plane, wide

_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # weights of lightness (ITU-R BT.601)


class Scene(NamedTuple):
    """A background: images N3SS, and the colours (N, 3) for the thing and of the paper."""

    picture: np.ndarray
    ink: np.ndarray
    paper: np.ndarray


def view(dice: Dice, turn: float = 0.4) -> Frame:
    """Draw the pose and perspective of a thing. Takes 8 draws."""
    return frame(
        x=dice.around(0.28),
        y=dice.around(0.28),
        size=dice.between(0.48, 0.98),
        angle=dice.around(turn),
        stretch=np.exp(dice.around(0.3)),
        shear=dice.around(0.3),
        tilt_x=dice.around(0.22),
        tilt_y=dice.around(0.22),
    )


def sometimes(dice: Dice, chance: float, most: float) -> np.ndarray:
    """Return, with this probability, a number up to `most`, else 0. Takes 2 draws."""
    return dice.happens(chance) * dice.between(0, most)


def surface(dice: Dice, place: Frame) -> np.ndarray:
    """Return waves, bars, checks, noise, a grid or nothing, from -1 to about 1, NSS.

    The pattern is fixed to the frame `place`. Takes 7 draws.
    """
    kind, frequency, angle = (
        wide(dice.choice(6)),
        np.exp2(dice.between(0.5, 3.2)),
        dice.between(0, np.pi),
    )
    wave = stripes(place, frequency, angle, dice.turn())
    across = stripes(
        place, frequency * np.exp(dice.around(0.4)), angle + np.float32(np.pi / 2), dice.turn()
    )
    fields = (
        wave,
        np.clip(wave * 3, -1, 1),
        np.clip(wave * across * 6, -1, 1),
        hills(place, frequency, dice.share()) * np.float32(1.4),
        np.maximum(wave, across),
    )
    found = np.zeros_like(wave)
    for number, field in enumerate(fields):
        found = np.where(kind == number, field, found)
    return found


def scene(dice: Dice) -> Scene:
    """Draw a background that is plain, shaded or patterned, a quarter of them dark.

    Some have clutter. Takes 44 draws.
    """
    paper, ink, dark = any_colour(dice), any_colour(dice), dice.happens(0.25)
    paper = paper * (1 - dark * dice.between(0.8, 1))[:, None]
    ink = apart(ink, paper, 0.4)
    share = dice.share()
    second = mix(paper, any_colour(dice), share * share * (1 - dark) * np.float32(0.7))
    picture = gradient(paper, second, dice.turn())
    shade(picture, 1 + wide(sometimes(dice, 0.5, 0.5)) * surface(dice, PICTURE))
    thrown = clutter(picture.copy(), dice, 2, size=(0.06, 0.28))
    part = wide(dice.happens(0.45))[:, None]
    return Scene(picture + part * (thrown - picture), ink, paper)


def fill(dice: Dice, seen: Scene, distance: np.ndarray, place: Frame) -> np.ndarray:
    """Paint a thing over its scene, in place: filled, only outlined, or with a rim.

    It has a random surface and light. Takes 20 draws.
    """
    tone = 1 + wide(sometimes(dice, 0.6, 0.55)) * surface(dice, place)
    light = half_plane(place, dice.turn())
    tone = tone * (1 + wide(sometimes(dice, 0.6, 0.4)) * np.clip(light, -1, 1))
    body = cover(distance, place.pixel, np.exp(dice.between(0, 0.6)))
    line = cover(np.abs(distance) - place.pixel * wide(dice.between(0.6, 1.3)), place.pixel)
    hollow = wide(dice.happens(0.2))
    picture = over(
        seen.picture, seen.ink[:, :, None, None] * tone[:, None], body + hollow * (line - body)
    )
    rim = wide(dice.happens(0.25)) * (1 - hollow)
    return over(picture, any_colour(dice), line * rim)


def develop_pictures(dice: Dice, picture: np.ndarray, grain: np.ndarray) -> torch.Tensor:
    """Finish images: light from any side, dim or glaring, blurred and grainy; a third are grey.

    Takes 8 draws.
    """
    red, green, blue = (picture[:, channel : channel + 1] * _GREY[channel] for channel in range(3))
    grey = wide(dice.happens(0.33))[:, None]
    picture = picture + grey * (red + green + blue - picture)
    light = half_plane(PICTURE, dice.turn()) * wide(dice.between(0, 0.35))
    picture = (
        picture * ((1 + light) * wide(dice.between(0.75, 1.15)))[:, None]
        + wide(dice.between(-0.08, 0.12))[:, None]
    )
    soft = dice.share()
    return finish(blur(picture, soft * soft * np.float32(0.7)), grain, sometimes(dice, 0.6, 0.2))
