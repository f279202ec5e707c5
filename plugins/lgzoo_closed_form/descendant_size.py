"""Sizes of closed_form descendants: which can be built, and which blocks of the ancestry model
they take.

The blocks that a descendant replaces are cut into runs, and the first block of a run stands for all
of it. The cost is measured on the ancestry model's own streams: with only the fc2 of block i solved
again, C[i, j] is the error of making the output of block j from the stream after the attention of
block i, as a share of that output's variance. A run counts as at least as hard as any part of it,
so the objective never rises with the number of runs. Dynamic programming finds the best cuts for
every number of runs at once:

    cost of k runs over blocks 0..j = min over i of (cost of k - 1 runs over 0..i-1) + C[i, j]

Everything here is in plain numbers, and blocks are counted from 0. Listing descendants needs this
module, so it imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from learngene_zoo.plugin import BadFile, Target, WrongCall
from lgzoo_closed_form.limits import (
    check_narrow_heads,
    check_width,
    complete_target,
    list_fixed_width_features,
    refuse_heads,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Spec
    from lgzoo_closed_form.calibration import Calibration

Costs = Sequence[Sequence[float]]  # C[i][j - i] for j >= i
MAX_COST = 0.1  # of a cut that is chosen without being asked for


def derive_spec(
    target: Target, ancestry: Spec, *, is_nested: bool, head_dim: int | None = None
) -> Spec:
    """Return the shape of a target; if only its width or heads are given, heads keep their width.

    Args:
        target: the sizes to build.
        ancestry: the shape of the ancestry model.
        is_nested: whether the stream is turned even at the ancestry model's width.
        head_dim: the channels of each head; None: as the target's width and heads have it.

    Raises:
        WrongCall: for sizes that cannot be built.
    """
    if head_dim is not None:
        target = complete_target(target, ancestry, head_dim, is_nested=is_nested)
    if target.width is not None:
        check_width(target, ancestry, is_nested=is_nested)
    spec = target.whole_heads(ancestry).apply(ancestry)
    if spec.head_width < ancestry.head_width:
        check_narrow_heads(ancestry, is_nested=is_nested)
    most = ancestry.head_width, ancestry.heads, ancestry.width
    if any(size > limit for size, limit in zip((spec.head_width, spec.heads, spec.width), most)):
        raise refuse_heads(spec.width, spec.heads, ancestry, is_nested=is_nested)
    if spec.layers > ancestry.layers:
        raise WrongCall(
            f"layers is {spec.layers}; the ancestry model has {ancestry.layers}, and closed_form "
            "builds no deeper one"
        )
    is_narrower = spec.width < ancestry.width
    if is_narrower or is_nested:
        for feature in list_fixed_width_features(ancestry):
            named = [name for name in ("width", "heads") if getattr(target, name) is not None]
            left_out = " and the ".join(named) or "head_dim"
            change = (
                f"narrowed; leave out the {left_out}" if is_narrower else "turned; leave out nested"
            )
            raise WrongCall(f"the ancestry model has {feature}, so its stream cannot be {change}")
    return spec


def list_sizes(ancestry: Spec, *, is_nested: bool, head_dim: int | None) -> list[Spec]:
    """Return the shapes of every depth and of every number of heads of so many channels.

    Args:
        ancestry: the shape of the ancestry model.
        is_nested: whether the stream is turned even at the ancestry model's width.
        head_dim: the channels of each head; None: the ancestry model's.

    Raises:
        WrongCall: if its heads cannot have so many channels.
    """
    if head_dim not in (None, ancestry.head_width):
        derive_spec(Target(), ancestry, is_nested=is_nested, head_dim=head_dim)
    dim = head_dim or ancestry.head_width
    is_fixed = dim == ancestry.head_width and list_fixed_width_features(ancestry)
    counts = [ancestry.heads] if is_fixed else range(1, ancestry.heads + 1)
    return [
        ancestry.with_(layers=layers, width=heads * dim, heads=heads)
        for layers in range(1, ancestry.layers + 1)
        for heads in counts
    ]


class Cut(NamedTuple):
    """A division of the first blocks of an ancestry model into runs."""

    runs: tuple[int, ...]  # the first block of each run
    depth: int  # how many blocks the runs have together
    objective: float  # the sum of the costs of its runs


def make_monotone(costs: Costs) -> list[list[float]]:
    """Return the costs with every run at least as hard as each of its parts."""
    layers = len(costs)
    monotone = [list(row) for row in costs]
    for length in range(1, layers):
        for first in range(layers - length):
            shorter = monotone[first][length - 1], monotone[first + 1][length - 1]
            monotone[first][length] = max(monotone[first][length], *shorter)
    return monotone


def find_best_cuts(costs: Costs, depth: int | None = None) -> list[Cut]:
    """Return the best cut of the first `depth` blocks (None: all) into 1, 2, ... runs."""
    layers = len(costs) if depth is None else depth
    monotone = make_monotone([row[: layers - first] for first, row in enumerate(costs[:layers])])
    best = [[Cut((0,), last + 1, monotone[0][last]) for last in range(layers)]]
    for runs in range(2, layers + 1):
        before = best[-1]
        # The entries of fewer blocks than runs are never read.
        best.append(before[: runs - 1])
        for last in range(runs - 1, layers):
            cuts = (
                Cut(
                    (*before[first - 1].runs, first),
                    last + 1,
                    before[first - 1].objective + monotone[first][last - first],
                )
                for first in range(runs - 1, last + 1)
            )
            best[-1].append(min(cuts, key=lambda cut: (cut.objective, cut.runs)))
    return [row[-1] for row in best]


def choose_cut(costs: Costs, layers: int) -> Cut:
    """Return the cut of the most blocks into `layers` runs whose objective is at most `MAX_COST`.

    As many blocks as runs always have one, whose objective is 0.
    """
    cuts = (find_best_cuts(costs, depth)[layers - 1] for depth in range(len(costs), layers - 1, -1))
    return next(cut for cut in cuts if cut.objective <= MAX_COST)


def check_teacher_depth(
    depth: int | None, layers: int, ancestry_layers: int, is_nested: bool
) -> None:
    """Raise `WrongCall` for a number of blocks that a descendant cannot stand for.

    Args:
        depth: the number of blocks; None: not named.
        layers: how many the descendant has.
        ancestry_layers: how many the ancestry model has.
        is_nested: whether streams are nested: such descendants stand for all blocks.
    """
    if depth is None:
        return
    if not layers <= depth <= ancestry_layers:
        raise WrongCall(
            f"teacher_depth is {depth}; a descendant of {layers} layers can stand for {layers} to "
            f"{ancestry_layers} blocks of this ancestry model"
        )
    if is_nested and depth < ancestry_layers:
        raise WrongCall(
            f"teacher_depth is {depth}; nested descendants stand for all {ancestry_layers} blocks; "
            "leave it out"
        )


def select_cut(
    costs: Costs,
    runs: Sequence[Sequence[int]],
    ancestry_layers: int,
    layers: int,
    depth: int | None,
) -> Cut:
    """Return the cut for a descendant.

    Args:
        costs: the learngene's; empty if it was extracted before they were recorded.
        runs: the learngene's cuts of all blocks into 1, 2, ... runs.
        ancestry_layers: how many blocks the ancestry model has.
        layers: how many the descendant has.
        depth: how many blocks the descendant stands for. None: see `choose_cut`; without costs all.

    Raises:
        WrongCall: for a depth that cannot be.
        BadFile: for costs or runs that cannot be.
    """
    check_teacher_depth(depth, layers, ancestry_layers, is_nested=False)
    if not costs:
        if depth not in (None, ancestry_layers):
            raise WrongCall(
                "this learngene has no costs of runs, which teacher_depth needs; extract it again, "
                "or leave out teacher_depth"
            )
        return Cut(_read_runs(runs, layers), ancestry_layers, math.nan)
    sizes = [len(row) for row in costs]
    is_valid = all(math.isfinite(cost) and cost >= 0 for row in costs for cost in row)
    if sizes != list(range(ancestry_layers, 0, -1)) or not is_valid:
        raise BadFile(
            "details of the closed_form learngene: costs has other than one number, at least 0, "
            f"for each run of {ancestry_layers} blocks; extract it again"
        )
    if depth is None:
        return choose_cut(costs, layers)
    return find_best_cuts(costs, depth)[layers - 1]


def _read_runs(cuts: Sequence[Sequence[int]], layers: int) -> tuple[int, ...]:
    """Return the first block of each run. Raises `BadFile` for runs that cannot be."""
    runs = tuple(cuts[layers - 1]) if len(cuts) >= layers else ()
    if len(runs) != layers or runs[:1] != (0,) or list(runs) != sorted(set(runs)):
        raise BadFile(
            f"details of the closed_form learngene: runs has {list(runs)} for {layers} layers; "
            "extract it again"
        )
    return runs


def check_solvable(spec: Spec, calibration: Calibration) -> None:
    """Raise `WrongCall` for a model whose layers cannot be solved one after the other, and for
    settings of the calibration that it has no use for.
    """
    calibration.check_class_weight(spec)
    names = {
        "stitched": "blocks of several widths",
        "post_norm": "norms after attention and MLP",
    }
    for name, feature in names.items():
        if getattr(spec, name, False):
            raise WrongCall(
                f"closed_form does not take models with {feature}; choose another ancestry model, "
                "or lsamd"
            )
