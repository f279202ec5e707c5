"""In which order an epoch shows the images of a stream: a function of (seed, epoch) and the sizes of the shards alone.

The shards come in a drawn order. The images in this order are cut into windows, and every window is shuffled. So whoever
reads holds one window at most, and knows of every image, before reading it, at which place of the epoch it is shown: what is
another process's, or lies before the step where a run resumes, is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from learngene_zoo.seeds import bits, derive_seed
from learngene_zoo.tasks.task import Sample, Stream


@dataclass(frozen=True)
class Order:
    """`window` images are shuffled together; without one, nothing is."""

    seed: int
    window: int | None

    def shards(self, epoch: int, count: int) -> np.ndarray:
        """The numbers of `count` shards in the order in which they are read."""
        if self.window is None:
            return np.arange(count)
        generator = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "shards", epoch)))
        return generator.permutation(count)

    def places(self, epoch: int, first: int, count: int, total: int) -> np.ndarray:
        """The places at which an epoch of `total` images shows those read as number first, first + 1, …: int64 (count,)."""
        if self.window is None:
            return np.arange(first, first + count)
        start = first // self.window * self.window
        end = min(-(-(first + count) // self.window) * self.window, total)
        places = np.empty(end - start, dtype=np.int64)
        for left in range(start, end, self.window):
            read = np.arange(left, min(left + self.window, end))
            draws = bits(derive_seed(self.seed, "window", epoch), read, 1)[:, 0]
            places[read[np.argsort(draws, kind="stable")] - start] = read
        return places[first - start : first - start + count]


def shown(
    stream: Stream, used: Sequence[int], order: Order, epoch: int, mine: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[int, Sample]]:
    """Index and sample of the images that an epoch shows at those places which are `mine`, in the order of the places.

    The epoch has the first `used[i]` images of shard i. A shard without an image that is asked for is not opened.
    """
    offsets, total = np.cumsum([0, *stream.counts]), sum(used)
    held: dict[int, tuple[int, Sample]] = {}
    read = 0
    for shard in order.shards(epoch, len(used)).tolist():
        places = order.places(epoch, read, used[shard], total)
        wanted = np.pad(mine(places), (0, stream.counts[shard] - used[shard]))
        if wanted.any():
            for position, sample in enumerate(stream.read(shard, wanted)):
                if sample is not None:
                    held[int(places[position])] = int(offsets[shard]) + position, sample
                if order.window is None or (read + position + 1) % order.window == 0:
                    yield from _taken(held)
        read += used[shard]
    yield from _taken(held)


def _taken(held: dict[int, tuple[int, Sample]]) -> Iterator[tuple[int, Sample]]:
    for place in sorted(held):
        yield held.pop(place)
