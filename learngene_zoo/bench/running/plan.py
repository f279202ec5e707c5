"""What a bench would compute, and about how long that takes, before anything is started."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.grid.grid import list_members, select_members
from learngene_zoo.bench.grid.search import Trial
from learngene_zoo.bench.grid.tuning import GridTuning
from learngene_zoo.bench.results.rows import RESULTS, read_rows
from learngene_zoo.bench.running.extraction import estimate_works, is_finished
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.picture_spec import PictureSpec
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import find_entry, open_task
from learngene_zoo.training.speed import (
    BATCH_SIZE,
    HEAD_PASSES,
    LAYER_SECONDS,
    MEASURED_TEXTS,
    SOLVING_COST,
    TRAINING_COST,
    build_layer,
    measure_rate,
    shorten,
)


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """The choice of learning rates, or the measurement of the results."""

    stage: str  # "tuning" or "measuring"
    cells: int  # trainings, with their evaluation; without those that are finished
    extractions: int  # that this stage needs and none before it
    images: int  # training images of the cells, over all epochs
    # that one process would take, from FLOPs and a short measurement of one layer; None if a layer
    # of the ancestry model is too slow to be measured
    seconds: float | None


def plan_stages(
    cells: Iterable[Cell], tuning: GridTuning, out: Path, run: Run
) -> list[PlannedStage]:
    """Return the stages of a bench in the folder `out`; tuning is left out if nothing is chosen.

    The stage of tuning has the trials that are certain. Where they do not tell the rates of an arm
    apart, or the best one is the last, more are tried.
    """
    offline = run.offline
    path = out / RESULTS
    finished = {row.key for row in read_rows(path) if row.error is None} if path.is_file() else {}
    is_tuned = tuning.space.arms and tuning.space.size > 1
    stages = {"tuning": list(_list_trials(tuning)) if is_tuned else [], "measuring": [*cells]}
    seen, planned = set[str](), list[PlannedStage]()
    for stage, named in stages.items():
        by_key = {cell.key: cell for cell in named}
        waiting = [cell for key, cell in by_key.items() if key not in finished]
        needed = {cell.extraction.key: cell.extraction for cell in waiting}
        new = {
            key: extraction
            for key, extraction in needed.items()
            if key not in seen and not is_finished(extraction, out)
        }
        seen.update(new)
        flops = sum(_count_extraction_flops(each.arm, offline) for each in new.values())
        flops += sum(_count_flops(cell, offline) for cell in waiting)
        if named:
            planned.append(
                PlannedStage(
                    stage=stage,
                    cells=len(waiting),
                    extractions=len(new),
                    images=sum(_count_images(cell, offline) for cell in waiting),
                    seconds=_estimate_seconds(flops, [cell.arm for cell in waiting], run),
                )
            )
    return planned


def _list_trials(tuning: GridTuning) -> Iterator[Cell]:
    """Yield the cells of all first trials: every rate, and every other augmentation at one rate."""
    space = tuning.space
    first, *others = space.augments
    for arm in space.arms:
        for task in space.tasks:
            for lr in space.rates:
                yield tuning.cell_of(Trial(arm, task, lr, first))
            for augment in others:
                yield tuning.cell_of(Trial(arm, task, space.rates[0], augment))


def _count_images(cell: Cell, offline: bool) -> int:
    """Return the training images of a cell over all epochs."""
    images = cell.recipe.images
    if images is None:
        images = _read_sizes(cell.task, offline)["train"]
    return images * cell.recipe.epochs


@cache
def _read_sizes(task: str, offline: bool) -> dict[str, int]:
    """Return the number of images in each split of a task."""
    entry = find_entry(task)
    return dict(entry.sizes if entry else open_task(task, offline=offline).sizes)


def _count_flops(cell: Cell, offline: bool) -> float:
    """Return the multiply-adds of a cell: the training, the head, and every evaluation."""
    sizes = _read_sizes(cell.task, offline)
    trained = _count_images(cell, offline)
    passes = TRAINING_COST * trained + (sizes.get(cell.split) or 0) * (1 + cell.look)
    if cell.head == "ridge":
        passes += HEAD_PASSES * (cell.recipe.images or sizes["train"])
    return passes * _count_forward_flops(cell, offline)


def _count_forward_flops(cell: Cell, offline: bool) -> float:
    """Return the multiply-adds of a forward pass of a cell's descendant.

    A method that builds any size does not list all of them; its descendant then costs as much as
    another one, in proportion to the layers and the square of the width.
    """
    members = list_members(cell.arm, offline)
    size = {"layers": cell.layers, "width": cell.width, **cell.size}
    named = {name: value for name, value in size.items() if value is not None}
    selected = select_members(members, named)
    spec = (selected or members)[-1].spec
    length = _measure_length(cell.arm, cell.task, offline) if isinstance(spec, TextSpec) else None
    flops = float(count_cost(shorten(spec, length)).flops)
    if not selected:
        flops *= cell.layers / spec.layers * ((cell.width or spec.width) / spec.width) ** 2
    return flops


def _count_extraction_flops(arm: Arm, offline: bool) -> float:
    """Return the multiply-adds of an extraction, as its method states them."""
    spec = _find_ancestry_spec(arm, offline)
    if spec is None:
        return 0.0
    works = estimate_works(arm, lambda task: _read_sizes(task, offline)["train"], offline)
    has_texts = isinstance(spec, TextSpec) and any(work.images for work in works)
    original = count_cost(
        shorten(spec, _measure_length(arm, None, offline) if has_texts else None)
    ).flops
    return sum(
        original * work.images * (TRAINING_COST * work.trained + work.frozen) / spec.layers
        + SOLVING_COST * work.solved
        for work in works
    )


def _find_ancestry_spec(arm: Arm, offline: bool) -> Spec | None:
    """Return the shape of an arm's widest ancestry model; None if it has none."""
    sources = METHODS.load(arm.method).sources(arm.ancestries)
    specs = [read_ancestry_spec(source, offline=offline) for source in sources]
    widest = max(specs, key=lambda spec: spec.width, default=None)
    if isinstance(widest, PictureSpec) and arm.image_size is not None:
        return widest.with_(image_size=arm.image_size)
    return widest


def _measure_length(arm: Arm, task: str | None, offline: bool) -> int:
    """Return the usual number of tokens of a text in a batch of a task, or of an extraction."""
    sources = METHODS.load(arm.method).sources(arm.ancestries)
    names = (task,) if task else METHODS.load(arm.method).references(arm.tasks, sources, "task")
    return max(_measure_length_of(name, sources[0], offline) for name in names)


@cache
def _measure_length_of(task: str, source: str, offline: bool) -> int:
    from learngene_zoo.tasks.texts.encoding import measure_length

    split: Any = open_task(task, offline=offline).split("train")
    texts = split.__getitems__(range(min(MEASURED_TEXTS, len(split))))
    form = open_ancestry(source, offline=offline).input_format
    return measure_length(texts, form, BATCH_SIZE)


def _estimate_seconds(flops: float, arms: Iterable[Arm], run: Run) -> float | None:
    """Return the seconds that one process takes for so many multiply-adds.

    One layer of the widest descendant of these arms is measured.
    """
    if not flops:
        return 0.0
    members = [
        list_members(arm, run.offline)[-1] for arm in {arm.name: arm for arm in arms}.values()
    ]
    layer = build_layer(max((member.spec for member in members), key=lambda spec: spec.width), run)
    return None if layer is None else flops / measure_rate(*layer, run, LAYER_SECONDS)
