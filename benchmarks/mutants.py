"""What the tests see: small faults are put into the code, one at a time, and the tests named for each must fail.

    python benchmarks/mutants.py                  the mutants that have no result yet, then the table; about 30 minutes on one core
    python benchmarks/mutants.py --only bench     those whose file or text contains the word
    python benchmarks/mutants.py --fresh          all of them again

`mutants.toml` has the mutants by file, with the tests that ought to see them. Each is applied to a copy of the checkout's files,
never to the checkout itself. A result is kept as a line of results/mutants.jsonl and counts until the file, the mutant or its
tests change; one that survived is always tried again. Exits with 1 if fewer than 95 % are killed, or if one survives that
has no `why`: why no test can see it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

from machine import RESULTS, write

ROOT = Path(__file__).resolve().parent.parent
LIST, ROWS = Path(__file__).with_name("mutants.toml"), RESULTS / "mutants.jsonl"
LEAST = 0.95  # of all mutants
PRELOADED = (
    *("torch", "timm", "accelerate", "datasets", "safetensors.torch", "torchvision.transforms.v2", "matplotlib.pyplot"),
    *("PIL.Image", "click.testing", "rich.progress", "pytest"),
)
# After so many seconds, and so many times what the tests take on the whole code, a mutant counts as killed.
PATIENCE, TIMES = 60.0, 5.0


class Red(Exception):
    """Tests that fail without any mutant can tell nothing."""


@dataclass(frozen=True)
class Mutant:
    """In `file`, `old` (which must occur once) becomes `new`; `tests` are arguments of pytest."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str = ""  # no test can see it

    @property
    def name(self) -> str:
        """Its file and the beginning of what it changes."""
        return f"{self.file}: {' '.join(self.old.split())[:50]} -> {' '.join(self.new.split())[:50]}"

    def problem(self, root: Path) -> str:
        """Why it cannot be applied; empty if it can."""
        if not (root / self.file).is_file():
            return f"{self.name}: there is no such file"
        count = (root / self.file).read_text().count(self.old)
        if count != 1 or self.old == self.new:
            return f"{self.name}: the text occurs {count} times" if count != 1 else f"{self.name}: nothing is changed"
        missing = [
            test for test in self.tests if test.startswith("tests") and not (root / test.split("::")[0]).exists()
        ]
        if missing:
            return f"{self.name}: there is no {missing[0]}"
        try:
            ast.parse(self.applied(root))
        except SyntaxError as error:
            return f"{self.name}: not valid Python afterwards ({error})"
        return ""

    def applied(self, root: Path) -> str:
        """The file's text with it."""
        return (root / self.file).read_text().replace(self.old, self.new)

    def key(self, root: Path) -> str:
        """Changes with the file, the mutant and its tests."""
        text = (root / self.file).read_text()
        return hashlib.sha256(repr([text, self.old, self.new, self.tests]).encode()).hexdigest()[:16]


def load(path: Path = LIST) -> list[Mutant]:
    """The list, in its order."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))["file"]
    return [
        Mutant(part["path"], one["old"], one["new"], tuple(one.get("tests", part["tests"])), one.get("why", ""))
        for part in found
        for one in part["mutants"]
    ]


def main() -> None:
    """Try the mutants, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="those whose file or text contains this")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--fresh", action="store_true", help="try those again that have a result")
    given = parser.parse_args()
    mutants = load()
    problems = [problem for mutant in mutants if (problem := mutant.problem(ROOT))]
    if problems:
        sys.exit("\n".join(problems))
    rows = read()
    chosen = [mutant for mutant in mutants if given.only in f"{mutant.file} {mutant.old} {mutant.new}"]
    waiting = [mutant for mutant in chosen if given.fresh or not _is_killed(mutant, rows)]
    try:
        for mutant, row in tried(waiting, given.jobs):
            rows[row["key"]] = row
            keep([rows[key] for one in mutants if (key := one.key(ROOT)) in rows])
            print(f"{row['status']:9} {row['seconds']:6.1f} s   {mutant.name}", flush=True)
    except Red as error:
        sys.exit(str(error))
    report(mutants, rows)


def _is_killed(mutant: Mutant, rows: dict[str, Any]) -> bool:
    return rows.get(mutant.key(ROOT), {}).get("status") == "killed"


