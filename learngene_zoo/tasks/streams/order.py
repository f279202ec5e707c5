"""Define which images of a stream an epoch shows and when, and which split a training image belongs
to.

`EpochOrder`: the shards come in a drawn order. The images in this order are cut into windows, and
every window is shuffled. So a reader holds one window at most, and knows the position of an image
in the epoch before reading it: an image of another process, or before the step at which a run
resumes, is skipped. All is a function of (seed, epoch) and the sizes of the shards.

`complete_streams`: splits that a stream lacks are made of its training images, the same ones every
time. Of every five consecutive images one goes to a missing test split, of every ten that are left
one to a missing validation split; which one is drawn, so that no period in the data coincides with
it. From fifty shards on, whole shards are dealt out instead, so that validation does not read the
training images.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.seeds import bits, derive_seed
from learngene_zoo.tasks.task import SPLITS, Sample, Stream

SEED = 0  # of the splits that are made
SHARES = {"test": 5, "validation": 10}  # one in so many of the remaining images, in this order
MIN_SHARDS = 50  # from which on whole shards are dealt out


@dataclass(frozen=True)
class EpochOrder:
    """The order of an epoch: `window` images are shuffled together; None leaves them in the order
    of the shards.
    """

    seed: int
    window: int | None

    def shards(self, epoch: int, count: int) -> np.ndarray:
        """Return the numbers of `count` shards in the order in which they are read."""
        if self.window is None:
            return np.arange(count)
        generator = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "shards", epoch)))
        return generator.permutation(count)

    def places(self, epoch: int, first: int, count: int, total: int) -> np.ndarray:
        """Return the positions at which an epoch of `total` images shows those read as number
        first, first + 1, …

        int64 (count,).
        """
        if self.window is None:
            return np.arange(first, first + count)
        start = first // self.window * self.window
        end = min(-(-(first + count) // self.window) * self.window, total)
        positions = np.empty(end - start, dtype=np.int64)
        for left in range(start, end, self.window):
            read = np.arange(left, min(left + self.window, end))
            draws = bits(derive_seed(self.seed, "window", epoch), read, 1)[:, 0]
            positions[read[np.argsort(draws, kind="stable")] - start] = read
        return positions[first - start : first - start + count]


def iterate_shown(
    stream: Stream,
    used: Sequence[int],
    order: EpochOrder,
    epoch: int,
    mine: Callable[[np.ndarray], np.ndarray],
) -> Iterator[tuple[int, Sample]]:
    """Yield index and sample of the images that an epoch shows at the positions which are `mine`,
    in order.

    The epoch has the first `used[i]` images of shard i. A shard without a wanted image is not
    opened.
    """
    offsets, total = np.cumsum([0, *stream.counts]), sum(used)
    samples: dict[int, tuple[int, Sample]] = {}
    read = 0
    for shard in order.shards(epoch, len(used)).tolist():
        positions = order.places(epoch, read, used[shard], total)
        selected = np.pad(mine(positions), (0, stream.counts[shard] - used[shard]))
        if selected.any():
            for position, sample in enumerate(stream.read(shard, selected)):
                if sample is not None:
                    samples[int(positions[position])] = int(offsets[shard]) + position, sample
                if order.window is None or (read + position + 1) % order.window == 0:
                    yield from _take_samples(samples)
        read += used[shard]
    yield from _take_samples(samples)


def _take_samples(samples: dict[int, tuple[int, Sample]]) -> Iterator[tuple[int, Sample]]:
    for position in sorted(samples):
        yield samples.pop(position)


def count_used(counts: Sequence[int], images: int | None, seed: int) -> tuple[int, ...]:
    """Return how many images of each shard are used if at most `images` are.

    They are those of the first shards of an order drawn from the seed; of the last of these shards
    its first images. A larger number includes every smaller one.
    """
    if images is None:
        return tuple(counts)
    sizes = np.array(counts, dtype=np.int64)
    order = np.argsort(
        bits(derive_seed(seed, "beginning"), np.arange(len(sizes)), 1)[:, 0], kind="stable"
    )
    before = np.cumsum(sizes[order]) - sizes[order]
    used = np.zeros_like(sizes)
    used[order] = np.clip(images - before, 0, sizes[order])
    return tuple(used.tolist())


def assign_splits(numbers: np.ndarray, missing: Sequence[str]) -> np.ndarray:
    """Return the split of each of these numbers, as an index of `SPLITS`: int64, a function of each
    number alone.
    """
    roles = np.zeros(len(numbers), dtype=np.int64)
    left, among = np.arange(len(numbers)), np.asarray(numbers, dtype=np.int64)
    for split, share in SHARES.items():
        if split not in missing:
            continue
        block, within = among // share, among % share
        drawn_index = (bits(derive_seed(SEED, split), block, 1)[:, 0] % np.uint64(share)).astype(
            np.int64
        )
        roles[left[within == drawn_index]] = SPLITS.index(split)
        rest = within != drawn_index
        among = (among - block - (drawn_index < within))[rest]
        left = left[rest]
    return roles


@dataclass(frozen=True)
class StreamPart:
    """The images of a stream, or those of its shards, that go to one split."""

    stream: Stream
    split: str
    missing: tuple[str, ...]

    @cached_property
    def shards(self) -> tuple[int, ...]:
        """The numbers of its shards in the stream."""
        numbers = np.arange(len(self.stream.counts))
        return tuple(numbers[self._mine(numbers)].tolist() if self._by_shard else numbers.tolist())

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of its images in each of its shards."""
        return tuple(int(self._chosen(shard).sum()) for shard in self.shards)

    @property
    def _by_shard(self) -> bool:
        return len(self.stream.counts) >= MIN_SHARDS

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.cumsum([0, *self.stream.counts])

    def _mine(self, numbers: np.ndarray) -> np.ndarray:
        return assign_splits(numbers, self.missing) == SPLITS.index(self.split)

    def _chosen(self, shard: int) -> np.ndarray:
        """Return which images of a shard of the stream belong to it: bool
        (stream.counts[shard],).
        """
        images = np.arange(self.stream.counts[shard])
        return (
            np.ones(len(images), dtype=bool)
            if self._by_shard
            else self._mine(self._offsets[shard] + images)
        )

    def read(self, shard: int, selected: np.ndarray) -> Generator[Sample | None]:
        """Yield the samples as `Stream.read`."""
        number = self.shards[shard]
        chosen = self._chosen(number)
        among_all = chosen.copy()
        among_all[chosen] = selected
        for is_member, sample in zip(chosen.tolist(), self.stream.read(number, among_all)):
            if is_member:
                yield sample


