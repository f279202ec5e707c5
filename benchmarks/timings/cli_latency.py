"""How long the commands take that people wait for.

    python benchmarks/cli_latency.py

Each command runs in fresh processes, with files in the page cache and compiled modules beside them.
Wall seconds from starting the interpreter to its end; the median counts. A bare `python -c pass` of
the same run is the interpreter's own share.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from machine import medians, write

ROOT = Path(__file__).resolve().parent.parent
REPEATS = 7
PLAN = "plan lsamd --ancestry timm:deit_base_patch16_224 --keep 1,4,5,7,8 --classes 100"
# What follows `lgzoo`, and the most seconds it may take.
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


def process(*words: str) -> Callable[[], object]:
    """A fresh interpreter, run to its end."""
    line = [sys.executable, *words]
    return lambda: subprocess.run(line, check=True, capture_output=True, cwd=ROOT, env=ENVIRONMENT)


def main() -> None:
    """Measure, print, and keep the results; exits 1 if a command is slower than it may be."""
    calls = [
        process("-c", "pass"),
        *(process("-m", "learngene_zoo", *line.split()) for line in COMMANDS),
    ]
    bare, *seconds = medians(calls, REPEATS)
    print(f"{bare:.3f} s           python -c pass")
    for (line, most), took in zip(COMMANDS.items(), seconds):
        print(f"{took:.3f} s of {most:.2f}   lgzoo {line}")
    rows = [
        {"command": line, "seconds": s, "most": most}
        for (line, most), s in zip(COMMANDS.items(), seconds)
    ]
    print(write("cli_latency", {"python_s": bare, "commands": rows}))
    if any(took > most for took, most in zip(seconds, COMMANDS.values())):
        sys.exit("a command is slower than it may be")


if __name__ == "__main__":
    main()
