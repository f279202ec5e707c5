"""Where a training reports its steps: `metrics.jsonl` in the run's folder, one of accelerate's
trackers (TensorBoard, Weights & Biases, ...), and a progress bar on stderr.
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


MIN_SECONDS_BETWEEN_LINES = 5.0  # seconds, at least, between the lines of two epochs
MIN_TITLE_LENGTH = 15  # characters of a progress bar's title
METRICS = "metrics.jsonl"  # one line of JSON per step


class Log(Protocol):
    """Records the values of one step."""

    def __call__(self, values: Mapping[str, float], step: int) -> None: ...


def check_tracker(name: str | None, folder: Path | None) -> None:
    """Raises `WrongCall` for an unknown tracker, `Unavailable` for one whose package is not
    installed.
    """
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
        raise WrongCall(f"the tracker {name} writes files; give an output folder with -o")


@contextmanager
def open_tracker(accelerator: Accelerator, run: Run, label: str) -> Iterator[Log]:
    """A function that passes values to the run's tracker, if it has one.

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
        # Not accelerator.end_training(): that also takes down the process group.
        for tracker in accelerator.trackers:
            tracker.finish()


@contextmanager
def metrics_file(folder: Path | None, last_step: int) -> Iterator[Log]:
    """A function that writes a step's values as one line. Lines of steps after `last_step` are
    removed first.

    Only the first process writes, and nothing is written without a folder.
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
    """One line on stderr, above the progress bar if there is one, if `run.lines` is set and in the
    first process only.
    """
    if run.lines and is_first():
        mark_printed()
        print(printable(text), file=sys.stderr, flush=True)


def say_notes(tasks: Iterable[Task], run: Run) -> None:
    """Say what a user should know about their own data, as which files are left out: a line for
    each note.
    """
    for task in tasks:
        for note in task.notes if is_own_data(task.name) else ():
            say(run, f"{task.name}: {note}")


@contextmanager
def epoch_lines(run: Run, label: str, done: int, steps: int, epochs: int) -> Iterator[Log]:
    """A function that says one line of an epoch when the next one begins.

    Of short epochs, one every few seconds.
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
    """A function that shows a step and its loss.

    It draws only if `run.progress` is set, and only in the first process.
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

    console = Console(stderr=True)  # a new one: rich allows one live bar per console
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
            bar.live.transient = True  # the line with ^C is the last one
            raise


def _cut(title: str, room: int) -> str:
    """A title with its middle left out where it would take the room of the numbers beside it."""
    if len(title) <= max(room, MIN_TITLE_LENGTH):
        return title
    half = (max(room, MIN_TITLE_LENGTH) - 1) // 2
    return f"{title[:half]}…{title[-half:]}"
