"""Measure the tests: small faults (mutants) are put into the code, one at a time, and a test must
fail with each.

    python tools/mutants.py         the mutants of the list that have no result yet, then the table
    python tools/mutants.py --draw 150 --seed 7
            instead of the list, mutants drawn at random from all of the code
    python tools/mutants.py --only bench    those whose file or text contains the word
    python tools/mutants.py --list          print them, and try none
    python tools/mutants.py --fresh         all of them again
    python tools/mutants.py --map           measure which tests run which lines, which makes drawn
                                            ones quicker

`mutants.toml` has the list by file, with the tests that should fail. mutants_draw.py draws others;
their tests are chosen by the names in the files, and by the map where it is measured
(mutants_map.py). A test that fails must pass without the mutant. Each is applied to a copy of the
checkout's files, never to the checkout itself. A result is a line of mutants.jsonl or
mutants_drawn.jsonl in benchmarks/results and counts until the file, the mutant or its tests change;
a mutant that survived is always tried again. Exits with 1 if fewer than 95 % of the list are
killed, or one of it survives without a `why` (why no test can fail), or if fewer than 90 % of the
drawn ones are killed.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

import mutants_draw
import mutants_map

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from machine import RESULTS, write

ROOT = Path(__file__).resolve().parent.parent
LIST_FILE, ROWS = Path(__file__).with_name("mutants.toml"), RESULTS / "mutants.jsonl"
REASONS, DRAWN = LIST_FILE.with_name("mutants_drawn.toml"), RESULTS / "mutants_drawn.jsonl"
# A copy of the checkout has these folders, too.
OUR_FOLDERS = (str(LIST_FILE.parent), str(RESULTS.parent))
LEAST, LEAST_DRAWN = 0.95, 0.90  # of all mutants
PRELOADED = (
    *(
        "torch",
        "timm",
        "accelerate",
        "datasets",
        "safetensors.torch",
        "torchvision.transforms.v2",
        "matplotlib.pyplot",
    ),
    *("PIL.Image", "click.testing", "rich.progress", "pytest"),
)
# After so many seconds, and so many times the seconds of the tests without it, a mutant counts as
# killed.
PATIENCE, TIMES = 60.0, 5.0
# Of a drawn mutant: the test files that are tried, processor seconds of a test, and seconds of a
# test file.
MAX_FILES, TEST_SECONDS, STAGE_SECONDS = 16, 90.0, 1200.0
MEMORY = 6 << 30  # bytes that one process may take


class FailingTests(Exception):
    """Tests fail without a mutant, so that they cannot judge one."""


@dataclass(frozen=True)
class Mutant:
    """A change of a file: `old`, which must occur once, becomes `new`; `tests` are arguments of
    pytest.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str = ""  # the reason why no test can fail

    @property
    def name(self) -> str:
        """Its file and the beginning of the change."""
        return (
            f"{self.file}: {' '.join(self.old.split())[:50]} -> {' '.join(self.new.split())[:50]}"
        )

    def describe(self) -> str:
        """Return its file and the lines that it changes."""
        pairs = zip_longest(self.old.splitlines(), self.new.splitlines(), fillvalue="")
        changed = [(old.strip(), new.strip()) for old, new in pairs if old != new]
        old, new = (" ".join(part)[:120] for part in zip(*changed))
        return f"{self.file}: {old}  ->  {new}"

    def find_line(self, root: Path) -> int:
        """Return the first line, from 1, that it changes."""
        text, changed = (root / self.file).read_text(), self.apply(root)
        pairs = zip(text.split("\n"), changed.split("\n"))
        return next(number for number, (old, new) in enumerate(pairs, 1) if old != new)

    def find_problem(self, root: Path) -> str:
        """Return the reason why it cannot be applied; empty if it can."""
        if not (root / self.file).is_file():
            return f"{self.name}: there is no such file"
        count = (root / self.file).read_text().count(self.old)
        if count != 1 or self.old == self.new:
            return (
                f"{self.name}: the text occurs {count} times"
                if count != 1
                else f"{self.name}: nothing is changed"
            )
        missing = [
            test
            for test in self.tests
            if test.startswith("tests") and not (root / test.split("::")[0]).exists()
        ]
        if missing:
            return f"{self.name}: there is no {missing[0]}"
        try:
            ast.parse(self.apply(root))
        except SyntaxError as error:
            return f"{self.name}: not valid Python afterwards ({error})"
        return ""

    def apply(self, root: Path) -> str:
        """Return the file's text with the change."""
        return (root / self.file).read_text().replace(self.old, self.new)

    def compute_key(self, root: Path) -> str:
        """Return a checksum of the file, the mutant and its tests."""
        text = (root / self.file).read_text()
        return hashlib.sha256(repr([text, self.old, self.new, self.tests]).encode()).hexdigest()[
            :16
        ]


