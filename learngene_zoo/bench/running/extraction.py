"""The learngenes of a grid: each extracted once per seed, shared by all cells and processes.

`learngenes/<method>-<hash>` in the bench's folder is an ordinary learngene; its cost is recorded in
`<method>-<hash>.cost.json`. An interrupted extraction continues from its checkpoint, and its
seconds add up. Parts that several extractions need are computed once, in `parts`; each extraction
is charged for them as if it had been alone. `ancestries.json` keeps the checksums of the ancestry
models, so that results of two different ones are never mixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import load_learngene
from learngene_zoo.atomic import new_file
from learngene_zoo.bench.grid.cell import Arm, Cell, Extraction
from learngene_zoo.errors import Refused
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec
from learngene_zoo.runs.cache import measure_cost_alone, wait_for_lock
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.storage import read_json, write_json
from learngene_zoo.tasks import catalogue

if TYPE_CHECKING:
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.method.contract import Work

ANCESTRIES, PARTS = "ancestries.json", "parts"
TOKEN = "bench.id"  # names the bench on machines that do not share its disk
FORWARD = 3  # times cheaper than a training step


@dataclass(frozen=True, kw_only=True)
class ExtractionCost:
    """The cost of an extraction over all its starts, as if no part came from another extraction."""

    seconds: float = 0.0
    busy: float = 0.0  # seconds that were really spent here
    images: int = 0  # shown to a model, every time counted, see `seen`
    stored_params: int = 0  # the numbers to keep in order to build any size
    finished: bool = False


def read_cost(extraction: Extraction, out: Path) -> ExtractionCost:
    """Return the cost of an extraction so far."""
    path = extraction.record(out)
    return (
        from_json(ExtractionCost, read_json(path), str(path))
        if path.is_file()
        else ExtractionCost()
    )


def is_finished(extraction: Extraction, out: Path) -> bool:
    """Return whether the complete learngene is in the bench's folder."""
    return extraction.folder(out).is_dir() and read_cost(extraction, out).finished


def extract_once(extraction: Extraction, out: Path, run: Run) -> tuple[Learngene, ExtractionCost]:
    """Return the learngene and its cost; extract it first unless it exists already.

    Of several processes one works and the others wait.
    """
    folder = extraction.folder(out)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with wait_for_lock(
        folder.with_name(f"{folder.name}.lock"), f"extracting {extraction.arm.name}"
    ):
        if not is_finished(extraction, out):
            _extract(extraction, out, run)
    return load_learngene(folder), read_cost(extraction, out)


def _extract(extraction: Extraction, out: Path, run: Run) -> None:
    """Extract the learngene and record the cost, also if the extraction is interrupted."""
    arm, folder = extraction.arm, extraction.folder(out)
    before, began = read_cost(extraction, out), time.monotonic()
    is_begun = folder.with_name(f"{folder.name}.run").exists()
    learngene: Learngene | None = None
    try:
        learngene = lifecycle.extract(
            arm.method,
            ancestries=arm.ancestries,
            tasks=arm.tasks,
            preset=arm.preset,
            image_size=arm.image_size,
            out=folder,
            run=replace(
                run, folder=None, seed=extraction.seed, resume=is_begun, shared=out / PARTS
            ),
            force=True,  # a folder without a record of its cost is incomplete
            **arm.settings,
        )
    finally:
        alone = measure_cost_alone(folder.with_name(f"{folder.name}.run"), out / PARTS)
        busy = (before.busy or before.seconds) + time.monotonic() - began
        cost = ExtractionCost(
            seconds=busy + alone.seconds,
            busy=busy,
            images=count_images(arm, alone.images, offline=run.offline)
            if learngene
            else alone.images,
            stored_params=sum(tensor.numel() for tensor in learngene.state.values())
            if learngene
            else 0,
            finished=learngene is not None,
        )
        with new_file(extraction.record(out), force=True) as draft:
            write_json(draft, to_json(cost))


def estimate_work(extraction: Extraction, offline: bool = False) -> float:
    """Return the training images of an extraction times the layers that each passes.

    It is 0 if the method gives no estimate.
    """
    sizes = {entry.name: entry.sizes.get("train", 0) for entry in catalogue.list_entries()}
    works = estimate_works(extraction.arm, lambda task: sizes.get(task, 0), offline)
    return sum(work.images * (work.trained + work.frozen / FORWARD) for work in works)


def count_images(arm: Arm, trained: int, offline: bool = False) -> int:
    """Return the images that an extraction has shown to a model.

    They are those of its training steps, or, for a method without training, those of its estimate.
    """
    sizes = {entry.name: entry.sizes.get("train", 0) for entry in catalogue.list_entries()}

    def size(task: str) -> int:
        return sizes.get(task) or catalogue.open_task(task, offline=offline).sizes["train"]

    return trained or sum(work.images for work in estimate_works(arm, size, offline))


def estimate_works(arm: Arm, size: Callable[[str], int], offline: bool) -> list[Work]:
    """Return the method's estimate of the work of an arm's extraction.

    `size` returns the number of training images of a task.
    """
    method = METHODS.load(arm.method)
    sources = method.sources(arm.ancestries)
    specs = [read_ancestry_spec(source, offline=offline) for source in sources]
    tasks = (
        method.references(arm.tasks, sources, "extract_task") if arm.extractor.needs_tasks() else []
    )
    extractor = arm.adapt_extractor(specs)
    further = extractor.list_further_tasks(specs)
    return list(extractor.work(specs, [size(task) for task in tasks if task not in further]))


def check_same_ancestries(cells: Iterable[Cell], out: Path, run: Run) -> None:
    """Record the checksum of every ancestry model of a grid.

    Raises:
        Refused: an ancestry model has changed since the first results.
    """
    arms = {cell.arm.name: cell.arm for cell in cells}.values()
    sources = sorted(
        {source for arm in arms for source in METHODS.load(arm.method).sources(arm.ancestries)}
    )
    path = out / ANCESTRIES
    before = read_json(path) if path.is_file() else {}
    checksums = {
        source: open_ancestry(source, offline=run.offline).record.sha256 for source in sources
    }
    for source, checksum in checksums.items():
        if before.get(source, checksum) != checksum:
            raise Refused(
                f"the results in {out} come from another ancestry model {source}; choose another "
                "folder with -o, "
                "or start over with --force"
            )
    if checksums.items() - before.items():
        with new_file(path, force=True) as draft:
            write_json(draft, {**before, **checksums})
