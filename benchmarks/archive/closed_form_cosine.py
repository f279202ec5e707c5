"""Is closed_form better with cuts or equations by cosine, or with the cut whose model is nearest?

Varied: the cut of the ancestry model's blocks, and the weights of the equations.
    default       the cut of the dynamic programme at the default depth
    first         as many blocks as layers
    evenly        evenly spaced blocks, for all blocks
    all           the dynamic programme for all blocks
    cosine cut    as default, with the mean of 1 - cosine of predicted and true stream as the costs
    cosine all    the same for all blocks
    cosine rows   as default, with every row of an equation divided by the norm of its target, so
                  that least squares approximate the cosine (ReplaceMe, arXiv 2505.02819)

Measured: a ridge regression on the frozen features and the nearest neighbours, as in
closed_form_truncation.py, and three errors of the built model on training images that are not used
for the equations. `own` is the share of the variance of its target, the stream after the last block
that it replaces, that its last stream misses; `tokens` is 1 - linear CKA of the normalised last
streams of the built and the ancestry model; `class` is the same of the class tokens alone, without
bias. Then the rule that keeps the model of the smallest error of default, first and evenly. No
validation or test image is read.

Command: resumable. DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small
DINOV2` writes.

    python benchmarks/archive/closed_form_cosine.py [--ancestry DINOV2] [--only TASK ...]
    python benchmarks/archive/closed_form_cosine.py --table

Results: benchmarks/results/closed_form_cosine.jsonl.
Page: docs/results/closed_form.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
import closed_form_truncation as truncation
import lgzoo_closed_form.modules.solve as solving
import machine
from finetune_rates import choose_images
from learngene_zoo.plugin import build_model, fill_missing_tensors, remove_head, take_blocks
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from learngene_zoo.training.probes import compute_features, run_probe
from lgzoo_closed_form.calibration import Calibration, record_teacher
from lgzoo_closed_form.descendant_size import choose_cut, find_best_cuts
from lgzoo_closed_form.modules.ridge import Rows, Sums, choose_precision, compute_weighted_mean
from lgzoo_closed_form.modules.solve import measure_costs, solve_descendant
from lgzoo_closed_form.modules.streams import Pictures, StreamTeacher, record_streams
from lgzoo_closed_form.modules.width import build_projection, compute_directions
from pages import DOCS, replace_between
from probes import hold_out_images
from rows import append_row, read_rows

ROWS = machine.RESULTS / "closed_form_cosine.jsonl"
ARMS = ("default", "first", "evenly", "cosine rows", "cosine cut", "all", "cosine all")
TASKS = {"dinov2": ("emoji", "fashion_mnist"), "bundled": truncation.TASKS["bundled"]}
SIZES = {
    "dinov2": ((6, 256), (6, 384), (6, 192), (3, 384)),
    "bundled": ((3, 96), (6, 96), (9, 96), (3, 64), (6, 64), (9, 64), (6, 32)),
}
SOLVED = 300  # images that DINOv2-S is calibrated with
CALIBRATION = {"dinov2": Calibration(images=SOLVED), "bundled": Calibration()}
CHOICES, ERRORS = ("default", "first", "evenly"), ("own", "tokens", "class")
OTHERS = 200  # images by which models are compared
Cut = tuple[tuple[int, ...], int]  # the first block of each run, and how many blocks these are


def main() -> None:
    """Measure what is missing, print the tables, and keep them."""
    truncation.measure_named_tasks(__doc__, TASKS, measure_task)
    table = make_table(read_rows(ROWS))
    replace_between(DOCS / "results" / "closed_form.md", "cosine", table)
    print(table)


def measure_task(name: str, ancestry: str, task_name: str) -> None:
    """Build every arm and size, and measure it on a task.

    The task has the calibration images of DINOv2-S; the bundled model is calibrated with its source
    task.
    """
    torch.set_num_threads(1)
    run = Run(seed=0, threads=1, device="cpu")
    opened = open_ancestry(ancestry, image_size=truncation.PIXELS if name == "dinov2" else None)
    task = choose_images(open_task(task_name), run.seed)
    if name == "dinov2":
        seen, others = (
            hold_out_images(open_task(task_name), images, slice(1), run.seed)
            for images in (slice(SOLVED), slice(SOLVED, SOLVED + OTHERS))
        )
    else:
        seen = others = open_task(SOURCE_TASK)
    settings, spec = CALIBRATION[name], opened.spec
    state = remove_head(opened.state, spec)
    teacher = record_teacher(state, spec, settings, seen, opened.input_format, run)
    judge = record_teacher(
        state,
        spec,
        replace(settings, images=OTHERS),
        others,
        opened.input_format,
        replace(run, seed=7),
    )
    costs = measure_costs(teacher, settings.ridge)
    cosines = measure_cosine_costs(teacher, settings.ridge)
    for layers, width in SIZES[name]:
        results: dict[tuple[Cut, bool], dict[str, float]] = {}
        for arm in ARMS:
            cell = {"ancestry": name, "layers": layers, "width": width, "arm": arm}
            if is_done({**cell, "task": task_name}):
                continue
            cut, is_weighted = find_cut(arm, layers, costs, cosines), arm == "cosine rows"
            if (cut, is_weighted) not in results:
                with weigh_rows(is_weighted):
                    model, P_dD = build_variant(teacher, layers, width, cut, settings)
                results[cut, is_weighted] = {
                    **measure_probes(model, task, opened.input_format, run),
                    **measure_errors(model, judge, P_dD, cut[1]),
                }
            runs, depth = cut
            row = {**cell, "task": task_name, "runs": list(runs), "depth": depth}
            row |= results[cut, is_weighted]
            append_row(ROWS, row)
            print(row, flush=True)


def is_done(cell: dict[str, Any]) -> bool:
    """Return whether there is a row of a cell."""
    return any(all(row[key] == cell[key] for key in cell) for row in read_rows(ROWS))


def find_cut(arm: str, layers: int, costs: Any, cosines: Any) -> Cut:
    """Return the cut of an arm."""
    chosen, depth = choose_cut(costs, layers), len(costs)
    if arm == "first":
        return tuple(range(layers)), layers
    if arm == "evenly":
        return tuple(depth * number // layers for number in range(layers)), depth
    if arm == "all":
        return find_best_cuts(costs)[layers - 1].runs, depth
    if arm == "cosine all":
        return find_best_cuts(cosines)[layers - 1].runs, depth
    if arm == "cosine cut":
        return find_best_cuts(cosines, chosen.depth)[layers - 1].runs, chosen.depth
    return chosen.runs, chosen.depth


@torch.no_grad()
def measure_cosine_costs(teacher: StreamTeacher, rho: float) -> list[list[float]]:
    """Return the mean of 1 - cosine that a block's solved fc2 leaves of each later stream."""
    streams, pictures, costs = teacher.streams, teacher.pictures, list[list[float]]()
    every = max(round(len(pictures.weights) / solving.MIN_COST_ROWS), 1)
    for number in range(teacher.spec.layers):
        ends = range(number + 2, teacher.spec.layers + 1)
        if not ends:
            costs.append([0.0])
            continue
        _, mlp = teacher.split_block(number)

        def iterate_rows(number: int = number, ends: Any = ends, mlp: Any = mlp) -> Iterator[Rows]:
            for rows, weights in islice(pictures.iterate_rows(), None, None, every):
                middle = streams.middle[number][rows]
                targets = torch.cat([streams.before[end][rows] - middle for end in ends], dim=1)
                yield mlp.compute_inputs(middle), targets, weights

        writer = mlp.writer.weight if mlp.gamma is None else mlp.gamma[:, None] * mlp.writer.weight
        sums = Sums.from_rows(iterate_rows(), dtype=choose_precision(rho))
        weight, bias = sums.solve(writer.repeat(len(ends), 1), torch.zeros(0), rho)
        assert bias is not None
        missed, total = torch.zeros(len(ends), dtype=torch.float64), 0.0
        slices = islice(pictures.iterate_rows(), None, None, every)
        for (inputs, _, weights), (rows, _) in zip(iterate_rows(), slices):
            updates = (inputs @ weight.float().T + bias.float()).unflatten(1, (len(ends), -1))
            middle = streams.middle[number][rows]
            for index, end in enumerate(ends):
                cosine = torch.cosine_similarity(
                    middle + updates[:, index], streams.before[end][rows], dim=1
                )
                missed[index] += (weights * (1 - cosine)).sum()
            total += float(weights.sum())
        costs.append([0.0, *(missed / total).clamp_min(0).tolist()])
    return costs


