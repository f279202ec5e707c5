"""A world so small that a grid takes a second: an ancestry model and a task in folders, which any
process can open.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.grid.grid import list_cells, list_standard_arms
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import Recipe

RECIPE = Recipe(images=24, batch_size=8, lr=1e-3, augment="none")
SPEC = ViTSpec(layers=3, width=32, heads=2, classes=4, image_size=16, patch_size=8)


def make_world(place: Path) -> tuple[str, str]:
    """Write an ancestry model of three layers and a task of three classes; return their references."""
    assemble(SPEC, {}, seed=0, scheme="fan_in").save(place / "ancestry")
    generator = np.random.default_rng(0)
    for label in range(3):
        folder = place / "images" / f"class-{label}"
        folder.mkdir(parents=True)
        for number in range(20):
            pixels = generator.integers(0, 128, (16, 16, 3), dtype=np.uint8)
            pixels[5 * label : 5 * label + 5] += 120
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return str(place / "ancestry"), f"folder:{place / 'images'}"


def toy_arms(ancestry: str, keep: Sequence[int] = (1, 3)) -> list[Arm]:
    """Return LSAMD with named blocks, its controls, and both scratch arms."""
    return list_standard_arms(
        ["lsamd"], settings={"lsamd": {"keep": tuple(keep)}}, ancestries=(ancestry,)
    )


def toy_cells(world: tuple[str, str], **changes: Any) -> list[Cell]:
    """Return five arms at one size with one budget and one seed, unless `changes` differ."""
    ancestry, task = world
    settings = {
        "arms": toy_arms(ancestry),
        "layers": [3],
        "epochs": [1],
        "seeds": [0],
        "recipe": RECIPE,
        "head": "random",
        **changes,
    }
    return list_cells([task], **settings)


def numbers(rows: Sequence[Row]) -> list[Row]:
    """Return rows without the values that depend on the clock."""
    return [
        dataclasses.replace(row, extraction_seconds=0.0, seconds=0.0, finished="") for row in rows
    ]


def toy_row(key: str = "a", **changes: Any) -> Row:
    """Return a row of a finished cell."""
    about: dict[str, Any] = {
        "key": key,
        "arm": "lsamd",
        "method": "lsamd",
        "control": None,
        "task": "digits",
        "layers": 9,
        "width": 96,
        "seed": 0,
        "epochs": 4,
        "lr": 1e-3,
        "images": 1000,
        "split": "test",
        "value": 0.5,
        **changes,
    }
    return Row(**about)
