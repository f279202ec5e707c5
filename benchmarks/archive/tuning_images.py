"""How many validation images are needed before choosing a learning rate among three is worth it?

Varied: the number n of validation images that choose.

Measured: every kept training of the claims that was evaluated on validation images has, for each
image, whether it was classified correctly. For an arm that was trained on a task at three rates,
each two or four times the one before, n images are drawn; the rate that is best on them is chosen,
and compared with the middle rate on the other images. `gain` is the gain over the middle rate in
points, `best` that of the best of the three rates, `lost` how often, in per cent, choosing costs a
point or more. Arms that learn nothing at any rate are left out. Choosing is worth it from the first
n whose mean gain is at least half of `best`, and that costs a point in fewer than a tenth of the
draws. `MIN_IMAGES` in learngene_zoo/bench/grid/tuning.py is that n.

Command: half a minute on one core; nothing is trained.

    python benchmarks/archive/tuning_images.py

Results: benchmarks/results/tuning_images.json.
Page: docs/bench.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from learngene_zoo.bench.grid.search import SIGMAS
from learngene_zoo.bench.results.rows import Row, read_rows, unpack_flags
from learngene_zoo.tasks.catalogue import list_entries

sys.path.append(str(Path(__file__).resolve().parents[1]))
import machine

SIZES = (10, 20, 30, 50, 75, 100, 150, 200, 300)  # images that choose
MIN_IMAGES = 500  # of a split: the rest must tell the rates apart
STEPS = (2.0, 4.0)  # between neighbouring rates
DRAWS = 400
SHARE, LOST = 0.5, 10.0  # when a choice pays


def main() -> None:
    """Simulate, print and write."""
    cases = list(find_cases())
    rows = [measure(cases, size) for size in SIZES]
    pays = next(
        (
            row["images"]
            for row in rows
            if row["gain"] >= SHARE * row["best"] and row["lost"] < LOST
        ),
        None,
    )
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    print(f"choosing pays from {pays} images on")
    names = sorted({task for task, _ in cases})
    found = {"cases": len(cases), "tasks": names, "draws": DRAWS, "share": SHARE, "lost": LOST}
    machine.write("tuning_images", {**found, "pays_from": pays, "rows": rows})


def find_cases() -> Iterator[tuple[str, np.ndarray]]:
    """The task, and for three rates in rising order whether each image was right, bool
    (3, images).
    """
    classes = {entry.name: entry.classes for entry in list_entries()}
    for group in group_trials().values():
        right = {
            rate: np.array(unpack_flags(row.correct or "", row.evaluated))
            for rate, row in group.items()
        }
        first = next(iter(group.values()))
        chance, images = 1 / classes[first.task], first.evaluated
        least = chance + SIGMAS * math.sqrt(chance * (1 - chance) / images)
        for low, middle, high in combinations(sorted(right), 3):
            ratios = (middle / low, high / middle)
            flags = np.stack([right[rate] for rate in (low, middle, high)])
            if (
                any(np.allclose(ratios, step) for step in STEPS)
                and flags.mean(axis=1).max() > least
            ):
                yield first.task, flags


def group_trials() -> dict[tuple[Any, ...], dict[float, Row]]:
    """The first training at each rate, by everything else: later ones at a rate have another
    augmentation.
    """
    found: dict[tuple[Any, ...], dict[float, Row]] = {}
    for row in read_rows(machine.RESULTS / "claims" / "results.jsonl"):
        if row.split == "validation" and row.correct and row.evaluated >= MIN_IMAGES:
            about = (
                row.arm,
                row.task,
                row.layers,
                row.width,
                row.size,
                row.seed,
                row.epochs,
                row.images,
                row.version,
            )
            found.setdefault(about, {}).setdefault(row.lr, row)
    return found


def measure(cases: list[tuple[str, np.ndarray]], size: int) -> dict[str, float]:
    """What choosing on this many images brings, averaged over draws and cases."""
    generator = np.random.default_rng(size)
    gains, best = [], []
    for _, flags in cases:
        images = flags.shape[1]
        for _ in range(DRAWS):
            order = generator.permutation(images)
            chosen = int(
                flags[:, order[:size]].mean(axis=1).argmax()
            )  # of equal rates the lowest, as in a bench
            rest = 100 * flags[:, order[size:]].mean(axis=1)
            gains.append(rest[chosen] - rest[1])
            best.append(100 * (flags.mean(axis=1).max() - flags[1].mean()))
    lost = 100 * float(np.mean(np.array(gains) <= -1.0))
    return {
        "images": size,
        "gain": round(float(np.mean(gains)), 2),
        "best": round(float(np.mean(best)), 2),
        "lost": round(lost, 1),
    }


if __name__ == "__main__":
    main()
