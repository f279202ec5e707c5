"""Kill a verb before each of its file operations, call it again with --resume, and compare with the uninterrupted run.

    python tests/kill/harness.py                      every verb; all operations of `finetune` and `expand`, else a sample
    python tests/kill/harness.py finetune --kills 20  twenty of one verb's, sampled by seed

A file operation is what Python announces to audit hooks under the working folder: opening for writing, making, renaming,
removing, changing mode. Each trial is a fork of one process that has imported everything, so a trial takes a second. A trial
passes if, right after the kill, the place holds the old artifact or the new one, whole; and if the same call with --resume exits
with 0 and leaves exactly what the uninterrupted run left, byte for byte, with no other name beside it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "os.link", "os.symlink"}
SMALL = "--epochs 2 --images 32 --batch-size 16"


@dataclass(frozen=True)
class Story:
    """A command, what it writes, and how it goes on after a kill."""

    name: str
    line: str
    out: str
    old: str = ""  # the line that makes what is there before; "" if nothing is
    again: str = "--resume"
    every: bool = False  # whether every operation is tried, or a sample


STORIES = (
    Story("finetune", f"finetune model --task digits {SMALL} -o out", "out", every=True),
    Story(
        "expand",
        "expand gene --layers 3 --num-classes 5 -o out --force",
        "out",
        "expand gene --layers 2 -o out",
        every=True,
    ),
    Story("expand-new", "expand gene --layers 2 -o out", "out"),
    Story(
        "finetune-force", f"finetune model --task digits {SMALL} -o out --force", "out", "expand gene --layers 2 -o out"
    ),
    Story("train", f"train --task figures --layers 2 --width 32 --heads 2 --patch-size 8 {SMALL} -o out", "out"),
    Story("extract-keep", "extract lsamd --ancestry model --keep 1,2 -o out", "out"),
    Story(
        "extract", f"extract lsamd --ancestry model --preset smoke --task figures --task signs {SMALL} -o out", "out"
    ),
    Story("evaluate", "evaluate tuned --task digits -o out.json", "out.json", again="--force"),
    Story("plot", "plot searched -o out.png", "out.png", again="--force"),
    Story("sheet", "show figures -o out.png", "out.png", again="--force"),
)
SETUP = (
    f"train --task figures --layers 3 --width 32 --heads 2 --patch-size 8 {SMALL} -o model",
    "extract lsamd --ancestry model --keep 1,2 -o gene",
    f"extract lsamd --ancestry model --preset smoke --task figures --task signs {SMALL} -o searched",
    f"finetune model --task digits {SMALL} -o tuned",
)


def call(line: str, where: Path, kill: int | None = None) -> tuple[int, list[str], str]:
    """Run a command line in a fork, in a folder: its exit code, its file operations, what it printed.

    With `kill` the process kills itself before that operation (counted from 0); the code is then -9.
    """
    log, read = where.parent / f"{where.name}.log", where.parent / f"{where.name}.ops"
    child = os.fork()
    if child == 0:
        os.chdir(where)
        with open(log, "wb") as sink:
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
        _watch(where, read, kill)
        from learngene_zoo.cli.main import main

        try:
            main([*line.split(), "--quiet"] if line.split()[0] not in ("show", "plot") else line.split())
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(int(end.code or 0))
        except BaseException as error:
            print(f"raised {error!r}", flush=True)
            os._exit(97)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    ops = read.read_text().splitlines() if read.exists() else []
    return os.waitstatus_to_exitcode(status), ops, log.read_text(errors="replace")


def _watch(where: Path, log: Path, kill: int | None) -> None:
    """Write down every file operation below `where`, and die before number `kill`."""
    top, handle, count, busy = str(where), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 0, False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count, busy
        if busy or not (event in CHANGES or event == "open"):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITING):
            return
        path = arguments[0]
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        busy = True
        try:
            full = os.path.join(top, os.fsdecode(path))
            if full.startswith(top + os.sep):
                if count == kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                os.write(handle, f"{event} {os.path.relpath(full, top)}\n".encode())
                count += 1
        finally:
            busy = False

    sys.addaudithook(hook)


def contents(where: Path) -> dict[str, str]:
    """The hash of every file below a folder, without what differs from run to run by its nature: seconds, dates."""
    return {
        str(path.relative_to(where)): _hash(path)
        for path in sorted(where.rglob("*"))
        if path.is_file() and path.name != "metrics.jsonl"
    }


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def artifact(place: Path) -> str:
    """A hash of what lies at a place; "" if nothing does."""
    if place.is_file():
        return _hash(place)
    return json.dumps(contents(place)) if place.is_dir() else ""


def trials(story: Story, top: Path, kills: int | None, seed: int) -> tuple[int, list[str]]:
    """Kill one story at its operations, or at a sample of them. Returns how many kills, and what went wrong."""
    start = top / "start"
    whole = fresh(start, top / "whole")
    if story.old:
        code, _, printed = call(story.old, whole)
        assert code == 0, printed
    old, before = artifact(whole / story.out), top / "before"
    shutil.copytree(whole, before, symlinks=True)
    code, ops, printed = call(story.line, whole)
    assert code == 0, f"{story.line}: {printed}"
    wanted, new = contents(whole), artifact(whole / story.out)
    chosen = list(range(len(ops)))
    if kills is not None and kills < len(chosen):
        chosen = sorted(random.Random(f"{seed}/{story.name}").sample(chosen, kills))
    wrong = []
    for number in chosen:
        place = fresh(before, top / "trial")
        said = f"{story.name}: killed before operation {number} ({ops[number]})"
        code, _, _ = call(story.line, place, kill=number)
        if code != -signal.SIGKILL:
            wrong.append(f"{said}: it was not reached (exit {code})")
            continue
        there = artifact(place / story.out)
        if there not in (old, new):
            wrong.append(f"{said}: neither the old nor the new artifact is there")
        code, _, printed = call(f"{story.line} {story.again}", place)
        if code != 0:
            wrong.append(f"{said}: the next call exits with {code}: {printed.strip()[-300:]}")
        elif contents(place) != wanted:
            found = contents(place)
            names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
            wrong.append(f"{said}: the next call leaves other files: {', '.join(names[:4])}")
        if "unexpected" in printed:
            wrong.append(f"{said}: the next call prints 'unexpected'")
    shutil.rmtree(whole)
    shutil.rmtree(before)
    return len(chosen), wrong


def fresh(source: Path, place: Path) -> Path:
    """A copy of a folder, made anew."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place, symlinks=True)
    return place


