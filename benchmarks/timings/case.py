"""The interface of the cases of `speed.py`, and the functions that measure."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPEED = Path(__file__).resolve().parents[1] / "speed.py"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A timing.

    Args:
        measure: Yields each row of the results, with the text that is printed for it.
        summarise: Returns the content of the results file from all rows.
        add_options: Adds the options of the case to a parser.
        measure_part: Returns a row that is measured in a separate process (see `run_part`).
        find_problem: Returns a sentence if the content of the results file exceeds a limit,
            otherwise "".
        name_suffix: Returns the end of the name of the results file, which begins with the case's.
        write_page: Writes the content of the results file into a page.
    """

    measure: Callable[[Namespace], Iterator[tuple[Row, str]]]
    summarise: Callable[[list[Row], Namespace], Row]
    add_options: Callable[[ArgumentParser], None] = lambda parser: None
    measure_part: Callable[[Namespace], Row] | None = None
    find_problem: Callable[[Row, Namespace], str] = lambda numbers, args: ""
    name_suffix: Callable[[Namespace], str] = lambda args: ""
    write_page: Callable[[Row], None] = lambda numbers: None


def measure_medians(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    rounds: int = 3,
    warm_ups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each function over `rounds` times `repeats` runs.

    The functions take turns, so that a machine that slows down slows all of them alike.

    Args:
        functions: The timed functions by name.
        repeats: The number of runs in a row.
        rounds: The number of turns of each function.
        warm_ups: The number of runs at the start of each turn that do not count, because the caches
            hold the data of another function.
        clock: Returns the seconds so far: of the clock, or `time.process_time` of the processor.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            values = [measure_seconds(function, clock) for _ in range(warm_ups + repeats)]
            seconds[name] += values[warm_ups:]
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure_seconds(
    function: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of one run; freeing its result is not timed."""
    started = clock()
    result = function()
    elapsed = clock() - started
    del result
    return elapsed


def synchronise_and_read_clock() -> float:
    """Return the seconds of the clock after the GPU has finished."""
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def run_part(case: str, part: Sequence[str], options: Sequence[str] = ()) -> Row:
    """Return the row of a part of a case, measured in a separate process.

    Args:
        case: The name of the case.
        part: The words that its `measure_part` finds in `args.part`.
        options: Options of the case, as on the command line.
    """
    command = [sys.executable, str(SPEED), case, *options, "--part", *part]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: Row = json.loads(finished.stdout)
    return row
