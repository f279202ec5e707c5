"""One trial: build the descendant that a cell names, train it, judge it once, and write down what came out. Cold at its top."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo import lifecycle, registry
from learngene_zoo.bench.cell import Cell, Row, label
from learngene_zoo.bench.extraction import Extraction, extract_once
from learngene_zoo.bench.grid import named
from learngene_zoo.errors import ZooError
from learngene_zoo.method import Expander, Target
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import with_settings
from learngene_zoo.tasks.catalogue import open_task

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.tasks.task import Task

UNTRAINED = "untrained"  # where measurements are kept that cells share


def run_cell(cell: Cell, out: Path, run: Run) -> Row:
    """The row of a cell, measured now. What goes wrong becomes the row's `error`; only an interruption is raised.

    Its learngene is taken from `out`, or extracted there. `run` says how to compute; every seed is the cell's.
    """
    try:
        return _measured(cell, out, replace(run, folder=None, resume=False, progress=False, tracker=None))
    except Exception as error:  # whatever one cell dies of, the others go on
        return failed(cell, reason(error), run)


def failed(cell: Cell, error: str, run: Run) -> Row:
    """The row of a cell that could not be measured."""
    return Row(**_identity(cell, run), error=error)


def reason(error: BaseException) -> str:
    """One line of what went wrong: our own errors say it themselves, others are named."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ZooError) else f"{type(error).__name__}: {text}"


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
        "machine": machine(run.device),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _measured(cell: Cell, out: Path, run: Run) -> Row:
    from learngene_zoo.bench.probe import untrained
    from learngene_zoo.training.evaluate import evaluate
    from learngene_zoo.training.fit import fit

    learngene, spent = extract_once(Extraction(arm=cell.extraction, seed=cell.seed), out, run)
    task = open_task(cell.task, offline=run.offline)
    run = replace(run, seed=chance(cell))
    start = build(cell, learngene, task, run)
    before = untrained(cell, start, task, out / UNTRAINED, run) if cell.look else None
    ends = [time.monotonic()]  # the training's own seconds end with its last epoch, before anything is judged
    tuned = fit(start, task, cell.recipe, run, watch=lambda model: ends.append(time.monotonic()), judge=False)
    judged = evaluate(tuned.model(), task, cell.split, tuned.input_format, run)
    cost = tuned.cost()
    measured = {
        "width": tuned.spec.width,
        "images": int(tuned.provenance["metrics"]["training_images"]),
        "metric": judged.metric,
        "value": judged.value,
        "correct": packed(judged.correct) if judged.correct else None,
        "evaluated": judged.images,
        "untrained": before.value if before else None,
        "probe": before.probe if before else None,
        "params": cost.params,
        "flops": cost.flops,
        "stored_params": spent.stored_params,
        "extraction_seconds": spent.seconds,
        "extraction_images": spent.images,
        "seconds": ends[-1] - ends[0],
    }
    return Row(**{**_identity(cell, run), **measured})


def chance(cell: Cell) -> int:
    """The seed of all that is drawn after the extraction. Equal for all arms, sizes and budgets: equal images and heads."""
    return derive_seed(cell.seed, "trial", cell.task)


def build(cell: Cell, learngene: Learngene, task: Task, run: Run) -> Descendant:
    """The descendant before training, under its arm's control; a head that is not inherited is the same in all arms."""
    from learngene_zoo.artifacts.controls import controlled
    from learngene_zoo.families.family import table_of
    from learngene_zoo.families.initialisation import initial

    target, expander = size_of(cell, learngene, task)
    start = lifecycle.expand(learngene, target=target, expander=expander, run=run)
    start = start.for_task(task.name, task.class_names, seed=run.seed, dense=task.dense)
    if cell.arm.control is not None:  # the blocks of `stem` are those of the arm `scratch timm`
        seed = run.seed if cell.arm.control == "stem" else derive_seed(run.seed, "shuffle")
        start = controlled(start, cell.arm.control, seed)
    own_head = {name for name in start.state if table_of(start.spec).is_head(name)} - start.inherited
    return start.with_state({**start.state, **initial(start.spec, run.seed, names=own_head)})


def size_of(cell: Cell, learngene: Learngene, task: Task) -> tuple[Target, Expander]:
    """What to ask of the expander: the member of its family with the cell's size, or, lacking one, the size alone.

    Of several members with these layers it is the largest one of the learngene's own width.
    """
    expander = with_settings(registry.load(cell.arm.method).expander, {**cell.arm.expand, **cell.size})
    asked = Target(layers=cell.layers, width=cell.width, classes=task.classes, task=cell.task)
    members = named(lifecycle.family(learngene.config, expander, replace(asked, task=None)), cell.size)
    spec = learngene.config.spec
    wide = [member for member in members if cell.width or member.spec.width == spec.width] or members
    if not wide:
        heads = max(1, cell.width // spec.head_width) if cell.width else None
        return replace(asked, heads=heads), expander
    chosen = max(wide, key=lambda member: member.cost())
    return replace(chosen.target, task=cell.task), with_settings(expander, chosen.settings)


def packed(correct: tuple[bool, ...]) -> str:
    """Flags as hexadecimal digits, four images each, the first image the highest bit; the last digit is filled with 0."""
    bits = "".join("1" if right else "0" for right in correct)
    digits = -(-len(bits) // 4)
    return f"{int(bits.ljust(4 * digits, '0'), 2):0{digits}x}"


def unpacked(digits: str, images: int) -> tuple[bool, ...]:
    """The inverse of `packed`."""
    bits = f"{int(digits, 16):0{4 * len(digits)}b}"
    return tuple(bit == "1" for bit in bits[:images])


@cache
def machine(device: str) -> str:
    """What computes, in a few words."""
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name(device)
    return f"{_processor()}, {os.cpu_count()} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (text.partition(":")[2].strip() for text in lines if text.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
