"""Would closed_form be better if attention and MLP were taken separately, as half-blocks?

Varied: the units of which a shallower model is made. Blocks: the default of closed_form.
Half-blocks: each attention or MLP stands for itself and the units after it, with its last layer
solved; the price of a unit is 1 for an attention and 2 for an MLP, which is their share of the
parameters, and the best units within the same budget are found by dynamic programming. A unit that
is left out has a last layer of zeros. Both stand for as many of the first units as have an
objective of at most the default limit. All have the full width.

Measured: a ridge regression on the frozen features and the nearest neighbours, as in
closed_form_truncation.py. No validation or test image is read.

Command: DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small DINOV2` writes.

    python benchmarks/archive/closed_form_half_blocks.py [--ancestry DINOV2]

Results: benchmarks/results/closed_form_half_blocks.json.
Page: docs/results/closed_form.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
import closed_form_truncation as truncation
import machine
from finetune_rates import choose_images
from learngene_zoo.plugin import build_model, remove_head
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from learngene_zoo.training.probes import compute_features, run_probe
from lgzoo_closed_form.calibration import Calibration, record_teacher
from lgzoo_closed_form.descendant_size import MAX_COST, choose_cut, make_monotone
from lgzoo_closed_form.modules.anatomy import split_block
from lgzoo_closed_form.modules.ridge import Sums, choose_precision, measure_spread
from lgzoo_closed_form.modules.solve import (
    BranchProblem,
    measure_costs,
    solve_branch,
)
from lgzoo_closed_form.modules.streams import StreamTeacher, embed_images

PRICES = (1, 2)  # of an attention and of an MLP
LAYERS = (3, 6, 9)


def main() -> None:
    """Measure and print everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ancestry", help="the folder of DINOv2-S (default: the bundled model)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    name, ancestry = ("dinov2", given.ancestry) if given.ancestry else ("bundled", "bundled")
    rows: list[dict[str, Any]] = []
    tasks = ("emoji", "fashion_mnist") if given.ancestry else truncation.TASKS["bundled"]
    for task_name in tasks:
        rows += measure_task(name, ancestry, task_name)
    for layers in LAYERS:
        own = [row for row in rows if row["layers"] == layers]
        means = {
            (arm, probe): 100 * mean(row[arm][probe] for row in own)
            for arm in ("blocks", "half-blocks")
            for probe in ("ridge", "knn")
        }
        print(layers, {key: round(value, 1) for key, value in means.items()})
    machine.write(
        "closed_form_half_blocks", {**machine.read("closed_form_half_blocks"), name: rows}
    )


def measure_task(name: str, ancestry: str, task_name: str) -> list[dict[str, Any]]:
    """Return the accuracies of both kinds of units on a task."""
    run = Run(seed=0, threads=1, device="cpu")
    opened = open_ancestry(ancestry, image_size=truncation.PIXELS if name == "dinov2" else None)
    task = choose_images(open_task(task_name), run.seed)
    seen = task if name == "dinov2" else open_task(SOURCE_TASK)
    settings, spec = Calibration(), opened.spec
    state = remove_head(opened.state, spec)
    teacher = record_teacher(state, spec, settings, seen, opened.input_format, run)
    costs = measure_costs(teacher, settings.ridge)
    halves = make_monotone(measure_half_costs(teacher, settings.ridge))
    rows = []
    for layers in LAYERS:
        cut = choose_cut(costs, layers)
        cell = truncation.Cell(name, task_name, layers, spec.width, cut.depth)
        whole = truncation.build_variant(teacher, cell, cut.runs, settings)
        units, depth, objective = choose_units(halves, layers * sum(PRICES))
        half = build_from_units(teacher, units, depth, settings.ridge)
        row: dict[str, Any] = {
            "task": task_name,
            "layers": layers,
            "runs": list(cut.runs),
            "units": units,
            "depth": depth,
            "objectives": [cut.objective, objective],
        }
        for arm, model in (("blocks", whole), ("half-blocks", half)):
            train, held_out = (
                compute_features(
                    model, task, split, opened.input_format, run, images=truncation.JUDGED
                )
                for split in ("train", "validation")
            )
            row[arm] = {
                kind: run_probe(train, held_out, task, "validation", kind, seed=0).value
                for kind in ("ridge", "knn")
            }
        print(row, flush=True)
        rows.append(row)
    return rows