def read() -> dict[str, Any]:
    """The results so far, by key."""
    lines = ROWS.read_text().splitlines() if ROWS.is_file() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def keep(rows: Sequence[dict[str, Any]]) -> None:
    """Write the results."""
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def tried(mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    """Each mutant with its result, those of one set of tests together. Raises `Red` if tests fail without any mutant."""
    suites: dict[tuple[str, ...], list[Mutant]] = {}
    for mutant in mutants:
        suites.setdefault(mutant.tests, []).append(mutant)
    preload()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        pool = ProcessPoolExecutor(jobs, get_context("fork"))
        try:
            for done in as_completed([pool.submit(of_suite, folder, tests, own) for tests, own in suites.items()]):
                yield from done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def preload() -> None:
    """Import what takes most of the time of a short run of tests, and is never changed. Tests run in forks of this process."""
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", MPLBACKEND="agg")
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    assert "learngene_zoo" not in sys.modules, "every fork must import the changed files anew"


def of_suite(folder: str, tests: tuple[str, ...], mutants: Sequence[Mutant]) -> list[tuple[Mutant, dict[str, Any]]]:
    """The rows of mutants that share their tests, tried in this process's own copy of the checkout."""
    tree = Path(folder) / str(os.getpid())
    if not tree.is_dir():
        copy_checkout(tree)
    failed, usual = run(tree, tests, 600.0)
    if failed:
        raise Red(f"without any mutant, {' '.join(tests)} fails: {failed}")
    return [(one, judged(tree, one, PATIENCE + TIMES * usual)) for one in mutants]


def judged(tree: Path, mutant: Mutant, limit: float) -> dict[str, Any]:
    """The row of a mutant that is applied to the copy of the checkout at `tree`, which is left as it was."""
    place, key = tree / mutant.file, mutant.key(tree)
    before = place.read_text()
    place.write_text(mutant.applied(tree))
    try:
        failed, seconds = run(tree, mutant.tests, limit)
    finally:
        place.write_text(before)
    status = "killed" if failed else "survived"
    what = {"file": mutant.file, "old": mutant.old, "new": mutant.new}
    return {"key": key, **what, "status": status, "by": failed, "seconds": round(seconds, 1)}


def run(tree: Path, tests: Sequence[str], limit: float) -> tuple[str, float]:
    """The first of the tests that fails, or "timeout"; empty if all pass. And the seconds that took."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            _test(tree, tests, output.fileno())
        ended, status = 0, 0
        while not ended and time.monotonic() - started < limit:
            time.sleep(0.02)
            ended, status = os.waitpid(child, os.WNOHANG)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
            return "timeout", time.monotonic() - started
        output.seek(0)
        printed = output.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(status)
    if code in (4, 5):
        raise Red(f"pytest found no tests in {' '.join(tests)}:\n{printed}")
    lines = [line.split(" - ")[0] for line in printed.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failed = (lines or [f"pytest exited with {code}"])[0] if code else ""
    return failed.removeprefix("FAILED "), time.monotonic() - started


def _test(tree: Path, tests: Sequence[str], output: int) -> NoReturn:
    """In a fork: run the tests of the copy, print to the file `output`, and end."""
    code = 3  # pytest's for an error of its own
    try:
        os.setsid()
        os.chdir(tree)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115  until the process ends
        sys.path[:] = [str(tree), str(tree / "plugins"), *(place for place in sys.path if place != str(LIST.parent))]
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
        sys.dont_write_bytecode = True
        import pytest

        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=no", *tests]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def copy_checkout(tree: Path) -> None:
    """The files that git knows, compiled so that a changed one is always read anew."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
    compiling = ["compileall", "-q", "--invalidation-mode", "checked-hash", "learngene_zoo", "plugins"]
    subprocess.run([sys.executable, "-m", *compiling], cwd=tree, check=True)


def report(mutants: Sequence[Mutant], rows: dict[str, Any]) -> None:
    """Print the table by file and what survives; keep both; exit with 1 if too much does."""
    status = {mutant: rows.get(mutant.key(ROOT), {}).get("status", "not tried") for mutant in mutants}
    files = list(dict.fromkeys(mutant.file for mutant in mutants))
    table = [
        {"file": file, "mutants": len(own), "killed": own.count("killed")}
        for file in files
        for own in [[status[mutant] for mutant in mutants if mutant.file == file]]
    ]
    for line in table:
        print(f"{line['file']:50} {line['killed']:3} of {line['mutants']:3}")
    left = [mutant for mutant in mutants if status[mutant] != "killed"]
    for mutant in left:
        print(f"{status[mutant]}: {mutant.name}{f'   ({mutant.why})' if mutant.why else ''}")
    killed = len(mutants) - len(left)
    print(f"{killed} of {len(mutants)} mutants in {len(files)} files are killed: {killed / len(mutants):.1%}")
    if "not tried" not in status.values():
        survivors = [{"mutant": mutant.name, "why": mutant.why} for mutant in left]
        seconds = sum(row["seconds"] for mutant in mutants for row in [rows[mutant.key(ROOT)]])
        numbers = {"mutants": len(mutants), "killed": killed, "files": len(files), "seconds": round(seconds)}
        print(write("mutants", {**numbers, "survivors": survivors, "by_file": table}))
    if killed < LEAST * len(mutants) or any(not mutant.why for mutant in left):
        sys.exit(1)


if __name__ == "__main__":
    main()
