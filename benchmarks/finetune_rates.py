"""Which learning rate and layer decay does fine-tuning need after the ridge head?

Varied: the pairs of learning rate and layer decay (`WIDE_RATES`, `BUNDLED_RATES`), on models built
from a real DINOv2-S at 112 pixels and from the bundled ancestry model, on tasks of the suite
`pictures`, fashion_mnist and the suite `mini`.

Measured: the accuracy after 20 epochs of 500 images, on at most 1,000 other images of the task's
training split; all other settings are those of `lgzoo finetune`. No validation or test image is
read. Rows have the images that the model classifies correctly before training and after every
second epoch, from which rules that choose an epoch are compared.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes; the tasks must be installed (`lgzoo show clipart` prints how).

    python benchmarks/finetune_rates.py --ancestry DINOV2 [--workers 2] [--only WORD ...]
            [--rates LR:DECAY ...]
    python benchmarks/finetune_rates.py --table    write the tables from the results

Results: benchmarks/results/finetune_rates.jsonl.
Page: docs/results/finetuning.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from multiprocessing import get_context
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.bench.results.rows import pack_flags, unpack_flags
from learngene_zoo.errors import TrainingFailed
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import Evaluation, evaluate
from learngene_zoo.training.fit import fit
from learngene_zoo.training.heads import initialise_head
from learngene_zoo.training.tuning import Epoch, choose_epoch
from pages import DOCS, replace_between
from probes import hold_out_images
from rows import append_row, read_rows

ROWS = machine.RESULTS / "finetune_rates.jsonl"
# Learning rate and layer decay, for descendants of a wide ancestry model and of the bundled one.
WIDE_RATES = ((3e-5, 1.0), (5e-5, 0.75), (1e-4, 0.75), (2e-4, 0.75), (4e-4, 0.75))
BUNDLED_RATES = ((3e-4, 1.0), (1e-3, 1.0), (3e-3, 1.0), (1e-3, 0.75), (3e-3, 0.75))
IMAGES, HELD_OUT = 500, 1000
EVALUATED_EVERY = 2  # epochs
CHOOSING, DRAWS = 50, 1000  # validation images that choose an epoch, and how often they are drawn
REAL_TASKS = ("clipart", "emoji", "fashion_mnist")
BUNDLED_TASKS = ("digits", "fashion_mnist", "petals", "signs")
PIXELS = 112


class Start(NamedTuple):
    """A model before fine-tuning: a descendant, or the ancestry model itself."""

    ancestry: str  # `dinov2` or `bundled`
    method: str
    layers: int
    width: int
    task: str
    seed: int = 0

    @property
    def name(self) -> str:
        """The ancestry model, the method and the size."""
        return f"{self.ancestry} {self.method} {self.layers} x {self.width}"


REAL_SIZES = (
    ("first_k", 6, 384),
    ("closed_form", 6, 384),
    ("closed_form", 6, 256),
    ("closed_form", 6, 192),
    ("weight_selection", 6, 256),
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
    """Measure the missing trainings, print the tables and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ancestry", help="the folder of DINOv2-S; without it only the bundled model is measured"
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--only", nargs="*", default=[], help="cells whose description contains all of these words"
    )
    parser.add_argument(
        "--rates", nargs="*", default=[], help="only these pairs, such as 5e-5:0.75"
    )
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    rows = read_rows(ROWS)
    measured = {
        (row["start"], row["task"], row["lr"], row["layer_decay"], row["seed"]) for row in rows
    }
    starts = [*list_starts("bundled", BUNDLED_SIZES, BUNDLED_TASKS)]
    if args.ancestry:
        starts = [*list_starts("dinov2", REAL_SIZES, REAL_TASKS), *starts]
    chosen = {tuple(map(float, pair.split(":"))) for pair in args.rates} or {
        *WIDE_RATES,
        *BUNDLED_RATES,
    }
    waiting = {
        start: [
            pair
            for pair in list_rates(start)
            if pair in chosen and (start.name, start.task, *pair, start.seed) not in measured
        ]
        for start in starts
        if all(word in f"{start.name} {start.task}" for word in args.only)
    }
    jobs = [(start, rates) for start, rates in waiting.items() if rates]
    if not args.table:
        measure_starts(jobs, args.ancestry, args.workers)
    rows = read_rows(ROWS)
    for name, table in (
        ("finetune-rates", make_table(rows)),
        ("kept-epoch", make_rule_table(rows)),
    ):
        replace_between(DOCS / "results" / "finetuning.md", name, table)
        print(f"{table}\n")


