"""Splits that a stream lacks, made of its training images: the same ones every time, whatever the seed.

Of every five consecutive images one goes to a missing test split; of every ten that are left, one to a missing validation
split. Which one is drawn, so that no period in the data's order is met. From fifty shards on whole shards are dealt out
instead, so that who validates need not read the training images.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.seeds import bits, derive_seed
from learngene_zoo.tasks.task import SPLITS, Sample, Stream

SEED = 0
SHARES = {"test": 5, "validation": 10}  # one in so many of what is left, in this order
FEWEST_SHARDS = 50


def role(numbers: np.ndarray, missing: Sequence[str]) -> np.ndarray:
    """To which split each of these numbers goes, as a place in `SPLITS`: int64, a function of each number alone."""
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
        """How many images of each of its shards are its own."""
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
        """Which images of a shard of the whole are its own: bool (whole.counts[shard],)."""
        images = np.arange(self.whole.counts[shard])
        return np.ones(len(images), dtype=bool) if self._by_shard else self._mine(self._offsets[shard] + images)

    def read(self, shard: int, wanted: np.ndarray) -> Generator[Sample | None]:
        """As of every stream."""
        number = self.shards[shard]
        chosen = self._chosen(number)
        asked = chosen.copy()
        asked[chosen] = wanted
        for own, sample in zip(chosen.tolist(), self.whole.read(number, asked)):
            if own:
                yield sample


def beginning(counts: Sequence[int], images: int | None, seed: int) -> tuple[int, ...]:
    """How many images of each shard are used if only so many are: the first shards of an order drawn from the seed.

    Of the last of these shards its first images. A larger number holds every smaller one.
    """
    if images is None:
        return tuple(counts)
    sizes = np.array(counts, dtype=np.int64)
    order = np.argsort(bits(derive_seed(seed, "beginning"), np.arange(len(sizes)), 1)[:, 0], kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    used = np.zeros_like(sizes)
    used[order] = np.clip(images - before, 0, sizes[order])
    return tuple(used.tolist())


def missing_of(found: Mapping[str, Stream]) -> tuple[str, ...]:
    """The splits that are not there, or are empty."""
    return tuple(split for split in SHARES if split not in found or not sum(found[split].counts))


def completed(name: str, found: Mapping[str, Stream]) -> dict[str, Stream]:
    """Every split, those that are missing made of the training images. Raises `BadData` if there are too few."""
    train = found["train"]
    missing = missing_of(found)
    whole = {split: Part(train, split, missing) for split in ("train", *missing)} if missing else {}
    chosen: dict[str, Stream] = {**found, **whole}
    for split in SPLITS:
        if not sum(chosen[split].counts):
            raise BadData(f"{name} has too few training images ({sum(train.counts)}) for a {split} split; add some")
    return chosen


def told(found: Mapping[str, Stream]) -> tuple[str, ...]:
    """What people read about the splits that are made, a line each."""
    unit = "shard" if len(found["train"].counts) >= FEWEST_SHARDS else "image"
    return tuple(
        f"no {split} split is there: one training {unit} in {SHARES[split]} is taken" for split in missing_of(found)
    )
