"""How many heads and hidden neurons the blocks of a pruned model keep: one number for all blocks, or one ranking through all.

The ranking through all blocks begins with what no block may lose, its `least` best; then the others follow by their importance. A
share of it is its beginning, so what a smaller model keeps a larger one keeps, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

from learngene_zoo.plugin import BadFile, Member, Segment, Spec, WrongCall

Place = tuple[int, int]  # a block, and a head or a hidden neuron of it, counted from 0
EIGHTHS = 8  # steps of the grid of MLP ratios; no block keeps less than one of them in a ranking through all blocks
SHARES = tuple(round(step / 20, 2) for step in range(3, 21))  # the grid of shares: 0.15, 0.2, ..., 1


@dataclass(frozen=True)
class Counts:
    """What each block keeps."""

    heads: tuple[int, ...]
    hidden: tuple[int, ...]


def ranked(scores: Sequence[Sequence[float]], least: int) -> list[Place]:
    """All places from the most to the least important one, behind the `least` best of each block; of equal ones the first first."""
    better = {
        (block, index): rank
        for block, row in enumerate(scores)
        for rank, index in enumerate(sorted(range(len(row)), key=lambda index: -row[index]))
    }
    return sorted(better, key=lambda place: (better[place] >= least, -scores[place[0]][place[1]], place))


def begun(ranking: Sequence[Place], share: float, blocks: int, least: int) -> list[list[int]]:
    """What each block keeps of this share of a ranking, ascending; never less than its `least` best."""
    kept = sorted(ranking[: max(round(share * len(ranking)), least * blocks)])
    return [[index for at, index in kept if at == block] for block in range(blocks)]


def counted(kept: Iterable[Sequence[int]]) -> list[int]:
    """How many of each block."""
    return [len(one) for one in kept]


def cuts_at(scores: Sequence[Sequence[float]], shares: Iterable[float], least: int) -> tuple[tuple[int, ...], ...]:
    """For each share of the ranking by these scores, how many every block keeps."""
    ranking, blocks = ranked(scores, least), len(scores)
    return tuple(tuple(counted(begun(ranking, share, blocks, least))) for share in shares)


def by_share(
    shares: Sequence[float], heads: Sequence[tuple[int, ...]], hidden: Sequence[tuple[int, ...]]
) -> dict[float, Counts]:
    """What each share leaves; nothing before an extraction. Raises `BadFile` for another number of cuts than shares."""
    if not len(heads) == len(hidden) in (0, len(shares)):
        raise BadFile(f"details has {len(heads)} and {len(hidden)} cuts for {len(shares)} shares; extract it again")
    return {share: Counts(*both) for share, *both in zip(shares, heads, hidden)}


def least_of(whole: Spec) -> tuple[int, int]:
    """How many heads and hidden neurons no block loses in a ranking through all blocks: a head, and an eighth of the neurons."""
    return 1, max(whole.hidden // EIGHTHS, 1)


def even_spec(whole: Spec, heads: int, mlp_ratio: float) -> Spec:
    """Every block with as many heads and this MLP ratio. Raises `WrongCall` for more than there are, and for an empty MLP."""
    for name, value, most in (("heads", heads, whole.heads), ("mlp_ratio", mlp_ratio, whole.mlp_ratio)):
        if value > most:
            raise WrongCall(f"{name} is {value}; the ancestry model has {most}, and pruning only takes away")
    spec = whole.with_(heads=heads, attention_width=_attention(whole, heads), mlp_ratio=mlp_ratio)
    if spec.hidden < 1:
        raise WrongCall(f"mlp_ratio is {mlp_ratio}, which leaves no hidden neuron; choose at least {ratio(whole, 1)}")
    return spec


def uneven_spec(whole: Spec, counts: Counts) -> Spec:
    """Every block with its own numbers; neighbours of one size are one segment. Raises `WrongCall` for too many segments."""
    if not len(counts.heads) == len(counts.hidden) == whole.layers:
        raise WrongCall(f"there are counts for {len(counts.heads)} and {len(counts.hidden)} of {whole.layers} blocks")
    runs = [(len(list(run)), *size) for size, run in groupby(zip(counts.heads, counts.hidden))]
    *before, (_, heads, hidden) = runs
    last = even_spec(whole, heads, ratio(whole, hidden))
    front = tuple(
        Segment(
            layers=layers,
            width=whole.width,
            heads=heads,
            attention_width=_attention(whole, heads),
            mlp_ratio=None if ratio(whole, hidden) == last.mlp_ratio else ratio(whole, hidden),
            stitch=False,
        )
        for layers, heads, hidden in before
    )
    return replace(last, front=front)  # type: ignore[call-arg]  # a ViTSpec's


def _attention(whole: Spec, heads: int) -> int | None:
    return None if heads == whole.heads else heads * whole.head_width


def ratio(whole: Spec, hidden: int) -> float:
    """The least MLP ratio with which timm, multiplying and rounding down, makes this hidden width."""
    if hidden == whole.hidden:
        return whole.mlp_ratio
    gates = 2 if getattr(whole, "mlp", "mlp") == "swiglu_packed" else 1
    found = gates * hidden / whole.width
    return found if int(whole.width * found) >= gates * hidden else math.nextafter(found, math.inf)


def even_members(whole: Spec) -> list[Member]:
    """Every number of heads with every eighth of the hidden neurons."""
    hidden = sorted({max(whole.hidden * step // EIGHTHS, 1) for step in range(1, EIGHTHS + 1)})
    sizes = [(heads, ratio(whole, neurons)) for heads in range(1, whole.heads + 1) for neurons in hidden]
    return [Member(spec=even_spec(whole, heads, one)) for heads, one in sizes]


def uneven_members(whole: Spec, every: Iterable[tuple[float, Counts]]) -> list[Member]:
    """A model for each share of the ranking; those with more segments than a model can have are left out."""
    made = []
    for share, counts in every:
        with suppress(WrongCall):
            made.append(Member(spec=uneven_spec(whole, counts), settings={"keep": share}))
    return made
