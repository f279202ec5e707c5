"""Define the order of a stream's images in an epoch, and the split of each training image.

`EpochOrder`: the shards come in a random order. The images in this order are cut into windows, and
every window is shuffled. So a reader holds at most one window in memory, and knows the position of
an image in the epoch before reading it: an image of another process, or before the step at which a
run resumes, is skipped. Everything is a function of (seed, epoch) and the sizes of the shards.

`complete_streams`: splits that a stream lacks are taken from its training images, the same ones
as long as the shards are the same. Of every five consecutive images one goes to a missing test
split, of every ten remaining ones one to a missing validation split; which one is random, so that
it does not coincide with a period in the data. From fifty shards on, entire shards are assigned
instead, so that validation does not read the training images.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.seeds import derive_seed, draw_bits
from learngene_zoo.tasks.task import SPLITS, Sample, Stream

SEED = 0  # of the splits that are taken from the training images
SHARES = {"test": 5, "validation": 10}  # one in 5, then one in 10 of the remaining images
MIN_SHARDS = 50  # number of shards from which entire shards are assigned to splits


@dataclass(frozen=True)
class EpochOrder:
    """The order of an epoch: shards in random order, then shuffled in windows of `window` images.

    If `window` is None, nothing is shuffled.
    """

    seed: int
    window: int | None

    def shards(self, epoch: int, count: int) -> np.ndarray:
        """Return the numbers of `count` shards in reading order."""
        if self.window is None:
            return np.arange(count)
        generator = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "shards", epoch)))
        return generator.permutation(count)

    def places(self, epoch: int, first: int, count: int, total: int) -> np.ndarray:
        """Return the positions in an epoch of the images read as number first, first + 1, …

        int64 (count,); the epoch has `total` images.
        """
        if self.window is None:
            return np.arange(first, first + count)
        start = first // self.window * self.window
        end = min(-(-(first + count) // self.window) * self.window, total)
        positions = np.empty(end - start, dtype=np.int64)
        for left in range(start, end, self.window):
            read = np.arange(left, min(left + self.window, end))
            draws = draw_bits(derive_seed(self.seed, "window", epoch), read, 1)[:, 0]
            positions[read[np.argsort(draws, kind="stable")] - start] = read
        return positions[first - start : first - start + count]


def iterate_shown(
    stream: Stream,
    used: Sequence[int],
    order: EpochOrder,
    epoch: int,
    mine: Callable[[np.ndarray], np.ndarray],
) -> Iterator[tuple[int, Sample]]:
    """Yield index and sample of the images at the positions selected by `mine`, in order.

    A shard without a selected image is not opened.

    Args:
        stream: the images.
        used: the epoch has the first `used[i]` images of shard i.
        order: the order of the epoch.
        epoch: the number of the epoch.
        mine: takes positions, int64 (N,), and returns which are selected, bool (N,).
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
    """Return the number of images used of each shard if at most `images` are used in total.

    They are those of the first shards in an order drawn from the seed, and the first ones of the
    last of these shards. A larger number includes every smaller one.
    """
    if images is None:
        return tuple(counts)
    sizes = np.array(counts, dtype=np.int64)
    order = np.argsort(
        draw_bits(derive_seed(seed, "beginning"), np.arange(len(sizes)), 1)[:, 0], kind="stable"
    )
    before = np.cumsum(sizes[order]) - sizes[order]
    used = np.zeros_like(sizes)
    used[order] = np.clip(images - before, 0, sizes[order])
    return tuple(used.tolist())


def assign_splits(numbers: np.ndarray, missing: Sequence[str]) -> np.ndarray:
    """Return the split of each of these numbers, as an index of `SPLITS`, int64.

    The split depends only on the number and `missing`.
    """
    roles = np.zeros(len(numbers), dtype=np.int64)
    left, among = np.arange(len(numbers)), np.asarray(numbers, dtype=np.int64)
    for split, share in SHARES.items():
        if split not in missing:
            continue
        block, within = among // share, among % share
        drawn_index = (
            draw_bits(derive_seed(SEED, split), block, 1)[:, 0] % np.uint64(share)
        ).astype(np.int64)
        roles[left[within == drawn_index]] = SPLITS.index(split)
        rest = within != drawn_index
        among = (among - block - (drawn_index < within))[rest]
        left = left[rest]
    return roles


@dataclass(frozen=True)
class StreamPart:
    """The images, or the shards, of a stream that are assigned to one split."""

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
        """Return which images of a shard belong to it, bool (stream.counts[shard],)."""
        images = np.arange(self.stream.counts[shard])
        return (
            np.ones(len(images), dtype=bool)
            if self._by_shard
            else self._mine(self._offsets[shard] + images)
        )

    def read(self, shard: int, selected: np.ndarray) -> Generator[Sample | None]:
        """Yield the samples as `Stream.read` does."""
        number = self.shards[shard]
        chosen = self._chosen(number)
        among_all = chosen.copy()
        among_all[chosen] = selected
        for is_member, sample in zip(chosen.tolist(), self.stream.read(number, among_all)):
            if is_member:
                yield sample


@dataclass(frozen=True)
class StreamSelection:
    """A selection of a stream's images: `members` of each shard, bool (stream.counts[shard],)."""

    stream: Stream
    members: tuple[np.ndarray, ...]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of selected images in each shard."""
        return tuple(int(mine.sum()) for mine in self.members)

    def read(self, shard: int, selected: np.ndarray) -> Generator[Sample | None]:
        """Yield the samples as `Stream.read` does."""
        among_all = self.members[shard].copy()
        among_all[self.members[shard]] = selected
        for is_member, sample in zip(
            self.members[shard].tolist(), self.stream.read(shard, among_all)
        ):
            if is_member:
                yield sample


def complete_streams(name: str, stored: Mapping[str, Stream]) -> dict[str, Stream]:
    """Return every split; missing ones are taken from the training images.

    Raises `BadData` if there are too few.
    """
    train, missing = stored["train"], list_missing_splits(stored)
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


def describe_made_splits(stored: Mapping[str, Stream]) -> tuple[str, ...]:
    """Return a note for each split that is taken from the training images."""
    unit = "shard" if len(stored["train"].counts) >= MIN_SHARDS else "image"
    return tuple(
        f"there is no {split} split: one training {unit} in {SHARES[split]} is used"
        for split in list_missing_splits(stored)
    )


def list_missing_splits(stored: Mapping[str, Stream]) -> tuple[str, ...]:
    """Return the splits that are missing or empty."""
    return tuple(split for split in SHARES if split not in stored or not sum(stored[split].counts))
