"""One trial: build the descendant that a cell names, train it, evaluate it once, return its row.

Before the training, a cell may measure the untrained descendant: its metric with a fresh head, and
a probe of its features that needs no head. Shapes: N images, D features, K classes.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from learngene_zoo import lifecycle
from learngene_zoo.atomic import new_file
from learngene_zoo.bench.grid.cell import MORE_AXES, Cell, label
from learngene_zoo.bench.grid.grid import select_members
from learngene_zoo.bench.results.rows import Row, pack_flags
from learngene_zoo.bench.running.extraction import extract_once
from learngene_zoo.method.checks import list_members
from learngene_zoo.method.contract import Expander
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.folder import clear
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Recipe, fingerprint, from_json, to_json, with_settings
from learngene_zoo.storage import fingerprint_of_state, read_json, write_json
from learngene_zoo.tasks.catalogue import open_task

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.artifacts.records import LearngeneConfig
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.training.evaluate import Judged

UNTRAINED = "untrained"  # the folder of measurements that cells share
TRAINED = "trained"  # the folder of trainings that cells share
CHECKPOINTS = "checkpoints"  # the folder of trainings that were interrupted


def make_failed_row(cell: Cell, error: str, run: Run) -> Row:
    """Return the row of a cell that could not be measured."""
    return Row(**_identity(cell, run), error=error)


def _identity(cell: Cell, run: Run) -> dict[str, Any]:
    return {
        "key": cell.key,
        "arm": cell.arm.name,
        "method": cell.arm.method,
        "control": cell.arm.control,
        "task": cell.task,
        "layers": cell.layers,
        "width": cell.width or 0,
        "seed": cell.seed,
        "epochs": cell.recipe.epochs,
        "lr": cell.recipe.lr,
        "images": cell.recipe.images or 0,
        "split": cell.split,
        "size": label(cell.size),
        "version": cell.version,
        "code": cell.code,
        "machine": name_machine(run.device_name),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def run_cell(cell: Cell, out: Path, run: Run) -> Row:
    """Measure a cell and return its row.

    Its learngene is taken from `out`, or extracted there. `run` states how to compute; every seed
    is the cell's. With `run.resume` the training keeps checkpoints in `out`, and continues from
    them.
    """
    checkpoints = out / CHECKPOINTS / cell.key if run.resume else None
    run = replace(run, folder=None, progress=False, lines=False, tracker=None)
    learngene, spent = extract_once(cell.extraction, out, run)
    task = open_task(cell.task, offline=run.offline)
    run = replace(run, seed=cell.draws, ancestry=next(iter(cell.arm.ancestries), None))
    start = build_start(cell, learngene, task, run)
    before = measure_untrained(cell, start, task, out / UNTRAINED, run) if cell.look else None
    row = train_cell(cell, start, task, out / TRAINED, replace(run, folder=checkpoints))
    return replace(
        row,
        **_identity(cell, run) | {"width": row.width, "images": row.images},
        weights=digest_of(start),
        untrained=before.value if before else None,
        probe=before.probe if before else None,
        stored_params=spent.stored_params,
        extraction_seconds=spent.seconds,
        extraction_images=spent.images,
    )


def digest_of(start: Descendant) -> str:
    """Return a digest of a model's architecture, input and weights.

    Two arms with equal digests are the same model.
    """
    same = [start.spec, start.mean, start.std]
    return fingerprint([fingerprint_of_state(start.state), *map(to_json, same)])


def train_cell(cell: Cell, start: Descendant, task: Task, folder: Path, run: Run) -> Row:
    """Train and evaluate a cell, and return its row without the fields of the extraction.

    The row is measured once for all cells that train the same numbers alike: the stems of methods
    that keep all of it are one model, and so may be the models of two methods.

    Args:
        cell: the cell.
        start: the descendant before training.
        task: the cell's task.
        folder: the folder that keeps the rows.
        run: how to compute; if it has a folder, the training keeps its checkpoints there meanwhile.
    """
    from learngene_zoo.training.evaluate import judge
    from learngene_zoo.training.fit import fit

    same = [
        start.spec,
        start.mean,
        start.std,
        cell.recipe,
        cell.task,
        cell.split,
        cell.version,
        run.seed,
        run.precision,
        *([cell.data[cell.task]] if cell.task in cell.data else []),  # of the user's own data
    ]
    weights = [fingerprint_of_state(start.state), sorted(start.inherited)]
    path = folder / f"{fingerprint([*weights, *map(to_json, same)])}.json"
    if path.is_file():
        return from_json(Row, read_json(path), str(path))
    ends = [time.monotonic()]  # the training ends with its last epoch, before anything is evaluated
    tuned = fit(
        start,
        task,
        cell.recipe,
        run,
        watch=lambda model: ends.append(time.monotonic()),
        judge=False,
    )
    judged = judge(tuned.model(), task, cell.split, tuned.input_format, replace(run, folder=None))
    evaluation, cost = judged.evaluation, tuned.cost()
    row = Row(**_identity(cell, run) | {
        "width": tuned.spec.width,
        "images": int(tuned.provenance["metrics"]["training_images"]),
        "metric": evaluation.metric,
        "value": evaluation.value,
        "correct": pack_flags(evaluation.correct) if evaluation.correct else None,
        "evaluated": evaluation.images,
        "chance": compute_chance_level(judged, task),
        "params": cost.params,
        "flops": cost.flops,
        "seconds": ends[-1] - ends[0],
    })  # fmt: skip
    with new_file(path, force=True) as draft:
        write_json(draft, to_json(row))
    if run.folder is not None:
        clear(run.folder)
        with suppress(OSError):
            run.folder.rmdir()
    return row


def compute_chance_level(judged: Judged, task: Task) -> float:
    """Return the value of the best constant answer: the share of the most frequent class.

    For mIoU, it is the most that one class can reach.
    """
    from learngene_zoo.training.objectives import Confusion, choose_metric

    if task.dense:
        return 1 / task.classes
    labels_N, metric = judged.rows[:, 0], choose_metric(task)
    if isinstance(metric, Confusion):
        return max(metric.value_of_constant(labels_N, label) for label in range(task.classes))
    return Counter(labels_N.tolist()).most_common(1)[0][1] / len(labels_N)


def build_start(cell: Cell, learngene: Learngene, task: Task, run: Run) -> Descendant:
    """Return the descendant before training, under its arm's control.

    A head that is not inherited starts from the same random weights in all arms, or from the ridge
    regression of the arm's own features, if the cell asks for it.
    """
    from learngene_zoo.artifacts.descendant import apply_control
    from learngene_zoo.families.family import get_table
    from learngene_zoo.families.tensors import initialise
    from learngene_zoo.training.heads import initialise_head

    start = expand_cell(cell, learngene, task, run)
    start = start.for_task(task.name, task.class_names, seed=run.seed, dense=task.dense)
    # the blocks of either `stem` are those of the scratch arm with its initialisation
    if cell.arm.control is not None:
        seed = derive_seed(run.seed, "shuffle") if cell.arm.control == "shuffled" else run.seed
        start = apply_control(start, cell.arm.control, seed)
    own_head = {
        name for name in start.state if get_table(start.spec).is_head(name)
    } - start.inherited
    start = start.with_state({**start.state, **initialise(start.spec, run.seed, names=own_head)})
    if own_head and cell.head == "ridge":
        start, _ = initialise_head(start, task, cell.recipe, run)
    return start


_latest: dict[str, Descendant] = {}


def expand_cell(cell: Cell, learngene: Learngene, task: Task, run: Run) -> Descendant:
    """Return the descendant that the expander builds.

    The latest one is kept: a method's controls, and all trials of its tuning, start from the same.
    """
    target, expander = find_size(cell, learngene.config, task.classes)
    parts = [to_json(part) for part in (learngene.config, target, expander)]
    key = fingerprint([learngene.identity, *parts, run.seed, run.ancestry])
    if key not in _latest:
        _latest.clear()
        _latest[key] = lifecycle.expand(learngene, target=target, expander=expander, run=run)
    return _latest[key]


def find_size(cell: Cell, config: LearngeneConfig, classes: int) -> tuple[Target, Expander]:
    """Return target and expander of a cell, by the member of the family that has its size.

    Of several members with these layers it is the largest one of the learngene's own width. If
    there is none, the target has the size alone.
    """
    axes = {name: value for name, value in cell.size.items() if name in MORE_AXES}
    settings = {name: value for name, value in cell.size.items() if name not in axes}
    expander = with_settings(cell.arm.expander, settings)
    target = Target(
        layers=cell.layers,
        width=cell.width,
        classes=classes,
        task=cell.task,
        **axes,  # type: ignore[arg-type]
    )
    members = select_members(list_members(config, expander, replace(target, task=None)), settings)
    spec = config.spec
    wide = [
        member for member in members if cell.width or member.spec.width == spec.width
    ] or members
    if not wide:
        heads = max(1, cell.width // spec.head_width) if cell.width else None
        return replace(target, heads=target.heads or heads), expander
    chosen = max(wide, key=lambda member: member.cost())
    return replace(chosen.target, task=cell.task), with_settings(expander, chosen.settings)


@dataclass(frozen=True, kw_only=True)
class Untrained:
    """Values on the cell's split before any training."""

    value: float
    probe: float | None = None  # None for segmentation
    metric: str = "accuracy"


