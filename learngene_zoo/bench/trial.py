"""One trial: build the descendant that a cell names, train it, evaluate it once, and return its row.

Before the training, a cell may measure what the descendant knows already: its metric with a fresh head, and a probe of its
features that needs no head. Shapes: N images, D features, K classes.
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
from learngene_zoo.bench.cell import MORE_AXES, Cell, label
from learngene_zoo.bench.extraction import extract_once
from learngene_zoo.bench.grid import named
from learngene_zoo.bench.results import Row, packed
from learngene_zoo.method import Expander, Target, family
from learngene_zoo.runs.folder import clear
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Recipe, fingerprint, from_json, to_json, with_settings
from learngene_zoo.storage import fingerprint_of_state, read_json, write_json
from learngene_zoo.tasks.catalogue import open_task

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.shelf import Learngene
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.training.evaluate import Judged

UNTRAINED = "untrained"  # the folder of measurements that cells share
TRAINED = "trained"  # the folder of trainings that cells share
CHECKPOINTS = "checkpoints"  # the folder of trainings that were interrupted


def failed(cell: Cell, error: str, run: Run) -> Row:
    """The row of a cell that could not be measured."""
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
        "machine": machine(run.device_name),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def run_cell(cell: Cell, out: Path, run: Run) -> Row:
    """The row of a cell, measured now.

    Its learngene is taken from `out`, or extracted there. `run` says how to compute; every seed is the cell's. With
    `run.resume` the training keeps checkpoints in `out`, and goes on from them.
    """
    kept = out / CHECKPOINTS / cell.key if run.resume else None
    run = replace(run, folder=None, progress=False, lines=False, tracker=None)
    learngene, spent = extract_once(cell.extraction, out, run)
    task = open_task(cell.task, offline=run.offline)
    run = replace(run, seed=cell.draws, ancestry=next(iter(cell.arm.ancestries), None))
    start = build(cell, learngene, task, run)
    before = untrained(cell, start, task, out / UNTRAINED, run) if cell.look else None
    found = trained(cell, start, task, out / TRAINED, replace(run, folder=kept))
    return replace(
        found,
        **_identity(cell, run) | {"width": found.width, "images": found.images},
        weights=digest_of(start),
        untrained=before.value if before else None,
        probe=before.probe if before else None,
        stored_params=spent.stored_params,
        extraction_seconds=spent.seconds,
        extraction_images=spent.images,
    )


def digest_of(start: Descendant) -> str:
    """Return a digest of a model's architecture, input and weights: two arms with equal ones are the same model."""
    same = [start.spec, start.mean, start.std]
    return fingerprint([fingerprint_of_state(start.state), *map(to_json, same)])


def trained(cell: Cell, start: Descendant, task: Task, place: Path, run: Run) -> Row:
    """What the training gives, without what is said of the extraction; with a folder the run keeps its checkpoints there meanwhile.

    Measured once for all cells that train the same numbers alike, and kept in the folder `place`: the stems of methods that keep
    all of it are one model, and so may be what two methods build.
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
    ]
    path = (
        place / f"{fingerprint([fingerprint_of_state(start.state), sorted(start.inherited), *map(to_json, same)])}.json"
    )
    if path.is_file():
        return from_json(Row, read_json(path), str(path))
    ends = [time.monotonic()]  # the training ends with its last epoch, before anything is evaluated
    tuned = fit(start, task, cell.recipe, run, watch=lambda model: ends.append(time.monotonic()), judge=False)
    judged = judge(tuned.model(), task, cell.split, tuned.input_format, replace(run, folder=None))
    found, cost = judged.evaluation, tuned.cost()
    row = Row(**_identity(cell, run) | {
        "width": tuned.spec.width,
        "images": int(tuned.provenance["metrics"]["training_images"]),
        "metric": found.metric,
        "value": found.value,
        "correct": packed(found.correct) if found.correct else None,
        "evaluated": found.images,
        "chance": chance(judged, task),
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


def chance(judged: Judged, task: Task) -> float:
    """What the best constant answer reaches: the share of the most frequent class. Of mIoU, the most that one class can."""
    if task.dense:
        return 1 / task.classes
    labels_N = judged.rows[:, 0]
    return Counter(labels_N.tolist()).most_common(1)[0][1] / len(labels_N)


def build(cell: Cell, learngene: Learngene, task: Task, run: Run) -> Descendant:
    """Return the descendant before training, under its arm's control.

    A head that is not inherited starts from the same random weights in all arms, or from the ridge regression of the arm's
    own features, if the cell says so.
    """
    from learngene_zoo.artifacts.descendant import controlled
    from learngene_zoo.families.family import table_of
    from learngene_zoo.families.tensors import initial
    from learngene_zoo.training.heads import initialise_head

    start = expanded(cell, learngene, task, run)
    start = start.for_task(task.name, task.class_names, seed=run.seed, dense=task.dense)
    if cell.arm.control is not None:  # the blocks of either `stem` are those of the scratch arm with its initialisation
        seed = derive_seed(run.seed, "shuffle") if cell.arm.control == "shuffled" else run.seed
        start = controlled(start, cell.arm.control, seed)
    own_head = {name for name in start.state if table_of(start.spec).is_head(name)} - start.inherited
    start = start.with_state({**start.state, **initial(start.spec, run.seed, names=own_head)})
    if own_head and cell.head == "ridge":
        start, _ = initialise_head(start, task, cell.recipe, run)
    return start


_latest: dict[str, Descendant] = {}


def expanded(cell: Cell, learngene: Learngene, task: Task, run: Run) -> Descendant:
    """What the expander builds. The latest one is kept: a method's controls, and all trials of its tuning, start from the same."""
    target, expander = size_of(cell, learngene, task)
    parts = [to_json(part) for part in (learngene.config, target, expander)]
    key = fingerprint([learngene.identity, *parts, run.seed, run.ancestry])
    if key not in _latest:
        _latest.clear()
        _latest[key] = lifecycle.expand(learngene, target=target, expander=expander, run=run)
    return _latest[key]


