"""Report progress of long steps on stderr: a bar on a terminal; a line where nothing was printed
for a while. Report the steps of a training, also to a file and to a tracker.

`show_progress` reports passes over items, `report_activity` any other step. Lines are printed
within `print_activities` only, which the command line enters; so a log shows that a command is
alive, and a command of a few seconds prints none.

The steps of a training have a file, `metrics.jsonl` in the run's folder, and a tracker of
accelerate's (TensorBoard, Weights & Biases, ...).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

from learngene_zoo.atomic import new_file
from learngene_zoo.errors import Unavailable, WrongCall, refuse_unknown
from learngene_zoo.runs.run import Run, is_first
from learngene_zoo.storage import parse_json
from learngene_zoo.text import escape_controls, format_seconds, is_in_notebook

if TYPE_CHECKING:
    from accelerate import Accelerator

Item = TypeVar("Item")
PERIOD = 20.0  # seconds without a line after which one is printed
FIRST = 1.0  # the same on a terminal, before the first line about a step; doubled by each line
MAX_TITLE = 60  # characters of a title or a note
MIN_SECONDS_BETWEEN_LINES = 5.0  # between the lines of two epochs
MIN_TITLE_LENGTH = 15  # characters of a progress bar's title
SILENT = threading.Event()  # is set while a command runs with --quiet
METRICS = "metrics.jsonl"  # one line of JSON per step


@dataclass(eq=False)
class Activity:
    """A step that may take long, and its progress."""

    title: str
    total: int | None = None
    num_done: int = 0
    has_bar: bool = False  # a bar shows it: no line is printed meanwhile
    note: str = ""
    began: float = field(default_factory=time.monotonic)
    # When the speed began to be measured, and the items that were done then: of a resumed step some
    # are done at once.
    _mark: tuple[float, int] | None = field(default=None, init=False)

    def describe(self) -> str:
        """Return the title and, of items, the number that is done and the remaining time."""
        count = f" {self.num_done}/{self.total}" if self.total else ""
        left = self.estimate_seconds_left()
        if left is not None and left >= 1:
            count += f" ({_format_duration(left)} left)"
        return f"{_shorten(self.title)}{count}{f', {_shorten(self.note)}' if self.note else ''}"

    def estimate_seconds_left(self) -> float | None:
        """Return the seconds until all items are done, at the speed since the first call; None
        while it is unknown.
        """
        now, done = time.monotonic(), self.num_done
        if not self.total or not done:
            return None
        if self._mark is None:
            self._mark = now, done
        began, done_before = self._mark
        if done == done_before:
            return None
        return (now - began) * (self.total - done) / (done - done_before)


def _format_duration(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 59.5 else format_seconds(seconds)


def _shorten(text: str) -> str:
    """Return a printable text of at most `MAX_TITLE` characters; the middle is left out."""
    text = escape_controls(text)
    if len(text) <= MAX_TITLE:
        return text
    return f"{text[: MAX_TITLE // 2]}…{text[-MAX_TITLE // 2 + 1 :]}"


class _Printer:
    """A printer of lines about the current activities, one whenever nothing was printed for
    `PERIOD` seconds. On a terminal the first line about an activity comes after `FIRST` seconds,
    and each further one after twice as many as the one before.
    """

    def __init__(self) -> None:
        self.activities: list[Activity] = []
        self.printed = time.monotonic()
        self.users = 0
        self.noted: set[str] = set()
        self.num_lines: dict[str, int] = {}  # by the title of the last activity of a line
        self._stop = threading.Event()

    def start(self, is_command: bool) -> None:
        self.users += 1
        if is_command:  # an interrupted pass of an earlier command may still count as a user
            self._forget()
        if self.users == 1 and is_first():
            self.printed, self._stop = time.monotonic(), threading.Event()
            threading.Thread(target=self._watch, args=(self._stop,), daemon=True).start()

    def stop(self) -> None:
        self.users -= 1
        if not self.users:
            self._forget()
            self._stop.set()

    def _forget(self) -> None:
        self.noted.clear()
        self.num_lines.clear()

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(min(FIRST, PERIOD) / 5):
            if time.monotonic() - self.printed >= self._choose_patience():
                self.printed = time.monotonic()
                self.print_line()

    def _choose_patience(self) -> float:
        """Return the seconds of silence before the next line."""
        current = list(self.activities)
        if not current or not _is_terminal(sys.stderr):
            return PERIOD
        num_lines = self.num_lines.get(current[-1].title, 0)
        return min(FIRST * 2 ** min(num_lines, 10), PERIOD)

    def print_line(self) -> None:
        """Print the first and the last activity, those with counts, and the seconds since the first
        began.
        """
        current = list(self.activities)
        if not current or any(activity.has_bar for activity in current):
            return
        title = current[-1].title
        self.num_lines[title] = self.num_lines.get(title, 0) + 1
        activities = [
            activity
            for activity in current
            if activity.total or activity in (current[0], current[-1])
        ]
        seconds = time.monotonic() - current[0].began
        try:
            print(
                ": ".join(activity.describe() for activity in activities)
                + f", {_format_duration(seconds)}",
                file=sys.stderr,
                flush=True,
            )
        except (OSError, ValueError):  # stderr is full or closed, which must not end the command
            return


def _is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal; False for one that is closed or replaced."""
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):
        return False


_printer = _Printer()


@contextmanager
def report_activity(
    title: str, total: int | None = None, *, has_bar: bool = False
) -> Iterator[Activity]:
    """Name this step in lines of progress. Its `num_done` and `note` may be set as it goes on."""
    activity = Activity(title, total, has_bar=has_bar and is_first())
    _printer.activities.append(activity)
    try:
        yield activity
    finally:
        _printer.activities.remove(activity)