def measure_untrained(
    cell: Cell, start: Descendant, task: Task, folder: Path, run: Run
) -> Untrained:
    """Return the values of a descendant before training.

    They are measured once for all cells that differ only in their training, and kept in `folder`.
    """
    from learngene_zoo.training.evaluate import evaluate
    from learngene_zoo.training.objectives import choose_metric

    recipe = cell.recipe  # the head is fitted to augmented images too
    bare = replace(cell, recipe=Recipe(epochs=0, images=recipe.images, augment=recipe.augment))
    path = folder / f"{bare.key}.json"
    metric = choose_metric(task)
    if path.is_file():
        kept = from_json(Untrained, read_json(path), str(path))
        if task.dense or kept.metric == metric.name:
            return kept
    if task.dense:
        measured = Untrained(
            value=evaluate(start.model(), task, cell.split, start.input_format, run).value,
            metric=metric.name,
        )
    else:
        measured = probe_start(start, task, cell.split, cell.recipe.images, run)
    with new_file(path, force=True) as draft:
        write_json(draft, to_json(measured))
    return measured


def probe_start(
    start: Descendant,
    task: Task,
    split: Literal["validation", "test"],
    images: int | None,
    run: Run,
) -> Untrained:
    """Return the task's metric before training: of the head, and of a ridge regression.

    The regression of the features is fitted to the images that the training will see (`images` of
    the training images).
    """
    import numpy as np
    import torch

    from learngene_zoo.families.forward import get_classifier
    from learngene_zoo.runs.run import open_device
    from learngene_zoo.training.evaluate import convert_rows
    from learngene_zoo.training.objectives import choose_metric
    from learngene_zoo.training.probes import compute_features, fit_ridge

    model = start.model().to(open_device(run))
    calibration = compute_features(model, task, "train", start.input_format, run, images=images)
    held_out = compute_features(model, task, split, start.input_format, run)
    head = get_classifier(model).cpu()
    with torch.no_grad():
        predicted_N = head(torch.from_numpy(held_out.values)).argmax(dim=1).numpy()
    probed_N = fit_ridge(calibration, task.classes).predict(held_out.values).argmax(axis=1)
    metric, values = choose_metric(task), []
    for answers_N in (predicted_N, probed_N):
        rows_NR = convert_rows(metric, np.stack([held_out.labels, answers_N], axis=1))
        values.append(metric.value(rows_NR.sum(axis=0), len(rows_NR)))
    return Untrained(value=values[0], probe=values[1], metric=metric.name)


@cache
def name_machine(device: str) -> str:
    """Return the name of the GPU, or of the processor with its cores."""
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name(device)
    about = Path("/proc/cpuinfo")
    match = re.search(
        r"model name\s*:\s*(.+)", about.read_text(encoding="utf-8") if about.is_file() else ""
    )
    processor = match[1] if match else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores"
