"""How a bench tells how far it is: one line per cell, or on a terminal a bar with the lines above it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from learngene_zoo.cli.job import Job
from learngene_zoo.cli.output import say
from learngene_zoo.text import printable
from learngene_zoo.units import human_seconds

if TYPE_CHECKING:
    from learngene_zoo.bench.runner import Estimate

Say = Callable[[str], None]
Watch = Callable[["Estimate"], None]


@contextmanager
def telling(job: Job) -> Iterator[tuple[Say, Watch]]:
    """A function for lines, and one for how far it is. Both write to stderr, and neither if the job is quiet."""
    if not job.run.progress:
        yield lambda text: say(text, job), lambda estimate: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as bar:
        task = bar.add_task("", total=None, left="")

        def watch(estimate: Estimate) -> None:
            left = f"about {human_seconds(estimate.left)} left" if estimate.left else ""
            bar.update(task, completed=estimate.done, total=estimate.total, left=left)

        yield lambda text: bar.console.print(printable(text), markup=False), watch
