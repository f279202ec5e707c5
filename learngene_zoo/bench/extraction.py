"""The learngenes of a grid: each extracted once per seed, shared by its cells and by all processes, with what it cost. Cold.

`learngenes/<method>-<hash>` in the bench's folder is an ordinary learngene; `<method>-<hash>.cost.json` beside it says what it
took. An interrupted extraction goes on from its checkpoint, and its seconds add up. Parts that several extractions need
are computed once, in `parts`; each of these extractions is charged for them as if it had been alone.

Which ancestry models a results file speaks of: `ancestries.json` beside it, so that two are never mixed. Cold.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from learngene_zoo import lifecycle, registry
from learngene_zoo.artifacts.learngene import load
from learngene_zoo.bench.cell import Arm, Cell
from learngene_zoo.errors import Refused
from learngene_zoo.lifecycle import preset_of, sources_for
from learngene_zoo.runs.cache import taken
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import fingerprint, from_json, to_json, with_settings
from learngene_zoo.storage import Tensors, new_file, read_json, write_json

if TYPE_CHECKING:
    from learngene_zoo.artifacts.learngene import Learngene


LEARNGENES, PARTS = "learngenes", "parts"


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What an extraction took, over all its beginnings: as if it had been alone, with no part taken from another."""

    seconds: float = 0.0
    busy: float = 0.0  # seconds that it was seen to take, here
    images: int = 0  # shown in training, over all epochs
    stored_params: int = 0  # numbers that must be kept to build any size
    finished: bool = False


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """One extraction of a grid: an arm without its name (`Cell.extraction`), and a seed."""

    arm: Arm
    seed: int

    @property
    def key(self) -> str:
        """The name of its folder."""
        return f"{self.arm.method}-{fingerprint([to_json(self.arm), self.seed])}"

    def folder(self, out: Path) -> Path:
        """Where its learngene lies."""
        return out / LEARNGENES / self.key

    def record(self, out: Path) -> Path:
        """Where it is said what it took."""
        return out / LEARNGENES / f"{self.key}.cost.json"

    def is_finished(self, out: Path) -> bool:
        """Whether it need not be repeated."""
        return self.folder(out).is_dir() and spent(self, out).finished


def spent(extraction: Extraction, out: Path) -> Spent:
    """What an extraction took until now."""
    path = extraction.record(out)
    return from_json(Spent, read_json(path), str(path)) if path.is_file() else Spent()


def extract_once(extraction: Extraction, out: Path, run: Run) -> tuple[Learngene, Spent]:
    """The learngene, extracted now unless it lies there already; of several processes one works and the others wait."""
    from filelock import FileLock

    place = extraction.folder(out)
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_name(f"{place.name}.lock")):
        if not extraction.is_finished(out):
            _extract(extraction, out, run)
    return load(place), spent(extraction, out)


def _extract(extraction: Extraction, out: Path, run: Run) -> None:
    arm, place = extraction.arm, extraction.folder(out)
    extractor = with_settings(preset_of(registry.load(arm.method), arm.preset), arm.settings)
    before, began, finished = spent(extraction, out), time.monotonic(), False
    try:
        made = lifecycle.extract(
            arm.method,
            ancestries=arm.ancestries,
            tasks=arm.tasks,
            extractor=extractor,
            out=place,
            run=replace(run, folder=None, seed=extraction.seed, resume=True, shared=out / PARTS),
            force=True,  # what lies there without a record of its cost was cut short
        )
        finished = True
    finally:
        alone = taken(place.with_name(f"{place.name}.run"), out / PARTS)
        busy = (before.busy or before.seconds) + time.monotonic() - began
        now = Spent(
            seconds=busy + alone.seconds,
            busy=busy,
            images=alone.images,
            stored_params=_stored(made) if finished else 0,
            finished=finished,
        )
        with new_file(extraction.record(out), force=True) as draft:
            write_json(draft, to_json(now))


def _stored(learngene: Learngene) -> int:
    state = learngene.state
    if isinstance(state, Tensors):
        return sum(math.prod(shape) for shape in state.shapes().values())
    return sum(tensor.numel() for tensor in state.values())


ANCESTRIES = "ancestries.json"


def check_same_ancestries(cells: Iterable[Cell], out: Path, run: Run) -> None:
    """Note the checksum of every ancestry model of a grid. Raises `Refused` if one changed since the results began."""
    from learngene_zoo.artifacts.ancestry import open_ancestry

    arms = {cell.arm.name: cell.arm for cell in cells}.values()
    sources = sorted({source for arm in arms for source in sources_for(registry.load(arm.method), arm.ancestries)})
    path = out / ANCESTRIES
    before = read_json(path) if path.is_file() else {}
    found = {source: open_ancestry(source, offline=run.offline).record.sha256 for source in sources}
    for source, checksum in found.items():
        if before.get(source, checksum) != checksum:
            raise Refused(
                f"the results in {out} are of another ancestry model {source}; choose another place with -o, "
                "or measure all again with --force"
            )
    if found.items() - before.items():
        with new_file(path, force=True) as draft:
            write_json(draft, {**before, **found})
