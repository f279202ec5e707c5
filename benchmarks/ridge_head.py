"""What does the ridge regression cost that a head starts from?

Varied: the model: a descendant of the bundled ancestry model on `digits`, and with DINOV2 the first
six blocks of DINOv2-S on `stamps` at 112 pixels, each with at most 500 images.

Measured: with one thread, the seconds of the head, of its regression alone (without the passes of
the model over the images and their augmented copies) and of one epoch of fine-tuning on the same
images, each the median of three runs; and the most memory that NumPy holds during the regression.

Command: DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small DINOV2` writes.

    python benchmarks/ridge_head.py [--ancestry DINOV2]

Results: benchmarks/results/ridge_head.json.
Page: docs/results/finetuning.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import write_json
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.splits.cutting import ensure_validation
from learngene_zoo.training.fit import fit
from learngene_zoo.training.heads import initialise_head
from learngene_zoo.training.probes import Features, fit_ridge
from pages import DOCS, replace_between

IMAGES, ROUNDS = 500, 3


def main() -> None:
    """Measure, write the results, and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ancestry", help="the folder of DINOv2-S")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = Run(threads=1, device=machine.DEVICE)
    models = {
        "bundled": (
            lifecycle.expand("closed_form-mini", layers=6, task="digits", run=run),
            "digits",
        )
    }
    if args.ancestry:
        learngene = lifecycle.extract("first_k", ancestries=args.ancestry, image_size=112, run=run)
        models["DINOv2-S"] = (
            lifecycle.expand(learngene, layers=6, task="stamps", run=run),
            "stamps",
        )
    rows = [measure_model(name, model, task, run) for name, (model, task) in models.items()]
    write_json(machine.RESULTS / "ridge_head.json", {"machine": machine.machine(), "rows": rows})
    lines = [
        "| model | task, images | ridge head | of it the regression | memory | one epoch |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        times = [f"{row[name]:.2g} s" for name in ("head", "regression")]
        lines.append(
            f"| {row['model']} | {row['task']}, {row['images']} | {' | '.join(times)} |"
            f" {row['megabytes']:.0f} MB | {row['epoch']:.2g} s |"
        )
    replace_between(DOCS / "results" / "finetuning.md", "ridge-head", "\n".join(lines))
    print("\n".join(lines))


def measure_model(name: str, model: Descendant, task_name: str, run: Run) -> dict[str, Any]:
    """Return the seconds of the head, of its regression and of an epoch, and the memory of the
    regression in megabytes.
    """
    task = ensure_validation(open_task(task_name))
    start = model.for_task(task.name, task.class_names, seed=0, dense=False)
    images = min(IMAGES, task.sizes["train"])
    rate, decay = lifecycle.choose_rates(start)
    recipe = replace(lifecycle.FINETUNE, images=images, epochs=1, lr=rate, layer_decay=decay)
    # Features of the shapes that the head sees: each image twice.
    draws = np.random.default_rng(0)
    features = Features(
        draws.normal(size=(2 * images, model.spec.width)).astype(np.float32),
        np.tile(np.arange(images) % task.classes, 2),
    )
    seconds: dict[str, list[float]] = {"head": [], "regression": [], "epoch": []}
    initialise_head(start, task, recipe, run)  # reads the pictures into memory
    for _ in range(ROUNDS):
        for part, call in (
            ("head", lambda: initialise_head(start, task, recipe, run)),
            ("regression", lambda: fit_ridge(features, task.classes, copies=2)),
            ("epoch", lambda: fit(start, task, recipe, run, judge=False)),
        ):
            start_time = time.perf_counter()
            call()
            seconds[part].append(time.perf_counter() - start_time)
    tracemalloc.start()
    fit_ridge(features, task.classes, copies=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    medians = {part: statistics.median(values) for part, values in seconds.items()}
    return {
        "model": f"{name}, {model.spec.layers} x {model.spec.width}",
        "task": task_name,
        "images": images,
        **medians,
        "megabytes": peak / 1e6,
    }


if __name__ == "__main__":
    main()