def prepare(top: Path) -> None:
    """What the stories start from: a tiny model, learngenes of it, a tuned one."""
    start = top / "start"
    start.mkdir(parents=True)
    for line in SETUP:
        code, _, printed = call(line, start)
        assert code == 0, f"{line}: {printed}"


def imported() -> None:
    """Everything that a command may import, once, before the forks."""
    import torch

    for name in ("datasets", "matplotlib.pyplot", "timm", "learngene_zoo.lifecycle", "learngene_zoo.training.fit"):
        importlib.import_module(name)
    torch.set_num_threads(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials that were asked for; exit 1 if any went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories", nargs="*", help="their names; all if none is given")
    parser.add_argument("--kills", type=int, help="kills of each story (default: all of two, 120 of the others)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    imported()
    total, wrong, began = 0, [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lgzoo-kill-") as place:
        prepare(Path(place))
        for story in STORIES:
            if chosen.stories and story.name not in chosen.stories:
                continue
            kills = chosen.kills if chosen.kills is not None else None if story.every else 120
            count, found = trials(story, Path(place), kills, chosen.seed)
            total, wrong = total + count, wrong + found
            print(f"{story.name}: {count} kills, {len(found)} wrong", flush=True)
    print("\n".join(wrong))
    print(f"{total} kills, {len(wrong)} wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
