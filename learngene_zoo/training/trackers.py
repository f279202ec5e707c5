"""Outputs of a training's steps: a file, a tracker, and progress on stderr.

The file is `metrics.jsonl` in the run's folder; the tracker one of accelerate's (TensorBoard,
Weights & Biases, ...).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from learngene_zoo.atomic import new_file
from learngene_zoo.errors import Unavailable, WrongCall, unknown
from learngene_zoo.runs.cache import read_number
from learngene_zoo.runs.progress import mark_printed
from learngene_zoo.runs.run import Run, is_first
from learngene_zoo.tasks.catalogue import is_own_data
from learngene_zoo.text import in_notebook, printable

if TYPE_CHECKING:
    from accelerate import Accelerator

    from learngene_zoo.tasks.task import Task


MIN_SECONDS_BETWEEN_LINES = 5.0  # between the lines of two epochs
MIN_TITLE_LENGTH = 15  # characters of a progress bar's title
METRICS = "metrics.jsonl"  # one line of JSON per step


class Log(Protocol):
    """A function that records the values of a step."""

    def __call__(self, values: Mapping[str, float], step: int) -> None: ...


def check_tracker(name: str | None, folder: Path | None) -> None:
    """Raise `WrongCall` for an unknown tracker, `Unavailable` if its package is not installed."""
    if name is None:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    trackers: dict[str, Any] = {str(key): value for key, value in LOGGER_TYPE_TO_CLASS.items()}
    if name not in trackers:
        raise unknown("tracker", name, trackers)
    from accelerate.utils import LoggerType

    builtin = {str(kind) for kind in LoggerType}
    if name in builtin and name not in map(str, get_available_trackers()):
        raise Unavailable(
            f"the tracker {name} is not installed; install the package {name}, or train without"
            " --tracker"
        )
    if trackers[name].requires_logging_directory and folder is None:
        raise WrongCall(f"the tracker {name} writes files; choose a folder for them with -o")


@contextmanager
def open_tracker(accelerator: Accelerator, run: Run, label: str) -> Iterator[Log]:
    """Yield a function that passes values to the run's tracker, if it has one.

    The tracker is finished on exit.
    """
    if run.tracker is None:
        yield lambda values, step: None
        return
    accelerator.init_trackers(
        "learngene_zoo", config={"label": label, "part": run.name, "seed": str(run.seed)}
    )
    try:
        yield lambda values, step: accelerator.log(dict(values), step=step)
    finally:
        # Not accelerator.end_training(), which also destroys the process group.
        for tracker in accelerator.trackers:
            tracker.finish()


@contextmanager
def metrics_file(folder: Path | None, last_step: int) -> Iterator[Log]:
    """Yield a function that appends a step's values to `metrics.jsonl` as one line.

    Lines of steps after `last_step` are removed first. Only the first process writes, and nothing
    is written without a folder.
    """
    if folder is None or not is_first():
        yield lambda values, step: None
        return
    path = folder / METRICS
    _forget_after(path, last_step)
    with path.open("a", encoding="utf-8") as file:
        yield lambda values, step: _write(file, {"step": step, **values})


def _write(file: TextIO, line: dict[str, float]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


def _forget_after(path: Path, last_step: int) -> None:
    lines = path.read_bytes().splitlines() if path.exists() else []
    earlier = [line for line in lines if 0 < read_number(line, "step") <= last_step]
    with new_file(path, force=True) as draft:
        draft.write_bytes(b"".join(line + b"\n" for line in earlier))


def say(run: Run, text: str) -> None:
    """Print a line on stderr, above the progress bar if there is one.

    Only the first process prints, and only if `run.lines` is set.
    """
    if run.lines and is_first():
        mark_printed()
        print(printable(text), file=sys.stderr, flush=True)


def say_notes(tasks: Iterable[Task], run: Run) -> None:
    """Print the notes on a user's data, such as which files are left out, one line each."""
    for task in tasks:
        for note in task.notes if is_own_data(task.name) else ():
            say(run, f"{task.name}: {note}")


@contextmanager
def epoch_lines(run: Run, label: str, done: int, steps: int, epochs: int) -> Iterator[Log]:
    """Yield a function that prints a line for an epoch when the next one begins.

    Of short epochs, only one every few seconds has a line.

    Args:
        run: the run.
        label: name of the training.
        done: number of completed steps.
        steps: number of all steps.
        epochs: number of all epochs.
    """
    title = f"{run.name}: {label}" if run.name else label
    began = reported = time.monotonic()
    last: Mapping[str, float] = {}

    def watch(values: Mapping[str, float], step: int) -> None:
        nonlocal reported, last
        ended = (
            bool(last)
            and values["epoch"] != last["epoch"]
            and time.monotonic() - reported >= MIN_SECONDS_BETWEEN_LINES
        )
        visible = values if step == steps else last if ended else None
        if visible is not None:
            reported = time.monotonic()
            say(
                run,
                f"{title}: epoch {visible['epoch'] + 1} of {epochs}: loss {visible['loss']:.4f},"
                f" {reported - began:.0f} s",
            )
        last = values

    yield watch


@contextmanager
def progress_bar(run: Run, label: str, done: int, steps: int) -> Iterator[Log]:
    """Yield a function that shows a step and its loss in a progress bar.

    It draws only if `run.progress` is set, and only in the first process.

    Args:
        run: the run.
        label: name of the training.
        done: number of completed steps.
        steps: number of all steps.
    """
    if not (run.progress and is_first()):
        yield lambda values, step: None
        return
    title = f"{run.name}: {label}" if run.name else label
    if in_notebook():
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        with tqdm(total=steps, initial=done, desc=printable(title), unit="step") as cell:

            def show(values: Mapping[str, float], step: int) -> None:
                cell.set_postfix(loss=f"{values['loss']:.4f}", refresh=False)
                cell.update(step - cell.n)

            yield show
        return
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)  # not shared, because rich allows one live bar per console
    wide = 40 if console.width >= 110 else 10
    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(wide),
        progress.MofNCompleteColumn(),
        progress.TextColumn("loss {task.fields[loss]}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=console,
    )
    room = console.width - wide - len(f"{steps}/{steps} loss 00.0000 0:00:00 left 0:00:00") - 5
    with bar:
        task = bar.add_task(_cut(printable(title), room), total=steps, completed=done, loss="-")
        try:
            yield lambda values, step: bar.update(
                task, completed=step, loss=f"{values['loss']:.4f}"
            )
        except KeyboardInterrupt:
            bar.live.transient = True  # remove the bar, so that the line with ^C is the last one
            raise


def _cut(title: str, room: int) -> str:
    """Shorten a title in the middle if it leaves too little space for the numbers beside it."""
    if len(title) <= max(room, MIN_TITLE_LENGTH):
        return title
    half = (max(room, MIN_TITLE_LENGTH) - 1) // 2
    return f"{title[:half]}…{title[-half:]}"