@contextmanager
def weigh_rows(is_weighted: bool) -> Iterator[None]:
    """Divide every row of all equations by the norm of its target while the context is open."""
    originals = solving.solve_branch, solving._solve_readers, solving.solve_layers
    if not is_weighted:
        yield
        return
    solve_branch, solve_readers, solve_layers = originals

    def divide(parts: Iterable[Rows]) -> Iterator[Rows]:
        for inputs, targets, weights in parts:
            squares = targets.double().square().sum(dim=1)
            yield inputs, targets, weights / squares.clamp_min(1e-6 * float(squares.mean()))

    def solve_readers_by_cosine(problem: Any, pictures: Pictures, rho: float, rows: Any) -> None:
        weights = problem_weights[id(problem)]
        solving.solve_layers = lambda layers, parts, rho: solve_layers(layers, divide(parts), rho)
        try:
            solve_readers(problem, replace(pictures, weights=weights), rho, rows)
        finally:
            solving.solve_layers = solve_layers

    problem_weights: dict[int, torch.Tensor] = {}

    def solve_branch_by_cosine(problem: Any, pictures: Pictures, rho: float, tokens: Any) -> None:
        squares = torch.cat(
            [problem.target(rows).double().square().sum(1) for rows, _ in pictures.iterate_rows()]
        )
        problem_weights[id(problem)] = pictures.weights
        scaled = replace(pictures, weights=pictures.weights / squares)
        solve_branch(problem, scaled, rho, tokens)

    solving.solve_branch, solving._solve_readers = solve_branch_by_cosine, solve_readers_by_cosine
    try:
        yield
    finally:
        solving.solve_branch, solving._solve_readers, solving.solve_layers = originals


