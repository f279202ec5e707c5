"""Which learning rate does fine-tuning need, once the head starts from a ridge regression? On real models and on the bundled one.

    python benchmarks/finetune_rates.py --ancestry DINOV2 [--workers 2] [--only WORD ...]    measure what is missing (resumable)
    python benchmarks/finetune_rates.py --table                                              the table again, from the results

DINOV2 is what `python benchmarks/real_ancestries.py dinov2-small DINOV2` wrote; the tasks are those of the suite `pictures` and
fashion_mnist, which must be installed (`lgzoo show stamps` says how). Of DINOv2-S at 56 pixels the ancestry model itself and
descendants by five methods, and of the bundled model descendants by four, are fine-tuned on 500 images of each task for 8 epochs
at six rates, with all other settings those of `lgzoo finetune`. What counts is the accuracy on at most 500 validation images: that
of the best epoch, the start included, and that of the last. No test image is read. Rows are kept in
benchmarks/results/finetune_rates.jsonl, the means in finetune_rates.json and the table in docs/training.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from multiprocessing import get_context
from statistics import mean
from typing import Any, NamedTuple

import machine

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.shelf import Learngene
from learngene_zoo.errors import TrainingFailed
from learngene_zoo.method import METHODS, Target
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.splits import with_validation
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.fit import fit
from learngene_zoo.training.heads import initialise_head

ROWS = machine.RESULTS / "finetune_rates.jsonl"
RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
IMAGES, EPOCHS, VALIDATION = 500, 8, 500
CALIBRATION = 500  # images that a learngene is extracted from
REAL_TASKS = ("stamps", "clipart", "emoji", "fashion_mnist")
BUNDLED_TASKS = ("digits", "fashion_mnist", "petals", "signs")
PIXELS = 56


class Start(NamedTuple):
    """What is fine-tuned: a descendant, or the ancestry model as a descendant of all its blocks."""

    ancestry: str  # `dinov2` or `bundled`
    method: str
    layers: int
    width: int
    task: str
    seed: int = 0

    @property
    def name(self) -> str:
        """Its size and method."""
        return f"{self.ancestry} {self.method} {self.layers} x {self.width}"


REAL_SIZES = (
    ("first_k", 12, 384),  # the ancestry model itself
    ("first_k", 6, 384),
    ("closed_form", 6, 384),
    ("evenly_spaced", 6, 384),
    ("closed_form", 6, 256),
    ("weight_selection", 6, 256),
    ("closed_form", 6, 192),
    ("weight_selection", 6, 192),
    ("pruning", 12, 384),
)
BUNDLED_SIZES = (
    ("first_k", 12, 96),  # the ancestry model itself
    ("first_k", 6, 96),
    ("closed_form", 6, 96),
    ("closed_form", 6, 64),
    ("weight_selection", 6, 64),
    ("lsamd", 7, 96),
)


def main() -> None:
    """Measure what is missing, print the table, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ancestry", help="the folder of DINOv2-S; without it only the bundled model is measured")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="cells whose description contains all of these words")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    given = parser.parse_args()
    rows = read_rows()
    done = {(row["start"], row["task"], row["lr"], row["seed"]) for row in rows}
    starts = [*list_starts("bundled", BUNDLED_SIZES, BUNDLED_TASKS)]
    if given.ancestry:
        starts = [*list_starts("dinov2", REAL_SIZES, REAL_TASKS), *starts]
    waiting = {
        start: [rate for rate in RATES if (start.name, start.task, rate, start.seed) not in done]
        for start in starts
        if all(word in f"{start.name} {start.task}" for word in given.only)
    }
    jobs = [(start, rates) for start, rates in waiting.items() if rates]
    if not given.table:
        measure(jobs, given.ancestry, given.workers)
    print(make_table(read_rows()))


def list_starts(ancestry: str, sizes: Sequence[tuple[str, int, int]], tasks: Sequence[str]) -> Iterator[Start]:
    """Yield every model on every task."""
    for method, layers, width in sizes:
        for task in tasks:
            yield Start(ancestry, method, layers, width, task)


def read_rows() -> list[dict[str, Any]]:
    """Return the results so far."""
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()] if ROWS.is_file() else []


