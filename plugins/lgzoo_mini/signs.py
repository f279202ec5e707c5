"""`signs`: classify 43 traffic signs. Counterpart of GTSRB.

A sign is a board (its shape), a scheme of colours (rim, inner field, symbol), and a symbol. Classes
share all three, so none of them alone determines the class. Signs are seen at a slant, in strong or
weak light, blurred, partly shadowed, before any background, and sometimes partly hidden. The
held-out classes have symbols, and some have boards, of no target class.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from lgzoo_mini.glyphs import draw_glyph
from lgzoo_mini.painting.canvas import (
    Dice,
    any_colour,
    backdrop,
    blur,
    clutter,
    finish,
    hsv,
    hues,
    over,
    shade,
)
from lgzoo_mini.painting.shapes import (
    PICTURE,
    Pose,
    box,
    cover,
    frame,
    half_plane,
    pose,
    stamp_masks,
    wide,
)
from lgzoo_mini.suite import Generator, Picture

SIDE = 32  # side of a mask in pixels
FINE = 4  # factor of supersampling when a board is drawn


class Board(NamedTuple):
    """A regular polygon, with the position of the symbol in it.

    Attributes:
        corners: number of corners (many: a disc).
        turned: rotation, as a share of a side.
        radius: in half sides of the mask.
        lower: distance of its middle below the mask's, in half sides of the mask.
        symbol: side of the symbol in its middle, in half sides of the mask.
    """

    corners: int
    turned: float
    radius: float
    lower: float
    symbol: float


class Scheme(NamedTuple):
    """Colours as hue, saturation, value; `width` of the rim in quarters of a mask's side."""

    rim: tuple[float, float, float]
    field: tuple[float, float, float]
    symbol: tuple[float, float, float]
    width: float


RED, BLUE, YELLOW, GREEN = (0.99, 0.85, 0.75), (0.6, 0.85, 0.7), (0.13, 0.85, 0.9), (0.4, 0.8, 0.55)
WHITE, BLACK, ORANGE, GREY = (0.1, 0.05, 0.95), (0.6, 0.2, 0.1), (0.06, 0.85, 0.9), (0.6, 0.06, 0.6)

BOARDS = {
    "disc": Board(32, 0, 1.0, 0, 1.15), "triangle": Board(3, 0, 1.3, 0.32, 0.85),
    "yield": Board(3, 0.5, 1.3, -0.32, 0.85), "octagon": Board(8, 0.5, 1.05, 0, 1.25),
    "diamond": Board(4, 0, 1.05, 0, 0.95), "square": Board(4, 0.5, 1.3, 0, 1.35),
    "pentagon": Board(5, 0, 1.1, 0.08, 1.05), "hexagon": Board(6, 0, 1.05, 0, 1.1),
}  # fmt: skip
SCHEMES = {
    "prohibition": Scheme(RED, WHITE, BLACK, 0.28),
    "order": Scheme(WHITE, BLUE, WHITE, 0.07),
    "stop": Scheme(WHITE, RED, WHITE, 0.08),
    "priority": Scheme(WHITE, YELLOW, BLACK, 0.14),
    "end": Scheme(BLACK, WHITE, GREY, 0.06),
    "route": Scheme(WHITE, GREEN, WHITE, 0.08),
    "works": Scheme(BLACK, ORANGE, BLACK, 0.09),
}
# Board, scheme, symbols: one class for each symbol
TARGET = (
    ("disc", "prohibition", "✈☎♣XH♫⚓"), ("triangle", "prohibition", "!↯❄♞☀⚒↕♣✈"),
    ("disc", "order", "↑←→↰↱↻♞H"),
    ("disc", "end", "☎X⚓♫"), ("octagon", "stop", "HX!"), ("yield", "prohibition", "★!"),
    ("diamond", "priority", "★♥↕♣"), ("square", "order", "P☎←✈♥⚓"),
)  # fmt: skip
HELD_OUT = (
    ("disc", "prohibition", "☂♜"), ("triangle", "prohibition", "⚙☠"), ("disc", "order", "☸✂"),
    ("square", "order", "☕⚖"), ("pentagon", "works", "☃✚☁?"), ("pentagon", "route", "⚑☂&"),
    ("hexagon", "route", "⚙☯♨"), ("hexagon", "works", "✂⚔"),
)  # fmt: skip


class Sign(NamedTuple):
    """The board, scheme and symbol of a class."""

    board: str
    scheme: str
    symbol: str


def _signs(rows: tuple[tuple[str, str, str], ...]) -> tuple[Sign, ...]:
    return tuple(
        Sign(board, scheme, symbol) for board, scheme, symbols in rows for symbol in symbols
    )


TARGET_SIGNS, HELD_OUT_SIGNS = _signs(TARGET), _signs(HELD_OUT)
CLASSES = (*TARGET_SIGNS, *HELD_OUT_SIGNS)
_COLOURS = np.array([SCHEMES[sign.scheme][:3] for sign in CLASSES], dtype=np.float32)


