"""How many blocks of the ancestry model should a shallower descendant of closed_form stand for?

Varied: the number of blocks, `teacher_depth`, from the descendant's own number of layers to all of
the ancestry model's, at nine sizes; of a real DINOv2-S at 112 pixels, and of the bundled ancestry
model. As many blocks as layers at full width are the first blocks as they are (`first_k`).

Measured: a ridge regression on the frozen features and the 5 nearest neighbours, without any
training of the model (training/probes.py). Both are fitted to 500 images of a task's training
split, with which the descendants of DINOv2-S are also calibrated (those of the bundled model with
its source task, as its learngene is), and judged on at most 600 other images of it. No validation
or test image is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes; the tasks must be installed (`lgzoo show clipart` prints how).

    python benchmarks/closed_form_truncation.py --ancestry DINOV2 [--only WORD ...]
    python benchmarks/closed_form_truncation.py [--only WORD ...]    of the bundled model
    python benchmarks/closed_form_truncation.py --table              write the tables

Results: benchmarks/results/closed_form_truncation.jsonl.
Page: docs/results/closed_form.md.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch

import machine
from finetune_rates import choose_images
from learngene_zoo.plugin import build_model, fill_missing_tensors, remove_head, take_blocks
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from learngene_zoo.training.probes import compute_features, run_probe
from lgzoo_closed_form.calibration import Calibration, record_teacher
from lgzoo_closed_form.descendant_size import MAX_COST, find_best_cuts
from lgzoo_closed_form.modules.solve import measure_costs, solve_descendant
from lgzoo_closed_form.modules.streams import StreamTeacher
from lgzoo_closed_form.modules.width import build_projection, compute_directions
from pages import DOCS, replace_between
from rows import append_row, read_rows

ROWS = machine.RESULTS / "closed_form_truncation.jsonl"
PIXELS, JUDGED = 112, 600
TASKS = {
    "dinov2": ("emoji", "fashion_mnist", "clipart"),
    "bundled": ("digits", "fashion_mnist", "petals", "signs"),
}
# At full width, and at two thirds and about half or a third of it.
SIZES = {
    "dinov2": (
        (3, 384),
        (6, 384),
        (9, 384),
        (3, 256),
        (6, 256),
        (9, 256),
        (3, 192),
        (6, 192),
        (9, 192),
    ),
    "bundled": ((3, 96), (6, 96), (9, 96), (3, 64), (6, 64), (9, 64), (3, 32), (6, 32), (9, 32)),
}
LIMITS = (0.03, 0.05, 0.1, 0.15)  # of the rule, compared
MORE = (0, 1, 2, 3)  # blocks beyond the layers, and all


class Cell(NamedTuple):
    """A descendant on a task."""

    ancestry: str
    task: str
    layers: int
    width: int
    depth: int


def main() -> None:
    """Measure the missing cells, print the tables and write them."""
    measure_named_tasks(__doc__, TASKS, measure_task)
    for name in TASKS:
        table = make_table(name, read_rows(ROWS))
        replace_between(DOCS / "results" / "closed_form.md", f"truncation-{name}", table)
        print(f"{table}\n")


def measure_named_tasks(
    description: str | None,
    tasks: Mapping[str, Sequence[str]],
    measure: Callable[[str, str, str], None],
) -> None:
    """Measure the tasks that the command line names; none with `--table`.

    Args:
        description: of the program.
        tasks: of "dinov2" and of "bundled".
        measure: called with one of these names, the ancestry model and a task.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ancestry", help="the folder of DINOv2-S (default: the bundled model)")
    parser.add_argument("--only", nargs="*", default=[], help="tasks (default: all)")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    name = "dinov2" if args.ancestry else "bundled"
    for task in () if args.table else tasks[name]:
        if not args.only or task in args.only:
            measure(name, args.ancestry or "bundled", task)


def measure_task(name: str, ancestry: str, task_name: str) -> None:
    """Measure all sizes on a task. The streams are recorded once."""
    measured_cells = {tuple(row[field] for field in Cell._fields) for row in read_rows(ROWS)}
    torch.set_num_threads(1)
    run = Run(seed=0, threads=1, device=machine.DEVICE)
    opened = open_ancestry(ancestry, image_size=PIXELS if name == "dinov2" else None)
    cells = [
        cell
        for cell in list_cells(name, task_name, opened.spec.layers)
        if tuple(cell) not in measured_cells
    ]
    if not cells:
        return
    task = choose_images(open_task(task_name), run.seed)
    calibration_task = task if name == "dinov2" else open_task(SOURCE_TASK)
    settings, spec = Calibration(), opened.spec
    state = remove_head(opened.state, spec)
    teacher = record_teacher(state, spec, settings, calibration_task, opened.input_format, run)
    costs = measure_costs(teacher, settings.ridge)
    for cell in cells:
        start = time.monotonic()
        cut = find_best_cuts(costs, cell.depth)[cell.layers - 1]
        model = build_variant(teacher, cell, cut.runs, settings)
        finish = time.monotonic()
        train, held_out = (
            compute_features(model, task, split, opened.input_format, run, images=JUDGED)
            for split in ("train", "validation")
        )
        ridge = run_probe(train, held_out, task, "validation", "ridge", seed=0)
        neighbours = run_probe(train, held_out, task, "validation", "knn", seed=0)
        row = {
            **cell._asdict(),
            "runs": list(cut.runs),
            "objective": round(cut.objective, 4),
            "ridge": ridge.value,
            "knn": neighbours.value,
            "images": ridge.images,
            "seconds": round(finish - start, 1),
            **machine.describe_device(),
        }
        append_row(ROWS, row)
        print(row, flush=True)


