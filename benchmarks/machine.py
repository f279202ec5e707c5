"""Shared by all benchmarks: how times are measured, and on which machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def medians(tasks: Sequence[Callable[[], object]], repeats: int, rounds: int = 3) -> list[float]:
    """Median wall seconds of each task, over `rounds` times `repeats` runs.

    The tasks take turns, so that a machine that slows down slows all of them alike. The first run
    of each round is not counted: its caches hold the data of another task.
    """
    seconds: list[list[float]] = [[] for _ in tasks]
    for _ in range(rounds):
        for task, kept in zip(tasks, seconds):
            kept += [_timed(task) for _ in range(1 + repeats)][1:]
    return [statistics.median(kept) for kept in seconds]


def _timed(task: Callable[[], object]) -> float:
    """Wall seconds of one run; freeing what it returns is not timed."""
    started = time.perf_counter()
    result = task()
    elapsed = time.perf_counter() - started
    del result
    return elapsed


def machine() -> dict[str, Any]:
    """The processor, its cores, the memory and the versions that the numbers depend on."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "timm", "safetensors")},
    }


def _field(path: str, name: str) -> str | None:
    """The value of the first line `name : value` of a file; None if there is no such file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def write(name: str, numbers: dict[str, Any]) -> Path:
    """Keep the numbers, with the machine they come from, as benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(
        json.dumps({**numbers, "machine": machine()}, indent=2) + "\n", encoding="utf-8"
    )
    return path


def read(name: str) -> dict[str, Any]:
    """What `write` has written under this name; empty if nothing."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
