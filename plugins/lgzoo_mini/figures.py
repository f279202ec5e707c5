"""`figures`: classify walking persons against clutter. Counterpart of the Daimler pedestrian data
set: two classes; grey, low-contrast, blurred images.

A walker consists of strokes: a head, a trunk, two jointed legs and two jointed arms. The class
`other` has the same strokes in arrangements that no walker has: scattered, exchanged, upside down,
as posts or as branches. The held-out classes are other things drawn with the same number of
strokes. Shapes: N images, S strokes; the rest as in `canvas`.
"""

import numpy as np

from lgzoo_mini.painting.canvas import Dice, blur, finish, hills, over, plain
from lgzoo_mini.painting.shapes import PICTURE, Frame, capsule, cover, frame, pose, wide
from lgzoo_mini.painting.strokes import (
    THINGS,
    Strokes,
    either,
    exchange_strokes,
    join_lines,
    outline,
    place_limb,
    rotate_strokes,
    turn_strokes,
)
from lgzoo_mini.suite import SIZE, Generator, Picture

CLASSES = ("other", "walker")
# Groups of strokes with the same tone: head, trunk and arms, legs
PARTS = ((0,), (1, 2, 3, 4, 5), (6, 7, 8, 9))
COUNT = 10  # strokes of a figure
ARRANGEMENTS = ("scattered", "exchanged", "upside down", "posts", "branches")
# X0, y0, x1, y1, start, end; (6, S, things)
THING_TABLE = np.array(list(THINGS.values()), dtype=np.float32).T


def walker(dice: Dice) -> Strokes:
    """Draw a person walking to the right, about two units high, or seen from the front.

    Takes 8 draws.
    """
    phase, swing, broad = dice.turn(), dice.between(0.1, 0.55), dice.between(0.02, 0.14)
    lean, girth = dice.between(-0.03, 0.12), dice.between(0.13, 0.2)
    stride, bend = np.sin(phase) * swing, dice.between(0.2, 0.7)
    lift, elbow = np.maximum(np.cos(phase), 0) * bend, dice.between(0, 1.2)
    nod = dice.around(0.05)
    height = np.full_like(phase, 1)
    neck, hip = (lean, -0.5 * height), (0 * lean, 0.1 * height)
    lines = [
        ((lean + nod, -0.8 * height), (lean + nod, -0.74 * height), 0.15, 0.14),
        (neck, hip, 0.17, 0.13),
    ]
    for sign in (-1, 1):
        shoulder = (lean + sign * (broad + np.float32(0.06)), -0.46 * height)
        hand = place_limb(shoulder, 0.32, -sign * stride * np.float32(0.9))
        lines += [
            (shoulder, hand, 0.07, 0.06),
            (
                hand,
                place_limb(hand, 0.28, elbow * swing - sign * stride * np.float32(0.9)),
                0.06,
                0.05,
            ),
        ]
    for sign in (-1, 1):
        top = (sign * broad, 0.12 * height)
        knee = place_limb(top, 0.42, sign * stride)
        back = sign * stride - (lift if sign < 0 else np.maximum(-np.cos(phase), 0) * bend)
        lines += [(top, knee, 0.11, 0.08), (knee, place_limb(knee, 0.44, back), 0.08, 0.05)]
    strokes = join_lines(lines)
    strokes.start[1], strokes.end[1] = girth, girth * np.float32(0.85)
    return strokes


