"""What claims are decided by: paired differences and their estimates, and sums that need no experiment.

A difference is taken per task, size and seed, in points (per cent of the images), averaged over sizes, and estimated over
tasks and seeds (`statistics.py`). The exact sums are the share of parameters that storing a learngene saves, and the parameters
of the smallest descendant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb, prod
from typing import Literal

from learngene_zoo.artifacts.ancestry import ancestry_spec
from learngene_zoo.bench.claim_file import Claim, Decision, Sum
from learngene_zoo.bench.grid import named
from learngene_zoo.bench.results import Row, unpacked
from learngene_zoo.bench.statistics import MANY_DRAWS, Estimate, estimate, leave_one_out
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import cost
from learngene_zoo.intervals import paired_gain
from learngene_zoo.lifecycle import plan
from learngene_zoo.method import METHODS, Member, Target
from learngene_zoo.settings import with_settings

SizeName = int | str  # a size: layers, or its name
Unit = tuple[str, SizeName, int]  # task, size, seed
Values = Mapping[Unit, float]  # of one arm, in per cent


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One estimated number with its interval over tasks and seeds, and what follows for the claim."""

    what: str
    value: float  # points
    low: float | None  # of the 95 % interval; None for a single unit
    high: float | None
    low_here: float | None = None  # of the interval over seeds only, for these very tasks
    high_here: float | None = None
    p: float | None = None  # the smallest 1 - level whose interval gives the outcome; Holm's, in an ordering
    detectable: float | None = None  # the true gain from which four of five such experiments would say "holds"
    outcome: Decision | None = None  # None: reported, but not part of the decision
    tasks: Mapping[str, float] = field(default_factory=dict)  # mean by task
    without: Mapping[str, float] = field(default_factory=dict)  # the value without each task
    units: int = 0  # paired differences
    same: int = 0  # of them, between identical models
    unit: str = ""  # of an exact sum, "" for per cent; everything else is in points


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
    """The estimate of a table (a list over seeds per task), compared with the claim's smallest effect."""
    rows = list(table.values())
    found = estimate(rows, scope=claim.scope, step=step, draws=MANY_DRAWS)
    here = found if claim.scope == "seeds" else estimate(rows, scope="seeds", step=step, draws=MANY_DRAWS)
    (low, high), (low_here, high_here) = found.ends, here.ends
    return Finding(
        what=what,
        value=found.value,
        low=low,
        high=high,
        low_here=low_here,
        high_here=high_here,
        p=p_value(found, claim.smallest) if decides else None,
        detectable=None if found.detectable is None else claim.smallest + found.detectable,
        outcome=outcome(found, claim.smallest) if decides else None,
        tasks={task: sum(row) / len(row) for task, row in table.items()},
        without=leave_one_out(table) if claim.scope == "tasks" else {},
        units=units,
        same=same,
    )


def outcome(found: Estimate, smallest: float) -> Decision:
    """What an interval says of a gain, where `smallest` is the smallest that matters, in points.

    Negligible if it lies within -smallest to smallest, holds if it lies above smallest, refuted if it lies below 0; else
    undecided: it has room for a gain that matters, and for none. So it is where the Monte Carlo error of the interval's ends
    could change the decision.
    """
    inner, outer = (decided(*ends, smallest) for ends in (found.interval(), found.outer_interval))
    return inner if inner == outer else "undecided"


def decided(low: float, high: float, smallest: float) -> Decision:
    """`outcome` of an interval."""
    if -smallest <= low and high <= smallest:
        return "negligible"
    return "holds" if low > smallest else "refuted" if high < 0 else "undecided"


def p_value(found: Estimate, smallest: float) -> float:
    """The smallest `1 - level` whose interval gives the outcome; of an undecided one, that would hold."""
    boundaries = {"refuted": (0.0,), "negligible": (-smallest, smallest)}.get(outcome(found, smallest), (smallest,))
    return max(found.p_value(boundary) for boundary in boundaries)


def weighted(arms: Sequence[Values], weights: Sequence[float] = (1.0, -1.0)) -> Values:
    """The weighted sum of the values of some arms, unit by unit: of two arms their difference."""
    return {unit: sum(weight * arm[unit] for weight, arm in zip(weights, arms, strict=True)) for unit in arms[0]}


def means_by(values: Values, part: Literal[0, 1]) -> dict[str, float]:
    """The mean for each task (part 0 of a unit) or each size (part 1), over everything else."""
    of: dict[str, list[float]] = {}
    for unit, value in values.items():
        of.setdefault(str(unit[part]), []).append(value)
    return {name: sum(found) / len(found) for name, found in of.items()}


def mean_of_sizes(sizes: Mapping[SizeName, float]) -> float:
    """The mean over the sizes of one task and seed."""
    return sum(sizes.values()) / len(sizes)


def rise(sizes: Mapping[SizeName, float]) -> float:
    """The rise from the fewest to the most layers of one task and seed, by the line of least squares."""
    depths = [int(depth) for depth in sizes]
    centre = sum(depths) / len(depths)
    along = sum((depth - centre) * value for depth, value in zip(depths, sizes.values()))
    return along / sum((depth - centre) ** 2 for depth in depths) * (max(depths) - min(depths))


