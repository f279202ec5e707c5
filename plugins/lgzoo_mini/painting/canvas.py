"""Random draws, colours, patterns, layers and backgrounds of generated images.

Patterns have values from -1 to 1; their frequencies are in cycles from one side of a frame to the
other. As in `shapes` everything is float32 and computed element by element. Shapes: NSS is (N,
SIZE, SIZE), N3SS has colours; settings are (N,) or plain numbers.
"""

import numpy as np
import torch

from lgzoo_mini.painting.shapes import (
    PICTURE,
    Frame,
    Number,
    contour,
    cover,
    frame,
    half_plane,
    length,
    wide,
)
from lgzoo_mini.suite import SIZE

_PI = np.float32(np.pi)


class Dice:
    """Random draws, float32 (N, K) in [0, 1), consumed stream by stream.

    Every method returns one value per image.
    """

    def __init__(self, draws_NK: np.ndarray) -> None:
        self._draws = np.ascontiguousarray(draws_NK.T)
        self.taken = 0

    def share(self) -> np.ndarray:
        """Return the next draw, float32 (N,) in [0, 1)."""
        self.taken += 1
        return self._draws[self.taken - 1]

    def between(self, low: float, high: float) -> np.ndarray:
        """Return a number in [low, high), float32 (N,)."""
        return self.share() * np.float32(high - low) + np.float32(low)

    def around(self, reach: float) -> np.ndarray:
        """Return a number in [-reach, reach), float32 (N,)."""
        return self.between(-reach, reach)

    def turn(self) -> np.ndarray:
        """Return an angle in [0, 2 pi)."""
        return self.between(0, 2 * np.pi)

    def choice(self, count: int) -> np.ndarray:
        """Return an integer from 0 to count - 1, int64 (N,)."""
        return np.minimum((self.share() * np.float32(count)).astype(np.int64), count - 1)

    def side(self) -> np.ndarray:
        """Return -1 or 1, float32 (N,)."""
        return np.where(self.share() < np.float32(0.5), np.float32(-1), np.float32(1))

    def happens(self, chance: float) -> np.ndarray:
        """Return 1 with this probability, else 0; float32 (N,)."""
        return (self.share() < np.float32(chance)).astype(np.float32)


def hsv(hue: np.ndarray, saturation: Number, value: Number) -> np.ndarray:
    """Return colours (N, 3) of a hue (0 to 1, periodic), a saturation and a value (0 to 1 each)."""
    turn = hue.astype(np.float32) * np.float32(6)
    bright = np.broadcast_to(np.asarray(value, dtype=np.float32), hue.shape)
    depth = bright * np.asarray(saturation, dtype=np.float32)
    places = (np.mod(turn + np.float32(start), np.float32(6)) for start in (5, 3, 1))
    return np.stack(
        [bright - depth * np.clip(np.minimum(place, 4 - place), 0, 1) for place in places], axis=1
    )


def lightness(colour_N3: np.ndarray) -> np.ndarray:
    """Return the lightness of a colour, float32 (N,), with the weights of ITU-R BT.601."""
    return 0.299 * colour_N3[:, 0] + 0.587 * colour_N3[:, 1] + 0.114 * colour_N3[:, 2]


def apart(ink_N3: np.ndarray, paper_N3: np.ndarray, least: float = 0.3) -> np.ndarray:
    """Move `ink_N3` towards white or black until its lightness differs enough from the paper's.

    `least` is the minimal difference.
    """
    ink, paper = lightness(ink_N3), lightness(paper_N3)
    up = np.where(np.abs(ink - paper) < np.float32(1e-3), paper < np.float32(0.5), ink > paper)
    up = np.where(
        paper + np.float32(least) > 1, False, np.where(paper < np.float32(least), True, up)
    )
    goal = paper + np.where(up, np.float32(least), np.float32(-least))
    lighter = np.clip((goal - ink) / np.maximum(1 - ink, np.float32(1e-3)), 0, 1)
    darker = np.clip((ink - goal) / np.maximum(ink, np.float32(1e-3)), 0, 1)
    towards = np.where(up, lighter, darker)[:, None]
    return ink_N3 + towards * (up[:, None].astype(np.float32) - ink_N3)


