"""Time the commands that people wait for.

Each command runs in fresh processes, with files in the page cache and compiled modules beside them.
Wall seconds from starting the interpreter to its end; the median counts. A bare `python -c pass` of
the same run is the interpreter's share. Exits with 1 if a command is slower than its limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator

from pages import ROOT
from timings.case import Case, Row, measure_medians

REPEATS = 7
PLAN = "plan lsamd --ancestry timm:deit_base_patch16_224 --keep 1,4,5,7,8 --classes 100"
# The words after `lgzoo`, and the limit in seconds.
COMMANDS = {
    "--help": 0.15,
    "--version": 0.15,
    "list": 0.25,
    "list methods --json": 0.25,
    "show digits --json": 0.25,
    "show lsamd": 0.25,
    PLAN: 0.25,
    f"{PLAN} --convention thop --json": 0.25,
    "extract lsamd --help": 0.25,
    "completion bash": 0.25,
}
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)


def run_python(*words: str) -> Callable[[], object]:
    """Return a function that runs a fresh interpreter to its end."""
    line = [sys.executable, *words]
    return lambda: subprocess.run(line, check=True, capture_output=True, cwd=ROOT, env=ENVIRONMENT)


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time the bare interpreter, then every command."""
    calls = {line: run_python("-m", "learngene_zoo", *line.split()) for line in COMMANDS}
    seconds = measure_medians({"": run_python("-c", "pass"), **calls}, REPEATS)
    yield {"seconds": seconds[""]}, f"{seconds['']:.3f} s           python -c pass"
    for line, limit in COMMANDS.items():
        row = {"command": line, "seconds": seconds[line], "most": limit}
        yield row, f"{seconds[line]:.3f} s of {limit:.2f}   lgzoo {line}"


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if a command is too slow."""
    is_late = any(row["seconds"] > row["most"] for row in numbers["commands"])
    return "a command is slower than its limit" if is_late else ""


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {"python_s": rows[0]["seconds"], "commands": rows[1:]},
    find_problem=find_problem,
)
