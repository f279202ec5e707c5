"""`motion`: classify the path and the shape of a moving thing. Counterpart of UCF101, as dynamic
images.

Eight frames f_t become one image by approximate rank pooling (Bilen et al., "Dynamic Image Networks
for Action Recognition", CVPR 2016; of the frames themselves, not of their running means, as in
"Action Recognition with Dynamic Image Networks", TPAMI 2018):

    d = sum over t = 1..T of alpha_t f_t,   alpha_t = 2 t - T - 1.

Static content cancels, because the alpha_t sum to 0; moving things leave a trace that is dark at
its start and light at its end. With coverage m_t, and a thing of colour c in front of a wall of
colour b, d = (c - b) sum_t alpha_t m_t, so that no frame is painted in colour. The camera may
shake, and a second thing may pass. The held-out classes are other paths of other things.
"""

from functools import cache
from itertools import product

import numpy as np
import torch

from lgzoo_mini.glyphs import draw_glyph
from lgzoo_mini.painting.canvas import Dice, any_colour, blur, finish, hills, hues
from lgzoo_mini.painting.shapes import PICTURE, PIXEL, Frame, Placed, frame, pose, stamp_masks, wide
from lgzoo_mini.suite import SIZE, Generator, Picture

FRAMES = 8
ALPHA = tuple(2 * t - FRAMES - 1 for t in range(1, FRAMES + 1))
SIDE = 16  # side of a mask in pixels
TARGET_THINGS = {"disc": "●", "cross": "✚", "arrow": "➤"}
HELD_OUT_THINGS = {"star": "★", "ring": "◎", "square": "■"}


class Journey(Placed):
    """The pose of a path, its reach (1: to the image's sides), and its orientation (1 or -1)."""

    reach: np.ndarray
    mirror: np.ndarray


def _paths() -> dict[str, np.ndarray]:
    """Return every path, float32 (FRAMES, 4): x and y from -1 to 1, relative size and angle."""
    s = np.linspace(0, 1, FRAMES)
    nought, one, turn = 0 * s, 1 + 0 * s, 2 * np.pi * s
    triangle = 4 * np.abs(1.5 * s + 0.25 - np.rint(1.5 * s + 0.25)) - 1
    half = np.minimum(2 * s, 1), np.maximum(2 * s - 1, 0)
    step = np.floor(s * 3.999) / 3
    moves = {
        "line": (2 * s - 1, nought, one, nought),
        "rush": (2 * s**2.2 - 1, nought, one, nought),
        "brake": (1 - 2 * (1 - s) ** 2.2, nought, one, nought),
        "arc": (np.cos(np.pi * s), np.sin(np.pi * s) - 0.5, one, np.pi * s),
        "circle": (np.cos(0.9 * turn), np.sin(0.9 * turn), one, 0.9 * turn),
        "zigzag": (2 * s - 1, 0.5 * triangle, one, nought),
        "hops": (2 * s - 1, 0.4 - 0.9 * np.abs(np.sin(turn)), one, nought),
        "swing": (np.cos(1.5 * turn), nought, one, nought),
        "spiral": (s * np.cos(1.5 * turn), s * np.sin(1.5 * turn), one, 1.5 * turn),
        "corner": (2 * half[0] - 1, 2 * half[1] - 1, one, nought),
        "eight": (np.sin(turn), 0.6 * np.sin(2 * turn), one, nought),
        "approach": (0.4 * s - 0.2, nought, 0.5 + 1.7 * s, nought),
        "jumps": (2 * step - 1, 0.6 * (-1) ** np.rint(step * 3), one, nought),
        "wave": (2 * s - 1, 0.6 * np.sin(turn), one, nought),
        "loop": (0.8 * np.sin(1.2 * turn) + 1.2 * s - 0.6, 0.8 * np.cos(1.2 * turn), one, nought),
        "there and back": (1 - 2 * np.abs(2 * s - 1) ** 1.5, 0.5 - s, 1 - 0.5 * s, nought),
    }
    return {name: np.stack(move, axis=1).astype(np.float32) for name, move in moves.items()}


PATHS = _paths()
TARGET = tuple(product(tuple(PATHS)[:10], TARGET_THINGS))
HELD_OUT = tuple(product(tuple(PATHS)[10:], HELD_OUT_THINGS))
THINGS = {**TARGET_THINGS, **HELD_OUT_THINGS}
_PATH = np.stack([PATHS[path] for path, _ in (*TARGET, *HELD_OUT)])
_THING = np.array([tuple(THINGS).index(thing) for _, thing in (*TARGET, *HELD_OUT)])


