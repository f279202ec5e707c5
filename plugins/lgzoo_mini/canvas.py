"""The canvas: frames in which things lie, layers, random draws, colours, and how pictures are finished.

`outlines` has shapes, `fills` patterns and backgrounds. Everything is float32 and computed element by element with numpy: no
matrix product, no sum along an axis, no loop over N. So a picture is the same, bit by bit, whichever pictures are made with it.
Shapes: NSS is (N, SIZE, SIZE), N3SS has colours; an argument given per picture is (N,) or a plain number.
"""

from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch.nn import functional

from lgzoo_mini.suite import SIZE

Number = np.ndarray | float  # one for each picture, float32 (N,), or one for all
PIXEL = 2.0 / SIZE  # width of a pixel; a picture reaches from -1 to 1
_AXIS = ((np.arange(SIZE, dtype=np.float32) * 2 + 1) / SIZE - 1).astype(np.float32)


class Frame(NamedTuple):
    """Where every pixel lies as seen from the frame's centre: x to the right, y down, NSS each.

    In its units the frame reaches from -1 to 1; a picture's pixel is `pixel` wide, (N, 1, 1).
    """

    x: np.ndarray
    y: np.ndarray
    pixel: np.ndarray


def wide(values: Number) -> np.ndarray:
    """One number for each picture as float32 (N, 1, 1), to meet NSS; a field passes unchanged."""
    numbers = np.asarray(values, dtype=np.float32)
    return numbers if numbers.ndim == 3 else numbers.reshape(-1, 1, 1)


PICTURE = Frame(_AXIS[None, None, :], _AXIS[None, :, None], wide(PIXEL))


def frame(
    *,
    x: Number = 0.0,
    y: Number = 0.0,
    size: Number = 1.0,
    angle: Number = 0.0,
    stretch: Number = 1.0,
    shear: Number = 0.0,
    tilt_x: Number = 0.0,
    tilt_y: Number = 0.0,
    mirror: Number = 1.0,
    inside: Frame = PICTURE,
) -> Frame:
    """A frame that lies at (x, y) in another, `size` times as large, turned clockwise by `angle` radians.

    `stretch` makes it wider and as much lower, `shear` pushes its foot aside, `tilt_x` and `tilt_y` turn it out of the
    picture's plane (less than 1 / its reach; 0.3 is much), and `mirror` -1 swaps left and right.
    """
    scale = 1 / wide(size)
    right, down = (inside.x - wide(x)) * scale, (inside.y - wide(y)) * scale
    if not (_is_zero(tilt_x) and _is_zero(tilt_y)):
        near = 1 / np.maximum(1 + wide(tilt_x) * right + wide(tilt_y) * down, np.float32(0.2))
        right, down = right * near, down * near
    if not _is_zero(angle):
        cosine, sine = np.cos(wide(angle)), np.sin(wide(angle))
        right, down = cosine * right + sine * down, cosine * down - sine * right
    if not _is_zero(shear):
        right = right - wide(shear) * down
    if isinstance(stretch, np.ndarray) or isinstance(mirror, np.ndarray) or stretch != 1 or mirror != 1:
        right, down = right * (wide(mirror) / wide(stretch)), down * wide(stretch)
    return Frame(right, down, inside.pixel * scale)


def _is_zero(values: Number) -> bool:
    return not isinstance(values, np.ndarray) and values == 0


class Placed(TypedDict):
    """Where a thing lies, float32 (N,) each: settings of `frame`."""

    x: np.ndarray
    y: np.ndarray
    size: np.ndarray
    angle: np.ndarray


class Pose(Placed, total=False):
    """And how it is deformed."""

    stretch: np.ndarray
    shear: np.ndarray
    tilt_x: np.ndarray
    tilt_y: np.ndarray


def cover(distance: np.ndarray, pixel: np.ndarray, soft: Number = 1.0) -> np.ndarray:
    """How much of each pixel lies inside, 0 to 1: `distance` is negative there. The edge is `soft` pixels wide."""
    return np.clip(0.5 - distance / (pixel * wide(soft)), 0, 1)


def stamped(masks: torch.Tensor, place: Frame) -> np.ndarray:
    """The coverage of each pixel, float32 (N, C, SIZE, SIZE), by C layers of masks (N, C, B, B) that fill their frames."""
    grid = np.empty((len(masks), SIZE, SIZE, 2), dtype=np.float32)
    grid[..., 0], grid[..., 1] = place.x, place.y
    return functional.grid_sample(
        masks, torch.from_numpy(grid), mode="bilinear", padding_mode="zeros", align_corners=False
    ).numpy()


