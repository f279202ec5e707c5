"""From rows to what a claim is decided by: paired differences, and their estimates. Cold.

A difference is taken per task, size and seed, in points (per cent of the images), averaged over sizes, and estimated over
tasks and seeds (`statistics.py`).

Sums that need no experiment: the parameters that storing a learngene saves, and those of the smallest descendant. Cold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from learngene_zoo.bench.claim_file import Claim, Outcome, Sum
from learngene_zoo.bench.statistics import Estimate, Scope, estimate, leave_one_out
from learngene_zoo.errors import WrongCall
from learngene_zoo.lifecycle import plan
from learngene_zoo.method import Target
from learngene_zoo.registry import load
from learngene_zoo.settings import from_json, to_json

if TYPE_CHECKING:
    from learngene_zoo.method import Extractor


Place = int | str  # a size: layers, or its name

Unit = tuple[str, Place, int]  # task, size, seed

Values = Mapping[Unit, float]  # of one arm, in per cent


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One estimated number, with the interval that resamples tasks and seeds, and what follows for the claim."""

    what: str
    value: float  # points
    low: float | None  # of the 95 % interval; None where one unit has no spread
    high: float | None
    low_here: float | None = None  # of the interval that resamples seeds alone: what holds of these very tasks
    high_here: float | None = None
    p: float | None = None  # that the truth lies on the boundary; Holm's, in an ordering
    detectable: float | None = None  # the true gain from which four of five such experiments would say "holds"
    outcome: Outcome | None = None  # None: reported beside the claim, nothing is decided by it
    tasks: Mapping[str, float] = field(default_factory=dict)  # mean by task
    without: Mapping[str, float] = field(default_factory=dict)  # the value without each task
    units: int = 0  # paired differences
    same: int = 0  # of them, between models that are one and the same
    unit: str = ""  # of an exact sum; "": per cent. All else is in points


def finding(
    what: str,
    table: Mapping[str, Sequence[float]],
    *,
    claim: Claim,
    units: int,
    same: int = 0,
    step: float = 0.0,
    decides: bool = True,
) -> Finding:
    """The estimate of a table (a list over seeds per task), and its verdict against the claim's smallest effect."""
    found = estimate(list(table.values()), scope=claim.scope, step=step)
    here = estimate(list(table.values()), scope="seeds", step=step)
    known = found.error is not None
    distance = found.detectable
    return Finding(
        what=what,
        value=found.value,
        low=found.low if known else None,
        high=found.high if known else None,
        low_here=here.low if here.error is not None else None,
        high_here=here.high if here.error is not None else None,
        p=found.p_value(claim.smallest) if decides else None,
        detectable=None if distance is None else claim.smallest + distance,
        outcome=outcome(found, claim.smallest) if decides else None,
        tasks={task: sum(row) / len(row) for task, row in table.items()},
        without=leave_one_out(list(table.values()), list(table)) if claim.scope == "tasks" else {},
        units=units,
        same=same,
    )


def outcome(found: Estimate, smallest: float) -> Outcome:
    """Holds: the interval lies above the smallest effect. Does not hold: wholly below it. Else undecided."""
    low, high = found.interval()
    return "holds" if low > smallest else "does not hold" if high < smallest else "undecided"


def differences(ours: Values, theirs: Values) -> dict[str, list[float]]:
    """Per task a list over seeds of the paired differences, averaged over sizes."""
    return by_task({unit: ours[unit] - theirs[unit] for unit in ours})


def by_task(values: Values) -> dict[str, list[float]]:
    """Per task, in the order of the units, a list over seeds of the mean over sizes."""
    return _gathered(values, lambda sizes: sum(sizes.values()) / len(sizes))


def by_size(values: Values) -> dict[Place, float]:
    """The mean over tasks and seeds of each size."""
    of: dict[Place, list[float]] = {}
    for (_, size, _), value in values.items():
        of.setdefault(size, []).append(value)
    return {size: sum(found) / len(found) for size, found in of.items()}