def measure(jobs: Sequence[tuple[Start, list[float]]], ancestry: str | None, workers: int) -> None:
    """Measure the rates of every start, a start after the other in each process, and keep each row as it is there."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = {pool.submit(measure_start, start, rates, ancestry): start for start, rates in jobs}
        for number, done in enumerate(as_completed(waiting), start=1):
            start = waiting[done]
            print(f"{number} of {len(jobs)}: {start.name}, {start.task}", file=sys.stderr, flush=True)
            done.result()


def measure_start(start: Start, rates: Sequence[float], ancestry: str | None) -> None:
    """Fine-tune one model at several rates."""
    import torch

    torch.set_num_threads(1)
    run = Run(seed=start.seed, threads=1, device="cpu")
    task = with_validation(open_task(start.task))
    model = build_start(start, ancestry).for_task(
        task.name, task.class_names, seed=derive_seed(run.seed, "head"), dense=False
    )
    recipe = replace(lifecycle.FINETUNE, images=min(IMAGES, task.sizes["train"]), epochs=EPOCHS)
    headed, head = initialise_head(model.with_fit("pad"), task, recipe, run)
    before = evaluate(headed.model(), task, "validation", headed.input_format, run, images=VALIDATION).value
    for rate in rates:
        history = [before]

        def watch(module: Any, history: list[float] = history) -> None:
            found = evaluate(module, task, "validation", headed.input_format, run, images=VALIDATION)
            history.append(found.value)

        try:
            fit(headed, task, replace(recipe, lr=rate), run, watch=watch, judge=False)
        except TrainingFailed:
            history.append(0.0)
        row = {
            "start": start.name,
            "task": start.task,
            "seed": start.seed,
            "lr": rate,
            "images": recipe.images,
            "left_out": head["left_out_accuracy"],
            "validation": [round(value, 4) for value in history],
        }
        with ROWS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def build_start(start: Start, ancestry: str | None) -> Descendant:
    """Return the model before it is fine-tuned."""
    run = Run(seed=start.seed, threads=1, device="cpu", ancestry=ancestry if start.ancestry == "dinov2" else None)
    learngene = extract_learngene(start.ancestry, start.method, start.task, ancestry, start.seed)
    target = Target(layers=start.layers, width=start.width, task=start.task)
    return lifecycle.expand(learngene, target=target, run=run)


@lru_cache(maxsize=1)
def extract_learngene(ancestry: str, method: str, task: str, place: str | None, seed: int) -> Learngene:
    """Return a method's learngene; one that needs images is calibrated on training images of the task."""
    sources = (place,) if ancestry == "dinov2" and place else ()
    tasks = (task,) if METHODS.load(method).tasks != "none" else ()
    run = Run(seed=seed, threads=1, device="cpu")
    return lifecycle.extract(method, ancestries=sources, tasks=tasks, image_size=PIXELS if sources else None, run=run)


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for every model the means over its tasks, in per cent: before training, and at each rate the best and last epoch."""
    lines = []
    for name in dict.fromkeys(row["start"] for row in rows):
        own = [row for row in rows if row["start"] == name]
        every = {row["task"] for row in own}
        rates = [rate for rate in RATES if {row["task"] for row in own if row["lr"] == rate} == every]
        at = {rate: [row["validation"] for row in own if row["lr"] == rate] for rate in rates}
        lines.append(
            {
                "start": name,
                "tasks": sorted(every),
                "before": round(100 * mean(row["validation"][0] for row in own), 1),
                "best": {f"{rate:g}": round(100 * mean(map(max, values)), 1) for rate, values in at.items()},
                "last": {
                    f"{rate:g}": round(100 * mean(value[-1] for value in values), 1) for rate, values in at.items()
                },
            }
        )
    return lines


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the means over tasks in Markdown: `best / last` epoch at each rate."""
    lines = [
        f"| model | before | {' | '.join(f'{rate:g}' for rate in RATES)} |",
        "|---|---:|" + "---:|" * len(RATES),
    ]
    for line in summarise(rows):
        top = max(line["last"].values(), default=0.0)
        cells = [
            f"{line['best'][name]} / {'**' if line['last'][name] == top else ''}{line['last'][name]}"
            f"{'**' if line['last'][name] == top else ''}"
            if (name := f"{rate:g}") in line["last"]
            else ""
            for rate in RATES
        ]
        lines.append(f"| {line['start']} | {line['before']} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
