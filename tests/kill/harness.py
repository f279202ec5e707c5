"""Kill a command before each of its file operations, call it again with --resume, and compare with
the uninterrupted run.

    python tests/kill/harness.py                      all operations of `finetune` and `expand
                                                      --force`, a sample of the others
    python tests/kill/harness.py finetune --kills 20  twenty of one story's, sampled by seed
    python tests/kill/harness.py --total 40           forty, divided among all stories

A file operation is what Python announces to audit hooks under the working folder: opening for
writing, making, renaming, removing, changing mode. Where opening empties a file, there is a kill
before it and one after it. Each trial is a fork of one process that has imported everything, so a
trial takes a second. A trial passes if, right after the kill, the place holds the old artifact or
the new one, whole (a bench's: the rows that were there, and of the new ones those that were
finished); if the same call with --resume (of a bench: the same call) exits with 0 and leaves
exactly what the uninterrupted run left, with no other name beside it; and if neither call prints
"unexpected".
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from stories import (
    PUBLISHED,
    SETUP,
    STORIES,
    Story,
    contents,
    make_world,
    publish,
    said,
    small_demo,
    timeless,
)

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.truncate",
    "os.link",
    "os.symlink",
}
MANY = 40  # kills that a story counts for, of which every operation is tried
UNEXPECTED = "unexpected"  # what the command line prints of an error that nobody foresaw
NOT_QUIET = ("show", "plot", "new-plugin", "doctor")  # commands that have no --quiet


def call(
    line: str, where: Path, kill: int | None = None, renames: bool = False
) -> tuple[int, list[str], str]:
    """Run a command line in a fork, in a folder: its exit code, its file operations, what it
    printed.

    With `kill` the process kills itself before that operation (counted from 0); the code is then
    -9.
    """
    log, read = where.parent / f"{where.name}.log", where.parent / f"{where.name}.ops"
    child = os.fork()
    if child == 0:
        os.chdir(where)
        with open(log, "wb") as sink:
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
        os._exit(_run(line, where, read, kill, renames))
    status = os.waitpid(child, 0)[1]
    ops = read.read_text().splitlines() if read.exists() else []
    return os.waitstatus_to_exitcode(status), ops, log.read_text(errors="replace")


def done(line: str, where: Path, renames: bool = False) -> list[str]:
    """The file operations of a command line that is not killed and must succeed."""
    code, ops, printed = call(line, where, renames=renames)
    assert code == 0, f"{line} exits with {code}: {printed}"
    assert UNEXPECTED not in printed, f"{line} prints {printed}"
    return ops


def _run(line: str, where: Path, log: Path, kill: int | None, renames: bool) -> int:
    """The exit code of a command line in this process."""
    from learngene_zoo import atomic
    from learngene_zoo.bench import demo
    from learngene_zoo.cli.main import main

    demo.demo_grid = small_demo
    if renames:
        atomic._load_renameat2 = lambda: None  # type: ignore[assignment]
    _watch(where, log, kill)
    words = line.split()
    try:
        main([*words, *(() if words[0] in NOT_QUIET else ["--quiet"])])
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException as error:
        print(f"raised {error!r}", flush=True)
        return 97
    finally:
        sys.stdout.flush()
    return 0


def _watch(where: Path, log: Path, kill: int | None) -> None:
    """Write down every file operation below `where`, and die before number `kill`."""
    top, handle, count, busy = (
        str(where),
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        0,
        False,
    )

    def passed(what: str, path: str) -> bool:
        nonlocal count
        if count == kill:
            return False
        os.write(handle, f"{what} {os.path.relpath(path, top)}\n".encode())
        count += 1
        return True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal busy
        if busy or not (event in CHANGES or event == "open"):
            return
        flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
        if (event == "open" and not flags & WRITING) or not isinstance(
            arguments[0], (str, bytes, os.PathLike)
        ):
            return
        busy = True
        full = os.path.join(top, os.fsdecode(arguments[0]))
        if full.startswith(top + os.sep):
            if not passed(event, full):
                os.kill(os.getpid(), signal.SIGKILL)
            if flags & os.O_TRUNC and not passed("after open", full):
                os.open(full, flags)
                os.kill(os.getpid(), signal.SIGKILL)
        busy = False

    sys.addaudithook(hook)


def trials(story: Story, top: Path, kills: int | None, seed: int) -> tuple[int, list[str]]:
    """Kill one story at its operations, or at a sample of them. Returns how many kills, and what
    went wrong.
    """
    place = fresh(
        top / "start", top / "place"
    )  # the same for all calls: some remember the paths of their data
    if story.old:
        done(story.old, place)
    before = fresh(place, top / "before")
    ops = done(story.line, place, story.renames)
    full = fresh(place, top / "whole")
    chosen = list(range(len(ops)))
    if kills is not None and kills < len(chosen):
        chosen = sorted(random.Random(f"{seed}/{story.name}").sample(chosen, kills))
    wrong = []
    for number in chosen:
        fresh(before, place)
        for problem in _trial(story, number, place, before, full):
            wrong.append(
                f"{story.name}: killed before operation {number} ({ops[number]}): {problem}"
            )
    return len(chosen), wrong


def _trial(story: Story, number: int, place: Path, before: Path, whole: Path) -> Iterator[str]:
    """What goes wrong if the story, whose files are in `place`, is killed before its operation of
    this number.
    """
    code, _, first = call(story.line, place, number, story.renames)
    if code != -signal.SIGKILL:
        yield f"it was not reached (exit {code})"
        return
    yield from _there(story, place / story.out, before / story.out, whole / story.out)
    code, _, second = call(f"{story.line} {story.again}", place, renames=story.renames)
    if code != 0:
        yield f"the next call exits with {code}: {second.strip()[-300:]}"
        return
    expected, actual = contents(whole), contents(place)
    names = sorted(name for name in {*actual, *expected} if actual.get(name) != expected.get(name))
    if names:
        yield f"the next call leaves other files: {', '.join(names[:4])}"
    if UNEXPECTED in first + second:
        yield f"it prints: {(first + second).strip()[-300:]}"


def _there(story: Story, place: Path, old: Path, new: Path) -> Iterator[str]:
    """What is wrong with what a kill left at a place: neither the old artifact nor the new one, or
    one that is not whole.
    """
    if not story.grows:
        found = artifact(place)
        if found not in (artifact(old), artifact(new)) and not (story.renames and not found):
            yield "neither the old nor the new artifact is there"
        return
    found, were, will = (artifact(folder) for folder in (place, old, new))
    for name, digest in found.items():
        if digest not in (were.get(name), will.get(name)):
            yield f"{name} is neither the old nor the new one"
    kept = rows(place)
    if not kept <= rows(old) | rows(new):
        yield "there are rows of no cell"
    if "--force" not in story.line and not (were.keys() <= found.keys() and rows(old) <= kept):
        yield "something that was there is gone"


def artifact(place: Path) -> dict[str, str]:
    """What the files at a place say; of a bench's folder only those that are written whole."""
    if place.is_file():
        return {"": said(place)}
    return {
        name: digest
        for name, digest in contents(place).items()
        if not any(
            part.startswith(".") or part.endswith(".run") or part == "parts"
            for part in Path(name).parts
        )
        and not name.startswith("results.jsonl")
    }


