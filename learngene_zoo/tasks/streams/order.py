"""Which images of a stream an epoch shows and when, and which split a training image belongs to.

`Order`: the shards come in a drawn order. The images in this order are cut into windows, and every window is shuffled. So a
reader holds one window at most, and knows at which place of the epoch an image is shown before reading it: an image of another
process, or before the step at which a run resumes, is skipped. All is a function of (seed, epoch) and the sizes of the shards.

`completed`: splits that a stream lacks are made of its training images, the same ones every time. Of every five consecutive
images one goes to a missing test split, of every ten that are left one to a missing validation split; which one is drawn, so that
no period in the data coincides with it. From fifty shards on, whole shards are dealt out instead, so that validation does not
read the training images.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.seeds import bits, derive_seed
from learngene_zoo.tasks.task import SPLITS, Sample, Stream

SEED = 0  # of the splits that are made
SHARES = {"test": 5, "validation": 10}  # one in so many of what is left, in this order
FEWEST_SHARDS = 50  # from which on whole shards are dealt out


@dataclass(frozen=True)
class Order:
    """The order of an epoch: `window` images are shuffled together; None leaves them in the order of the shards."""

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
    """Index and sample of the images that an epoch shows at the places which are `mine`, in the order of the places.

    The epoch has the first `used[i]` images of shard i. A shard without a wanted image is not opened.
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


def beginning(counts: Sequence[int], images: int | None, seed: int) -> tuple[int, ...]:
    """How many images of each shard are used if at most `images` are: the first shards of an order drawn from the seed.

    Of the last of these shards its first images. A larger number includes every smaller one.
    """
    if images is None:
        return tuple(counts)
    sizes = np.array(counts, dtype=np.int64)
    order = np.argsort(bits(derive_seed(seed, "beginning"), np.arange(len(sizes)), 1)[:, 0], kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    used = np.zeros_like(sizes)
    used[order] = np.clip(images - before, 0, sizes[order])
    return tuple(used.tolist())


def role(numbers: np.ndarray, missing: Sequence[str]) -> np.ndarray:
    """The split to which each of these numbers goes, as an index of `SPLITS`: int64, a function of each number alone."""
    roles = np.zeros(len(numbers), dtype=np.int64)
    left, among = np.arange(len(numbers)), np.asarray(numbers, dtype=np.int64)
    for split, share in SHARES.items():
        if split not in missing:
            continue
        block, within = among // share, among % share
        drawn = (bits(derive_seed(SEED, split), block, 1)[:, 0] % np.uint64(share)).astype(np.int64)
        roles[left[within == drawn]] = SPLITS.index(split)
        rest = within != drawn
        among = (among - block - (drawn < within))[rest]
        left = left[rest]
    return roles


@dataclass(frozen=True)
class Part:
    """Those images of a stream, or those of its shards, that go to one split."""

    whole: Stream
    split: str
    missing: tuple[str, ...]

    @cached_property
    def shards(self) -> tuple[int, ...]:
        """The numbers of its shards in the whole."""
        numbers = np.arange(len(self.whole.counts))
        return tuple(numbers[self._mine(numbers)].tolist() if self._by_shard else numbers.tolist())

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many images of each of its shards belong to it."""
        return tuple(int(self._chosen(shard).sum()) for shard in self.shards)

    @property
    def _by_shard(self) -> bool:
        return len(self.whole.counts) >= FEWEST_SHARDS

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.cumsum([0, *self.whole.counts])

    def _mine(self, numbers: np.ndarray) -> np.ndarray:
        return role(numbers, self.missing) == SPLITS.index(self.split)

    def _chosen(self, shard: int) -> np.ndarray:
        """Which images of a shard of the whole belong to it: bool (whole.counts[shard],)."""
        images = np.arange(self.whole.counts[shard])
        return np.ones(len(images), dtype=bool) if self._by_shard else self._mine(self._offsets[shard] + images)

    def read(self, shard: int, wanted: np.ndarray) -> Generator[Sample | None]:
        """As every `Stream`."""
        number = self.shards[shard]
        chosen = self._chosen(number)
        among_all = chosen.copy()
        among_all[chosen] = wanted
        for own, sample in zip(chosen.tolist(), self.whole.read(number, among_all)):
            if own:
                yield sample


@dataclass(frozen=True)
class Chosen:
    """Some images of a stream. `members` says which of each shard: bool (whole.counts[shard],)."""

    whole: Stream
    members: tuple[np.ndarray, ...]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many images of each shard are among them."""
        return tuple(int(mine.sum()) for mine in self.members)

    def read(self, shard: int, wanted: np.ndarray) -> Generator[Sample | None]:
        """As every `Stream`."""
        among_all = self.members[shard].copy()
        among_all[self.members[shard]] = wanted
        for own, sample in zip(self.members[shard].tolist(), self.whole.read(shard, among_all)):
            if own:
                yield sample


def completed(name: str, found: Mapping[str, Stream]) -> dict[str, Stream]:
    """Every split, those that are missing made of the training images. Raises `BadData` if there are too few."""
    train, missing = found["train"], _missing(found)
    made = {split: Part(train, split, missing) for split in ("train", *missing)} if missing else {}
    chosen: dict[str, Stream] = {**found, **made}
    for split in SPLITS:
        if not sum(chosen[split].counts):
            raise BadData(f"{name} has too few training images ({sum(train.counts)}) for a {split} split; add some")
    return chosen


def made_splits(found: Mapping[str, Stream]) -> tuple[str, ...]:
    """A note for each split that is made."""
    unit = "shard" if len(found["train"].counts) >= FEWEST_SHARDS else "image"
    return tuple(
        f"there is no {split} split: one training {unit} in {SHARES[split]} is used" for split in _missing(found)
    )


def _missing(found: Mapping[str, Stream]) -> tuple[str, ...]:
    """The splits that are not there, or are empty."""
    return tuple(split for split in SHARES if split not in found or not sum(found[split].counts))
