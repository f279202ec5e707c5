"""Lay out the stitches between anchors, and list every path through them.

Paths have the order of SN-Net's released code. Anchors are whole models, ordered from narrow to
wide. A stitch (j, k) between two of them runs the blocks 0..j of the front one, then a linear
layer, then the blocks k.. of the end one. Blocks are counted from 0.

Stitches are shared: a window of `window` neighbouring blocks slides over both anchors by `stride`
("paired stitching"), and all pairs that first appear in the same window share its linear layer. Two
anchors of l blocks with the usual window of 2 and stride of 1 have 3 l - 2 pairs, |j - k| <= 1, on
l - 1 linear layers.

From an anchor of f blocks to a deeper one of e, SN-Net's released code has a rule without windows
(`pair_blocks_as_released`). It has no rule for a narrower anchor that is the deeper one; there, and
in networks that record no `unequal`, the window slides over the shallower anchor of s blocks, and
block b of an anchor of d blocks stands at floor(b s / d): with equal depths this is the papers'
rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, islice
from typing import Annotated, Literal, NamedTuple

from learngene_zoo.plugin import OMIT_DEFAULT, Bounds, WrongCall, check_bounds

MAX_PATHS = 10_000
Unequal = Literal["released", "window"]  # where a stitch leads from an anchor to a deeper one


class StitchPair(NamedTuple):
    """Blocks 0..j of the front anchor, then blocks k.. of the end anchor.

    They are joined by the linear layer of a window.
    """

    j: int
    k: int
    window: int


class BlockSpan(NamedTuple):
    """Consecutive blocks of one anchor: `start` to `stop`, without `stop`."""

    anchor: int
    start: int
    stop: int


class Stitch(NamedTuple):
    """One linear layer, by its number among the windows of the `joint`-th two joined anchors."""

    joint: int
    window: int

    @property
    def name(self) -> str:
        """The prefix of its tensors' names."""
        return f"stitches.{self.joint}.{self.window}"


@dataclass(frozen=True)
class Path:
    """One way through the anchors: their parts, and the stitch before each part but the first."""

    parts: tuple[BlockSpan, ...]
    stitches: tuple[Stitch, ...] = ()

    @property
    def first(self) -> int:
        """The anchor that the path begins in, whose stem it has."""
        return self.parts[0].anchor

    @property
    def last(self) -> int:
        """The anchor that the path ends in, whose final norm and head it has."""
        return self.parts[-1].anchor

    @property
    def layers(self) -> int:
        """The number of its blocks."""
        return sum(part.stop - part.start for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class StitchLayout:
    """Anchors of these depths, and the stitches between them.

    `nearest` joins neighbouring anchors only; otherwise every narrower anchor is joined to every
    wider one, and a path can lead through any number of them.

    Raises `WrongCall` for windows out of bounds and for more than 10,000 paths.
    """

    depths: tuple[int, ...]
    nearest: bool = True
    window: Annotated[int, Bounds(least=1)] = 2
    stride: Annotated[int, Bounds(least=1)] = 1
    unequal: Unequal = field(default="window", metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        check_bounds(self)
        if len(self.paths) > MAX_PATHS:
            raise WrongCall(
                f"these anchors have more than {MAX_PATHS} paths; use a smaller window, "
                "or stitch nearest anchors only"
            )

    @cached_property
    def joints(self) -> tuple[tuple[int, int], ...]:
        """The two anchors of every joint: front and end."""
        every = combinations(range(len(self.depths)), 2)
        return tuple((front, end) for front, end in every if end == front + 1 or not self.nearest)

    @cached_property
    def pairs(self) -> tuple[tuple[StitchPair, ...], ...]:
        """The pairs of every joint."""
        return tuple(
            self._pair_anchors(self.depths[front], self.depths[end]) for front, end in self.joints
        )

    def _pair_anchors(self, front: int, end: int) -> tuple[StitchPair, ...]:
        if self.unequal == "released" and front < end:
            return pair_blocks_as_released(front, end)
        return pair_blocks(front, end, self.window, self.stride)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Every path in the order of their numbers: first the anchors, then by their anchors."""
        return tuple(islice(self._iterate_paths(), MAX_PATHS + 1))

    @cached_property
    def stitches(self) -> tuple[tuple[Stitch, tuple[StitchPair, ...]], ...]:
        """Every linear layer, with the pairs that share it."""
        pairs_of: dict[Stitch, list[StitchPair]] = {}
        for joint, pairs in enumerate(self.pairs):
            for pair in pairs:
                pairs_of.setdefault(Stitch(joint, pair.window), []).append(pair)
        return tuple((stitch, tuple(pairs)) for stitch, pairs in pairs_of.items())

    def _iterate_paths(self) -> Iterator[Path]:
        for count in range(1, len(self.depths) + 1):
            for anchors in combinations(range(len(self.depths)), count):
                if count <= 2 or not self.nearest:
                    yield from self._iterate_through(anchors)

    def _iterate_through(self, anchors: tuple[int, ...], start: int = 0) -> Iterator[Path]:
        """Yield the paths through exactly these anchors, from the block `start` of the first."""
        front, *rest = anchors
        if not rest:
            yield Path((BlockSpan(front, start, self.depths[front]),))
            return
        if (front, rest[0]) not in self.joints:
            return
        joint = self.joints.index((front, rest[0]))
        for pair in self.pairs[joint]:
            if pair.j < start:
                continue
            for path in self._iterate_through(tuple(rest), pair.k):
                parts = (BlockSpan(front, start, pair.j + 1), *path.parts)
                yield Path(parts, (Stitch(joint, pair.window), *path.stitches))


def pair_blocks(front: int, end: int, window: int = 2, stride: int = 1) -> tuple[StitchPair, ...]:
    """Return the pairs of anchors with these numbers of blocks, by a sliding window.

    They come window after window, in each by j, then by k.
    """
    short = min(front, end)
    layer_of: dict[tuple[int, int], int] = {}
    layers = 0
    for start in range(0, short, stride):
        inside = range(start, min(start + window, short))
        js, ks = (
            [block for block in range(depth) if block * short // depth in inside]
            for depth in (front, end)
        )
        new = [(j, k) for j in js for k in ks if (j, k) not in layer_of]
        layer_of |= dict.fromkeys(new, layers)
        layers += bool(new)
    return tuple(StitchPair(j, k, layer) for (j, k), layer in layer_of.items())


def pair_blocks_as_released(front: int, end: int) -> tuple[StitchPair, ...]:
    """Return the pairs of an anchor of `front` blocks and a deeper one of `end`, as released.

    In SN-Net's released code block k of the deeper one stands at floor(k front / end), and is
    entered from the block that stands there, unless k is that number itself. The n-th pair has the
    layer at which block n stands, so that the first pairs of a block share the layer of the block
    before: that is how the code counts. 12 and 24 blocks have 23 pairs on 12 layers.
    """
    positions = [k * front // end for k in range(end)]
    entries = [(j, k) for k, j in enumerate(positions) if j < k]
    return tuple(StitchPair(j, k, layer) for (j, k), layer in zip(entries, positions))
