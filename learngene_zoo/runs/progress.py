"""Report progress of long steps on stderr: a bar on a terminal; a line where nothing was printed
for a while.

`progress` reports passes over items, `report_activity` any other step. A training reports its steps
itself (training/trackers.py). Lines are printed within `print_activities` only, which the command
line enters; so a log shows that a command is alive, and a command of a few seconds prints none.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from learngene_zoo.runs.run import is_first
from learngene_zoo.text import human_seconds, printable

Item = TypeVar("Item")
PERIOD = 20.0  # seconds without a line after which one is printed
MAX_TITLE = 60  # characters


@dataclass(eq=False)
class Activity:
    """A step that may take long, and its progress."""

    title: str
    total: int | None = None
    num_done: int = 0
    has_bar: bool = False  # a bar shows it: no line is printed meanwhile
    note: str = ""
    began: float = field(default_factory=time.monotonic)

    def describe(self) -> str:
        """Return the title and, of items, the number that is done."""
        title = printable(self.title)
        if len(title) > MAX_TITLE:
            title = f"{title[: MAX_TITLE // 2]}…{title[-MAX_TITLE // 2 + 1 :]}"
        count = f" {self.num_done}/{self.total}" if self.total else ""
        return f"{title}{count}{f', {self.note}' if self.note else ''}"


class _Printer:
    """A printer of lines about the current activities, one whenever nothing was printed for
    `PERIOD` seconds.
    """

    def __init__(self) -> None:
        self.activities: list[Activity] = []
        self.printed = time.monotonic()
        self.users = 0
        self.noted: set[str] = set()
        self._stop = threading.Event()

    def start(self) -> None:
        self.users += 1
        if self.users == 1 and is_first():
            self.printed, self._stop = time.monotonic(), threading.Event()
            threading.Thread(target=self._watch, args=(self._stop,), daemon=True).start()

    def stop(self) -> None:
        self.users -= 1
        if not self.users:
            self.noted.clear()
            self._stop.set()

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(max(0.01, self.printed + PERIOD - time.monotonic())):
            if time.monotonic() - self.printed >= PERIOD:
                self.printed = time.monotonic()
                self.print_line()

    def print_line(self) -> None:
        """Print the first and the last activity, those with counts, and the seconds since the first
        began.
        """
        current = list(self.activities)
        if not current or any(activity.has_bar for activity in current):
            return
        activities = [
            activity
            for activity in current
            if activity.total or activity in (current[0], current[-1])
        ]
        seconds = time.monotonic() - current[0].began
        duration = f"{seconds:.0f}s" if seconds < 59.5 else human_seconds(seconds)
        try:
            print(
                ": ".join(activity.describe() for activity in activities) + f", {duration}",
                file=sys.stderr,
                flush=True,
            )
        except (OSError, ValueError):  # stderr is full or closed, which must not end the command
            return


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
def print_activities(is_wanted: bool = True) -> Iterator[None]:
    """Print a line about the current step whenever nothing was printed for `PERIOD` seconds."""
    if not is_wanted:
        yield
        return
    _printer.start()
    try:
        yield
    finally:
        _printer.stop()


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
        print(f"note: {printable(text)}", file=sys.stderr, flush=True)


def progress(items: Iterable[Item], title: str, shown: bool | None = None) -> Generator[Item]:
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
    return track(items, escape(printable(title)), console=console, transient=True)
