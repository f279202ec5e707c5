"""Settings and fixtures of all tests: few threads, no network, temporary folders."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

# Before anything imports huggingface_hub, which reads them once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
log = logging.getLogger(__name__)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the number of fuzzing cases."""
    parser.addoption(
        "--fuzz-cases", type=int, default=400, help="cases of tests/fuzz, over all targets"
    )
    parser.addoption(
        "--fuzz-only",
        type=int,
        default=None,
        help="only the case of this number, of each target that -k selects",
    )


def pytest_xdist_auto_num_workers() -> int:
    """Return one worker for each core that this process may use, for `-n auto`.

    By default xdist counts two threads of a core as one.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the files with slow tests to the front, so that no worker runs one alone at the end."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)


def pytest_collection_finish() -> None:
    """Let the garbage collector leave out what is imported now, and begin after more objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(scope="session")
def cache_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an iterator over new folders, all in one: pytest reads its own for each new one."""
    parent = tmp_path_factory.mktemp("caches")
    return (parent / str(number) for number in count())


@pytest.fixture(autouse=True)
def cache(cache_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary folder for LGZOO_CACHE, so that no test writes into the user's cache."""
    folder = next(cache_folders)
    folder.mkdir()
    monkeypatch.setenv("LGZOO_CACHE", str(folder))
    return folder


@pytest.fixture
def checkout() -> Path:
    """Return the folder of the checkout. No test writes into it."""
    return ROOT


@pytest.fixture(scope="session")
def torchrun(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[list[str], Callable[[str], bool]], str]:
    """Return a function that runs a program in two processes and returns their output.

    If they die before their first step (`began` decides by their output), it logs this and tries
    again: another process may have taken torchrun's port.
    """

    def run(program: list[str], began: Callable[[str], bool]) -> str:
        for attempt in (1, 2):
            folder = tmp_path_factory.mktemp("torchrun")
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc_per_node",
                "2",
            ]
            command += ["--redirects", "3", "--log-dir", str(folder), *program]
            path = os.pathsep.join(
                [str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]
            )
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
            process = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=240
            )
            output = _logs(folder, "stdout.log")
            if process.returncode == 0:
                return output
            if attempt == 2 or began(output):
                break
            log.warning(
                "torchrun died before its first step; trying once more: %s", process.stderr[-500:]
            )
        raise AssertionError(process.stderr + _logs(folder, "stderr.log"))

    return run


def _logs(folder: Path, name: str) -> str:
    return "".join(file.read_text() for file in sorted(folder.rglob(name)))
