"""Time the commands of a large shelf: list it, show a card, find one, complete a command line.

The cards lie in a temporary folder; each has the config.json of the bundled `lsamd-mini`. Every
command runs in fresh processes, with files in the page cache; the best run counts, so that other
programs matter less. Seconds from starting the interpreter to its end, and the processor seconds
of these. Exits with 1 if a command needs more than a second of the processor.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from pages import CARDS, ROOT
from timings.case import Case, Row

CARD = CARDS / "lsamd-mini" / "config.json"
METHODS, REPEATS, MAX_SECONDS = 20, 5, 1.0
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}",
    "OMP_NUM_THREADS": "1",
}
USE_FOLDER = (
    "import sys\nfrom pathlib import Path\nfrom learngene_zoo.artifacts import"
    " shelf\nshelf.find_cards_folder = lambda: Path({!r})\n"
)
COMMAND = "from learngene_zoo.cli.main import main\nmain(sys.argv[1:], prog_name='lgzoo')"
NAME = "method03-00003"
# By name, the program after `USE_FOLDER`, its words, and additions to the environment.
CALLS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "list": (COMMAND, ["list", "learngenes"], {}),
    "list --json": (COMMAND, ["list", "learngenes", "--json"], {}),
    "show": (COMMAND, ["show", NAME], {}),
    "find": (f"shelf.find({NAME!r})", [], {}),
    "completion": (
        COMMAND,
        [],
        {
            "_LGZOO_COMPLETE": "bash_complete",
            "COMP_WORDS": f"lgzoo expand {NAME} --l",
            "COMP_CWORD": "3",
        },
    ),
}


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this case."""
    parser.add_argument("--cards", type=int, default=10_000, help="(default: %(default)s)")


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time every call on a folder of cards."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "cards"
        write_cards(folder, args.cards)
        for name, call in CALLS.items():
            wall_s, processor_s = zip(*(measure_call(folder, *call) for _ in range(REPEATS)))
            row = {
                "command": name,
                "seconds": round(min(wall_s), 3),
                "processor_s": round(min(processor_s), 3),
            }
            yield (
                row,
                f"{min(wall_s):.3f} s, {min(processor_s):.3f} s of a processor   {name},"
                f" {args.cards} cards",
            )


def write_cards(folder: Path, cards: int) -> None:
    """Fill a folder with cards of several methods."""
    config = CARD.read_bytes()
    for number in range(cards):
        card = folder / f"method{number % METHODS:02}-{number:05}"
        card.mkdir(parents=True)
        (card / "config.json").write_bytes(config)


def measure_call(
    folder: Path, program: str, words: list[str], extra: dict[str, str]
) -> tuple[float, float]:
    """Return the wall and processor seconds of a fresh interpreter that uses a folder of cards."""
    line = [sys.executable, "-c", USE_FOLDER.format(str(folder)) + program, *words]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(line, check=True, capture_output=True, env={**ENVIRONMENT, **extra})
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def summarise(rows: list[Row], args: Namespace) -> Row:
    """Return the content of the results file."""
    sizes = {"cards": args.cards, "bytes_each": CARD.stat().st_size}
    return {**sizes, "most_s": MAX_SECONDS, "commands": rows}


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if a command takes too much of the processor."""
    is_late = max(row["processor_s"] for row in numbers["commands"]) > MAX_SECONDS
    return f"a command takes more than {MAX_SECONDS} s" if is_late else ""


CASE = Case(
    measure=measure, summarise=summarise, add_options=add_options, find_problem=find_problem
)
