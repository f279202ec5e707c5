"""How long a shelf of many cards takes: to list it, to show one card, to find one, and to complete
a command line about one.

    python benchmarks/shelf_listing.py [CARDS]        10,000 unless given

The cards lie in a temporary folder; each has the config.json of the bundled `lsamd-mini`. Every
command runs in fresh processes, with files warm in the page cache; the best run counts, so that
what else the machine does matters less. Seconds from starting the interpreter to its end, and the
processor seconds of these.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import write

ROOT = Path(__file__).resolve().parent.parent
CARD = ROOT / "cards" / "lsamd-mini" / "config.json"
CARDS, METHODS, REPEATS, MOST = 10_000, 20, 5, 1.0
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}",
    "OMP_NUM_THREADS": "1",
}
HERE = (
    "import sys\nfrom pathlib import Path\nfrom learngene_zoo.artifacts import"
    " shelf\nshelf.cards_folder = lambda: Path({!r})\n"
)
COMMAND = "from learngene_zoo.cli.main import main\nmain(sys.argv[1:], prog_name='lgzoo')"
ONE = "method03-00003"
# What is timed: the program after `HERE`, its words, and what the environment adds.
CALLS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "list": (COMMAND, ["list", "learngenes"], {}),
    "list --json": (COMMAND, ["list", "learngenes", "--json"], {}),
    "show": (COMMAND, ["show", ONE], {}),
    "find": (f"shelf.find({ONE!r})", [], {}),
    "completion": (
        COMMAND,
        [],
        {
            "_LGZOO_COMPLETE": "bash_complete",
            "COMP_WORDS": f"lgzoo expand {ONE} --l",
            "COMP_CWORD": "3",
        },
    ),
}


def make(place: Path, cards: int) -> None:
    """Fill a folder with cards of several methods."""
    config = CARD.read_bytes()
    for number in range(cards):
        folder = place / f"method{number % METHODS:02}-{number:05}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes(config)


def timed(
    place: Path, program: str, words: list[str], extra: dict[str, str]
) -> tuple[float, float]:
    """Wall and processor seconds of a fresh interpreter whose shelf is `place`."""
    line = [sys.executable, "-c", HERE.format(str(place)) + program, *words]
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(line, check=True, capture_output=True, env={**ENVIRONMENT, **extra})
    wall, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def main() -> None:
    """Measure, print, and keep the results; exits 1 if a command needs more processor time than it
    may.
    """
    cards = int(sys.argv[1]) if len(sys.argv) > 1 else CARDS
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "cards"
        make(place, cards)
        for name, call in CALLS.items():
            walls, used = zip(*(timed(place, *call) for _ in range(REPEATS)))
            rows.append(
                {
                    "command": name,
                    "seconds": round(min(walls), 3),
                    "processor_s": round(min(used), 3),
                }
            )
            print(f"{min(walls):.3f} s, {min(used):.3f} s of a processor   {name}, {cards} cards")
    numbers = {"cards": cards, "bytes_each": CARD.stat().st_size, "most_s": MOST, "commands": rows}
    print(write("shelf_listing", numbers))
    if max(float(row["processor_s"]) for row in rows) > MOST:
        sys.exit(f"a command takes more than {MOST} s")


if __name__ == "__main__":
    main()