@contextmanager
def print_activities(*, is_command: bool = False) -> Iterator[None]:
    """Print a line about the current step whenever nothing was printed for `PERIOD` seconds.

    Args:
        is_command: whether a command begins here, which prints each of its notes once.
    """
    _printer.start(is_command)
    try:
        yield
    finally:
        _printer.stop()


def print_unless_shown(text: str) -> None:
    """Print a line about the current step if no lines of progress are printed, as in a script.

    Nothing is printed within `print_activities`, whose lines name the step, and while `SILENT` is
    set.
    """
    if not (_printer.users or SILENT.is_set()):
        print(escape_controls(text), file=sys.stderr, flush=True)


def mark_printed() -> None:
    """Mark that a line was printed, so that the next line of progress is due `PERIOD` seconds from
    now.
    """
    _printer.printed = time.monotonic()


def print_note(text: str, key: str) -> None:
    """Print `note: text` where lines of progress are wanted, once per command for each key."""
    if _printer.users and is_first() and key not in _printer.noted:
        _printer.noted.add(key)
        mark_printed()
        print(f"note: {escape_controls(text)}", file=sys.stderr, flush=True)


def show_progress(items: Iterable[Item], title: str, shown: bool | None = None) -> Generator[Item]:
    """Yield the same items, with a bar on stderr that disappears at the end; without rich, with
    lines.

    Args:
        items: the items, which are counted first.
        title: the name of the pass.
        shown: whether to report, as `run.progress`; by default if stderr is a terminal.
    """
    listed = list(items)
    is_drawn = (sys.stderr.isatty() if shown is None else shown) and is_first()
    bar = _draw_bar(listed, title) if is_drawn else None
    with (
        print_activities() if is_drawn and bar is None else nullcontext(),
        report_activity(title, len(listed), has_bar=bar is not None) as activity,
    ):
        if bar is not None:
            yield from bar
            return
        for item in listed:
            yield item
            activity.num_done += 1


def _draw_bar(items: list[Item], title: str) -> Iterable[Item] | None:
    """Return the items with a bar of rich's; None where rich is not installed."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import track
    except ImportError:
        return None
    console = Console(stderr=True)
    return track(items, escape(escape_controls(title)), console=console, transient=True)


# Outputs of a training's steps: a file, a tracker, and progress on stderr.


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
        raise refuse_unknown("tracker", name, trackers)
    from accelerate.utils import LoggerType

    builtin = {str(kind) for kind in LoggerType}
    if name in builtin and name not in map(str, get_available_trackers()):
        raise Unavailable(
            f"the tracker {name} is not installed; install the package {name}, or train without a "
            "tracker"
        )
    if trackers[name].requires_logging_directory and folder is None:
        raise WrongCall(f"the tracker {name} writes files; give their folder as out")


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
def open_metrics_file(folder: Path | None, last_step: int) -> Iterator[Log]:
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


def read_number(line: bytes, name: str) -> int:
    """Return a number from one line of the metrics, as the images of a step; 0 for a line that a
    kill cut short.
    """
    try:
        return int(parse_json(line)[name])
    except (ValueError, KeyError, TypeError):
        return 0


def say(run: Run, text: str) -> None:
    """Print a line on stderr, above the progress bar if there is one.

    Only the first process prints, and only if `run.lines` is set.
    """
    if run.lines and is_first():
        mark_printed()
        print(escape_controls(text), file=sys.stderr, flush=True)


def say_once(run: Run, text: str) -> None:
    """Print a line as `say` does, once per command."""
    if text not in _printer.noted:
        if _printer.users:
            _printer.noted.add(text)
        say(run, text)


@contextmanager
def print_epochs(run: Run, label: str, done: int, steps: int, epochs: int) -> Iterator[Log]:
    """Yield a function that prints a line for an epoch when the next one begins.

    The line has the mean loss of the epoch's steps, after a resumption of those since then. Of
    short epochs, only one every few seconds has a line.

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
    losses: list[float] = []  # of the epoch

    def say_epoch(values: Mapping[str, float]) -> None:
        nonlocal reported
        reported = time.monotonic()
        loss = sum(losses) / len(losses)
        line = f"epoch {values['epoch'] + 1} of {epochs}: loss {loss:.4f}, {reported - began:.0f} s"
        say(run, f"{title}: {line}")

    def watch(values: Mapping[str, float], step: int) -> None:
        nonlocal last
        if last and values["epoch"] != last["epoch"]:
            if time.monotonic() - reported >= MIN_SECONDS_BETWEEN_LINES:
                say_epoch(last)
            losses.clear()
        losses.append(values["loss"])
        if step == steps:
            say_epoch(values)
        last = values

    yield watch


@contextmanager
def show_progress_bar(run: Run, label: str, done: int, steps: int) -> Iterator[Log]:
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
    if is_in_notebook():
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        with tqdm(total=steps, initial=done, desc=escape_controls(title), unit="step") as cell:

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
        task = bar.add_task(
            _shorten_title(escape_controls(title), room), total=steps, completed=done, loss="-"
        )
        try:
            yield lambda values, step: bar.update(
                task, completed=step, loss=f"{values['loss']:.4f}"
            )
        except KeyboardInterrupt:
            bar.live.transient = True  # remove the bar, so that the line with ^C is the last one
            raise


def _shorten_title(title: str, room: int) -> str:
    """Shorten a title in the middle if it leaves too little space for the numbers beside it."""
    if len(title) <= max(room, MIN_TITLE_LENGTH):
        return title
    half = (max(room, MIN_TITLE_LENGTH) - 1) // 2
    return f"{title[:half]}…{title[-half:]}"