def list_streams(teacher: StreamTeacher) -> list[torch.Tensor]:
    """Return the stream before every half-block, and after the last."""
    streams = teacher.streams
    pairs = zip(streams.before, streams.middle)
    return [*(stream for pair in pairs for stream in pair), streams.before[teacher.spec.layers]]


@torch.no_grad()
def measure_half_costs(teacher: StreamTeacher, rho: float) -> list[list[float]]:
    """Return the cost of every half-block standing for itself and those after it."""
    streams, pictures = list_streams(teacher), teacher.pictures
    spreads = [
        float(measure_spread((stream[rows], w) for rows, w in pictures.iterate_rows()).sum())
        for stream in streams
    ]
    units, costs = 2 * teacher.spec.layers, []
    for unit in range(units):
        block, is_mlp = divmod(unit, 2)
        branch = teacher.split_block(block)[is_mlp]
        later = range(unit + 2, units + 1)
        if not later:
            costs.append([0.0])
            continue

        def iterate_rows(unit: int = unit, branch: Any = branch, later: Any = later) -> Any:
            for number, (rows, weights) in enumerate(pictures.iterate_rows()):
                if number % 2:
                    continue
                start = streams[unit][rows]
                inputs = (
                    branch.compute_inputs(start)
                    if unit % 2
                    else teacher.streams.heads[unit // 2][rows]
                )
                targets = torch.cat([streams[end][rows] - start for end in later], dim=1)
                yield inputs, targets, 2 * weights

        weight = branch.writer.weight
        weight = weight if branch.gamma is None else branch.gamma[:, None] * weight
        sums = Sums.from_rows(iterate_rows(), dtype=choose_precision(rho))
        errors = sums.compute_errors(weight.repeat(len(later), 1), rho).unflatten(
            0, (len(later), -1)
        )
        errors_K = errors.sum(dim=1)
        costs.append([0.0, *(float(e) / spreads[end] for e, end in zip(errors_K, later))])
    return costs


def choose_units(costs: Sequence[Sequence[float]], budget: int) -> tuple[list[int], int, float]:
    """Return the best half-blocks within a budget for as many of the first ones as possible."""
    for depth in range(len(costs), 0, -1):
        objective, units = find_units(costs, depth, budget)
        if objective <= MAX_COST:
            return units, depth, objective
    raise AssertionError("the first units as they are cost nothing")


def find_units(
    costs: Sequence[Sequence[float]], depth: int, budget: int
) -> tuple[float, list[int]]:
    """Return the smallest sum of costs of units that stand for the first `depth`, and the units."""
    best: dict[tuple[int, int], tuple[float, list[int]]] = {(0, 0): (0.0, [])}
    for first in range(depth):
        for spent in range(budget + 1):
            if (first, spent) not in best:
                continue
            value, units = best[first, spent]
            after = spent + PRICES[first % 2]
            if after > budget:
                continue
            for end in range(first + 1, depth + 1):
                found = value + costs[first][end - 1 - first]
                if found < best.get((end, after), (math.inf, []))[0]:
                    best[end, after] = found, [*units, first]
    return min(
        (best[depth, spent] for spent in range(budget + 1) if (depth, spent) in best),
        default=(math.inf, []),
    )


@torch.no_grad()
def build_from_units(
    teacher: StreamTeacher, units: Sequence[int], depth: int, rho: float
) -> torch.nn.Module:
    """Return a model of all blocks in which the units that are left out write zeros."""
    streams, pictures = list_streams(teacher), teacher.pictures
    model: Any = build_model(teacher.spec, teacher.state)
    tokens_BND = embed_images(model, pictures.images)
    kept = dict(zip(units, [*units[1:], depth]))
    is_exact = True
    for unit in range(2 * teacher.spec.layers):
        block, is_mlp = divmod(unit, 2)
        branch = split_block(model, block)[is_mlp]
        if unit not in kept:
            branch.writer.weight.zero_()
            if branch.writer.bias is not None:
                branch.writer.bias.zero_()
            is_exact = False
            continue
        end = kept[unit]
        if is_exact and end == unit + 1:
            for first in range(0, len(tokens_BND), 16):
                tokens_BND[first : first + 16] = branch(tokens_BND[first : first + 16])
            continue
        is_exact = False
        teacher_branch = teacher.split_block(block)[is_mlp]

        def target(rows: slice, end: int = end) -> torch.Tensor:
            return streams[end][rows]

        problem = BranchProblem(
            branch, teacher_branch.norm, teacher_branch.readers, streams[unit], target
        )
        solve_branch(problem, pictures, rho, tokens_BND)
    return model  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
