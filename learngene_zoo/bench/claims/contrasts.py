"""The numbers that decide claims: estimated paired differences, and sums without an experiment.

A difference is taken per task, size and seed, in points (per cent of the images), averaged over
sizes, and estimated over tasks and seeds (`statistics.py`). The exact sums are the share of
parameters that storing a learngene saves, and the parameters of the smallest descendant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb, prod
from typing import Literal

from learngene_zoo.bench.claims.file import Claim, Decision, Sum
from learngene_zoo.bench.grid.grid import select_members
from learngene_zoo.bench.results.rows import Row, unpack_flags
from learngene_zoo.bench.results.statistics import MANY_DRAWS, Estimate, estimate, leave_one_out
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import count_cost
from learngene_zoo.intervals import compute_paired_gain
from learngene_zoo.lifecycle import plan
from learngene_zoo.method.sizes import Member, Target
from learngene_zoo.pretrained.ancestry import read_ancestry_spec

SizeName = int | str  # a size: layers, or its name
Unit = tuple[str, SizeName, int]  # task, size, seed
Values = Mapping[Unit, float]  # of one arm, in per cent


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One estimated number with its interval over tasks and seeds, and its outcome."""

    what: str
    value: float  # points
    low: float | None  # of the 95 % interval; None for a single unit
    high: float | None
    low_here: float | None = None  # of the interval over seeds only, for these very tasks
    high_here: float | None = None
    # the smallest 1 - level whose interval gives the outcome; Holm's, in an ordering
    p: float | None = None
    # the true gain from which four of five such experiments would say "holds"
    detectable: float | None = None
    outcome: Decision | None = None  # None: reported, but not part of the decision
    tasks: Mapping[str, float] = field(default_factory=dict)  # mean by task
    without: Mapping[str, float] = field(default_factory=dict)  # the value without each task
    units: int = 0  # paired differences
    same: int = 0  # of them, between identical models
    unit: str = ""  # of an exact sum, "" for per cent; everything else is in points


def make_finding(
    title: str,
    table: Mapping[str, Sequence[float]],
    *,
    claim: Claim,
    units: int,
    same: int = 0,
    step: float = 0.0,
    decides: bool = True,
) -> Finding:
    """Estimate the mean of a table and compare it with the claim's smallest effect.

    Args:
        title: the finding in words.
        table: for each task a list over seeds, in points.
        claim: the claim, for its scope and its smallest effect.
        units: the number of paired differences.
        same: how many of them are between identical models.
        step: the step of the values' grid (see `statistics.estimate`).
        decides: whether the claim is decided by this finding.
    """
    rows = list(table.values())
    result = estimate(rows, scope=claim.scope, step=step, draws=MANY_DRAWS)
    over_seeds = (
        result
        if claim.scope == "seeds"
        else estimate(rows, scope="seeds", step=step, draws=MANY_DRAWS)
    )
    (low, high), (low_here, high_here) = result.ends, over_seeds.ends
    return Finding(
        what=title,
        value=result.value,
        low=low,
        high=high,
        low_here=low_here,
        high_here=high_here,
        p=compute_p_value(result, claim.smallest) if decides else None,
        detectable=None if result.detectable is None else claim.smallest + result.detectable,
        outcome=judge_gain(result, claim.smallest) if decides else None,
        tasks={task: sum(row) / len(row) for task, row in table.items()},
        without=leave_one_out(table) if claim.scope == "tasks" else {},
        units=units,
        same=same,
    )


def judge_gain(result: Estimate, smallest: float) -> Decision:
    """Return the outcome of an estimated gain, in points.

    `smallest` is the smallest gain that matters. The outcome is negligible if the interval lies
    within -smallest to smallest, holds if it lies above smallest, refuted if it lies below 0; else
    undecided, because a gain that matters and none are both possible. It is also undecided if the
    Monte Carlo error of the interval's ends could change the outcome.
    """
    inner, outer = (
        decide_outcome(*ends, smallest) for ends in (result.interval(), result.outer_interval)
    )
    return inner if inner == outer else "undecided"