def rises(values: Values) -> dict[str, list[float]]:
    """Per task a list over seeds of the rise from the fewest to the most layers, by the line of least squares."""
    return _gathered(values, _rise)


def _rise(sizes: Mapping[Place, float]) -> float:
    depths = [int(depth) for depth in sizes]
    centre = sum(depths) / len(depths)
    along = sum((depth - centre) * value for depth, value in zip(depths, sizes.values()))
    return along / sum((depth - centre) ** 2 for depth in depths) * (max(depths) - min(depths))


def _gathered(values: Values, reduce: Callable[[Mapping[Place, float]], float]) -> dict[str, list[float]]:
    sizes: dict[str, dict[int, dict[Place, float]]] = {}
    for (task, size, seed), value in values.items():
        sizes.setdefault(task, {}).setdefault(seed, {})[size] = value
    return {task: [reduce(of_seed) for _, of_seed in sorted(seeds.items())] for task, seeds in sizes.items()}


def stronger(arms: Mapping[str, Values]) -> tuple[Values, dict[tuple[str, Place], str]]:
    """Of several arms the one with the higher mean over seeds, for each task and size by itself; and which it was.

    The choice is made on the very numbers that are compared, so it favours these arms: a gain over the result is a careful one.
    """
    means: dict[tuple[str, Place], dict[str, float]] = {}
    for arm, values in arms.items():
        for task, size in dict.fromkeys((task, size) for task, size, _ in values):
            seeds = [value for unit, value in values.items() if unit[:2] == (task, size)]
            means.setdefault((task, size), {})[arm] = sum(seeds) / len(seeds)
    chosen = {place: max(found, key=lambda arm: found[arm]) for place, found in means.items()}
    units = next(iter(arms.values()))
    return {unit: arms[chosen[unit[:2]]][unit] for unit in units}, chosen


def jaccard(ours: set[int], theirs: set[int]) -> float:
    """The share of what either keeps that both keep; 1 for two empty sets."""
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


def jaccard_by_chance(ours: int, theirs: int, total: int) -> float:
    """The expected Jaccard index of two random sets of these sizes out of `total`."""
    from math import comb

    shared = range(max(0, ours + theirs - total), min(ours, theirs) + 1)
    ways = {k: comb(ours, k) * comb(total - ours, theirs - k) for k in shared}
    return sum(n * (k / (ours + theirs - k) if ours + theirs else 1.0) for k, n in ways.items()) / comb(total, theirs)


def pooled(scope: Scope) -> str:
    """Of whom an interval of this scope speaks."""
    return "other tasks and other seeds" if scope == "tasks" else "other seeds on these tasks"


def sums(asked: Sequence[Sum]) -> Iterator[tuple[Sum, float]]:
    """Each sum and what it comes to, in its unit."""
    for one in asked:
        params = params_of(one)
        yield one, saved(one, params) if one.quantity == "saved" else min(params.values()) / 1e6


def unit_of(one: Sum) -> str:
    """What a sum is counted in."""
    return "%" if one.quantity == "saved" else "M parameters"


def saved(one: Sum, params: Mapping[int, int]) -> float:
    """By how much the smallest descendant, which is what the learngene holds, is smaller than all of them together; per cent."""
    absent = [layers for layers in one.layers if layers not in params]
    if absent:
        raise WrongCall(f"{one.what}: {one.method} has no descendant with {absent[0]} layers; it has {sorted(params)}")
    return 100 * (1 - params[min(params)] / sum(params[layers] for layers in one.layers))


def params_of(one: Sum) -> dict[int, int]:
    """The parameters of the smallest descendant of every depth."""
    members = plan(
        one.method,
        extractor=extractor_of(one),
        ancestries=one.ancestries or ((one.ancestry,) if one.ancestry else ()),
        target=Target(classes=one.classes),
        convention=one.convention,
    )
    return {member.spec.layers: member.cost(one.convention).params for member in reversed(members)}


def extractor_of(one: Sum) -> Extractor:
    """The method's extractor with the settings told."""
    extractor = load(one.method).extractor
    return from_json(type(extractor), {**to_json(extractor), **one.settings}, f"settings of {one.what}")