def build_variant(
    teacher: StreamTeacher, layers: int, width: int, cut: Cut, settings: Calibration
) -> tuple[Any, torch.Tensor | None]:
    """Return the descendant of a cut, and the projection of its stream."""
    (runs, depth), whole = cut, teacher.spec
    spec = whole.with_(layers=depth)
    state = take_blocks(teacher.state, whole, range(depth))
    streams = teacher.streams.truncate(depth)
    first = StreamTeacher(spec, state, build_model(spec, state), teacher.pictures, streams)
    P_dD = None
    if width != whole.width:
        P_dD = build_projection(compute_directions(streams, teacher.pictures)[0], width)
    body = whole.with_(layers=layers, width=width, heads=width // whole.head_width)
    parts = solve_descendant(first, body, runs, P_dD, rho=settings.ridge)
    return build_model(body, fill_missing_tensors(body, dict(parts), seed=0)), P_dD


def measure_errors(
    model: Any, judge: StreamTeacher, P_dD: torch.Tensor | None, depth: int
) -> dict[str, float]:
    """Return the three errors of a built model on the images of `judge`."""
    pictures = judge.pictures
    built = record_streams(model, pictures).before[-1]
    target = judge.streams.before[depth]
    target = target if P_dD is None else target @ P_dD.float().T
    weights = pictures.weights
    away = target - compute_weighted_mean(target, weights).float()
    missed = (weights[:, None] * (built - target).square()).sum()
    own = float(missed / (weights[:, None] * away.square()).sum())
    pair = [
        torch.nn.functional.layer_norm(rows, rows.shape[1:], eps=1e-6).double()
        for rows in (built, judge.streams.before[-1])
    ]
    centred = [
        (rows - compute_weighted_mean(rows, weights)) * weights.sqrt()[:, None] for rows in pair
    ]
    X, Y = centred
    cka = (X.T @ Y).square().sum() / ((X.T @ X).norm() * (Y.T @ Y).norm())
    first = [rows.unflatten(0, (len(pictures.tokens), -1))[:, 0] for rows in pair]
    grams = [rows @ rows.T for rows in first]
    return {
        "own": round(own, 5),
        "tokens": round(1 - float(cka), 5),
        "class": round(1 - compute_unbiased_cka(*grams), 5),
    }


def compute_unbiased_cka(K_NN: torch.Tensor, L_NN: torch.Tensor) -> float:
    """Return the CKA of two Gram matrices by the unbiased estimator of HSIC (Song et al., 2012)."""

    def hsic(K: torch.Tensor, L: torch.Tensor) -> float:
        n = len(K)
        K, L = K - K.diagonal().diag(), L - L.diagonal().diag()
        return float(
            (K * L).sum()
            + K.sum() * L.sum() / ((n - 1) * (n - 2))
            - 2 / (n - 2) * (K.sum(0) @ L.sum(0))
        )

    return hsic(K_NN, L_NN) / (hsic(K_NN, K_NN) * hsic(L_NN, L_NN)) ** 0.5


def measure_probes(model: Any, task: Any, input_format: Any, run: Run) -> dict[str, float]:
    """Return the accuracies of both probes on held-out training images."""
    train, held_out = (
        compute_features(model, task, split, input_format, run, images=truncation.JUDGED)
        for split in ("train", "validation")
    )
    return {
        kind: run_probe(train, held_out, task, "validation", kind, seed=0).value
        for kind in ("ridge", "knn")
    }


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean accuracies in Markdown: a size a row, an arm a column.

    Below it is the mean rank correlation of each error with each probe over the arms, and the means
    of the rule by each error.
    """
    names = [*ARMS, *(f"nearest by {error}" for error in ERRORS)]
    lines = [f"| size | tasks | {' | '.join(names)} |", f"|---|---:|{'---:|' * len(names)}"]
    correlations: dict[tuple[str, str, str], list[float]] = {}
    for name, sizes in SIZES.items():
        means: list[list[dict[str, Any]]] = [[] for _ in names]
        for layers, width in sizes:
            of_size = [
                row
                for row in rows
                if (row["ancestry"], row["layers"], row["width"]) == (name, layers, width)
            ]
            columns: list[list[dict[str, Any]]] = [[] for _ in names]
            for task in TASKS[name]:
                arms = {row["arm"]: row for row in of_size if row["task"] == task}
                if not arms.keys() >= set(CHOICES):
                    continue
                choices = [arms[arm] for arm in CHOICES]
                nearest = [
                    min(choices, key=lambda row, error=error: row[error]) for error in ERRORS
                ]
                for column, row in zip(columns, [*map(arms.get, ARMS), *nearest]):
                    if row is not None:
                        column.append(row)
                distinct = list(
                    {
                        (*row["runs"], row["depth"]): row
                        for row in arms.values()
                        if row["arm"] != "cosine rows"
                    }.values()
                )
                for error in ERRORS if len(distinct) > 2 else ():
                    for probe in ("ridge", "knn"):
                        value = rank_correlation(
                            [-row[error] for row in distinct], [row[probe] for row in distinct]
                        )
                        correlations.setdefault((name, error, probe), []).append(value)
            if not columns[0]:
                continue
            full = [column if len(column) == len(columns[0]) else [] for column in columns]
            for mean_rows, column in zip(means, full):
                mean_rows += column
            cells = [truncation.describe(column) if column else "" for column in full]
            lines.append(f"| {name} {layers} x {width} | {len(full[0])} | {' | '.join(cells)} |")
        if means[0]:
            cells = [
                truncation.describe(found) if len(found) == len(means[0]) else "" for found in means
            ]
            lines.append(f"| {name}, mean | | {' | '.join(cells)} |")
    lines += [
        "",
        "| rank correlation, ridge / k-NN | own | tokens | class |",
        "|---|---:|---:|---:|",
    ]
    for name in SIZES:
        if any(key[0] == name for key in correlations):
            cells = [
                " / ".join(
                    f"{mean(correlations[name, error, probe]):+.2f}" for probe in ("ridge", "knn")
                )
                for error in ERRORS
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; of equal values the mean rank, 0 without variance."""
    ranks = [
        np.array(
            [
                sum(other < value for other in values) + (values.count(value) - 1) / 2
                for value in values
            ]
        )
        for values in (list(first), list(second))
    ]
    centred = [rank - rank.mean() for rank in ranks]
    scale = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float(centred[0] @ centred[1]) / scale if scale else 0.0


if __name__ == "__main__":
    main()