def any_colour(
    dice: Dice,
    saturation: tuple[float, float] = (0.0, 1.0),
    value: tuple[float, float] = (0.15, 1.0),
) -> np.ndarray:
    """Draw a colour of any hue. Takes 3 draws."""
    return hsv(dice.share(), dice.between(*saturation), dice.between(*value))


def ink_and_paper(dice: Dice, least: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Draw two colours of clearly different lightness. Takes 6 draws."""
    paper = any_colour(dice)
    return apart(any_colour(dice), paper, least), paper


def mix(first_N3: np.ndarray, second_N3: np.ndarray, share: Number) -> np.ndarray:
    """Blend the first colour with a share of the second."""
    part = np.asarray(share, dtype=np.float32)
    return first_N3 + (part[:, None] if part.ndim else part) * (second_N3 - first_N3)


def hue_of(colour_N3: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return cosine and sine of a colour's hue, float32 (N,) each, scaled by its saturation."""
    red, green, blue = colour_N3[:, 0], colour_N3[:, 1], colour_N3[:, 2]
    across = red - 0.5 * (green + blue)
    up = np.float32(3**0.5 / 2) * (green - blue)
    length = np.sqrt(across * across + up * up) + np.float32(0.05)
    return across / length, up / length


def hues(ink: np.ndarray, paper: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return the attributes of the hues of `ink` and, if given, of `paper`, colours (N, 3)."""
    found = (*hue_of(ink), *(() if paper is None else hue_of(paper)))
    return dict(zip(("ink_hue_x", "ink_hue_y", "paper_hue_x", "paper_hue_y"), found))


def plain(colour_N3: np.ndarray) -> np.ndarray:
    """Return images of one colour each, N3SS."""
    return np.full((len(colour_N3), 3, SIZE, SIZE), colour_N3[:, :, None, None], dtype=np.float32)


def over(picture: np.ndarray, colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Lay a colour, (N, 3) or N3SS, over `picture` N3SS with opacity `alpha` NSS.

    Modifies `picture` in place and returns it.
    """
    ink = colour[:, :, None, None] if colour.ndim == 2 else colour
    difference = ink - picture
    difference *= alpha[:, None]
    picture += difference
    return picture


def shade(picture: np.ndarray, light: np.ndarray) -> np.ndarray:
    """Multiply every colour of `picture` N3SS by `light` NSS.

    Modifies `picture` in place and returns it.
    """
    picture *= light[:, None]
    return picture


def blur(picture: np.ndarray, amount: Number) -> np.ndarray:
    """Mix each pixel with its neighbours.

    The weights along both sides are (a, 1, a) / (1 + 2a), where a is `amount`, 0 to 1.
    """
    side = np.asarray(amount, dtype=np.float32).reshape(-1, 1, 1, 1)
    whole = 1 / (1 + 2 * side)
    across = np.concatenate([picture[..., :1], picture, picture[..., -1:]], axis=-1)
    picture = (picture + side * (across[..., :-2] + across[..., 2:])) * whole
    down = np.concatenate([picture[..., :1, :], picture, picture[..., -1:, :]], axis=-2)
    return (picture + side * (down[..., :-2, :] + down[..., 2:, :])) * whole


def finish(picture: np.ndarray, grain: np.ndarray, strength: Number = 0.1) -> torch.Tensor:
    """Convert images to bytes, uint8 (N, 3, SIZE, SIZE).

    `grain` uint8 (N, GRAIN) adds noise of up to half of `strength` in either direction.
    """
    assert picture.dtype == np.float32, "something was computed in float64"
    noise = grain.reshape(-1, 3, SIZE, SIZE).astype(np.float32)
    scale = np.asarray(strength, dtype=np.float32).reshape(-1, 1, 1, 1)
    noise -= np.float32(127.5)
    noise *= scale
    noise += picture * np.float32(255)
    np.clip(noise, 0, 255, out=noise)
    np.rint(noise, out=noise)
    return torch.from_numpy(noise.astype(np.uint8))


def stripes(
    place: Frame, frequency: Number, angle: Number = 0.0, phase: Number = 0.0
) -> np.ndarray:
    """Return waves in the direction of `angle`."""
    return np.sin(half_plane(place, angle) * (wide(frequency) * _PI) + wide(phase))


def _lattice(x: np.ndarray, y: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return a number from -1 to 1 for every lattice point, by mixing the bits of its coordinates.

    The constants are xxhash's primes.
    """
    bits = x * np.uint32(0x9E3779B1) + y * np.uint32(0x85EBCA77) + key
    bits ^= bits >> np.uint32(15)
    bits *= np.uint32(0xC2B2AE3D)
    bits ^= bits >> np.uint32(13)
    bits *= np.uint32(0x27D4EB2F)
    bits ^= bits >> np.uint32(16)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - 1


def value_noise(place: Frame, frequency: Number, key: Number) -> np.ndarray:
    """Return smooth random values, interpolated between lattice points with smoothstep.

    `key` in [0, 1) is the seed.
    """
    x, y = place.x * (wide(frequency) / 2), place.y * (wide(frequency) / 2)
    low_x, low_y = np.floor(x), np.floor(y)
    x, y = x - low_x, y - low_y
    x, y = x * x * (3 - 2 * x), y * y * (3 - 2 * y)
    # Through int32: converting a negative float to an unsigned integer is undefined
    column, row = low_x.astype(np.int32).astype(np.uint32), low_y.astype(np.int32).astype(np.uint32)
    bits = (wide(key) * np.float32(2.0**24)).astype(np.uint32) * np.uint32(0x165667B1)
    one = np.uint32(1)
    top, top_right = _lattice(column, row, bits), _lattice(column + one, row, bits)
    foot, foot_right = _lattice(column, row + one, bits), _lattice(column + one, row + one, bits)
    top += x * (top_right - top)
    foot += x * (foot_right - foot)
    return top + y * (foot - top)


def hills(place: Frame, frequency: Number, key: Number) -> np.ndarray:
    """Return value noise of three octaves, from about -1 to 1."""
    rough = value_noise(place, frequency, key)
    fine = value_noise(
        place, np.asarray(frequency) * np.float32(2), np.mod(np.asarray(key) + np.float32(0.37), 1)
    )
    finest = value_noise(
        place, np.asarray(frequency) * np.float32(4), np.mod(np.asarray(key) + np.float32(0.71), 1)
    )
    return 0.6 * rough + 0.3 * fine + 0.15 * finest


def gradient(first_N3: np.ndarray, second_N3: np.ndarray, angle: Number) -> np.ndarray:
    """Return images N3SS with a gradient between two colours in the direction of `angle`."""
    return over(plain(first_N3), second_N3, np.clip(0.5 + 0.5 * half_plane(PICTURE, angle), 0, 1))


def backdrop(dice: Dice, contrast: float = 0.35) -> np.ndarray:
    """Draw images N3SS: a gradient between two similar colours, shaded by noise.

    Takes 9 draws.
    """
    first = any_colour(dice)
    second = mix(first, any_colour(dice), contrast)
    picture = gradient(first, second, dice.turn())
    light = hills(PICTURE, dice.between(2.5, 5), dice.share())
    return shade(picture, 1 + light * np.float32(contrast / 2))


def middle(picture: np.ndarray) -> np.ndarray:
    """Return the colour in the middle of images N3SS, (N, 3)."""
    return picture[:, :, SIZE // 2, SIZE // 2].copy()


def clutter(
    picture: np.ndarray,
    dice: Dice,
    things: int,
    *,
    size: tuple[float, float] = (0.08, 0.3),
    strength: float = 0.8,
) -> np.ndarray:
    """Paint blobs, bars and rings of random colours over a picture, in place, and return it.

    Takes 11 draws for each of the `things`.
    """
    for _ in range(things):
        x, y, across, angle = dice.around(1), dice.around(1), dice.between(*size), dice.turn()
        place = frame(x=x, y=y, size=across, angle=angle, stretch=dice.between(0.5, 2.2))
        blob = contour(place, [(dice.choice(4) + 2, dice.between(0, 0.35), 0.0)])
        hollow = dice.happens(0.3)
        # Without a hole, the disc is so small that it lies inside every blob
        hole = wide(1.55 * hollow - 1) - length(place.x, place.y)
        alpha = cover(np.maximum(blob, hole), place.pixel) * np.float32(strength)
        over(picture, any_colour(dice), alpha)
    return picture