def size_of(cell: Cell, learngene: Learngene, task: Task) -> tuple[Target, Expander]:
    """Target and expander of a cell: the member of the family that has its size, or, without one, the size alone.

    Of several members with these layers it is the largest one of the learngene's own width.
    """
    axes = {name: value for name, value in cell.size.items() if name in MORE_AXES}
    settings = {name: value for name, value in cell.size.items() if name not in axes}
    expander = with_settings(cell.arm.expander, settings)
    target = Target(layers=cell.layers, width=cell.width, classes=task.classes, task=cell.task, **axes)  # type: ignore[arg-type]
    members = named(family(learngene.config, expander, replace(target, task=None)), settings)
    spec = learngene.config.spec
    wide = [member for member in members if cell.width or member.spec.width == spec.width] or members
    if not wide:
        heads = max(1, cell.width // spec.head_width) if cell.width else None
        return replace(target, heads=target.heads or heads), expander
    chosen = max(wide, key=lambda member: member.cost())
    return replace(chosen.target, task=cell.task), with_settings(expander, chosen.settings)


@dataclass(frozen=True, kw_only=True)
class Untrained:
    """Measured on the cell's split before any training."""

    value: float
    probe: float | None = None  # None for segmentation


def untrained(cell: Cell, start: Descendant, task: Task, place: Path, run: Run) -> Untrained:
    """Measured once for all cells that differ in their training alone, and kept in the folder `place`."""
    from learngene_zoo.training.evaluate import evaluate

    bare = replace(cell, recipe=Recipe(epochs=0, images=cell.recipe.images))
    path = place / f"{bare.key}.json"
    if path.is_file():
        return from_json(Untrained, read_json(path), str(path))
    if task.dense:
        found = Untrained(value=evaluate(start.model(), task, cell.split, start.input_format, run).value)
    else:
        found = probed(start, task, cell.split, cell.recipe.images, run)
    with new_file(path, force=True) as draft:
        write_json(draft, to_json(found))
    return found


def probed(
    start: Descendant, task: Task, split: Literal["validation", "test"], images: int | None, run: Run
) -> Untrained:
    """Return two accuracies before training: of the head, and of a ridge regression of the features.

    The regression is fitted to the images that the training will see (`images` of the training images).
    """
    import torch

    from learngene_zoo.runs.run import open_device
    from learngene_zoo.training.probes import compute_features, fit_ridge

    model = start.model().to(open_device(run))
    seen = compute_features(model, task, "train", start.input_format, run, images=images)
    held_out = compute_features(model, task, split, start.input_format, run)
    head = model.get_classifier().cpu()
    with torch.no_grad():
        predicted_N = head(torch.from_numpy(held_out.values)).argmax(dim=1).numpy()
    probed_N = fit_ridge(seen, task.classes).predict(held_out.values).argmax(axis=1)
    value, probe = (float((answers == held_out.labels).mean()) for answers in (predicted_N, probed_N))
    return Untrained(value=value, probe=probe)


@cache
def machine(device: str) -> str:
    """The GPU, or the processor and its cores."""
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name(device)
    about = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", about.read_text(encoding="utf-8") if about.is_file() else "")
    processor = named[1] if named else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores"