def list_rates(start: Start) -> Sequence[tuple[float, float]]:
    """Return the pairs of learning rate and layer decay that a model is fine-tuned with."""
    return BUNDLED_RATES if start.ancestry == "bundled" else WIDE_RATES


def list_starts(
    ancestry: str, sizes: Sequence[tuple[str, int, int]], tasks: Sequence[str]
) -> Iterator[Start]:
    """Yield every model on every task."""
    for method, layers, width in sizes:
        for task in tasks:
            yield Start(ancestry, method, layers, width, task)


def measure_starts(
    jobs: Sequence[tuple[Start, list[tuple[float, float]]]], ancestry: str | None, workers: int
) -> None:
    """Measure the rates of all models, one process for each model, and append each row when it is
    there.
    """
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = {
            pool.submit(measure_start, start, rates, ancestry): start for start, rates in jobs
        }
        for number, future in enumerate(as_completed(waiting), start=1):
            start = waiting[future]
            print(
                f"{number} of {len(jobs)}: {start.name}, {start.task}", file=sys.stderr, flush=True
            )
            future.result()


def measure_start(start: Start, rates: Sequence[tuple[float, float]], ancestry: str | None) -> None:
    """Fine-tune one model at several rates."""
    import torch

    torch.set_num_threads(1)
    run = Run(seed=start.seed, threads=1, device=machine.DEVICE)
    task = choose_images(open_task(start.task), start.seed)
    model = build_start(start, ancestry).for_task(
        task.name, task.class_names, seed=derive_seed(run.seed, "head"), dense=False
    )
    model = model.with_fit(lifecycle.choose_fit(model, task))
    for rate, decay in rates:
        recipe = replace(lifecycle.FINETUNE, lr=rate, layer_decay=decay)
        headed, head = initialise_head(model, task, recipe, run)
        before = evaluate(headed.model(), task, "validation", headed.input_format, run)
        history, epochs = [before], [0]

        def watch(
            module: Any,
            history: list[Evaluation] = history,
            epochs: list[int] = epochs,
            headed: Any = headed,
        ) -> None:
            epochs.append(len(epochs))
            if epochs[-1] % EVALUATED_EVERY == 0:
                history.append(evaluate(module, task, "validation", headed.input_format, run))

        try:
            fit(headed, task, recipe, run, watch=watch, judge=False)
        except TrainingFailed:
            history.append(replace(before, value=0.0, correct=(False,) * before.images))
        row = {
            "start": start.name,
            "task": start.task,
            "seed": start.seed,
            "lr": rate,
            "layer_decay": decay,
            "images": task.sizes["train"],
            "left_out": head["left_out_accuracy"],
            "validation": [round(epoch.value, 4) for epoch in history],
            "validation_images": before.images,
            "right": [pack_flags(epoch.correct) for epoch in history],
            **machine.describe_device(),
        }
        append_row(ROWS, row)


def choose_images(task: Task, seed: int) -> Task:
    """Return a task of at most `IMAGES` and 80 % of the training split to train on, and of at most
    `HELD_OUT` others to judge.
    """
    count = min(IMAGES, int(0.8 * task.sizes["train"]))
    return hold_out_images(task, slice(count), slice(count, count + HELD_OUT), seed)


def build_start(start: Start, ancestry: str | None) -> Descendant:
    """Return the model before it is fine-tuned."""
    run = Run(
        seed=start.seed,
        threads=1,
        device=machine.DEVICE,
        ancestry=ancestry if start.ancestry == "dinov2" else None,
    )
    learngene = extract_learngene(start.ancestry, start.method, start.task, ancestry, start.seed)
    target = Target(layers=start.layers, width=start.width, task=start.task)
    return lifecycle.expand(learngene, target=target, run=run)


