"""A bar for what is no training: passes over images, blocks, tries. A training reports its steps itself (training/trackers.py)."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from typing import TypeVar

from learngene_zoo.runs.run import is_first
from learngene_zoo.text import printable

Item = TypeVar("Item")


def progress(items: Iterable[Item], title: str, shown: bool | None = None) -> Generator[Item]:
    """The same items, with a bar on stderr that disappears at the end.

    shown: as a run has it (`run.progress`); by default if stderr is a terminal.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track

    drawn = (sys.stderr.isatty() if shown is None else shown) and is_first()
    title = escape(printable(title))
    yield from track(list(items), title, console=Console(stderr=True), transient=True, disable=not drawn)