def plain(colour_N3: np.ndarray) -> np.ndarray:
    """Pictures of one colour each, N3SS."""
    picture = np.empty((len(colour_N3), 3, SIZE, SIZE), dtype=np.float32)
    picture[:] = colour_N3[:, :, None, None]
    return picture


def over(picture: np.ndarray, colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """`picture` N3SS with a colour, (N, 3) or N3SS, laid over it where `alpha` NSS is 1. The picture itself is changed."""
    ink = colour[:, :, None, None] if colour.ndim == 2 else colour
    difference = ink - picture
    difference *= alpha[:, None]
    picture += difference
    return picture


def shade(picture: np.ndarray, light: np.ndarray) -> np.ndarray:
    """`picture` N3SS with every colour multiplied by `light` NSS. The picture itself is changed."""
    picture *= light[:, None]
    return picture


def blur(picture: np.ndarray, amount: Number) -> np.ndarray:
    """Each pixel mixed with its neighbours: weights (a, 1, a) / (1 + 2a) along both sides, `amount` a from 0 to 1."""
    side = np.asarray(amount, dtype=np.float32).reshape(-1, 1, 1, 1)
    whole = 1 / (1 + 2 * side)
    across = np.concatenate([picture[..., :1], picture, picture[..., -1:]], axis=-1)
    picture = (picture + side * (across[..., :-2] + across[..., 2:])) * whole
    down = np.concatenate([picture[..., :1, :], picture, picture[..., -1:, :]], axis=-2)
    return (picture + side * (down[..., :-2, :] + down[..., 2:, :])) * whole


def finish(picture: np.ndarray, grain: np.ndarray, strength: Number = 0.1) -> torch.Tensor:
    """Pictures as bytes, uint8 (N, 3, SIZE, SIZE). `grain` uint8 (N, GRAIN) adds noise up to half of `strength` to a side."""
    assert picture.dtype == np.float32, "something was computed in float64"
    noise = grain.reshape(-1, 3, SIZE, SIZE).astype(np.float32)
    scale = np.asarray(strength, dtype=np.float32).reshape(-1, 1, 1, 1)
    noise -= np.float32(127.5)
    noise *= scale
    noise += picture * np.float32(255)
    np.clip(noise, 0, 255, out=noise)
    np.rint(noise, out=noise)
    return torch.from_numpy(noise.astype(np.uint8))


class Dice:
    """Random draws, float32 (N, K) in [0, 1), read one stream after the other. Every method returns one value per picture."""

    def __init__(self, draws_NK: np.ndarray) -> None:
        self._draws = np.ascontiguousarray(draws_NK.T)
        self.taken = 0

    def share(self) -> np.ndarray:
        """float32 (N,) in [0, 1)."""
        self.taken += 1
        return self._draws[self.taken - 1]

    def between(self, low: float, high: float) -> np.ndarray:
        """float32 (N,) in [low, high)."""
        return self.share() * np.float32(high - low) + np.float32(low)

    def around(self, reach: float) -> np.ndarray:
        """float32 (N,) in [-reach, reach)."""
        return self.between(-reach, reach)

    def turn(self) -> np.ndarray:
        """An angle in [0, 2 pi)."""
        return self.between(0, 2 * np.pi)

    def choice(self, count: int) -> np.ndarray:
        """int64 (N,), 0 to count - 1."""
        return np.minimum((self.share() * np.float32(count)).astype(np.int64), count - 1)

    def side(self) -> np.ndarray:
        """-1 or 1, float32 (N,)."""
        return np.where(self.share() < np.float32(0.5), np.float32(-1), np.float32(1))

    def happens(self, chance: float) -> np.ndarray:
        """1 with this chance, else 0; float32 (N,)."""
        return (self.share() < np.float32(chance)).astype(np.float32)


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


def hues(ink: np.ndarray, paper: np.ndarray) -> dict[str, np.ndarray]:
    """The hues of what is drawn and of what it is drawn on, colours (N, 3)."""
    return dict(zip(("ink_hue_x", "ink_hue_y", "paper_hue_x", "paper_hue_y"), (*hue_of(ink), *hue_of(paper))))


def pose(x: np.ndarray, y: np.ndarray, size: np.ndarray, angle: np.ndarray) -> dict[str, np.ndarray]:
    """Where the main thing is: its centre, its diameter as a share of the picture, and its rotation."""
    return {"x": x, "y": y, "size": 2 * size - 1, "angle_x": np.cos(angle), "angle_y": np.sin(angle)}


def attributes_of(where: Placed) -> dict[str, np.ndarray]:
    """The attributes that say where a thing with a head lies."""
    return pose(where["x"], where["y"], where["size"], where["angle"])