@lru_cache(maxsize=1)
def extract_learngene(
    ancestry: str, method: str, task: str, folder: str | None, seed: int
) -> Learngene:
    """Return a method's learngene; one that needs images is calibrated on training images of the
    task.
    """
    sources = (folder,) if ancestry == "dinov2" and folder else ()
    tasks = (task,) if METHODS.load(method).tasks != "none" else ()
    run = Run(seed=seed, threads=1, device=machine.DEVICE)
    image_size = PIXELS if sources else None
    return lifecycle.extract(
        method, ancestries=sources, tasks=tasks, image_size=image_size, run=run
    )


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracy after the last epoch in Markdown, per cent: a model and a task a row."""
    pairs = [
        pair
        for pair in dict.fromkeys((*WIDE_RATES, *BUNDLED_RATES))
        if any(get_pair(row) == pair for row in rows)
    ]
    heads = [f"{rate:g}" + (f", decay {decay:g}" if decay != 1 else "") for rate, decay in pairs]
    lines = [
        f"| model | task (images) | ridge head | {' | '.join(heads)} |",
        "|---|---|---:|" + "---:|" * len(pairs),
    ]
    for name, task in dict.fromkeys((row["start"], row["task"]) for row in rows):
        rows_of_start = [row for row in rows if (row["start"], row["task"]) == (name, task)]
        images = rows_of_start[0]["validation_images"]
        cells = [
            describe_accuracy([row for row in rows_of_start if get_pair(row) == pair])
            for pair in pairs
        ]
        before = mean(row["validation"][0] for row in rows_of_start)
        lines.append(f"| {name} | {task} ({images}) | {100 * before:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_rule_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracy of the epochs that rules choose, in Markdown.

    It is measured on the validation images that did not choose the epoch. Only trainings with at
    least twice as many validation images as choose count.
    """
    rules: dict[str, Callable[[np.ndarray], int]] = {
        "start": lambda values: 0,
        "first of the best": lambda values: int(values.argmax()),
        "last of the best": lambda values: choose_kept_epoch(values, 0),
        "last within a standard error": lambda values: choose_kept_epoch(values, CHOOSING),
        "last epoch": lambda values: len(values) - 1,
    }
    lines = [
        f"| model | task | trainings | {' | '.join(rules)} |",
        "|---|---|---:|" + "---:|" * len(rules),
    ]
    usable_rows = [row for row in rows if row.get("validation_images", 0) >= 2 * CHOOSING]
    for name, task in dict.fromkeys((row["start"], row["task"]) for row in usable_rows):
        rows_of_start = [row for row in usable_rows if (row["start"], row["task"]) == (name, task)]
        accuracies = [measure_rules(row, list(rules.values())) for row in rows_of_start]
        cells = [f"{100 * mean(values):.1f}" for values in zip(*accuracies)]
        lines.append(f"| {name} | {task} | {len(rows_of_start)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measure_rules(row: dict[str, Any], rules: Sequence[Callable[[np.ndarray], int]]) -> list[float]:
    """Return, for each rule, the mean accuracy on the other images of the epoch that it chooses."""
    right_EN = np.array(
        [unpack_flags(digits, row["validation_images"]) for digits in row["right"]], dtype=float
    )
    draws, values = np.random.default_rng(0), np.zeros(len(rules))
    for _ in range(DRAWS):
        order_N = draws.permutation(right_EN.shape[1])
        chosen, held_out = right_EN[:, order_N[:CHOOSING]], right_EN[:, order_N[CHOOSING:]]
        accuracies_E = chosen.mean(axis=1)
        values += [held_out[rule(accuracies_E)].mean() for rule in rules]
    return [float(value) for value in values / DRAWS]


def choose_kept_epoch(accuracies_E: np.ndarray, images: int) -> int:
    """Return the number of the epoch that `lgzoo finetune` keeps."""
    history = [
        Epoch(epoch=number, step=number, loss=None, value=value)
        for number, value in enumerate(accuracies_E)
    ]
    chosen = choose_epoch(history, images)
    assert chosen is not None
    return chosen.epoch  # the number of the evaluation


def get_pair(row: dict[str, Any]) -> tuple[float, float]:
    """Return the learning rate and the layer decay of a row."""
    return row["lr"], row["layer_decay"]


def describe_accuracy(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracy after the last epoch in per cent, the mean over the seeds; "" if none."""
    return f"{100 * mean(row['validation'][-1] for row in rows):.1f}" if rows else ""


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
