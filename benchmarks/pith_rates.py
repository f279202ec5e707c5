"""Which learning rates train PITH from the start `projections`, for every seed, and from noise?

Varied: the start of P and Q, the stages (stage 2 alone, or both), their learning rates and warm-up
(`CELLS`), and the seed (those of the claim pith-shuffled whose trainings failed). All other
settings are those of the claim: the preset `mini` with 77,000 images of the source task in stage 1,
and seven tasks of at most 10,000 images for 5 epochs in stage 2.

Measured: the accuracy of untrained models on 300 validation images of each of the seven tasks, the
mean over the tasks, by size. No test image is read.

Command: resumable; 10 to 16 minutes on one core for each training.

    python benchmarks/pith_rates.py [--workers 2] [--only WORD ...]
    python benchmarks/pith_rates.py --table    write the table from the results

Results: benchmarks/results/pith_rates.jsonl.
Page: docs/results/pith.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

import machine
from learngene_zoo import lifecycle
from learngene_zoo.runs.run import Run
from pages import DOCS, replace_between
from rows import find_missing, measure_cells, read_rows

ROWS = machine.RESULTS / "pith_rates.jsonl"
TASKS = ("objects", "figures", "textures", "signs", "glyphs", "numbers", "motion")
SEEDS = (2, 4, 6)
SIZES = ("3x96", "8x96", "12x96")
IMAGES, TUNING_IMAGES, TUNING_EPOCHS, JUDGED = 77_000, 10_000, 5, 300


class Cell(NamedTuple):
    """A training: the start, the learning rates and epochs of warm-up of both stages, the seed."""

    start: str
    lr: float | None  # None: stage 2 alone
    warmup: float | None
    tuning_lr: float
    tuning_warmup: float
    seed: int

    @property
    def name(self) -> str:
        """All fields as text."""
        return " ".join(f"{name} {value}" for name, value in self._asdict().items())


# 3e-4 with a warm-up of 0.05 is the rate of the claim, 1e-4 that of the preset `mini`.
CELLS = (
    Cell("projections", None, None, 3e-4, 0.05, 4),
    Cell("projections", None, None, 1e-4, 0.5, 4),
    *(Cell("projections", 1e-4, 0.2, 1e-4, 0.5, seed) for seed in SEEDS),
    Cell("noise", 3e-4, 0.05, 3e-4, 0.05, 2),
    Cell("noise", 1e-4, 0.2, 1e-4, 0.5, 2),
)


def main() -> None:
    """Measure the missing trainings, print the table and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--only", nargs="*", default=[], help="cells whose description contains all of these words"
    )
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.table:
        missing = find_missing(ROWS, CELLS, args.only)
        measure_cells(ROWS, missing, measure_cell, args.workers, None)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "pith.md", "rates", table)
    print(table)


def measure_cell(cell: Cell, source: str | None) -> dict[str, Any]:
    """Train a hypernetwork, and return the row."""
    stage_1 = {"lr": cell.lr, "warmup": cell.warmup, "images": IMAGES}
    learngene = lifecycle.extract(
        "pith",
        tasks=TASKS,
        run=Run(seed=cell.seed, threads=1, device=machine.DEVICE),
        start=cell.start,
        tuning_lr=cell.tuning_lr,
        tuning_warmup=cell.tuning_warmup,
        tuning_images=TUNING_IMAGES,
        tuning_epochs=TUNING_EPOCHS,
        judged=JUDGED,
        **({"source": None} if cell.lr is None else stage_1),
    )
    metrics: Any = learngene.config.metrics["stage_2"]
    untrained = metrics["untrained"]
    means = {size: round(mean(untrained[task][size] for task in TASKS), 4) for size in SIZES}
    return {**cell._asdict(), **means, **machine.describe_device()}


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean accuracies over the tasks in Markdown, per cent: a training a row."""
    lines = [
        f"| start | stage 1 | stage 2 | seed | {' | '.join(SIZES)} |",
        f"|---|---|---|---:|{'---:|' * len(SIZES)}",
    ]
    for row in sorted(rows, key=lambda row: CELLS.index(get_cell(row))):
        first = describe_stage(row["lr"], row["warmup"])
        second = describe_stage(row["tuning_lr"], row["tuning_warmup"])
        accuracies = " | ".join(f"{100 * row[size]:.1f}" for size in SIZES)
        lines.append(f"| {row['start']} | {first} | {second} | {row['seed']} | {accuracies} |")
    return "\n".join(lines)


def get_cell(row: dict[str, Any]) -> Cell:
    """Return the training of a row."""
    return Cell(*(row[name] for name in Cell._fields))


def describe_stage(lr: float | None, warmup: float | None) -> str:
    """Return the rate and the warm-up of a stage."""
    return "none" if lr is None else f"{lr:g}, warm-up {warmup:g}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