@dataclass(frozen=True)
class StreamSelection:
    """A selection of the images of a stream: `members` of each shard, bool
    (stream.counts[shard],).
    """

    stream: Stream
    members: tuple[np.ndarray, ...]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of its images in each shard."""
        return tuple(int(mine.sum()) for mine in self.members)

    def read(self, shard: int, selected: np.ndarray) -> Generator[Sample | None]:
        """Yield the samples as `Stream.read`."""
        among_all = self.members[shard].copy()
        among_all[self.members[shard]] = selected
        for is_member, sample in zip(
            self.members[shard].tolist(), self.stream.read(shard, among_all)
        ):
            if is_member:
                yield sample


def complete_streams(name: str, stored: Mapping[str, Stream]) -> dict[str, Stream]:
    """Return every split; missing ones are made of the training images.

    Raises `BadData` if there are too few.
    """
    train, missing = stored["train"], _list_missing(stored)
    new_splits = (
        {split: StreamPart(train, split, missing) for split in ("train", *missing)}
        if missing
        else {}
    )
    chosen: dict[str, Stream] = {**stored, **new_splits}
    for split in SPLITS:
        if not sum(chosen[split].counts):
            raise BadData(
                f"{name} has too few training images ({sum(train.counts)}) for a {split} split; "
                "add some"
            )
    return chosen


def note_made_splits(stored: Mapping[str, Stream]) -> tuple[str, ...]:
    """Return a note for each split that is made."""
    unit = "shard" if len(stored["train"].counts) >= MIN_SHARDS else "image"
    return tuple(
        f"there is no {split} split: one training {unit} in {SHARES[split]} is used"
        for split in _list_missing(stored)
    )


def _list_missing(stored: Mapping[str, Stream]) -> tuple[str, ...]:
    """Return the splits that are missing or empty."""
    return tuple(split for split in SHARES if split not in stored or not sum(stored[split].counts))