def load_mutants(path: Path = LIST_FILE) -> list[Mutant]:
    """Return the mutants of the list, in its order."""
    files = tomllib.loads(path.read_text(encoding="utf-8"))["file"]
    return [
        Mutant(
            part["path"],
            entry["old"],
            entry["new"],
            tuple(entry.get("tests", part["tests"])),
            entry.get("why", ""),
        )
        for part in files
        for entry in part["mutants"]
    ]


def main() -> None:
    """Try the mutants, print the table and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="those whose file or text contains this")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--fresh", action="store_true", help="try those again that have a result")
    parser.add_argument(
        "--draw", type=int, metavar="N", help="instead of the list, N drawn by chance"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
    parser.add_argument("--map", action="store_true", help="measure which tests run which lines")
    args = parser.parse_args()
    if args.map:
        return measure_tests(args.only)
    mutants = load_mutants() if args.draw is None else draw_mutants(args.draw, args.seed)
    problems = [problem for mutant in mutants if (problem := mutant.find_problem(ROOT))]
    if problems:
        sys.exit("\n".join(problems))
    path = ROWS if args.draw is None else DRAWN
    chosen = [
        mutant for mutant in mutants if args.only in f"{mutant.file} {mutant.old} {mutant.new}"
    ]
    if args.list:
        return print("\n".join(mutant.describe() for mutant in chosen))
    rows = read_rows(path)
    waiting = [mutant for mutant in chosen if args.fresh or not _is_killed(mutant, rows)]
    try:
        for mutant, row in try_mutants(waiting, args.jobs):
            rows[row["key"]] = row
            listed = [rows[key] for mutant in mutants if (key := mutant.compute_key(ROOT)) in rows]
            write_rows(listed if args.draw is None else list(rows.values()), path)
            print(f"{row['status']:9} {row['seconds']:6.1f} s   {mutant.describe()}", flush=True)
    except FailingTests as error:
        sys.exit(str(error))
    if args.draw is None:
        report_list(mutants, rows)
    else:
        report_draw(mutants, rows, args.seed)


def _is_killed(mutant: Mutant, rows: dict[str, Any]) -> bool:
    """Return whether a mutant has a result and was killed."""
    return rows.get(mutant.compute_key(ROOT), {}).get("status") == "killed"


def draw_mutants(count: int, seed: int) -> list[Mutant]:
    """Return mutants drawn by chance from all of the code.

    They have no tests, which are chosen when a mutant is tried.
    """
    texts = {source: (ROOT / source).read_text() for source in mutants_map.list_sources(ROOT)}
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))["survivor"]
    whys = {(entry["file"], entry["old"], entry["new"]): entry["why"] for entry in reasons}
    mutants = []
    for file, change in mutants_draw.draw_changes(texts, count, seed):
        old, new = mutants_draw.widen_change(texts[file], change)
        why = whys.get((file, *mutants_draw.read_lines(texts[file], change)), "")
        mutants.append(Mutant(file, old, new, (), why))
    return mutants


def measure_tests(only: str) -> None:
    """Measure the test files that changed since they were measured, and write their rows of the
    map.
    """
    preload()
    importlib.import_module("coverage")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        copy_checkout(tree)
        for test in mutants_map.list_unmeasured(ROOT):
            if only in test:
                _, _, seconds = run_fork(tree, partial(_measure_file, test, tree), 3600.0)
                print(f"{test:60} {seconds:6.1f} s", flush=True)


def _measure_file(test: str, tree: Path) -> int:
    """Measure a test file, write its row, and return pytest's exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        row = mutants_map.measure_file(test, Path(scratch))
    mutants_map.write_row(row, tree)
    return int(row["code"])


def read_rows(path: Path) -> dict[str, Any]:
    """Return the results so far, by key."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the results."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def try_mutants(mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    """Yield each mutant with its result, those with the same tests together.

    Raises:
        FailingTests: if tests fail without any mutant.
    """
    suites: dict[tuple[str, ...], list[Mutant]] = {}
    for mutant in mutants:
        suites.setdefault(mutant.tests, []).append(mutant)
    preload()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        pool = ProcessPoolExecutor(jobs, get_context("fork"))
        try:
            parts = [(tests, same) for tests, same in suites.items() if tests]
            parts += [
                ((), [mutant]) for mutant in suites.get((), [])
            ]  # drawn ones: a row as soon as it is there
            waiting = [pool.submit(_try_suite, folder, tests, same) for tests, same in parts]
            for future in as_completed(waiting):
                yield from future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def preload() -> None:
    """Import the slow packages that no mutant changes. Tests run in forks of this process."""
    os.environ.update(
        OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", MPLBACKEND="agg"
    )
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    assert "learngene_zoo" not in sys.modules, "every fork must import the changed files"


def _try_suite(folder: str, tests: tuple[str, ...], mutants: Sequence[Mutant]) -> list[Any]:
    """Return the rows of `try_suite`."""
    return list(try_suite(folder, tests, mutants))


def try_suite(
    folder: str, tests: tuple[str, ...], mutants: Sequence[Mutant]
) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    """Yield the rows of mutants with the same tests, tried in this process's copy of the files."""
    tree = Path(folder) / str(os.getpid())
    if not tree.is_dir():
        copy_checkout(tree)
    if not tests:
        selector = make_selector(tree)
        yield from ((mutant, judge_drawn(tree, mutant, selector)) for mutant in mutants)
        return
    failed, usual = run_tests(tree, tests, 600.0)
    if failed:
        raise FailingTests(f"without any mutant, {' '.join(tests)} fails: {failed}")
    yield from (
        (mutant, judge_mutant(tree, mutant, PATIENCE + TIMES * usual)) for mutant in mutants
    )