def by_task(
    values: Values, reduce: Callable[[Mapping[SizeName, float]], float] = mean_of_sizes
) -> dict[str, list[float]]:
    """Per task, in the order of the units, a list over seeds of what `reduce` makes of the sizes."""
    sizes: dict[str, dict[int, dict[SizeName, float]]] = {}
    for (task, size, seed), value in values.items():
        sizes.setdefault(task, {}).setdefault(seed, {})[size] = value
    return {task: [reduce(of_seed) for _, of_seed in sorted(seeds.items())] for task, seeds in sizes.items()}


def stronger(arms: Mapping[str, Values]) -> tuple[Values, dict[tuple[str, SizeName], str]]:
    """The values of the arm with the highest mean over seeds, separately for each task and size; and which arm that is.

    The choice is made on the very numbers that are compared, so it favours these arms and gains over the result are conservative.
    """
    means: dict[tuple[str, SizeName], dict[str, float]] = {}
    for arm, values in arms.items():
        for task, size in dict.fromkeys((task, size) for task, size, _ in values):
            seeds = [value for unit, value in values.items() if unit[:2] == (task, size)]
            means.setdefault((task, size), {})[arm] = sum(seeds) / len(seeds)
    chosen = {place: max(found, key=lambda arm: found[arm]) for place, found in means.items()}
    units = next(iter(arms.values()))
    return {unit: arms[chosen[unit[:2]]][unit] for unit in units}, chosen


def gains_over_images(rows: Sequence[Row], ours: str, rivals: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The accuracy of every arm, and the gains of `ours` with their 95 % intervals over the images of one task.

    `rivals` are groups of arms by name; of each group the arm with the highest accuracy counts. The keys are the arms' names,
    and `over_NAME`, `over_NAME_low` and `over_NAME_high` for each group.
    """
    correct: dict[str, list[tuple[bool, ...]]] = {}
    for row in rows:
        correct.setdefault(row.arm, []).append(unpacked(row.correct or "", row.evaluated))
    found = {arm: sum(sum(run) / len(run) for run in runs) / len(runs) for arm, runs in correct.items()}
    for name, arms in rivals.items():
        gain = paired_gain(correct[ours], correct[max(arms, key=lambda arm: found[arm])])
        found |= {f"over_{name}": gain.value, f"over_{name}_low": gain.low, f"over_{name}_high": gain.high}
    return found


def jaccard(ours: set[int], theirs: set[int]) -> float:
    """The Jaccard index: the intersection over the union; 1 for two empty sets."""
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


def jaccard_by_chance(ours: int, theirs: int, total: int) -> float:
    """The expected Jaccard index of two random sets of these sizes out of `total`."""
    shared = range(max(0, ours + theirs - total), min(ours, theirs) + 1)
    ways = {k: comb(ours, k) * comb(total - ours, theirs - k) for k in shared}
    return sum(n * (k / (ours + theirs - k) if ours + theirs else 1.0) for k, n in ways.items()) / comb(total, theirs)


def exact_value(one: Sum) -> float:
    """The value of a sum, in its unit. Raises `WrongCall` for a depth that the family lacks."""
    if one.quantity == "times":
        return _sum_of_products(one.work) / _sum_of_products(one.instead_work)
    if one.quantity == "stored":
        return 100 * (1 - _stored(one) / _stored_instead(one))
    params = params_of(one)
    if one.quantity == "smallest":
        return min(params.values()) / 1e6
    absent = [layers for layers in one.layers if layers not in params]
    if absent:
        raise WrongCall(f"{one.what}: {one.method} has no descendant with {absent[0]} layers; it has {sorted(params)}")
    # The smallest descendant is what the learngene holds.
    return 100 * (1 - params[min(params)] / sum(params[layers] for layers in one.layers or params))


def _sum_of_products(numbers: Sequence[Sequence[float]]) -> float:
    return sum(prod(factors) for factors in numbers)


def _stored(one: Sum) -> int:
    """The parameters of the descendants of `sizes` together, and of their stitches."""
    members = members_of(one)
    found = sum(named(members, size)[-1].cost(one.convention).params for size in one.sizes)
    return found + _in_stitches(one.stitches)


def _stored_instead(one: Sum) -> int:
    specs = [ancestry_spec(name).with_(classes=one.classes) for name in one.instead]
    return sum(cost(spec, one.convention).params for spec in specs) + _in_stitches(one.instead_stitches)


def _in_stitches(stitches: Sequence[tuple[int, int, int]]) -> int:
    """The parameters of linear layers with biases."""
    return sum(count * (width + 1) * wider for count, width, wider in stitches)


def params_of(one: Sum) -> dict[int, int]:
    """The parameters of the smallest descendant of each depth."""
    return {member.spec.layers: member.cost(one.convention).params for member in reversed(members_of(one))}


def members_of(one: Sum) -> list[Member]:
    """Every descendant of the family, the smallest first."""
    return plan(
        one.method,
        extractor=with_settings(METHODS.load(one.method).extractor, one.settings),
        ancestries=one.ancestries or ((one.ancestry,) if one.ancestry else ()),
        target=Target(classes=one.classes),
        convention=one.convention,
    )
