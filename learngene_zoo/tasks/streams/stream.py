"""`Stream`: one split of a task that is read in order, a shard at a time, and never held as a whole. Cold."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np


class Sample(NamedTuple):
    """One image as it is stored, not decoded, and what belongs to it."""

    image: Any  # what `decoding.decoded` takes
    label: int
    where: str  # names it in an error
    mask: bytes | None = None  # an encoded picture of classes, of a segmentation task


class Stream(Protocol):
    """The images of a split in shards. Image i of the split is the one that reading the shards one by one meets i-th."""

    @property
    def counts(self) -> Sequence[int]:
        """How many images each shard holds."""

    def read(self, shard: int, wanted: np.ndarray) -> Generator[Sample | None]:
        """The images of a shard in order, up to the last one that is wanted; None in the place of those that are not.

        `wanted` is bool (counts[shard],). Raises `BadData` that names the shard and the image which cannot be used.
        """
