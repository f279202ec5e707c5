"""What a bench would compute, before anything is started."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.bench.grid.search import Trial
from learngene_zoo.bench.grid.tuning import GridTuning
from learngene_zoo.bench.results.rows import RESULTS, read_rows
from learngene_zoo.bench.running.extraction import is_finished
from learngene_zoo.tasks.catalogue import find_entry, open_task


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """The choice of learning rates, or the measurement of the results."""

    stage: str  # "tuning" or "measuring"
    cells: int  # trainings, with their evaluation; without those that are finished
    extractions: int  # that this stage needs and none before it
    images: int  # training images of the cells, over all epochs


def plan_stages(
    cells: Iterable[Cell], tuning: GridTuning, out: Path, *, offline: bool = False
) -> list[PlannedStage]:
    """Return the stages of a bench in the folder `out`; tuning is left out if nothing is chosen.

    The stage of tuning has the trials that are certain. Where they do not tell the rates of an arm
    apart, or the best one is the last, more are tried.
    """
    path = out / RESULTS
    finished = {row.key for row in read_rows(path) if row.error is None} if path.is_file() else {}
    is_tuned = tuning.space.arms and tuning.space.size > 1
    stages = {"tuning": list(_list_trials(tuning)) if is_tuned else [], "measuring": [*cells]}
    seen, planned = set[str](), list[PlannedStage]()
    for stage, named in stages.items():
        by_key = {cell.key: cell for cell in named}
        waiting = [cell for key, cell in by_key.items() if key not in finished]
        needed = {cell.extraction.key: cell.extraction for cell in waiting}
        new = [key for key, one in needed.items() if key not in seen and not is_finished(one, out)]
        seen.update(new)
        if named:
            planned.append(
                PlannedStage(
                    stage=stage,
                    cells=len(waiting),
                    extractions=len(new),
                    images=sum(_count_images(cell, offline) for cell in waiting),
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
        entry = find_entry(cell.task)
        sizes = entry.sizes if entry else open_task(cell.task, offline=offline).sizes
        images = sizes["train"]
    return images * cell.recipe.epochs
