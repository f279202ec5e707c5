"""Which blocks the searches agree on: the usage G of every base block, and the threshold it must exceed. Cold.

LSAMD eq. 3: `g_i(t)` is 1 if data set `t` prefers the frozen base block of layer `i`, `G_i` is their sum over the `M`
data sets, and the learngene is every block with `G_i > tau`. The paper sets tau to "half the number of data sets" and
contradicts itself in the figure; here it is M / 2, strictly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from learngene_zoo.plugin import Json, WrongCall


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The kept blocks (counted from 1, ascending), and how they came to be kept."""

    kept: tuple[int, ...]
    usage: tuple[int, ...]  # G, one number per layer of the ancestry model
    asked: float | None  # the threshold that was meant; None where `top` counts
    used: float | None  # the threshold that was applied; None where none was
    note: str = ""  # what a degenerate search was answered with, in one sentence


def usage(paths: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """G: for every layer the number of data sets whose path takes the base block (1 in the path)."""
    return tuple(sum(layer) for layer in zip(*paths.values(), strict=True))


def select(
    counts: Sequence[int], data_sets: int, *, threshold: float | None = None, top: int | None = None
) -> Selection:
    """The blocks used by more than `threshold` data sets (None: half of them), or the `top` most used ones.

    Of equally used blocks `top` prefers the lower. A threshold that keeps no block, or all, selects nothing: then the
    nearest one that does (in steps of one half; the lower of two) is used instead, and `note` says so. Where every block
    is used equally there is none, and all are kept. Raises `WrongCall` for a `top` the model does not have.
    """
    if top is not None:
        return Selection(kept=most_used(counts, top), usage=tuple(counts), asked=None, used=None)
    asked = data_sets / 2 if threshold is None else threshold
    kept = above(counts, asked)
    if 0 < len(kept) < len(counts):
        return Selection(kept=kept, usage=tuple(counts), asked=asked, used=asked)
    return _degenerate(counts, asked, "no block is" if not kept else "every block is")


def above(counts: Sequence[int], threshold: float) -> tuple[int, ...]:
    """The blocks used by more data sets than `threshold`, counted from 1."""
    return tuple(i for i, count in enumerate(counts, start=1) if count > threshold)


def most_used(counts: Sequence[int], top: int) -> tuple[int, ...]:
    """The `top` most used blocks, ascending; of equals the lower. Raises `WrongCall` if there are fewer blocks."""
    if not 1 <= top <= len(counts):
        raise WrongCall(f"top is {top}, but the ancestry model has {len(counts)} blocks; choose 1 to {len(counts)}")
    ranked = sorted(range(1, len(counts) + 1), key=lambda i: (-counts[i - 1], i))
    return tuple(sorted(ranked[:top]))


def nearest_threshold(counts: Sequence[int], asked: float) -> float | None:
    """The threshold nearest to `asked`, in steps of one half, that keeps some blocks but not all; None if there is none."""
    steps = [step / 2 for step in range(2 * min(counts), 2 * max(counts))]
    return min(steps, key=lambda step: (abs(step - asked), step)) if steps else None


def _degenerate(counts: Sequence[int], asked: float, what: str) -> Selection:
    nearest = nearest_threshold(counts, asked)
    shown = f"{what} used by more than {asked:g} data sets (G = {' '.join(map(str, counts))})"
    if nearest is None:
        note = f"{shown}, and no threshold tells them apart: all are kept; --top keeps fewer"
        kept = tuple(range(1, len(counts) + 1))
    else:
        note = f"{shown}; the nearest threshold that selects, {nearest:g}, was used instead; --top keeps any number"
        kept = above(counts, nearest)
    return Selection(kept=kept, usage=tuple(counts), asked=asked, used=nearest, note=note)


def report(found: Mapping[str, Mapping[str, Json]], *, threshold: float | None, top: int | None) -> dict[str, Json]:
    """The `details` of a learngene out of the finished searches, by task (see `method.py` for what they hold)."""
    counts = usage({name: record["paths"] for name, record in found.items()})
    chosen = select(counts, len(found), threshold=threshold, top=top)
    return {
        "kept": list(chosen.kept),
        "usage": list(chosen.usage),
        "threshold": chosen.used,
        "threshold_asked": chosen.asked,
        "degenerate": bool(chosen.note),
        "note": chosen.note,
        "datasets": {name: dict(record) for name, record in found.items()},
    }