@cache
def things() -> torch.Tensor:
    """Return the masks of all things, float32 (6, 1, SIDE, SIDE). Cached per process."""
    return (
        torch.stack([draw_glyph(("Sans", sign), SIDE) for sign in THINGS.values()])[:, None].float()
        / 255
    )


def trace(masks: torch.Tensor, path_NT4: np.ndarray, where: Journey) -> np.ndarray:
    """Compute sum_t alpha_t m_t, NSS, of a thing moving along a path.

    The path is scaled by `reach` and rotated by `angle` around (x, y).
    """
    cosine, sine = np.cos(where["angle"]) * where["reach"], np.sin(where["angle"]) * where["reach"]
    total = np.zeros((len(path_NT4), SIZE, SIZE), dtype=np.float32)
    for t, alpha in enumerate(ALPHA):
        across, down, size, turned = (np.ascontiguousarray(column) for column in path_NT4[:, t].T)
        down = down * where["mirror"]
        place = frame(
            x=where["x"] + cosine * across - sine * down,
            y=where["y"] + sine * across + cosine * down,
            size=size * where["size"],
            angle=where["angle"] + turned * where["mirror"],
        )
        total += np.float32(alpha) * stamp_masks(masks, place)[:, 0]
    return total


def tremble(dice: Dice) -> np.ndarray:
    """Compute sum_t alpha_t b_t of a textured wall seen by a drifting camera.

    To first order this is the wall's slope along the drift. Takes 4 draws.
    """
    frequency, key, angle = dice.between(3, 8), dice.share(), dice.turn()
    x, y = wide(PIXEL / 2 * np.cos(angle)), wide(PIXEL / 2 * np.sin(angle))
    ahead, behind = (
        hills(Frame(PICTURE.x + side * x, PICTURE.y + side * y, PICTURE.pixel), frequency, key)
        for side in (1, -1)
    )
    return (ahead - behind) * wide(dice.between(0, 8))


def journey(
    dice: Dice, shift: float, reach: tuple[float, float], size: tuple[float, float]
) -> Journey:
    """Draw the pose of a path.

    Takes 6 draws.

    Args:
        shift: maximal offset of the path's centre from the image's, in half image sides.
        reach: lowest and highest reach of the path.
        size: lowest and highest size of the thing.
    """
    return {
        "x": dice.around(shift),
        "y": dice.around(shift),
        "angle": dice.turn(),
        "reach": dice.between(*reach),
        "size": dice.between(*size),
        "mirror": dice.side(),
    }


def develop_pictures(traces: np.ndarray, colour_N3: np.ndarray) -> np.ndarray:
    """Return images N3SS: grey where nothing moved, the strongest trace black or in full colour."""
    strongest = np.abs(traces).max(axis=(1, 2), keepdims=True)
    return np.float32(0.5) + (traces / (2 * strongest))[:, None] * colour_N3[:, :, None, None]


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint dynamic images of these things on their paths.

    Every thing is lighter than the wall, so the light end of a trace is its last frame.
    """
    dice = Dice(draws_NK)
    where = journey(dice, 0.2, (0.5, 0.75), (0.28, 0.4))
    traces = trace(things()[torch.from_numpy(_THING[classes_N])], _PATH[classes_N], where)
    passer_N = dice.choice(len(TARGET_THINGS)) + len(TARGET_THINGS) * (classes_N >= len(TARGET))
    passing = journey(dice, 0.9, (0.1, 0.5), (0.15, 0.3))
    passed = trace(
        things()[torch.from_numpy(passer_N)],
        np.repeat(PATHS["line"][None], len(classes_N), axis=0),
        passing,
    )
    traces += wide(dice.happens(0.6) * dice.between(0.2, 0.5)) * passed + tremble(dice)
    colour = any_colour(dice, (0, 0.7), (0.6, 1))
    picture = blur(develop_pictures(traces, colour), dice.between(0, 0.3))
    return Picture(
        finish(picture, grain, dice.between(0.02, 0.15)), {**hues(colour), **pose(**where)}
    )


def _names(classes: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(f"{thing}, {path}" for path, thing in classes)


MOTION = Generator(
    name="motion", classes=_names(TARGET), held_out=_names(HELD_OUT), streams=24, paint=paint
)
