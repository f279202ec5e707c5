"""Parts of runs that other runs need, too: computed once in a folder of their own, and paid by everyone who uses them. Cold.

`FOLDER/<hash>` holds a part as a run holds it: metrics, checkpoints until it is finished, and `done`. The hash is of what the
result depends on and of the part's seed. Of several processes one computes and the others wait; after an interruption
anyone goes on from the checkpoint. `cost.json` says what the part took, and a note in the folder of every run that used
it says so, hence what a run would have taken alone is still known (`taken`).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Json, fingerprint, from_json, to_json
from learngene_zoo.storage import load_result, new_file, read_json, save_result, write_json

if TYPE_CHECKING:
    from learngene_zoo.storage import StateDict

NOTE, COST, DONE = "shared.json", "cost.json", "done"


@dataclass(frozen=True, kw_only=True)
class Note:
    """That a run used a shared part, and how long it was busy with it itself: computing, or waiting for another process."""

    key: str
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a run would have taken alone, compared to what it took: more seconds, and training images in all."""

    seconds: float = 0.0
    images: int = 0


def take_or_make(
    run: Run, shared: Path, compute: Callable[[Run], tuple[StateDict, Json]], depends: Json
) -> tuple[StateDict, Json]:
    """The result of a part: from `shared`, or computed there now."""
    from filelock import FileLock

    key = fingerprint([depends, run.seed])
    place, began = shared / key, time.monotonic()
    shared.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(shared / f"{key}.lock"):
            if not (place / DONE).is_dir():
                _make(place, run, compute)
    finally:
        _note(run, key, time.monotonic() - began)
    return load_result(place / DONE)


def _make(place: Path, run: Run, compute: Callable[[Run], tuple[StateDict, Json]]) -> None:
    began = time.monotonic()
    try:
        state, record = compute(replace(run, folder=place, resume=True))
        save_result(place / DONE, state, record)
        for checkpoint in sorted(place.rglob("checkpoint*")):
            if checkpoint.is_dir():
                shutil.rmtree(checkpoint)
    finally:
        _write(place / COST, {"seconds": _seconds(place) + time.monotonic() - began})


def _note(run: Run, key: str, seconds: float) -> None:
    """Say in the run's own folder what it used; the seconds of several beginnings add up."""
    if run.folder is None:
        return
    path = run.folder / NOTE
    before = _read(path).seconds if path.is_file() else 0.0
    _write(path, to_json(Note(key=key, seconds=before + seconds)))


def taken(folder: Path, shared: Path | None) -> Taken:
    """What a run in `folder` would have taken, had it computed alone all that it used.

    `seconds` come on top of those that it was seen to take: what its shared parts took, less the time that it spent with
    them. `images` are all training images, over all steps of all parts, as the metrics say.
    """
    lines = (line for path in folder.rglob("metrics.jsonl") for line in path.read_bytes().splitlines())
    images = sum(map(_images_of, lines))
    notes = [_read(path) for path in sorted(folder.rglob(NOTE))]
    seconds = -sum(note.seconds for note in notes)
    for key in {note.key for note in notes} if shared is not None else ():
        assert shared is not None
        inner = taken(shared / key, shared)
        seconds += _seconds(shared / key) + inner.seconds
        images += inner.images
    return Taken(seconds=seconds, images=images)


def _images_of(line: bytes) -> int:
    """The images of one step; none for a line that a kill cut short."""
    try:
        return int(json.loads(line)["images"])
    except (ValueError, KeyError, TypeError):
        return 0


def _seconds(place: Path) -> float:
    return float(read_json(place / COST)["seconds"]) if (place / COST).is_file() else 0.0


def _read(path: Path) -> Note:
    return from_json(Note, read_json(path), str(path))


def _write(path: Path, data: Json) -> None:
    with new_file(path, force=True) as draft:
        write_json(draft, data)
