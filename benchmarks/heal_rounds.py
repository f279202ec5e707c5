"""Is healing through an intermediate size better than one healing of the same length?

Varied: the method and the size of a large reduction of the bundled ancestry model, and the schedule
(`ARMS`): one healing, one of twice as many epochs, and two rounds (`lgzoo heal --rounds 2`), which
take as many epochs in all. The images are training images of fashion_mnist, without labels; which
of them, and their order, is drawn from the seed. closed_form is calibrated with the images of the
healing.

Measured: the accuracy of a ridge regression on the frozen features before and after healing, fitted
to 500 training images with labels and judged on 1,000 validation images. No test image is read.

Command: resumable.

    python benchmarks/heal_rounds.py [--workers 2] [--only WORD ...]
    python benchmarks/heal_rounds.py --table    write the table from the results

Results: benchmarks/results/heal_rounds.jsonl.
Page: docs/results/heal.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch

import machine
from command_line import read_arguments
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.probes import compute_features, run_probe
from pages import DOCS, replace_between
from rows import find_missing, measure_cells, read_rows

ROWS = machine.RESULTS / "heal_rounds.jsonl"
TASK, UNLABELLED, LABELLED, JUDGED = "fashion_mnist", 2_000, 500, 1_000
MODELS = (
    ("closed_form", 3, 32),
    ("weight_selection", 3, 32),
    ("weight_subcloning", 3, 32),
    ("first_k", 3, 96),
)
# Epochs of a round and number of rounds, by name; every healing has the default learning rate.
ARMS = {"4 epochs": (4, 1), "8 epochs": (8, 1), "2 rounds of 4 epochs": (4, 2)}
SEEDS = 3


class Cell(NamedTuple):
    """A healing."""

    method: str
    layers: int
    width: int
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """The words that `--only` searches."""
        return " ".join(map(str, self))


def main() -> None:
    """Measure the missing cells, print the table and write it."""
    args = read_arguments(__doc__, ancestry=None)
    if not args.table:
        cells = find_missing(ROWS, list_cells(), args.only)
        measure_cells(ROWS, cells, measure_cell, args.workers, None)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "heal.md", "heal-rounds", table)
    print(table)


def list_cells() -> Iterator[Cell]:
    """Yield every cell, the first seed first."""
    for seed in range(SEEDS):
        for model in MODELS:
            for arm in ARMS:
                yield Cell(*model, arm, seed)


def measure_cell(cell: Cell, _: str | None) -> dict[str, Any]:
    """Build and heal a descendant; return the row of both probes."""
    torch.set_num_threads(1)
    start = time.monotonic()
    run = Run(seed=cell.seed, threads=1, device=machine.DEVICE)
    tasks = (TASK,) if cell.method in ("closed_form", "weight_subcloning") else ()
    learngene = lifecycle.extract(cell.method, tasks=tasks, run=run)
    model = lifecycle.expand(learngene, layers=cell.layers, width=cell.width, run=run)
    epochs, rounds = ARMS[cell.arm]
    healed = lifecycle.heal(
        model, TASK, epochs=epochs, rounds=rounds, max_images=UNLABELLED, run=run
    )
    return {
        **cell._asdict(),
        "before": measure_probe(model, run),
        "healed": measure_probe(healed, run),
        "seconds": round(time.monotonic() - start, 1),
        **machine.describe_device(),
    }


def measure_probe(model: Descendant, run: Run) -> float:
    """Return the accuracy on validation images of a ridge regression on the features."""
    task = open_task(TASK)
    train, judged = (
        compute_features(model.model(), task, split, model.input_format, run, images=images)
        for split, images in (("train", LABELLED), ("validation", JUDGED))
    )
    return run_probe(train, judged, task, "validation", "ridge", seed=run.seed).value


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean accuracies in Markdown, per cent, and the lead of two rounds over one healing
    of as many epochs, by seed: a model a row.
    """
    lines = [
        f"| model | before | {' | '.join(ARMS)} | rounds ahead, by seed |",
        f"|---|{'---:|' * (len(ARMS) + 2)}",
    ]
    _, long, divided = ARMS
    for method, layers, width in MODELS:
        own = [
            row
            for row in rows
            if (row["method"], row["layers"], row["width"]) == (method, layers, width)
        ]
        healed = {(row["arm"], row["seed"]): row["healed"] for row in own}
        seeds = [seed for seed in range(SEEDS) if all((arm, seed) in healed for arm in ARMS)]
        if not seeds:
            continue
        before = mean(row["before"] for row in own if row["seed"] in seeds)
        means = [mean(healed[arm, seed] for seed in seeds) for arm in ARMS]
        leads = [healed[divided, seed] - healed[long, seed] for seed in seeds]
        cells = [f"{100 * value:.1f}" for value in (before, *means)]
        ahead = " ".join(f"{100 * lead:+.1f}" for lead in leads)
        lines.append(f"| {method} {layers} x {width} | {' | '.join(cells)} | {ahead} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
