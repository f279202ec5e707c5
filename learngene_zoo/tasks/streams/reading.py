"""`Reading`: a stream cut into batches, of which this process reads its share. It knows no loader, so none outlives its use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from learngene_zoo.processes import rank, world
from learngene_zoo.tasks.streams.order import Order, shown
from learngene_zoo.tasks.streams.stream import Sample, Stream

Share = tuple[int, list[tuple[int, Sample]]]  # an epoch, and the indices and samples of one batch


@dataclass(frozen=True)
class Reading:
    """The first `used[i]` images of each shard i, in batches over all processes; `whole` leaves out a smaller last one."""

    stream: Stream
    used: tuple[int, ...]
    order: Order
    batch_size: int
    whole: bool

    @cached_property
    def images(self) -> int:
        """How many images are used."""
        return sum(self.used)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return self.images // self.batch_size if self.whole else -(-self.images // self.batch_size)

    def shares(self, epoch: int, start: int) -> Iterator[Share]:
        """This process's share of every batch of an epoch from step `start` on."""
        read = shown(self.stream, self.used, self.order, epoch, self._mine(start))
        for step in range(start, self.steps):
            size = min(self.batch_size, self.images - step * self.batch_size)
            yield epoch, list(islice(read, len(range(rank(), size, world()))))

    def _mine(self, start: int) -> Callable[[np.ndarray], np.ndarray]:
        """Which places of an epoch this process shows from step `start` on."""
        first, last, size = start * self.batch_size, self.steps * self.batch_size, self.batch_size
        return lambda places: (places >= first) & (places < last) & (places % size % world() == rank())