def judge_mutant(tree: Path, mutant: Mutant, limit: float) -> dict[str, Any]:
    """Return the row of a mutant, which is applied to the copy of the checkout at `tree` for that
    time.
    """
    key = mutant.compute_key(tree)
    with apply_mutant(tree, mutant):
        failed, seconds = run_tests(tree, mutant.tests, limit)
    return make_row(key, mutant, failed, seconds)


def make_row(key: str, mutant: Mutant, failed: str, seconds: float) -> dict[str, Any]:
    """Return a mutant's row of the results; `failed` is the test that failed with it, or ""."""
    change = {"file": mutant.file, "old": mutant.old, "new": mutant.new}
    status = "killed" if failed else "survived"
    return {"key": key, **change, "status": status, "by": failed, "seconds": round(seconds, 1)}


@cache
def make_selector(tree: Path) -> mutants_map.Selector:
    """Return the selector of tests, one for each process."""
    return mutants_map.Selector(tree, mutants_map.MAP)


@contextmanager
def apply_mutant(tree: Path, mutant: Mutant) -> Iterator[None]:
    """Apply a mutant to the copy of the checkout at `tree` within a with block."""
    path = tree / mutant.file
    text = path.read_text()
    path.write_text(mutant.apply(tree))
    try:
        yield
    finally:
        path.write_text(text)


def judge_drawn(tree: Path, mutant: Mutant, selector: mutants_map.Selector) -> dict[str, Any]:
    """Return the row of a mutant without tests: the nearest are chosen, a few files at a time.

    A test that fails must pass without the mutant; one that does not is left out from then on.
    """
    key, total = mutant.compute_key(tree), 0.0
    waiting = selector.choose(mutant.file, mutant.find_line(tree), MAX_FILES)
    while waiting:
        choice, unsound = waiting[0], set(selector.unsound)
        with apply_mutant(tree, mutant):
            failed, seconds = run_choices(tree, [choice], selector.unsound)
        total += seconds
        if failed and selector.is_sound(failed, partial(run_choices, tree)):
            return make_row(key, mutant, failed, total)
        if selector.unsound == unsound:  # else once more without the test that always fails
            waiting = waiting[1:]
    return make_row(key, mutant, "", total)


def run_choices(
    tree: Path, choices: Sequence[mutants_map.Choice], without: Collection[str] = ()
) -> tuple[str, float]:
    """Run chosen tests as `run_tests` does, except `without`; no test at all is no failure."""
    selection = mutants_map.Selection(choices, TEST_SECONDS, without)
    files = [choice.file for choice in choices]
    code, printed, seconds = run_fork(tree, lambda: run_pytest(files, [selection]), STAGE_SECONDS)
    if code is None:
        return "timeout", seconds
    return (name_failure(printed, code) if code not in (0, 5) else ""), seconds


def run_tests(tree: Path, tests: Sequence[str], limit: float) -> tuple[str, float]:
    """Return the first of the tests that fails, or "timeout"; empty if all pass. Also return the
    seconds.
    """
    code, printed, seconds = run_fork(tree, lambda: run_pytest(tests), limit)
    if code is None:
        return "timeout", seconds
    if code in (4, 5):
        raise FailingTests(f"pytest found no tests in {' '.join(tests)}:\n{printed}")
    return (name_failure(printed, code) if code else ""), seconds


def name_failure(printed: str, code: int) -> str:
    """Return the first failed test in pytest's output; without one, pytest's exit code."""
    lines = [line.split(" - ")[0] for line in printed.splitlines()]
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return (failed or [f"pytest exited with {code}"])[0].removeprefix("FAILED ")


def run_pytest(tests: Sequence[str], plugins: Sequence[object] = ()) -> int:
    """Run tests in this process until one fails, and return pytest's exit code."""
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no"]
    return int(pytest.main([*options, *tests], plugins=list(plugins)))


