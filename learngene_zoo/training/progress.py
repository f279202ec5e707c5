"""The progress bar of a training, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from learngene_zoo.processes import is_first
from learngene_zoo.run import Run

if TYPE_CHECKING:
    from learngene_zoo.training.step import Step


@contextmanager
def progress_bar(run: Run, label: str, done: int, steps: int) -> Iterator[Callable[[Step], None]]:
    """A function to tell each step to; it draws only if `run.progress`, and only in the first process."""
    if not (run.progress and is_first()):
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),  # one of its own: rich allows one live bar per console
    )
    with bar:
        title = f"{run.name}: {label}" if run.name else label
        task = bar.add_task(title, total=steps, completed=done, loss="-")
        yield lambda step: bar.update(task, completed=step.step, loss=f"{step.loss:.4f}")
