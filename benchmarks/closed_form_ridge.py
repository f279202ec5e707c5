"""Does closed_form gain from another ridge penalty, one for all layers or one for each?

Varied: the relative penalty of every regression, and `chosen`: for each layer that of `PENALTIES`
with the smallest squared error on every fifth part of the recorded rows, then all rows are solved
with it. The class token's weight in the equations is varied with the default penalty. The
descendants are those of closed_form_truncation.py at the default depth.

Measured: a ridge regression on the frozen features and the nearest neighbours, as in
closed_form_truncation.py. No validation or test image is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes.

    python benchmarks/closed_form_ridge.py --ancestry DINOV2 [--only TASK ...]
    python benchmarks/closed_form_ridge.py [--only TASK ...]    of the bundled model
    python benchmarks/closed_form_ridge.py --table

Results: benchmarks/results/closed_form_ridge.jsonl.
Page: docs/results/closed_form.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

import torch

import closed_form_truncation as truncation
import lgzoo_closed_form.modules.solve as solving
import machine
from finetune_rates import choose_images
from learngene_zoo.plugin import remove_head
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from learngene_zoo.training.probes import compute_features, run_probe
from lgzoo_closed_form.calibration import Calibration, record_teacher
from lgzoo_closed_form.descendant_size import MAX_COST, find_best_cuts
from lgzoo_closed_form.modules.anatomy import Linear
from lgzoo_closed_form.modules.ridge import Rows, Sums
from lgzoo_closed_form.modules.solve import measure_costs
from pages import DOCS, replace_between
from rows import append_row, read_rows

ROWS = machine.RESULTS / "closed_form_ridge.jsonl"
TASKS = {"dinov2": ("emoji", "fashion_mnist"), "bundled": truncation.TASKS["bundled"]}
SIZES = {
    "dinov2": ((6, 384), (6, 256), (6, 192)),
    "bundled": ((6, 96), (3, 64), (6, 64), (9, 64), (6, 32)),
}
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
ARMS = ("0.001", "0.01", "0.1", "1", "chosen", "class 1", "class 16")
HELD_OUT = 5  # every fifth part


def main() -> None:
    """Measure the missing cells, print the table and write it."""
    truncation.measure_named_tasks(__doc__, TASKS, measure_task)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "closed_form.md", "ridge", table)
    print(table)


def measure_task(name: str, ancestry: str, task_name: str) -> None:
    """Measure all arms and sizes on a task."""
    measured_cells = {
        (row["ancestry"], row["task"], row["layers"], row["width"], row["arm"])
        for row in read_rows(ROWS)
    }
    torch.set_num_threads(1)
    run = Run(seed=0, threads=1, device="cpu")
    opened = open_ancestry(ancestry, image_size=truncation.PIXELS if name == "dinov2" else None)
    task = choose_images(open_task(task_name), run.seed)
    calibration_task = task if name == "dinov2" else open_task(SOURCE_TASK)
    state = remove_head(opened.state, opened.spec)
    for arms, class_weight in ((ARMS[:5], 4.0), (ARMS[5:6], 1.0), (ARMS[6:], 16.0)):
        waiting = [
            (size, arm)
            for size in SIZES[name]
            for arm in arms
            if (name, task_name, *size, arm) not in measured_cells
        ]
        if not waiting:
            continue
        settings = Calibration(class_weight=class_weight)
        teacher = record_teacher(
            state, opened.spec, settings, calibration_task, opened.input_format, run
        )
        costs = measure_costs(teacher, settings.ridge)
        for (layers, width), arm in waiting:
            depth = max(
                depth
                for depth in range(layers, opened.spec.layers + 1)
                if find_best_cuts(costs, depth)[layers - 1].objective <= MAX_COST
            )
            cut = find_best_cuts(costs, depth)[layers - 1]
            cell = truncation.Cell(name, task_name, layers, width, depth)
            rho = settings.ridge if arm.startswith("class") or arm == "chosen" else float(arm)
            original = solving.solve_layers
            if arm == "chosen":
                solving.solve_layers = solve_with_chosen_penalty
            try:
                model = truncation.build_variant(teacher, cell, cut.runs, Calibration(ridge=rho))
            finally:
                solving.solve_layers = original
            train, held_out = (
                compute_features(
                    model, task, split, opened.input_format, run, images=truncation.JUDGED
                )
                for split in ("train", "validation")
            )
            ridge, knn = (
                run_probe(train, held_out, task, "validation", kind, seed=0)
                for kind in ("ridge", "knn")
            )
            row = {
                "ancestry": name,
                "task": task_name,
                "layers": layers,
                "width": width,
                "arm": arm,
                "depth": depth,
                "ridge": ridge.value,
                "knn": knn.value,
                "images": ridge.images,
            }
            append_row(ROWS, row)
            print(row, flush=True)


@torch.no_grad()
def solve_with_chosen_penalty(layers: Sequence[Linear], parts: Iterable[Rows], rho: float) -> None:
    """Set layers to the solution with the penalty that is best on held-out rows."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    start_OI = torch.cat([layer.weight for layer in layers])
    start_O = torch.cat(biases) if biases else None
    all_rows = list(parts)
    fitted_sums, held_out_sums, all_sums = (
        Sums.from_rows(rows, centred=start_O is not None)
        for rows in (
            [part for i, part in enumerate(all_rows) if i % HELD_OUT],
            all_rows[::HELD_OUT],
            all_rows,
        )
    )
    errors = {
        penalty: compute_error(held_out_sums, *fitted_sums.solve(start_OI, start_O, penalty))
        for penalty in PENALTIES
    }
    weight, bias = all_sums.solve(
        start_OI, start_O, min(errors, key=lambda penalty: errors[penalty])
    )
    sizes = [len(layer.weight) for layer in layers]
    for layer, solution in zip(layers, weight.split(sizes)):
        layer.weight.copy_(solution)
    for layer_bias, solution in zip(biases, () if bias is None else bias.split(sizes)):
        layer_bias.copy_(solution)


def compute_error(sums: Sums, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> float:
    """Return the weighted squared error of a solution on other rows."""
    error = sums.square_O.sum() - 2 * (weight_OI * sums.cross_IO.T).sum()
    error += ((weight_OI @ sums.gram) * weight_OI).sum()
    if bias_O is not None:
        offset_O = sums.mean_O - weight_OI @ sums.mean_I - bias_O
        error += sums.weight * offset_O.square().sum()
    return float(error)


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean accuracies of the tasks in Markdown: a size a row, an arm a column."""
    lines = [
        f"| model | tasks | {' | '.join(ARMS)} |",
        f"|---|---:|{'---:|' * len(ARMS)}",
    ]
    for name, sizes in SIZES.items():
        for layers, width in sizes:
            rows_of_size = [
                row
                for row in rows
                if (row["ancestry"], row["layers"], row["width"]) == (name, layers, width)
            ]
            tasks = [
                task
                for task in TASKS[name]
                if all(
                    any((row["task"], row["arm"]) == (task, arm) for row in rows_of_size)
                    for arm in ARMS
                )
            ]
            if not tasks:
                continue
            cells = []
            for arm in ARMS:
                chosen = [row for row in rows_of_size if row["arm"] == arm and row["task"] in tasks]
                cells.append(
                    " / ".join(
                        f"{100 * mean(row[probe] for row in chosen):.1f}"
                        for probe in ("ridge", "knn")
                    )
                )
            lines.append(f"| {name} {layers} x {width} | {len(tasks)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