def run_fork(tree: Path, work: Callable[[], int], limit: float) -> tuple[int | None, str, float]:
    """Call `work` in a fork, in the copy of the checkout at `tree`.

    Returns the exit code (None if it was stopped after `limit` seconds), what was printed, and the
    seconds that took.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory(prefix="run-") as home:
        child = os.fork()
        if not child:
            _run_child(tree, work, output.fileno(), home)
        ended, status = 0, 0
        while not ended and time.monotonic() - started < limit:
            time.sleep(0.02)
            ended, status = os.waitpid(child, os.WNOHANG)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(status) if ended else None
    return code, printed, time.monotonic() - started


def _run_child(tree: Path, work: Callable[[], int], output: int, home: str) -> NoReturn:
    """Call `work` in a fork, in the copy of the checkout, print to the file `output`, and exit."""
    code = 3  # pytest's code for an internal error
    try:
        os.setsid()
        os.chdir(tree)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115  until the process ends
        sys.path[:] = [
            str(tree),
            str(tree / "plugins"),
            *(folder for folder in sys.path if folder not in OUR_FOLDERS),
        ]
        os.environ.update(PYTHONPATH=os.pathsep.join(sys.path[:2]), TMPDIR=home)
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        sys.dont_write_bytecode = True
        code = work()
        sys.stdout.flush()
    finally:
        os._exit(code)


def copy_checkout(tree: Path) -> None:
    """Copy the files that git knows, and compile them.

    A changed file is compiled again when it is imported.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
    compiling = [
        "compileall",
        "-q",
        "--invalidation-mode",
        "checked-hash",
        "learngene_zoo",
        "plugins",
    ]
    subprocess.run([sys.executable, "-m", *compiling], cwd=tree, check=True)


def report_list(mutants: Sequence[Mutant], rows: dict[str, Any]) -> None:
    """Print the table by file and the survivors; write both; exit with 1 if too many survive."""
    status = {
        mutant: rows.get(mutant.compute_key(ROOT), {}).get("status", "not tried")
        for mutant in mutants
    }
    files = list(dict.fromkeys(mutant.file for mutant in mutants))
    table = [
        {"file": file, "mutants": len(statuses), "killed": statuses.count("killed")}
        for file in files
        for statuses in [[status[mutant] for mutant in mutants if mutant.file == file]]
    ]
    for line in table:
        print(f"{line['file']:50} {line['killed']:3} of {line['mutants']:3}")
    left = [mutant for mutant in mutants if status[mutant] != "killed"]
    for mutant in left:
        print(f"{status[mutant]}: {mutant.name}{f'   ({mutant.why})' if mutant.why else ''}")
    killed = len(mutants) - len(left)
    print(
        f"{killed} of {len(mutants)} mutants in {len(files)} files are killed:"
        f" {killed / len(mutants):.1%}"
    )
    if "not tried" not in status.values():
        survivors = [{"mutant": mutant.name, "why": mutant.why} for mutant in left]
        seconds = sum(
            row["seconds"] for mutant in mutants for row in [rows[mutant.compute_key(ROOT)]]
        )
        numbers = {
            "mutants": len(mutants),
            "killed": killed,
            "files": len(files),
            "seconds": round(seconds),
        }
        print(write("mutants", {**numbers, "survivors": survivors, "by_file": table}))
    if killed < LEAST * len(mutants) or any(not mutant.why for mutant in left):
        sys.exit(1)


def report_draw(mutants: Sequence[Mutant], rows: dict[str, Any], seed: int) -> None:
    """Print and write the results of a seed's mutants; exit with 1 if too many survive."""
    status = {
        mutant: rows.get(mutant.compute_key(ROOT), {}).get("status", "not tried")
        for mutant in mutants
    }
    num_killed = sum(value == "killed" for value in status.values())
    num_tried = sum(value != "not tried" for value in status.values())
    left = [mutant for mutant in mutants if status[mutant] == "survived"]
    for mutant in left:
        print(f"survived: {mutant.describe()}{f'   ({mutant.why})' if mutant.why else ''}")
    share = num_killed / max(num_tried, 1)
    print(
        f"seed {seed}: {num_killed} of {num_tried} are killed: {share:.1%};"
        f" {len(mutants) - num_tried} not tried"
    )
    path = RESULTS / "mutants_drawn.json"
    results = json.loads(path.read_text()) if path.is_file() else {}
    survivors = [{"mutant": mutant.describe(), "why": mutant.why} for mutant in left]
    numbers = {
        "count": len(mutants),
        "tried": num_tried,
        "killed": num_killed,
        "survivors": survivors,
    }
    write("mutants_drawn", {**results, str(seed): numbers})
    if share < LEAST_DRAWN:
        sys.exit(1)


if __name__ == "__main__":
    main()
