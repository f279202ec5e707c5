"""What fills shapes and lies behind them: patterns from -1 to 1 (float32 NSS), gradients, and clutter.

Shapes as in `canvas`; settings are (N,) or plain numbers; frequencies are in cycles from one side of a frame to the other.
"""

import numpy as np

from lgzoo_mini.canvas import PICTURE, Dice, Frame, Number, any_colour, cover, frame, mix, over, shade, wide
from lgzoo_mini.generator import SIZE
from lgzoo_mini.outlines import contour, length

_PI = np.float32(np.pi)


def stripes(place: Frame, frequency: Number, angle: Number = 0.0, phase: Number = 0.0) -> np.ndarray:
    """Waves across the direction of `angle`."""
    along = place.x * np.cos(wide(angle)) + place.y * np.sin(wide(angle))
    return np.sin(along * (wide(frequency) * _PI) + wide(phase))


def checks(place: Frame, frequency: Number) -> np.ndarray:
    """Light and dark fields in turn, with soft edges."""
    return np.sin(place.x * (wide(frequency) * _PI)) * np.sin(place.y * (wide(frequency) * _PI))


def dots(place: Frame, frequency: Number, radius: Number = 0.3) -> np.ndarray:
    """Dots on a square lattice; `radius` in lattice steps."""
    x, y = place.x * (wide(frequency) / 2), place.y * (wide(frequency) / 2)
    far = length(x - np.rint(x), y - np.rint(y))
    return np.clip((wide(radius) - far) / (wide(frequency) * place.pixel / 2), -1, 1)


def _lattice(x: np.ndarray, y: np.ndarray, key: np.ndarray) -> np.ndarray:
    """A number from -1 to 1 for every lattice point: the bits of its place, mixed (xxhash's primes)."""
    bits = x * np.uint32(0x9E3779B1) + y * np.uint32(0x85EBCA77) + key
    bits ^= bits >> np.uint32(15)
    bits *= np.uint32(0xC2B2AE3D)
    bits ^= bits >> np.uint32(13)
    bits *= np.uint32(0x27D4EB2F)
    bits ^= bits >> np.uint32(16)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - 1


def value_noise(place: Frame, frequency: Number, key: Number) -> np.ndarray:
    """Smooth random hills: values at lattice points, joined by smoothsteps. `key` in [0, 1) chooses which."""
    x, y = place.x * (wide(frequency) / 2), place.y * (wide(frequency) / 2)
    low_x, low_y = np.floor(x), np.floor(y)
    x, y = x - low_x, y - low_y
    x, y = x * x * (3 - 2 * x), y * y * (3 - 2 * y)
    # Through int32: a negative float has no defined value as an unsigned number.
    column, row = low_x.astype(np.int32).astype(np.uint32), low_y.astype(np.int32).astype(np.uint32)
    bits = (wide(key) * np.float32(2.0**24)).astype(np.uint32) * np.uint32(0x165667B1)
    one = np.uint32(1)
    top, top_right = _lattice(column, row, bits), _lattice(column + one, row, bits)
    foot, foot_right = _lattice(column, row + one, bits), _lattice(column + one, row + one, bits)
    top += x * (top_right - top)
    foot += x * (foot_right - foot)
    return top + y * (foot - top)


def hills(place: Frame, frequency: Number, key: Number) -> np.ndarray:
    """Value noise of three octaves, from about -1 to 1."""
    rough = value_noise(place, frequency, key)
    fine = value_noise(place, np.asarray(frequency) * np.float32(2), np.mod(np.asarray(key) + np.float32(0.37), 1))
    finest = value_noise(place, np.asarray(frequency) * np.float32(4), np.mod(np.asarray(key) + np.float32(0.71), 1))
    return 0.6 * rough + 0.3 * fine + 0.15 * finest


def gradient(first_N3: np.ndarray, second_N3: np.ndarray, angle: Number) -> np.ndarray:
    """Pictures N3SS that go from one colour to another in the direction of `angle`."""
    along = PICTURE.x * np.cos(wide(angle)) + PICTURE.y * np.sin(wide(angle))
    picture = np.empty((len(first_N3), 3, *along.shape[1:]), dtype=np.float32)
    picture[:] = first_N3[:, :, None, None]
    return over(picture, second_N3, np.clip(0.5 + 0.5 * along, 0, 1))


def backdrop(dice: Dice, contrast: float = 0.35) -> np.ndarray:
    """Pictures N3SS of any two colours that are not far apart, in a gradient under hills. Takes 9 draws."""
    first = any_colour(dice)
    second = mix(first, any_colour(dice), contrast)
    picture = gradient(first, second, dice.turn())
    light = hills(PICTURE, dice.between(2.5, 5), dice.share())
    return shade(picture, 1 + light * np.float32(contrast / 2))


def middle(picture: np.ndarray) -> np.ndarray:
    """The colour in the middle of pictures N3SS, (N, 3)."""
    return picture[:, :, SIZE // 2, SIZE // 2].copy()


def clutter(
    picture: np.ndarray, dice: Dice, things: int, *, size: tuple[float, float] = (0.08, 0.3), strength: float = 0.8
) -> np.ndarray:
    """`picture` with blobs, bars and rings of any colour thrown over it. Takes 11 draws for each. The picture
    itself is changed."""
    for _ in range(things):
        place = frame(
            x=dice.around(1),
            y=dice.around(1),
            size=dice.between(*size),
            angle=dice.turn(),
            stretch=dice.between(0.5, 2.2),
        )
        blob = contour(place, [(dice.choice(4) + 2, dice.between(0, 0.35), 0.0)])
        hollow = dice.happens(0.3)
        hole = wide(1.55 * hollow - 1) - length(place.x, place.y)  # without one it lies inside every blob
        alpha = cover(np.maximum(blob, hole), place.pixel) * np.float32(strength)
        over(picture, any_colour(dice), alpha)
    return picture
