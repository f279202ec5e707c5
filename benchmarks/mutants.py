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
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from machine import RESULTS, write

ROOT = Path(__file__).resolve().parent.parent
LIST, ROWS = Path(__file__).with_name("mutants.toml"), RESULTS / "mutants.jsonl"
LEAST = 0.95  # of all mutants
PATIENCE, TIMES = (
    60.0,
    5.0,
)  # seconds, and times what the tests take on the whole code, after which a mutant counts as killed


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
    for mutant, row in tried(waiting, given.jobs):
        rows[mutant.key(ROOT)] = row
        keep([rows[key] for one in mutants if (key := one.key(ROOT)) in rows])
        print(f"{row['status']:9} {row['seconds']:6.1f} s   {mutant.name}", flush=True)
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
    """Each mutant with its result, those of one set of tests together. Exits if tests fail without any mutant."""
    suites: dict[tuple[str, ...], list[Mutant]] = {}
    for mutant in mutants:
        suites.setdefault(mutant.tests, []).append(mutant)
    with copies(jobs) as trees, ThreadPoolExecutor(jobs) as pool:

        def tried_in_one(tests: tuple[str, ...]) -> list[tuple[Mutant, dict[str, Any]]]:
            tree = trees.get()
            try:
                failed, usual = run(tree, tests, 600.0)
                if failed:
                    sys.exit(f"without any mutant, {' '.join(tests)} fails: {failed}")
                return [(one, judged(tree, one, PATIENCE + TIMES * usual)) for one in suites[tests]]
            finally:
                trees.put(tree)

        try:
            for done in as_completed([pool.submit(tried_in_one, tests) for tests in suites]):
                yield from done.result()
        finally:
            pool.shutdown(cancel_futures=True)


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
    path = os.pathsep.join([str(tree), str(tree / "plugins")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *tests]
    started = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "timeout", time.monotonic() - started
    if process.returncode in (4, 5):
        sys.exit(f"pytest found no tests in {' '.join(tests)}:\n{output}")
    lines = [line.split(" - ")[0] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failed = (lines or [f"pytest exited with {process.returncode}"])[0] if process.returncode else ""
    return failed.removeprefix("FAILED "), time.monotonic() - started


@contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """So many copies of the files that git knows, compiled so that a changed file is always read anew."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    trees: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(count):
            tree = Path(folder) / str(number)
            for name in filter(None, listed.split("\0")):
                if (ROOT / name).is_file():
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(ROOT / name, tree / name)
            compiling = ["compileall", "-q", "--invalidation-mode", "checked-hash", "learngene_zoo", "plugins"]
            subprocess.run([sys.executable, "-m", *compiling], cwd=tree, check=True)
            trees.put(tree)
        yield trees


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
