"""The learngenes of a grid: each extracted once per seed, shared by its cells and by all processes, with what it cost.

`learngenes/<method>-<hash>` in the bench's folder is an ordinary learngene; `<method>-<hash>.cost.json` beside it says what the
extraction took. An interrupted extraction continues from its checkpoint, and its seconds add up. Parts that several extractions
need are computed once, in `parts`; each extraction is charged for them as if it had been alone. `ancestries.json` keeps the
checksums of the ancestry models, so that results of two different ones are never mixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.ancestry import ancestry_spec, open_ancestry
from learngene_zoo.artifacts.shelf import load_learngene
from learngene_zoo.atomic import new_file
from learngene_zoo.bench.cell import Arm, Cell, Extraction
from learngene_zoo.errors import Refused
from learngene_zoo.method import METHODS
from learngene_zoo.runs.cache import taken
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.storage import read_json, write_json
from learngene_zoo.tasks import catalogue

if TYPE_CHECKING:
    from learngene_zoo.artifacts.shelf import Learngene
    from learngene_zoo.method import Work

ANCESTRIES, PARTS = "ancestries.json", "parts"
FORWARD = 3  # times cheaper than a training step


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What an extraction took, over all its starts: as if it had been alone, with no part taken from another."""

    seconds: float = 0.0
    busy: float = 0.0  # seconds that were really spent here
    images: int = 0  # shown to a model, every time counted, see `seen`
    stored_params: int = 0  # the numbers to keep in order to build any size
    finished: bool = False


def spent(extraction: Extraction, out: Path) -> Spent:
    """What an extraction has taken so far."""
    path = extraction.record(out)
    return from_json(Spent, read_json(path), str(path)) if path.is_file() else Spent()


def is_finished(extraction: Extraction, out: Path) -> bool:
    """Whether its learngene is in the bench's folder, whole."""
    return extraction.folder(out).is_dir() and spent(extraction, out).finished


def extract_once(extraction: Extraction, out: Path, run: Run) -> tuple[Learngene, Spent]:
    """The learngene, extracted now unless it exists already; of several processes one works and the others wait."""
    from filelock import FileLock

    place = extraction.folder(out)
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_name(f"{place.name}.lock")):
        if not is_finished(extraction, out):
            _extract(extraction, out, run)
    return load_learngene(place), spent(extraction, out)


def _extract(extraction: Extraction, out: Path, run: Run) -> None:
    arm, place = extraction.arm, extraction.folder(out)
    before, began = spent(extraction, out), time.monotonic()
    made: Learngene | None = None
    try:
        made = lifecycle.extract(
            arm.method,
            ancestries=arm.ancestries,
            tasks=arm.tasks,
            extractor=arm.extractor,
            image_size=arm.image_size,
            out=place,
            run=replace(run, folder=None, seed=extraction.seed, resume=True, shared=out / PARTS),
            force=True,  # a folder without a record of its cost is incomplete
        )
    finally:
        alone = taken(place.with_name(f"{place.name}.run"), out / PARTS)
        busy = (before.busy or before.seconds) + time.monotonic() - began
        now = Spent(
            seconds=busy + alone.seconds,
            busy=busy,
            images=seen(arm, alone.images, offline=run.offline) if made else alone.images,
            stored_params=sum(tensor.numel() for tensor in made.state.values()) if made else 0,
            finished=made is not None,
        )
        with new_file(extraction.record(out), force=True) as draft:
            write_json(draft, to_json(now))


def planned(extraction: Extraction, offline: bool = False) -> float:
    """The training images of an extraction times the layers that each passes; 0 where its method does not say."""
    sizes = {entry.name: entry.sizes.get("train", 0) for entry in catalogue.entries()}
    works = _works(extraction.arm, lambda task: sizes.get(task, 0), offline)
    return sum(work.images * (work.trained + work.frozen / FORWARD) for work in works)


def seen(arm: Arm, trained: int, offline: bool = False) -> int:
    """How many images an extraction has shown to a model: those of its training steps, or those that a method without any looks at."""
    sizes = {entry.name: entry.sizes.get("train", 0) for entry in catalogue.entries()}

    def size(task: str) -> int:
        return sizes.get(task) or catalogue.open_task(task, offline=offline).sizes["train"]

    return trained or sum(work.images for work in _works(arm, size, offline))


def _works(arm: Arm, size: Callable[[str], int], offline: bool) -> list[Work]:
    """What the extraction of an arm takes by its method's word, with tasks of so many training images."""
    method = METHODS.load(arm.method)
    sources = method.sources(arm.ancestries)
    specs = [ancestry_spec(source, offline=offline) for source in sources]
    tasks = method.references(arm.tasks, sources, "--extract-task") if arm.extractor.needs_tasks() else []
    return list(arm.extractor.work(specs, [size(task) for task in tasks]))


def check_same_ancestries(cells: Iterable[Cell], out: Path, run: Run) -> None:
    """Record the checksum of every ancestry model of a grid. Raises `Refused` if one has changed since the first results."""
    arms = {cell.arm.name: cell.arm for cell in cells}.values()
    sources = sorted({source for arm in arms for source in METHODS.load(arm.method).sources(arm.ancestries)})
    path = out / ANCESTRIES
    before = read_json(path) if path.is_file() else {}
    found = {source: open_ancestry(source, offline=run.offline).record.sha256 for source in sources}
    for source, checksum in found.items():
        if before.get(source, checksum) != checksum:
            raise Refused(
                f"the results in {out} come from another ancestry model {source}; choose another folder with -o, "
                "or start over with --force"
            )
    if found.items() - before.items():
        with new_file(path, force=True) as draft:
            write_json(draft, {**before, **found})
