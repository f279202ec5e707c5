"""Measure publishing and fetching 100 files against the client's functions for folders.

These are upload_folder and snapshot_download. The Hub is the tests' stand-in on this machine, so
seconds show the work of both sides and no network; requests and bytes are those that any Hub would
see. All have the same files: a learngene and 32 descendants, with their cards and the manifest.
Ours also reads every file back and makes a tag; fetched files are checked against the manifest.
The stand-in has no Xet, so large files go by LFS. Two minutes, one process.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

from pages import ROOT
from timings.case import Case, Row

sys.path.insert(0, str(ROOT / "tests" / "hub"))

from standin import StandIn

REPEATS = 3
LAYERS, CLASSES = range(5, 13), (10, 20, 50, 100)


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Measure each way."""
    with tempfile.TemporaryDirectory() as scratch, StandIn() as hub:
        os.environ.update(hub.environment(Path(scratch) / "home") | {"HF_HUB_DISABLE_XET": "1"})
        for name, (prepare, call) in make_ways(hub, Path(scratch)).items():
            row = measure_way(hub, prepare, call)
            yield (
                {"name": name, **row},
                f"{name:32} {row['requests']:5} requests {row['bytes']:12,} bytes"
                f" {row['seconds']:7.2f} s",
            )


def make_ways(
    hub: StandIn, folder: Path
) -> dict[str, tuple[Callable[[], str], Callable[[str], object]]]:
    """Return, by name, the function that prepares a repository and the one that is measured."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    import learngene_zoo as lg

    disable_progress_bars()
    learngene, members = make_family(folder / "family")
    files = folder / "whole"
    lg.publish(learngene, "org/first", tag="v1", descendants=members)
    shutil.copytree(lg.fetch("org/first@v1"), files)
    assert len([path for path in files.rglob("*") if path.is_file()]) == 100
    number = 0

    def empty_cache() -> str:
        nonlocal number
        number += 1
        hub.stored.clear()
        shutil.rmtree(folder / "home" / "hub", ignore_errors=True)
        return f"org/repository-{number}"

    def fill_repository() -> str:
        name = empty_cache()
        hub.put(name, hub.files("org/first"), tag="v1")
        return name

    def upload_folder(name: str) -> object:
        api = HfApi()
        api.create_repo(name)
        return api.upload_folder(repo_id=name, folder_path=files)

    def fetch_commit(name: str) -> object:
        return lg.fetch(f"{name}@{hub.repos[name].head}")

    def fill_repository_and_cache() -> str:
        name = fill_repository()
        lg.fetch(f"{name}@v1")
        return name

    return {
        "lgzoo publish": (
            empty_cache,
            lambda name: lg.publish(learngene, name, tag="v1", descendants=members),
        ),
        "upload_folder": (empty_cache, upload_folder),
        "lgzoo fetch": (fill_repository, lambda name: lg.fetch(f"{name}@v1")),
        "snapshot_download": (
            fill_repository,
            lambda name: snapshot_download(name, revision="v1"),
        ),
        "lgzoo fetch, cached, by commit": (fill_repository_and_cache, fetch_commit),
    }


def measure_way(hub: StandIn, prepare: Callable[[], str], call: Callable[[str], object]) -> Row:
    """Return requests, bytes and median seconds; each repeat has another repository."""
    seconds = []
    for _ in range(REPEATS):
        name = prepare()
        hub.requests.clear()
        started = time.perf_counter()
        call(name)
        seconds.append(time.perf_counter() - started)
    sizes = sum(request.received + request.sent for request in hub.requests)
    return {"requests": len(hub.requests), "bytes": sizes, "seconds": statistics.median(seconds)}


def make_family(folder: Path) -> tuple[Path, list[Path]]:
    """Write the learngene of LSAMD on the shelf and 32 descendants of it."""
    import learngene_zoo as lg

    learngene = lg.load("lsamd")
    assert isinstance(learngene, lg.Learngene)
    members = []
    for layers in LAYERS:
        for classes in CLASSES:
            members.append(folder / f"layers-{layers}-classes-{classes}")
            lg.expand(learngene, layers=layers, classes=classes, out=members[-1])
    return learngene.save(folder / "learngene"), members


def summarise(rows: list[Row], args: Namespace) -> Row:
    """Return the content of the results file: the numbers of each way by name."""
    ways = {row["name"]: {key: row[key] for key in row if key != "name"} for row in rows}
    return {"files": 100, "repeats": REPEATS, **ways}


CASE = Case(measure=measure, summarise=summarise)
