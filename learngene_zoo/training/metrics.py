"""`metrics.jsonl`: one line of JSON per step, in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from learngene_zoo.folder import new_file
from learngene_zoo.processes import is_first
from learngene_zoo.training.trackers import Log

METRICS = "metrics.jsonl"


@contextmanager
def metrics_file(folder: Path | None, last_step: int) -> Iterator[Log]:
    """A function that writes a step's values as one line. Lines of steps after `last_step` are removed first.

    Only the first process writes; without a folder nobody does.
    """
    if folder is None or not is_first():
        yield lambda values, step: None
        return
    path = folder / METRICS
    _forget_after(path, last_step)
    with path.open("a", encoding="utf-8") as file:
        yield lambda values, step: _write(file, {"step": step, **values})


def _write(file: TextIO, line: dict[str, float]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


def _forget_after(path: Path, last_step: int) -> None:
    lines = path.read_bytes().splitlines() if path.exists() else []
    kept = [line for line in lines if 0 < _step_of(line) <= last_step]
    with new_file(path, force=True) as draft:
        draft.write_bytes(b"".join(line + b"\n" for line in kept))


def _step_of(line: bytes) -> int:
    """The step a line is about; 0 for one that a kill cut short."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 0
