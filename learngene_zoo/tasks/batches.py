"""`open_loader`: the batches of any task, whether its images can be asked for one by one or come as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from learngene_zoo.tasks.loader import Batch, Loader
from learngene_zoo.tasks.streams.loader import StreamLoader
from learngene_zoo.tasks.task import Task
from learngene_zoo.view import View


class Batches(Protocol):
    """What training and evaluation take: a split as batches, one epoch at a time."""

    task: Task
    view: View
    batch_size: int  # over all processes

    @property
    def images(self) -> int:
        """How many images are used."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This process's share of the batches of one epoch, from step `start` on. Raises `BadData`."""


def open_loader(task: Task, split: str, view: View, **settings: Any) -> Batches:
    """Batches of one split of `task`, presented as `view` says; the settings are `Loader`'s. Raises as the loaders do."""
    kind = Loader if task.open_stream is None else StreamLoader
    return kind(task, split, view, **settings)
