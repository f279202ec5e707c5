"""Publishing and fetching a family of 100 files, against the client's own upload_folder and
snapshot_download.

    python benchmarks/hub_transfer.py          two minutes, one process

The Hub is the tests' stand-in on this machine, so seconds show the work of both sides and no
network; requests and bytes are those that any Hub would see. All four have the same files: a
learngene and 32 descendants, with their cards and the manifest. Ours also reads every file back and
makes a tag; what is fetched is checked against the manifest. The stand-in has no Xet, so large
files go by LFS.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import write
from pages import ROOT

sys.path.insert(0, str(ROOT / "tests" / "hub"))

from standin import StandIn

REPEATS = 3
LAYERS, CLASSES = range(5, 13), (10, 20, 50, 100)


def main() -> None:
    """Measure, print the table and keep it."""
    with tempfile.TemporaryDirectory() as scratch, StandIn() as hub:
        os.environ.update(hub.environment(Path(scratch) / "home") | {"HF_HUB_DISABLE_XET": "1"})
        found = measured(hub, Path(scratch))
    for name, numbers in found.items():
        print(
            f"{name:32} {numbers['requests']:5} requests {numbers['bytes']:12,} bytes"
            f" {numbers['seconds']:7.2f} s"
        )
    print(write("hub_transfer", {"files": 100, "repeats": REPEATS, **found}))


def measured(hub: StandIn, place: Path) -> dict[str, dict[str, Any]]:
    """Requests, bytes and median seconds of each way."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    import learngene_zoo as lg

    disable_progress_bars()
    learngene, members = family(place / "family")
    whole = place / "whole"
    lg.publish(learngene, "org/first", tag="v1", descendants=members)
    shutil.copytree(lg.fetch("org/first@v1"), whole)
    assert len([path for path in whole.rglob("*") if path.is_file()]) == 100
    number = 0

    def fresh() -> str:
        nonlocal number
        number += 1
        hub.stored.clear()
        shutil.rmtree(place / "home" / "hub", ignore_errors=True)
        return f"org/repository-{number}"

    def there() -> str:
        name = fresh()
        hub.put(name, hub.files("org/first"), tag="v1")
        return name

    def upload_folder(name: str) -> object:
        api = HfApi()
        api.create_repo(name)
        return api.upload_folder(repo_id=name, folder_path=whole)

    def cached(name: str) -> object:
        return lg.fetch(f"{name}@{hub.repos[name].head}")

    def cached_there() -> str:
        name = there()
        lg.fetch(f"{name}@v1")
        return name

    ways: dict[str, tuple[Callable[[], str], Callable[[str], object]]] = {
        "lgzoo publish": (
            fresh,
            lambda name: lg.publish(learngene, name, tag="v1", descendants=members),
        ),
        "upload_folder": (fresh, upload_folder),
        "lgzoo fetch": (there, lambda name: lg.fetch(f"{name}@v1")),
        "snapshot_download": (there, lambda name: snapshot_download(name, revision="v1")),
        "lgzoo fetch, cached, by commit": (cached_there, cached),
    }
    return {name: one_way(hub, prepare, call) for name, (prepare, call) in ways.items()}


def one_way(
    hub: StandIn, prepare: Callable[[], str], call: Callable[[str], object]
) -> dict[str, Any]:
    """The numbers of one way; each repeat has a repository of its own and an empty cache."""
    seconds = []
    for _ in range(REPEATS):
        name = prepare()
        hub.requests.clear()
        started = time.perf_counter()
        call(name)
        seconds.append(time.perf_counter() - started)
    sizes = sum(request.received + request.sent for request in hub.requests)
    return {"requests": len(hub.requests), "bytes": sizes, "seconds": statistics.median(seconds)}


def family(place: Path) -> tuple[Path, list[Path]]:
    """The learngene of LSAMD on the shelf and 32 descendants of it."""
    import learngene_zoo as lg

    learngene = lg.load("lsamd")
    assert isinstance(learngene, lg.Learngene)
    members = []
    for layers in LAYERS:
        for classes in CLASSES:
            members.append(place / f"layers-{layers}-classes-{classes}")
            lg.expand(learngene, layers=layers, classes=classes, out=members[-1])
    return learngene.save(place / "learngene"), members


if __name__ == "__main__":
    main()