def decide_outcome(low: float, high: float, smallest: float) -> Decision:
    """Return the `judge_gain` of an interval."""
    if -smallest <= low and high <= smallest:
        return "negligible"
    return "holds" if low > smallest else "refuted" if high < 0 else "undecided"


def compute_p_value(result: Estimate, smallest: float) -> float:
    """Return the smallest `1 - level` whose interval gives the outcome.

    For an undecided estimate, the outcome meant is "holds"; no interval gives it if the value is
    at most `smallest`, and the p-value is 1.
    """
    outcome = judge_gain(result, smallest)
    if outcome == "undecided" and result.value <= smallest:
        return 1.0
    boundaries = {"refuted": (0.0,), "negligible": (-smallest, smallest)}.get(outcome, (smallest,))
    return max(result.p_value(boundary) for boundary in boundaries)


def sum_weighted(arms: Sequence[Values], weights: Sequence[float] = (1.0, -1.0)) -> Values:
    """Return the weighted sum of several arms' values, unit by unit; by default a difference."""
    return {
        unit: sum(weight * arm[unit] for weight, arm in zip(weights, arms, strict=True))
        for unit in arms[0]
    }


def average_by(values: Values, part: Literal[0, 1]) -> dict[str, float]:
    """Return the mean for each task (part 0 of a unit) or each size (part 1)."""
    groups: dict[str, list[float]] = {}
    for unit, value in values.items():
        groups.setdefault(str(unit[part]), []).append(value)
    return {name: sum(group) / len(group) for name, group in groups.items()}


def average_sizes(sizes: Mapping[SizeName, float]) -> float:
    """Return the mean over the sizes of one task and seed."""
    return sum(sizes.values()) / len(sizes)


def measure_rise(sizes: Mapping[SizeName, float]) -> float:
    """Return the rise from the fewest to the most layers of one task and seed, by least squares."""
    depths = [int(depth) for depth in sizes]
    centre = sum(depths) / len(depths)
    covariance = sum((depth - centre) * value for depth, value in zip(depths, sizes.values()))
    return covariance / sum((depth - centre) ** 2 for depth in depths) * (max(depths) - min(depths))


def group_by_task(
    values: Values, reduce: Callable[[Mapping[SizeName, float]], float] = average_sizes
) -> dict[str, list[float]]:
    """Return for each task, in the order of the units, a list over seeds of `reduce(sizes)`."""
    sizes: dict[str, dict[int, dict[SizeName, float]]] = {}
    for (task, size, seed), value in values.items():
        sizes.setdefault(task, {}).setdefault(seed, {})[size] = value
    return {
        task: [reduce(of_seed) for _, of_seed in sorted(seeds.items())]
        for task, seeds in sizes.items()
    }


def choose_stronger(arms: Mapping[str, Values]) -> tuple[Values, dict[tuple[str, SizeName], str]]:
    """Return the values of the arm with the highest mean over seeds, and the chosen arms.

    The arm is chosen separately for each task and size, on the very numbers that are compared. This
    favours these arms, so gains over the result are conservative.
    """
    means: dict[tuple[str, SizeName], dict[str, float]] = {}
    for arm, values in arms.items():
        for task, size in dict.fromkeys((task, size) for task, size, _ in values):
            seeds = [value for unit, value in values.items() if unit[:2] == (task, size)]
            means.setdefault((task, size), {})[arm] = sum(seeds) / len(seeds)
    chosen = {
        task_and_size: max(by_arm, key=lambda arm: by_arm[arm])
        for task_and_size, by_arm in means.items()
    }
    units = next(iter(arms.values()))
    return {unit: arms[chosen[unit[:2]]][unit] for unit in units}, chosen


