"""`contours`: nested closed contours with lobes and ripples. Used by the source tasks only.

After radial contours (Kataoka et al., "Replacing Labeled Real-image Datasets with Auto-generated
Contours", CVPR 2022) and fractals (Kataoka et al., "Pre-training without Natural Images", ACCV
2020): a class is a cell of the parameters of a formula; everything else varies freely. In polar
coordinates (rho, theta) around the centre the outermost contour is rho = R(theta),

    R(theta) = 1 + a cos(k theta + phi) + b cos(f theta + psi),        level = rho / R(theta),

and there are contours where rings * level * (1 + step (level - 1)) is an integer up to `rings`. The
class determines the number of lobes k, the frequency f and the amplitude b of the ripple. Shapes as
in `canvas`.
"""

from itertools import product

import numpy as np

from lgzoo_mini.painting.canvas import Dice, any_colour, apart, finish, gradient, hues, mix, over
from lgzoo_mini.painting.shapes import Frame, cover, frame, polar, pose, wide
from lgzoo_mini.suite import Generator, Picture

LOBES = (0, 2, 3, 4, 5, 6)
FREQUENCIES = (8, 11, 16)  # cycles of the ripple around the contour
AMPLITUDES = (0.04, 0.08, 0.15)  # of the ripple, in radii
JITTER = 0.15  # relative variation of the amplitude within a class
CELLS = tuple(product(LOBES, FREQUENCIES, AMPLITUDES))
CYCLES = (0.5, 16.0)  # cycles per image at which the attribute `frequency` is -1 and 1


def bands(
    place: Frame, lobes: np.ndarray, frequency: np.ndarray, ripple: np.ndarray, dice: Dice
) -> tuple[np.ndarray, np.ndarray]:
    """Compute level * (1 + step (level - 1)) and its increase per pixel, NSS each.

    Takes 4 draws.
    """
    rho, theta = polar(place)
    lobe = wide(dice.between(0.14, 0.32) * (lobes > 0))
    slow = wide(lobes) * theta + wide(dice.turn())
    fast = wide(frequency) * theta + wide(dice.turn())
    radius = 1 + lobe * np.cos(slow) + wide(ripple) * np.cos(fast)
    slope = (lobe * wide(lobes) * np.sin(slow) + wide(ripple * frequency) * np.sin(fast)) / radius
    level, step = rho / radius, wide(dice.between(0, 0.8))
    growth = (1 - step + 2 * step * level) * np.sqrt(1 + slope * slope) * place.pixel / radius
    return level * (1 + step * (level - 1)), growth


def colours(dice: Dice) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw the colours of the paper, of the innermost and the outermost line, and of the fill.

    Takes 13 draws. Each colour is (N, 3).
    """
    paper = any_colour(dice)
    inner = any_colour(dice)
    outer = mix(inner, any_colour(dice), dice.between(0, 0.6))
    return paper, apart(inner, paper), apart(outer, paper), any_colour(dice)


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these classes."""
    dice = Dice(draws_NK)
    lobes, frequency, ripple = np.array(CELLS, dtype=np.float32)[classes_N].T
    ripple = ripple * dice.between(1 - JITTER, 1 + JITTER)
    x, y, size = dice.around(0.3), dice.around(0.3), dice.between(0.55, 0.95)
    angle = dice.between(0, np.pi)
    place = frame(x=x, y=y, size=size, angle=angle, stretch=dice.between(1.05, 1.3))
    rings = np.floor(dice.between(1, 7))
    paper, inner, outer, fill = colours(dice)
    picture = gradient(paper, mix(paper, any_colour(dice), dice.between(0, 0.6)), dice.turn())
    level, growth = bands(place, lobes, frequency, ripple, dice)
    level, growth = level * wide(rings), growth * wide(rings)
    # The fill is opaque, translucent, or only in every second band
    opacity = wide(np.clip(dice.between(-0.6, 1.2), 0, 1)) * (
        1 - wide(dice.happens(0.5)) * (np.ceil(level) % 2)
    )
    over(picture, fill, cover(level - wide(rings), growth) * opacity)
    ring = np.clip(np.rint(level), 1, wide(rings))
    line = cover(np.abs(level - ring) - wide(dice.between(0.5, 1.1)) * growth, growth)
    ink = (
        inner[:, :, None, None] + (ring / wide(rings))[:, None] * (outer - inner)[:, :, None, None]
    )
    images = finish(over(picture, ink, line), grain, dice.between(0, 0.15))
    low, high = np.log2(np.array(CYCLES, dtype=np.float32))
    # The length of a contour of diameter `size` is pi `size`, in units of the image's side
    cycles = np.log2(frequency / (np.float32(np.pi) * size))
    attributes = {
        "lobes": lobes,
        "frequency": (cycles - low) / (high - low) * 2 - 1,
        "amplitude": ripple * np.float32(2 / (AMPLITUDES[-1] * (1 + JITTER))) - 1,
        **hues(outer, paper),
        **pose(x, y, size, 2 * angle),  # the stretched axis has no direction, so twice the angle
    }
    return Picture(images, attributes)


CONTOURS = Generator(
    name="contours",
    classes=(),
    held_out=tuple(
        f"{lobes} lobes, {frequency} ripples of {amplitude}"
        for lobes, frequency, amplitude in CELLS
    ),
    streams=33,
    paint=paint,
)
