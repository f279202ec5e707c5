"""`fractals`: attractors of random affine maps, a family of `forms`.

After Kataoka et al., "Pre-training without Natural Images", IJCV 2022, section 3: every class is an
iterated function system, and its images vary the system's parameters.

A class has two to five maps. Points are moved by maps chosen at random, and pixels that many points
visit are inked. Shapes as in `canvas`; C classes, P points.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from learngene_zoo.plugin import derive_seed
from lgzoo_mini.painting.canvas import Dice, any_colour, mix, over
from lgzoo_mini.painting.shapes import PICTURE, half_plane, wide
from lgzoo_mini.painting.views import develop_pictures, scene
from lgzoo_mini.suite import SIZE, Generator, Picture

CLASSES, MAPS = 150, 5
# Number of points, of their steps, and of the last steps, which are drawn
POINTS, STEPS, SEEN = 160, 22, 10
LISTS = 4096  # lists of choices of maps, of which every image takes `POINTS` consecutive ones


class Systems(NamedTuple):
    """The features of C systems, float32 (C, ...)."""

    maps: np.ndarray  # (C, MAPS, 2, 3); a map takes a point (x, y, 1) to its product with it
    up_to: np.ndarray  # (C, MAPS - 1) cumulative probabilities of the maps but the last
    centre: np.ndarray  # (C, 2) of the attractor
    scale: np.ndarray  # (C,) half its extent


def _rotate(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def system(draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw maps (M, 2, 3) that rotate, shrink, rotate again, sometimes mirror, and translate.

    Returns the maps and their probabilities (M,), proportional to their areas.
    """
    maps, areas = [], []
    for _ in range(draws.integers(2, MAPS + 1)):
        large = draws.uniform(0.3, 0.85)
        small = draws.uniform(0.2, large)
        shrunk = np.diag([large, small * draws.choice([-1, 1])])
        first, second = (_rotate(draws.uniform(0, 2 * np.pi)) for _ in range(2))
        maps.append(np.c_[first @ shrunk @ second, draws.uniform(-1, 1, 2)])
        areas.append(large * small + 0.02)
    return np.array(maps), np.array(areas) / sum(areas)


def measure_spread(
    draws: np.random.Generator, maps: np.ndarray, chances: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """Return centre (2,) and half extent of the attractor, and the share of grid cells hit."""
    points = np.zeros((512, 2))
    for _ in range(30):
        chosen = maps[draws.choice(len(maps), len(points), p=chances)]
        points = (chosen[:, :, :2] * points[:, None, :]).sum(axis=2) + chosen[:, :, 2]
    low, high = np.percentile(points, 2, axis=0), np.percentile(points, 98, axis=0)
    centre, scale = (low + high) / 2, float((high - low).max() / 2)
    x, y = ((points - centre) / scale).T
    touched, _, _ = np.histogram2d(x, y, bins=12, range=[[-1, 1]] * 2)
    return centre, scale, float((touched > 0).mean())


@cache
def table() -> Systems:
    """Draw systems until every class has one.

    A system is used if its attractor fills enough of its bounding square to be visible, but not
    most of it.
    """
    draws = np.random.Generator(np.random.PCG64(derive_seed(0, "fractals", "classes")))
    kept = Systems(
        np.zeros((CLASSES, MAPS, 2, 3), np.float32),
        np.ones((CLASSES, MAPS - 1), np.float32),
        np.zeros((CLASSES, 2), np.float32),
        np.zeros(CLASSES, np.float32),
    )
    number = 0
    while number < CLASSES:
        maps, chances = system(draws)
        centre, scale, touched = measure_spread(draws, maps, chances)
        if 0.17 <= touched <= 0.62:
            kept.maps[number, : len(maps)], kept.centre[number], kept.scale[number] = (
                maps,
                centre,
                scale,
            )
            kept.up_to[number, : len(maps) - 1] = np.cumsum(chances)[:-1]
            number += 1
    return kept


@cache
def lists() -> np.ndarray:
    """Return float32 (STEPS, LISTS) in [0, 1): the draws that choose the map of each step."""
    return np.random.Generator(np.random.PCG64(derive_seed(0, "fractals", "lists"))).random(
        (STEPS, LISTS), np.float32
    )


def iterate_points(dice: Dice, systems: Systems) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates of visited points, float32 (N, POINTS * SEEN) each, about -1 to 1.

    Takes 31 draws.
    """
    changed = np.stack([dice.around(0.055) for _ in range(MAPS * 6)], axis=1).reshape(
        systems.maps.shape
    )
    maps = systems.maps * (1 + changed)
    columns = (dice.choice(LISTS)[:, None] + np.arange(POINTS)) % LISTS
    row, x, y, seen = np.arange(len(maps))[:, None], np.float32(0), np.float32(0), []
    for step in range(STEPS):
        drawn, chosen = lists()[step][columns], np.zeros(columns.shape, np.int64)
        for part in range(MAPS - 1):
            chosen += drawn >= systems.up_to[:, part, None]
        taken = [maps[row, chosen, i, j] for i in range(2) for j in range(3)]
        x, y = taken[0] * x + taken[1] * y + taken[2], taken[3] * x + taken[4] * y + taken[5]
        if step >= STEPS - SEEN:
            seen.append((x, y))
    scale = 1 / systems.scale[:, None]
    across, down = (np.concatenate(part, axis=1) for part in zip(*seen))
    return (across - systems.centre[:, :1]) * scale, (down - systems.centre[:, 1:]) * scale


def visits(dice: Dice, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Count the points in each pixel, NSS. Takes 7 draws."""
    angle, size, side = dice.around(0.5), dice.between(0.5, 0.92)[:, None], dice.side()[:, None]
    cosine, sine, slant = np.cos(angle)[:, None], np.sin(angle)[:, None], dice.around(0.25)[:, None]
    x, y = x * side + slant * y, y * np.exp(dice.around(0.25))[:, None]
    across = (cosine * x - sine * y) * size + dice.around(0.25)[:, None]
    down = (sine * x + cosine * y) * size + dice.around(0.25)[:, None]
    column, row = (
        np.floor(np.clip((way + 1) * (SIZE / 2), -1, SIZE)).astype(np.int64)
        for way in (across, down)
    )
    inside = (column >= 0) & (column < SIZE) & (row >= 0) & (row < SIZE)
    flat = np.arange(len(x))[:, None] * SIZE**2 + row * SIZE + column
    return (
        np.bincount(flat[inside], minlength=len(x) * SIZE**2)
        .reshape(-1, SIZE, SIZE)
        .astype(np.float32)
    )


def paint(classes_N: np.ndarray, draws_NK: np.ndarray, grain: np.ndarray) -> Picture:
    """Paint the images of these classes."""
    dice, systems = Dice(draws_NK), Systems(*(part[classes_N] for part in table()))
    seen = scene(dice)
    count = visits(dice, *iterate_points(dice, systems))
    alpha = np.clip(count / wide(dice.between(1, 4)), 0, 1)
    second = mix(seen.ink, any_colour(dice), dice.between(0, 0.5))
    share = np.clip(0.5 + 0.5 * half_plane(PICTURE, dice.turn()), 0, 1)[:, None]
    body = seen.ink[:, :, None, None] + (second - seen.ink)[:, :, None, None] * share
    return Picture(develop_pictures(dice, over(seen.picture, body, alpha), grain))


FRACTALS = Generator(
    name="fractals",
    classes=(),
    held_out=tuple(f"fractal {number}" for number in range(CLASSES)),
    streams=110,
    paint=paint,
)