def compute_gains_over_images(
    rows: Sequence[Row], ours: str, rivals: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return the accuracy of every arm, and the gains of `ours` with 95 % intervals.

    The intervals are over the images of one task. The keys are the arms' names, and `over_NAME`,
    `over_NAME_low` and `over_NAME_high` for each group.

    Args:
        rows: the rows of one task.
        ours: the arm whose gains are computed.
        rivals: groups of arms by name; of each group the arm with the highest accuracy counts.
    """
    correct: dict[str, list[tuple[bool, ...]]] = {}
    for row in rows:
        correct.setdefault(row.arm, []).append(unpack_flags(row.correct or "", row.evaluated))
    numbers = {
        arm: sum(sum(run) / len(run) for run in runs) / len(runs) for arm, runs in correct.items()
    }
    for name, arms in rivals.items():
        gain = compute_paired_gain(correct[ours], correct[max(arms, key=lambda arm: numbers[arm])])
        numbers |= {
            f"over_{name}": gain.value,
            f"over_{name}_low": gain.low,
            f"over_{name}_high": gain.high,
        }
    return numbers


def compute_jaccard(ours: set[int], theirs: set[int]) -> float:
    """Return the Jaccard index: the intersection over the union; 1 for two empty sets."""
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


def compute_chance_jaccard(ours: int, theirs: int, total: int) -> float:
    """Return the expected Jaccard index of two random sets of these sizes out of `total`."""
    shared = range(max(0, ours + theirs - total), min(ours, theirs) + 1)
    ways = {k: comb(ours, k) * comb(total - ours, theirs - k) for k in shared}
    return sum(
        n * (k / (ours + theirs - k) if ours + theirs else 1.0) for k, n in ways.items()
    ) / comb(total, theirs)


def exact_value(exact: Sum) -> float:
    """Return the value of a sum, in its unit.

    Raises:
        WrongCall: the family has no descendant of a named depth or size.
    """
    if exact.quantity == "times":
        return _sum_of_products(exact.work) / _sum_of_products(exact.instead_work)
    if exact.quantity == "stored":
        return 100 * (1 - _count_stored(exact) / _count_stored_instead(exact))
    params = list_params(exact)
    if exact.quantity == "smallest":
        return min(params.values()) / 1e6
    absent = [layers for layers in exact.layers if layers not in params]
    if absent:
        raise WrongCall(
            f"{exact.what}: {exact.method} has no descendant with {absent[0]} layers; it has "
            f"{sorted(params)}"
        )
    # The learngene holds the smallest descendant.
    return 100 * (
        1 - params[min(params)] / sum(params[layers] for layers in exact.layers or params)
    )


def _sum_of_products(numbers: Sequence[Sequence[float]]) -> float:
    return sum(prod(factors) for factors in numbers)


def _count_stored(exact: Sum) -> int:
    """Return the parameters of the descendants of `sizes` together, and of their stitches."""
    members = list_members(exact)
    params = 0
    for size in exact.sizes:
        chosen = select_members(members, size)
        if not chosen:
            raise WrongCall(f"{exact.what}: {exact.method} has no descendant of the size {size}")
        params += chosen[-1].cost(exact.convention).params
    return params + _count_stitches(exact.stitches)


def _count_stored_instead(exact: Sum) -> int:
    specs = [read_ancestry_spec(name).with_(classes=exact.classes) for name in exact.instead]
    return sum(count_cost(spec, exact.convention).params for spec in specs) + _count_stitches(
        exact.instead_stitches
    )


def _count_stitches(stitches: Sequence[tuple[int, int, int]]) -> int:
    """Return the parameters of linear layers with biases."""
    return sum(count * (width + 1) * wider for count, width, wider in stitches)


def list_params(exact: Sum) -> dict[int, int]:
    """Return the parameters of the smallest descendant of each depth."""
    return {
        member.spec.layers: member.cost(exact.convention).params
        for member in reversed(list_members(exact))
    }


def list_members(exact: Sum) -> list[Member]:
    """Return every descendant of the family, the smallest first."""
    return plan(
        exact.method,
        **dict(exact.settings),
        ancestries=exact.ancestries or ((exact.ancestry,) if exact.ancestry else ()),
        target=Target(classes=exact.classes),
        convention=exact.convention,
    )