def _shape(board: Board, rim: float) -> torch.Tensor:
    """Return the coverage of a mask by the board without its rim, float32 (SIDE, SIDE)."""
    axis = (torch.arange(SIDE * FINE, dtype=torch.float32) * 2 + 1) / (SIDE * FINE) - 1
    outward = [
        2 * np.pi * (corner + 0.5 + board.turned) / board.corners - np.pi / 2
        for corner in range(board.corners)
    ]
    down = axis[:, None] - board.lower
    sides = [
        axis[None, :] * float(np.cos(angle)) + down * float(np.sin(angle)) for angle in outward
    ]
    depth = board.radius * float(np.cos(np.pi / board.corners)) - torch.stack(sides).amax(dim=0)
    return functional.avg_pool2d((depth > rim / 2).float()[None], FINE)[0]


def _layers(sign: Sign) -> torch.Tensor:
    """Return masks of the board, its inner field and the symbol, uint8 (3, SIDE, SIDE)."""
    board = BOARDS[sign.board]
    field, side = _shape(board, SCHEMES[sign.scheme].width), round(board.symbol * SIDE / 2)
    symbol = torch.zeros(SIDE, SIDE, dtype=torch.uint8)
    left, top = (SIDE - side) // 2, (SIDE - side) // 2 + round(board.lower * SIDE / 2)
    symbol[top : top + side, left : left + side] = draw_glyph(("Sans", sign.symbol), side)
    flat = torch.stack([_shape(board, 0.0), field]).mul(255).round().to(torch.uint8)
    return torch.cat([flat, symbol[None]])


@cache
def layers() -> torch.Tensor:
    """Return the layers of every class, uint8 (M, 3, SIDE, SIDE). Cached per process."""
    return torch.stack([_layers(sign) for sign in CLASSES])


def worn(colours_N3: np.ndarray, dice: Dice) -> np.ndarray:
    """Return the colours as worn paint, (N, 3). Takes 3 draws."""
    hue, saturation, value = colours_N3.T
    hue = np.mod(hue + dice.around(0.03), np.float32(1))
    return hsv(hue, saturation * dice.between(0.6, 1.1), value * dice.between(0.7, 1.05))


def lit(picture: np.ndarray, dice: Dice) -> np.ndarray:
    """Apply strong or weak light of some tint, in place; half of the images have a shadow.

    Takes 9 draws.
    """
    shadow = cover(half_plane(PICTURE, dice.turn(), dice.around(0.6)), PICTURE.pixel, 2.0)
    shade(picture, 1 - shadow * wide(dice.happens(0.5) * dice.between(0.2, 0.6)))
    exposure = np.exp2(dice.between(-1.3, 0.4))
    tint = 1 - hsv(dice.share(), dice.between(0, 0.3), 1.0) * np.float32(0.3)
    picture *= (exposure[:, None] * tint)[:, :, None, None]
    fog = (dice.happens(0.3) * dice.between(0.1, 0.4))[:, None, None, None]
    picture += fog * (np.float32(0.6) - picture)
    return picture


def hidden(picture: np.ndarray, dice: Dice) -> np.ndarray:
    """Lay a bar of any colour across one side of a third of the images, in place.

    Takes 8 draws.
    """
    place = frame(x=dice.side() * dice.between(0.3, 0.9), y=dice.around(0.9), angle=dice.turn())
    bar = box(place, dice.between(0.1, 0.2), 2.0)
    return over(picture, any_colour(dice), cover(bar, PICTURE.pixel) * wide(dice.happens(0.33)))


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these signs."""
    dice = Dice(draws_NK)
    where: Pose = {
        "x": dice.around(0.25),
        "y": dice.around(0.25),
        "size": dice.between(0.75, 1.0),
        "angle": dice.around(0.2),
        "stretch": dice.between(0.85, 1.15),
        "tilt_x": dice.around(0.25),
        "tilt_y": dice.around(0.25),
    }
    masks = layers()[torch.from_numpy(classes_N)].float().mul_(1 / 255)
    alpha = stamp_masks(masks, frame(**where))
    picture = clutter(backdrop(dice), dice, 2, size=(0.1, 0.5))
    paints = [worn(_COLOURS[classes_N, layer], dice) for layer in range(3)]
    for layer, colour in enumerate(paints):
        over(picture, colour, alpha[:, layer])
    picture = lit(hidden(picture, dice), dice)
    picture = blur(
        blur(picture, dice.between(0.0, 0.6)), dice.happens(0.3) * dice.between(0.2, 0.6)
    )
    attributes = {**hues(paints[0], paints[1]), **pose(**where)}
    return Picture(finish(picture, grain, dice.between(0.02, 0.12)), attributes)


SIGNS = Generator(
    name="signs",
    classes=tuple(" ".join(sign) for sign in TARGET_SIGNS),
    held_out=tuple(" ".join(sign) for sign in HELD_OUT_SIGNS),
    streams=69,
    paint=paint,
)