def rearrange_strokes(strokes: Strokes, dice: Dice) -> Strokes:
    """Return the same strokes in one of `ARRANGEMENTS`. Takes 3 draws and 3 for each stroke."""
    kind, steps, whirl = (
        dice.choice(len(ARRANGEMENTS)),
        dice.choice(6) + 2,
        np.float32(np.pi) + dice.around(0.7),
    )
    across, down, turn = (
        np.stack([dice.around(reach) for _ in range(COUNT)]) for reach in (0.85, 0.95, 1.6)
    )
    straight = np.sqrt(strokes.half_x**2 + strokes.half_y**2)
    posts = strokes._replace(
        x=np.rint(across * np.float32(1.6)) * np.float32(0.45) + across * np.float32(0.1),
        half_x=turn * np.float32(0.03),
        half_y=straight * np.float32(1.3),
    )
    branches = turn_strokes(posts, turn * np.float32(0.7))
    branches = branches._replace(x=branches.half_x, start=strokes.start * np.float32(0.8))
    everywhere = turn_strokes(strokes._replace(x=across, y=down), turn)
    result = either(kind == 4, branches, posts)
    result = either(kind == 2, rotate_strokes(strokes, whirl), result)
    result = either(
        kind == 1,
        turn_strokes(exchange_strokes(strokes, steps), turn + np.float32(0.5) * np.sign(turn)),
        result,
    )
    return either(kind == 0, everywhere, result)


def draw_thing(numbers_N: np.ndarray, dice: Dice) -> Strokes:
    """Return the strokes of a thing, each slightly rotated. Takes one draw for each stroke."""
    x0, y0, x1, y1, start, end = THING_TABLE[:, :, numbers_N]
    strokes = Strokes((x0 + x1) / 2, (y0 + y1) / 2, (x1 - x0) / 2, (y1 - y0) / 2, start, end)
    return turn_strokes(strokes, np.stack([dice.around(0.15) for _ in range(COUNT)]))


def street(dice: Dice) -> tuple[np.ndarray, np.ndarray]:
    """Return grey images (N, 1, SIZE, SIZE) of walls and posts, and their tone (N, 1).

    Takes 30 draws.
    """
    tone = dice.between(0.25, 0.75)[:, None]
    picture = np.repeat(plain(np.repeat(tone, 3, axis=1))[:, :1], 1, axis=1)
    slope = wide(dice.around(0.15)) * PICTURE.x + wide(dice.around(0.15)) * PICTURE.y
    picture += (
        slope + hills(PICTURE, dice.between(2, 5), dice.share()) * wide(dice.between(0.03, 0.15))
    )[:, None]
    for _ in range(4):
        x, y, angle, length = (
            dice.around(1),
            dice.around(1),
            dice.around(1.6),
            dice.between(0.2, 0.8),
        )
        end_x, end_y = x + length * np.sin(angle), y + length * np.cos(angle)
        post = capsule(PICTURE, (x, y), (end_x, end_y), dice.between(0.03, 0.12))
        over(picture, tone + dice.around(0.2)[:, None], cover(post, PICTURE.pixel))
    return picture, tone


def draw_toned(
    picture: np.ndarray, place: Frame, strokes: Strokes, tone: np.ndarray, dice: Dice
) -> np.ndarray:
    """Draw the strokes on a grey image, legs first, and return it.

    All strokes are darker than the image or all are lighter; the tone differs by part. Takes 4
    draws.
    """
    way = dice.side()
    for part in reversed(PARTS):
        ink = tone[:, 0] + way * dice.between(0.18, 0.45)
        over(picture, ink[:, None], cover(outline(place, strokes, part), place.pixel))
    return picture


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these classes."""
    dice = Dice(draws_NK)
    picture, tone = street(dice)
    standing = walker(dice)
    strokes = either(classes_N == 1, standing, rearrange_strokes(standing, dice))
    others = draw_thing(np.maximum(classes_N - len(CLASSES), 0), dice)
    strokes = either(classes_N >= len(CLASSES), others, strokes)
    x, y, size, angle = (
        dice.around(0.15),
        dice.around(0.1),
        dice.between(0.6, 0.9),
        dice.around(0.08),
    )
    place = frame(
        x=x, y=y, size=size, angle=angle, stretch=dice.between(0.85, 1.15), mirror=dice.side()
    )
    draw_toned(picture, place, strokes, tone, dice)
    picture = np.repeat(blur(picture, dice.between(0.1, 0.6)), 3, axis=1)
    images = finish(picture, np.tile(grain[:, : SIZE * SIZE], (1, 3)), dice.between(0.02, 0.1))
    return Picture(images, pose(x, y, size, angle))


FIGURES = Generator(
    name="figures", classes=CLASSES, held_out=tuple(THINGS), streams=93, paint=paint
)