def rows(folder: Path) -> set[str]:
    """The rows of a bench that are whole."""
    path = folder / "results.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return {json.dumps(timeless(json.loads(line))) for line in lines}


def fresh(source: Path, place: Path) -> Path:
    """A copy of a folder, made anew."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place, symlinks=True)
    return place


def prepare(top: Path, stories: Sequence[Story]) -> None:
    """What the stories start from: a tiny model and its task, learngenes of it, a tuned one, a
    bench.
    """
    start = top / "start"
    make_world(start)
    words = {word for story in stories for line in (story.line, story.old) for word in line.split()}
    for line in SETUP:
        if line.split()[-1] in words | {"model", "gene"}:
            done(line, start)
    if PUBLISHED in words:
        child = os.fork()
        if child == 0:
            os.chdir(start)
            try:
                publish(start)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "nothing was published"


def import_all() -> None:
    """Everything that a command may import, once, before the forks."""
    import torch

    for name in (
        "datasets",
        "matplotlib.pyplot",
        "timm",
        "learngene_zoo.lifecycle",
        "learngene_zoo.training.fit",
    ):
        importlib.import_module(name)
    for name in (
        "cli.main",
        "bench.report.report",
        "bench.running.runner",
        "bench.running.trial",
        "bench.claims.run",
        "bench.report.cost_curve",
    ):
        importlib.import_module(f"learngene_zoo.{name}")
    torch.set_num_threads(1)


def shares(stories: Sequence[Story], kills: int | None, total: int | None) -> list[int | None]:
    """How many kills each story gets; None is all of its operations. A total is divided as the
    samples are.
    """
    if total is None:
        return [story.sample if kills is None else kills for story in stories]
    ends = list(accumulate(story.sample or MANY for story in stories))
    ends = [round(end * total / ends[-1]) for end in ends]
    return [end - start for start, end in zip([0, *ends], ends)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials that were asked for; exit 1 if any went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [story.name for story in STORIES]
    parser.add_argument(
        "stories", nargs="*", choices=[*names, []], help="their names; all if none is given"
    )
    parser.add_argument(
        "--kills", type=int, help="kills of each story (default: all of two, 4 to 40 of the others)"
    )
    parser.add_argument("--total", type=int, help="instead: kills of all stories together")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    import_all()
    stories = [story for story in STORIES if not given.stories or story.name in given.stories]
    killed = [
        each
        for each in zip(stories, shares(stories, given.kills, given.total), strict=True)
        if each[1] != 0
    ]
    total, wrong, began = 0, [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lgzoo-kill-") as folder:
        prepare(Path(folder), [story for story, _ in killed])
        for story, kills in killed:
            start = time.monotonic()
            count, found = trials(story, Path(folder), kills, given.seed)
            total, wrong = total + count, wrong + found
            print(
                f"{story.name}: {count} kills, {len(found)} wrong,"
                f" {time.monotonic() - start:.0f} s",
                flush=True,
            )
            for line in found:
                print(f"  {line}", flush=True)
    used = sum(os.times()[:4])
    print(
        f"{total} kills, {len(wrong)} wrong, {time.monotonic() - began:.0f} s ({used:.0f} s of a"
        " core)"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "LGZOO_CACHE": "cache",
        "HF_HUB_CACHE": "hub",
    }
    sys.exit(main())
