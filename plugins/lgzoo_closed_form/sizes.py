"""Sizes of pruned models: the same in all blocks, or left by one ranking through all blocks.

The ranking through all blocks begins with the `minimum` best of each block, which no block loses;
then the others follow by their importance. A share of the ranking is its beginning, so everything
that a smaller model keeps a larger one keeps, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from learngene_zoo.plugin import BadFile, Member, Segment, Spec, WrongCall

Position = tuple[int, int]  # a block, and a head or a hidden neuron of it, counted from 0
# Steps of the grid of MLP ratios; in a ranking through all blocks none keeps less than one of them.
EIGHTHS = 8
SHARES = tuple(round(step / 20, 2) for step in range(3, 21))  # the grid: 0.15, 0.2, ..., 1


@dataclass(frozen=True)
class Counts:
    """How many heads and hidden neurons each block keeps."""

    heads: tuple[int, ...]
    hidden: tuple[int, ...]


def rank_positions(scores: Sequence[Sequence[float]], minimum: int) -> list[Position]:
    """Return all positions from the most to the least important one.

    The `minimum` best of each block come before all others. Of equal ones the first comes first.
    """
    ranks = {
        (block, index): rank
        for block, row in enumerate(scores)
        for rank, index in enumerate(sorted(range(len(row)), key=lambda index: -row[index]))
    }

    def order(position: Position) -> tuple[bool, float, Position]:
        block, index = position
        return (ranks[position] >= minimum, -scores[block][index], position)

    return sorted(ranks, key=order)


def take_share(
    ranking: Sequence[Position], share: float, blocks: int, minimum: int
) -> list[list[int]]:
    """Return the indices that each block keeps of a share of a ranking, ascending.

    Args:
        ranking: all positions, the most important first.
        share: of the ranking.
        blocks: how many there are.
        minimum: how many best ones every block keeps in any case.
    """
    beginning = sorted(ranking[: max(round(share * len(ranking)), minimum * blocks)])
    return [[index for owner, index in beginning if owner == block] for block in range(blocks)]


def count_by_block(indices: Iterable[Sequence[int]]) -> list[int]:
    """Return how many indices each block has."""
    return [len(block) for block in indices]


def count_by_share(
    scores: Sequence[Sequence[float]], shares: Iterable[float], minimum: int
) -> tuple[tuple[int, ...], ...]:
    """Return for each share of the ranking how many every block keeps.

    Args:
        scores: of each block.
        shares: of the ranking by these scores.
        minimum: how many best ones every block keeps in any case.
    """
    ranking, blocks = rank_positions(scores, minimum), len(scores)
    return tuple(
        tuple(count_by_block(take_share(ranking, share, blocks, minimum))) for share in shares
    )


def map_shares(
    shares: Sequence[float], heads: Sequence[tuple[int, ...]], hidden: Sequence[tuple[int, ...]]
) -> dict[float, Counts]:
    """Return the counts that each share leaves; none before an extraction.

    Args:
        shares: the grid of shares of the ranking.
        heads: for each share, how many heads every block keeps.
        hidden: the same of hidden neurons.

    Raises:
        BadFile: for another number of cuts than shares.
    """
    if not len(heads) == len(hidden) in (0, len(shares)):
        raise BadFile(
            f"details has {len(heads)} and {len(hidden)} cuts for {len(shares)} shares; extract it "
            "again"
        )
    return {share: Counts(*pair) for share, *pair in zip(shares, heads, hidden)}


def derive_minimum(spec: Spec) -> tuple[int, int]:
    """Return how many heads and hidden neurons every block keeps in a ranking through all blocks.

    They are one head, and an eighth of the neurons.
    """
    return 1, max(spec.hidden // EIGHTHS, 1)


def derive_even_spec(spec: Spec, heads: int, mlp_ratio: float, head_dim: int | None = None) -> Spec:
    """Return a shape with the same heads and MLP ratio in every block; pooling keeps its sizes.

    Args:
        spec: the ancestry model's shape.
        heads: of every block.
        mlp_ratio: of every block.
        head_dim: the channels of each head; None: as many as now.

    Raises:
        WrongCall: for more than the ancestry model has, and for an MLP without hidden neurons.
    """
    for name, value, most in (
        ("heads", heads, spec.heads),
        ("mlp_ratio", mlp_ratio, spec.mlp_ratio),
    ):
        if value > most:
            raise WrongCall(
                f"{name} is {value}; the ancestry model has {most}, and pruning only takes away"
            )
    pool = _list_pool_sizes(spec, heads, mlp_ratio, head_dim)
    if mlp_ratio < spec.mlp_ratio:
        spec = _leave_unrounded(spec)
    attention_width = _derive_attention_width(spec, heads, head_dim)
    small = spec.with_(heads=heads, attention_width=attention_width, mlp_ratio=mlp_ratio, **pool)
    if small.hidden < 1:
        raise WrongCall(
            f"mlp_ratio is {mlp_ratio}, which leaves no hidden neuron; choose at least "
            f"{derive_mlp_ratio(spec, 1)}"
        )
    return small


def _list_pool_sizes(
    spec: Spec, heads: int, mlp_ratio: float, head_dim: int | None = None
) -> dict[str, float]:
    """Return the fields by which pooling by attention keeps its sizes in a shape with others."""
    sizes: dict[str, float] = {}
    if not spec.pools_by_attention:
        return sizes
    if heads != spec.heads or head_dim not in (None, spec.head_width):
        sizes["pool_heads"] = getattr(spec, "pool_heads", None) or spec.heads
    if mlp_ratio != spec.mlp_ratio:
        sizes["pool_mlp_ratio"] = getattr(spec, "pool_mlp_ratio", None) or spec.mlp_ratio
    return sizes


def _leave_unrounded(spec: Spec) -> Spec:
    """Return the same shape without rounding of hidden widths, which timm has in some models."""
    if getattr(spec, "swiglu_multiple", 0) <= 1:
        return spec
    ratio = spec.mlp_ratio
    if int(spec.width * ratio) != spec.hidden:
        ratio = _fit_ratio(spec.hidden, spec.width)
    return spec.with_(swiglu_multiple=1, mlp_ratio=ratio)


def derive_uneven_spec(spec: Spec, counts: Counts, head_dim: int | None = None) -> Spec:
    """Return a shape with separate numbers for every block; equal neighbours are one segment.

    Args:
        spec: the ancestry model's shape.
        counts: the heads and hidden neurons of each block.
        head_dim: the channels of each head; None: as many as now.

    Raises:
        WrongCall: for too many segments, and for sizes that differ between the blocks of a model
            that cannot have such.
    """
    if not len(counts.heads) == len(counts.hidden) == spec.layers:
        raise WrongCall(
            f"there are counts for {len(counts.heads)} and {len(counts.hidden)} of {spec.layers} "
            "blocks"
        )
    sizes = zip(counts.heads, counts.hidden)
    runs = [(len(list(run)), *size) for size, run in groupby(sizes)]
    *before, (_, heads, hidden) = runs
    if min(counts.hidden) < spec.hidden:
        spec = _leave_unrounded(spec)
    small = derive_even_spec(spec, heads, derive_mlp_ratio(spec, hidden), head_dim)
    front = []
    for layers, heads, hidden in before:
        mlp_ratio = derive_mlp_ratio(spec, hidden)
        segment = Segment(
            layers=layers,
            width=spec.width,
            heads=heads,
            attention_width=_derive_attention_width(spec, heads, head_dim),
            mlp_ratio=None if mlp_ratio == small.mlp_ratio else mlp_ratio,
            stitch=False,
        )
        front.append(segment)
    if not front:
        return small
    least = derive_mlp_ratio(spec, min(counts.hidden))
    pool = _list_pool_sizes(spec, min(counts.heads), least, head_dim)
    changes: dict[str, Any] = {"front": tuple(front), **pool}  # fields of a SegmentedSpec
    return replace(small, **changes)


def _derive_attention_width(spec: Spec, heads: int, head_dim: int | None = None) -> int | None:
    width = heads * (head_dim or spec.head_width)
    return None if width == spec.width else width


def derive_mlp_ratio(spec: Spec, hidden: int) -> float:
    """Return the least MLP ratio with which timm makes this hidden width.

    timm multiplies and rounds down.
    """
    if hidden == spec.hidden:
        return spec.mlp_ratio
    gates = 2 if getattr(spec, "mlp", "mlp") == "swiglu_packed" else 1
    return _fit_ratio(gates * hidden, spec.width)


def _fit_ratio(hidden: int, width: int) -> float:
    ratio = hidden / width
    return ratio if int(width * ratio) >= hidden else math.nextafter(ratio, math.inf)


def list_even_members(spec: Spec, head_dim: int | None = None) -> list[Member]:
    """Return every number of heads, of `head_dim` channels, with every eighth of the neurons."""
    return [
        Member(spec=derive_even_spec(spec, heads, ratio, head_dim))
        for heads in range(1, spec.heads + 1)
        for ratio in list_even_ratios(spec)
    ]


def list_even_ratios(spec: Spec) -> list[float]:
    """Return the MLP ratio of every eighth of the hidden neurons."""
    hidden = sorted({max(spec.hidden * step // EIGHTHS, 1) for step in range(1, EIGHTHS + 1)})
    return [derive_mlp_ratio(spec, neurons) for neurons in hidden]


def list_uneven_members(
    spec: Spec, cuts: Mapping[float, Counts], head_dim: int | None = None
) -> list[Member]:
    """Return a model for each share of the ranking; the whole model before there is a ranking.

    Models with more segments than a model can have are left out.
    """
    members = []
    for share, counts in cuts.items():
        with suppress(WrongCall):
            small = derive_uneven_spec(spec, counts, head_dim)
            members.append(Member(spec=small, settings={"keep": share}))
    return members or [Member(spec=spec, settings={"keep": 1.0})]