def list_cells(name: str, task: str, ancestry_layers: int) -> Iterator[Cell]:
    """Yield the descendants on a task."""
    for layers, width in SIZES[name]:
        depths = {min(layers + more, ancestry_layers) for more in MORE} | {ancestry_layers}
        for depth in sorted(depths):
            yield Cell(name, task, layers, width, depth)


def build_variant(
    teacher: StreamTeacher,
    cell: Cell,
    runs: Sequence[int],
    settings: Calibration,
    heads: int | None = None,
) -> Any:
    """Return the descendant that replaces the first blocks of the ancestry model.

    Its heads have all channels unless another number of them is given.
    """
    full_spec = teacher.spec
    spec = full_spec.with_(layers=cell.depth)
    state = take_blocks(teacher.state, full_spec, range(cell.depth))
    streams = teacher.streams.truncate(cell.depth)
    first = StreamTeacher(spec, state, build_model(spec, state), teacher.pictures, streams)
    projection = None
    if cell.width != full_spec.width:
        directions, _ = compute_directions(streams, teacher.pictures)
        projection = build_projection(directions, cell.width)
    heads = heads or cell.width // full_spec.head_width
    body = full_spec.with_(layers=cell.layers, width=cell.width, heads=heads)
    parts = solve_descendant(first, body, runs, projection, rho=settings.ridge)
    return build_model(body, fill_missing_tensors(body, dict(parts), seed=0))


def make_table(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean accuracies of the tasks in Markdown: a size a row, a depth a column.

    The last column has the depth of `choose_cut`'s rule. Below it are the means over all sizes
    by the limit of the rule.
    """
    rows = [row for row in rows if row["ancestry"] == name]
    names = [*(f"+ {more}" if more else "as many as layers" for more in MORE), "all", "chosen"]
    lines = [
        f"| size | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for layers, width in SIZES[name]:
        rows_of_size = [row for row in rows if (row["layers"], row["width"]) == (layers, width)]
        if not rows_of_size:
            continue
        last = max(row["depth"] for row in rows_of_size)
        tasks = {row["task"] for row in rows_of_size}
        columns = [
            *([row for row in rows_of_size if row["depth"] == layers + more] for more in MORE),
            [row for row in rows_of_size if row["depth"] == last],
            [row for row in rows_of_size if row["depth"] == choose_depth(row, rows_of_size)],
        ]
        cells = [describe(column) if len(column) == len(tasks) else "" for column in columns]
        lines.append(f"| {layers} x {width} | {' | '.join(cells)} |")
    measured = ", ".join(task for task in TASKS[name] if task in {row["task"] for row in rows})
    lines += ["", f"Means over {measured}; the rule's limit is {MAX_COST:g}."]
    means = ", ".join(f"{limit:g}: {describe_rule(rows, limit)}" for limit in LIMITS)
    lines += ["", f"Means over all sizes by the limit: {means}."]
    return "\n".join(lines)


def describe_rule(rows: Sequence[dict[str, Any]], limit: float) -> str:
    """Return the means of both probes over all sizes and tasks by the rule with another limit."""
    chosen = []
    for key in dict.fromkeys((row["task"], row["layers"], row["width"]) for row in rows):
        same = [row for row in rows if (row["task"], row["layers"], row["width"]) == key]
        fitting = [row for row in same if row["objective"] <= limit]
        chosen.append(max(fitting, key=lambda row: row["depth"]))
    return describe(chosen)


def choose_depth(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> int:
    """Return the depth of the rule for a row's task and size, of those that were measured."""
    same = [other for other in rows if other["task"] == row["task"]]
    return max(other["depth"] for other in same if other["objective"] <= MAX_COST)


def describe(rows: Sequence[dict[str, Any]]) -> str:
    """Return the means of both probes, per cent."""
    return " / ".join(f"{100 * mean(row[name] for row in rows):.1f}" for name in ("ridge", "knn"))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
