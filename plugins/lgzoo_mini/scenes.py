"""`scenes`: small landscapes with things in them, labelled pixel by pixel. The suite's segmentation
task.

Sky above a crooked horizon; below it ground, water or both with a shore between; in front of them
up to three discs, boxes and trees, which occlude one another. Colours are arbitrary, so that
classes differ only in texture, shape and position. As in PASCAL VOC the rim of every thing, one
pixel wide, has the label 255 and is ignored.

An image is a function of (split, index), drawn whenever it is read. Shapes: N images, NSS is (N,
SIZE, SIZE).
"""

import numpy as np
import torch

from learngene_zoo.plugin import (
    IGNORED,
    Entry,
    Samples,
    Task,
    build_task,
    derive_seed,
    draw_noise,
    draw_uniform,
)
from lgzoo_mini.painting.canvas import (
    Dice,
    any_colour,
    apart,
    finish,
    middle,
    mix,
    over,
    plain,
    shade,
    stripes,
    value_noise,
)
from lgzoo_mini.painting.shapes import (
    PICTURE,
    Frame,
    box,
    contour,
    convex,
    cover,
    ellipse,
    frame,
    half_plane,
    wide,
)
from lgzoo_mini.suite import GRAIN, Drawn, split_seed

CLASSES = ("sky", "ground", "water", "disc", "box", "tree")
GROUND, WATER, FIRST_THING = 1, 2, 3
THINGS = 3  # at most; the first is always there
STREAMS = 32 + 20 * THINGS


def draw(split: str, indices_N: np.ndarray) -> Samples:
    """Draw images uint8 (N, 3, SIZE, SIZE) and masks uint8 (N, SIZE, SIZE)."""
    key = split_seed("scenes", split)
    return scenes(
        draw_uniform(key, indices_N, STREAMS),
        draw_noise(derive_seed(key, "grain"), indices_N, GRAIN),
    )


def scenes(draws_NK: np.ndarray, grain: np.ndarray) -> Samples:
    """Draw one scene for each row of draws."""
    dice = Dice(draws_NK)
    picture, classes = landscape(dice)
    rim = np.zeros(classes.shape, dtype=bool)
    for number in range(THINGS):
        there = wide(dice.happens(1.0 if number == 0 else 0.65)) > 0
        kind = dice.choice(len(CLASSES) - FIRST_THING)
        alpha = np.where(there, draw_coverage(kind, dice), 0)
        over(picture, surface(picture, dice), alpha)
        inside = alpha > 0.5
        classes = np.where(inside, FIRST_THING + wide(kind), classes)
        rim = np.where(inside, border(inside), rim)
    mask = np.where(rim, IGNORED, classes).astype(np.uint8)
    return Samples(finish(picture, grain, dice.between(0.02, 0.15)), masks=torch.from_numpy(mask))


def landscape(dice: Dice) -> tuple[np.ndarray, np.ndarray]:
    """Draw images N3SS without things, and the classes of their pixels, float32 NSS."""
    sky, ground, water = any_colour(dice), any_colour(dice), any_colour(dice)
    picture = plain(sky)
    fading = (PICTURE.y + 1) / 2 * wide(dice.between(0.2, 0.7))
    over(picture, mix(sky, any_colour(dice), 0.5), np.clip(fading, 0, 1))

    earth, sea = plain(ground), plain(water)
    clods = value_noise(PICTURE, dice.between(10, 16), dice.share())
    shade(earth, 1 + clods * wide(dice.between(0.25, 0.5)))
    place = frame(angle=dice.around(0.2))
    waves = stripes(
        Frame(place.x, place.y + 0.08 * np.sin(place.x * 6), place.pixel),
        dice.between(6, 11),
        np.pi / 2,
    )
    shade(sea, 1 + waves * wide(dice.between(0.2, 0.45)))

    crooked = 0.12 * np.sin(PICTURE.x * wide(dice.between(2, 6)) + wide(dice.turn()))
    horizon = (
        PICTURE.y - wide(dice.between(-0.5, 0.25)) - wide(dice.around(0.2)) * PICTURE.x - crooked
    )
    # The shore crosses the image; if it lies far outside, there is only ground or only water
    shore = frame(angle=dice.turn(), x=dice.around(1.2), y=dice.between(0, 1.2))
    wet = cover(shore.y + 0.1 * np.sin(shore.x * 5), shore.pixel)
    below = cover(-horizon, PICTURE.pixel)
    over(earth, sea, wet)
    over(picture, earth, below)
    bottom = np.where(wet > 0.5, np.float32(WATER), np.float32(GROUND))
    return picture, np.where(below > 0.5, bottom, np.float32(0))


def draw_coverage(kind_N: np.ndarray, dice: Dice) -> np.ndarray:
    """Return the share of each pixel that a thing of this kind covers at a random pose, NSS.

    Takes 9 draws.
    """
    place = frame(
        x=dice.around(0.8),
        y=dice.between(-0.6, 0.8),
        size=dice.between(0.4, 0.75),
        angle=dice.around(0.25),
    )
    slim = dice.between(0.75, 1.3)
    turned = frame(angle=dice.around(0.6), inside=place)
    disc = ellipse(place, slim, 1 / slim)
    crate = box(turned, 0.85 * slim, 0.85 / slim)
    pointed = convex(place, [(0.0, -1.2), (0.8 * slim, 0.35), (-0.8 * slim, 0.35)])
    crown = contour(frame(y=-0.35, inside=place), [(7, 0.1, dice.turn())], 0.72)
    leaves = np.where(wide(dice.happens(0.5)) > 0, pointed, crown)
    tree = np.minimum(leaves, box(frame(y=0.75, inside=place), dice.between(0.18, 0.26), 0.5))
    outline = np.where(wide(kind_N) == 0, disc, np.where(wide(kind_N) == 1, crate, tree))
    return cover(outline, place.pixel)


def surface(picture: np.ndarray, dice: Dice) -> np.ndarray:
    """Draw the surface of a thing, N3SS, lit from one side and sometimes patterned.

    Its colour differs from that in the middle of the image. Takes 8 draws.
    """
    paint = plain(apart(any_colour(dice), middle(picture), 0.2))
    light = half_plane(PICTURE, dice.turn())
    pattern = stripes(PICTURE, dice.between(4, 10), dice.turn())
    return shade(
        paint,
        1 + np.float32(0.25) * light + pattern * wide(dice.happens(0.4) * dice.between(0.1, 0.3)),
    )


def border(inside: np.ndarray) -> np.ndarray:
    """Return the pixels of shapes (bool NSS) that have a neighbour outside."""
    padded = np.pad(inside, ((0, 0), (1, 1), (1, 1)), mode="edge")
    sides = padded[:, :-2, 1:-1] & padded[:, 2:, 1:-1] & padded[:, 1:-1, :-2] & padded[:, 1:-1, 2:]
    edge: np.ndarray = inside & ~sides
    return edge


def open_task(entry: Entry) -> Task:
    """Return the task of its catalogue entry, labelled by masks. Images are drawn when read."""
    return build_task(
        entry, CLASSES, lambda name: Drawn(name, entry.sizes[name], draw, np.zeros_like)
    )
