"""How many calibration images and tokens does closed_form need?

Varied: the images of the calibration, and the recorded tokens of each (the bundled model has 17,
DINOv2-S at 112 pixels 65). The descendants are at the default depth, which follows from the same
images. `plain`: with costs of runs as they were before two corrections, of the number of rows by
which they are compared and of the fit to few rows (solve.py).

Measured: a ridge regression on the frozen features and the nearest neighbours, as in
closed_form_truncation.py. No validation or test image is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes.

    python benchmarks/archive/closed_form_calibration.py [--ancestry DINOV2]
    python benchmarks/archive/closed_form_calibration.py --table

Results: benchmarks/results/closed_form_calibration.jsonl.
Page: docs/results/closed_form.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice, product
from typing import Any

import closed_form_cosine as trials
import torch

import closed_form_truncation as truncation
import machine
from finetune_rates import choose_images
from learngene_zoo.plugin import remove_head
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from lgzoo_closed_form.calibration import Calibration, record_teacher
from lgzoo_closed_form.descendant_size import choose_cut
from lgzoo_closed_form.modules.ridge import Sums
from lgzoo_closed_form.modules.solve import MIN_COST_ROWS, measure_costs
from lgzoo_closed_form.modules.streams import StreamTeacher
from pages import DOCS, replace_between
from rows import append_row, read_rows

ROWS = machine.RESULTS / "closed_form_calibration.jsonl"
TASKS = {"bundled": truncation.TASKS["bundled"], "dinov2": ("emoji",)}
SIZES = {"bundled": ((6, 96), (3, 64), (6, 64), (6, 32)), "dinov2": ((6, 256),)}
ARMS = {  # images and tokens
    "bundled": ((25, 32), (2000, 32), (100, 32), (50, 32), (600, 32), (600, 5), (2000, 5)),
    "dinov2": ((100, 32), (500, 32)),
}


def main() -> None:
    """Measure what is missing, print the table, and keep it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ancestry", help="the folder of DINOv2-S (default: the bundled model)")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    given = parser.parse_args()
    if not given.table:
        name = "dinov2" if given.ancestry else "bundled"
        for images, tokens in ARMS[name]:
            measure_arm(name, given.ancestry or "bundled", images, tokens)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "closed_form.md", "calibration", table)
    print(table)


def measure_arm(name: str, ancestry: str, images: int, tokens: int) -> None:
    """Measure all sizes and tasks with a calibration, with both kinds of costs."""
    key = {"ancestry": name, "images": images, "tokens": tokens}
    done = {
        (row["layers"], row["width"], row["plain"])
        for row in read_rows(ROWS)
        if all(row[field] == key[field] for field in key)
    }
    cells = [(*size, plain) for size in SIZES[name] for plain in (False, True)]
    if done >= set(cells):
        return
    torch.set_num_threads(1)
    run = Run(seed=0, threads=1, device="cpu")
    opened = open_ancestry(ancestry, image_size=truncation.PIXELS if name == "dinov2" else None)
    tasks = {task: choose_images(open_task(task), run.seed) for task in TASKS[name]}
    seen = tasks[TASKS[name][0]] if name == "dinov2" else open_task(SOURCE_TASK)
    settings = Calibration(images=images, tokens=tokens)
    state = remove_head(opened.state, opened.spec)
    teacher = record_teacher(state, opened.spec, settings, seen, opened.input_format, run)
    costs = {
        False: measure_costs(teacher, settings.ridge),
        True: measure_plain_costs(teacher, settings.ridge),
    }
    built: dict[tuple[int, int, int], Any] = {}
    for layers, width, plain in cells:
        if (layers, width, plain) in done:
            continue
        cut = choose_cut(costs[plain], layers)
        size = (layers, width, cut.depth)
        if size not in built:
            model, _ = trials.build_variant(teacher, layers, width, (cut.runs, cut.depth), settings)
            built[size] = {
                task: trials.measure_probes(model, tasks[task], opened.input_format, run)
                for task in tasks
            }
        row = {**key, "layers": layers, "width": width, "plain": plain, "depth": cut.depth}
        append_row(ROWS, {**row, "probes": built[size]})
        print(row, flush=True)


def measure_plain_costs(teacher: StreamTeacher, rho: float) -> list[list[float]]:
    """Return the costs of runs without both corrections."""
    rows = max(MIN_COST_ROWS, 5 * teacher.spec.hidden)
    weights = teacher.pictures.weights
    every = max(round(len(weights) / rows), 1)
    parts = islice(teacher.pictures.iterate_rows(), None, None, every)
    share = float(sum(part.sum() for _, part in parts) / weights.sum())
    count_degrees, Sums.count_degrees = Sums.count_degrees, lambda self, rho: 0.0
    try:
        costs = measure_costs(teacher, rho)
    finally:
        Sums.count_degrees = count_degrees
    return [[share * cost for cost in row] for row in costs]


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean accuracies of the tasks in Markdown: a size a row, a calibration a column.

    Each is preceded by the depth.
    """
    lines = []
    for name, arms in ARMS.items():
        arms = sorted(arms, key=lambda arm: (-arm[1], arm[0]))
        titles = [f"{images} x {tokens}" for images, tokens in arms]
        lines += ["", f"| images x tokens | {' | '.join(titles)} |", f"|---|{'---:|' * len(arms)}"]
        for (layers, width), plain in product(SIZES[name], (False, True)):
            cells = []
            for images, tokens in arms:
                key = (name, layers, width, images, tokens, plain)
                fields = ("ancestry", "layers", "width", "images", "tokens", "plain")
                found = [row for row in rows if tuple(row[field] for field in fields) == key]
                cells.append(
                    f"{found[0]['depth']}: {truncation.describe(list(found[0]['probes'].values()))}"
                    if found
                    else ""
                )
            label = f"{name} {layers} x {width}" + (", plain" if plain else "")
            if any(cells):
                lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines[1:])


if __name__ == "__main__":
    main()
