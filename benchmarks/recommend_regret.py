"""The regret of `lgzoo recommend` and of simple policies on the grid of inheritance.py.

A request is a task, as many of its images as the user has, and the most parameters that the model
may have: those of one size of the grid. Its regret is the test accuracy of the best arm that fits
less that of the recommended arm, both after the fine-tuning. The best arm is that with the highest
mean over seeds among all arms but controls, those from scratch included. It is chosen on the
numbers that it is compared by, so every regret is a little too high: the regret of the best arm of
the other seeds shows by how much.

`recommend` uses no measurement of the cards; the policy of the arm that is best on the other tasks
shows what these measurements would recommend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from inheritance_page import OURS, SCRATCH, GridValues, Name
from learngene_zoo.bench.report.text_table import TextTable
from learngene_zoo.bench.results.averages import average
from learngene_zoo.lifecycle.recommendation import sort_candidates
from recommend_probes import Option, Probes


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of a user, with the results of every arm that fits."""

    task: str
    images: int
    limit: Name  # the size that has the most parameters allowed
    levels: Mapping[
        Option, Mapping[int, float]
    ]  # test accuracy in per cent by seed, no seed missing
    params: Mapping[Option, int]
    stored: Mapping[Option, int]

    def __str__(self) -> str:
        return f"{self.task}, {self.images:,} images, {self.limit}"

    @property
    def seeds(self) -> list[int]:
        """The seeds that every arm has."""
        return sorted(next(iter(self.levels.values())))

    @property
    def answers(self) -> list[Option]:
        """The options of learngenes within the limit."""
        return [option for option in self.levels if option[0] not in SCRATCH]

    def find_best(self, seeds: Collection[int], among: Collection[Option] | None = None) -> Option:
        """Return the option with the highest mean over some seeds."""
        return max(
            among or self.levels,
            key=lambda option: fmean(self.levels[option][seed] for seed in seeds),
        )

    def compute_regret(self, options: Sequence[Option], seed: int) -> float:
        """Return the regret in points; the mean of several options."""
        best_level = self.levels[self.find_best(self.seeds)][seed]
        return best_level - fmean(self.levels[option][seed] for option in options)


Policy = Callable[
    [Request, int], Sequence[Option]
]  # a request and a seed; several options: one of them at random


def list_requests(values: GridValues) -> list[Request]:
    """Return the requests for every task, number of images and limit of the grid."""
    tasks = dict.fromkeys(task for by_unit in values.values.values() for task, _, _ in by_unit)
    return [
        request
        for condition, task in product(values.conditions, tasks)
        if (request := _make_request(values, task, *condition))
    ]


def _make_request(values: GridValues, task: str, images: int, limit: Name) -> Request | None:
    """Return a request; None if no learngene has an option that fits."""
    rows_of_option = {}
    for (arm, (budget, size)), rows in values.rows.items():
        of_task = [row for row in rows if row.task == task]
        if of_task and budget == images and arm in (*values.methods, *SCRATCH):
            rows_of_option[arm, size] = of_task
    allowed = max(
        (rows[0].params for (_, size), rows in rows_of_option.items() if size == limit), default=0
    )
    fitting = {option: rows for option, rows in rows_of_option.items() if rows[0].params <= allowed}
    seeds = {row.seed for rows in fitting.values() for row in rows}
    complete = {
        option: rows for option, rows in fitting.items() if {row.seed for row in rows} == seeds
    }
    if not any(arm not in SCRATCH for arm, _ in complete):
        return None
    return Request(
        task=task,
        images=images,
        limit=limit,
        levels={
            option: {row.seed: 100 * (row.value or 0.0) for row in rows}
            for option, rows in complete.items()
        },
        params={option: rows[0].params for option, rows in complete.items()},
        stored={option: rows[0].stored_params for option, rows in complete.items()},
    )


def make_recommend_policy(
    probes: Probes, among: Collection[str] = (), *, cheapest: bool = False
) -> Policy:
    """Return the policy of the option that `recommend` ranks first.

    Args:
        probes: by task, images and seed.
        among: the learngenes to choose from; all if empty.
        cheapest: whether the cheapest option is chosen that is tied with the first.
    """

    def choose(request: Request, seed: int) -> list[Option]:
        probes_of_request = [
            probe
            for probe in probes.get((request.task, request.images, seed), ())
            if probe.option in request.levels and (not among or probe.option[0] in among)
        ]
        if not probes_of_request:
            return []
        ranked = sort_candidates(
            (str(index), probe.member, probe.right_N)
            for index, probe in enumerate(probes_of_request)
        )
        tied = [probe for probe in ranked if probe.is_tied]
        chosen = min(tied, key=lambda probe: probe.member.cost()) if cheapest else ranked[0]
        return [probes_of_request[int(chosen.learngene)].option]

    return choose


def list_largest(sizes: Mapping[Option, int], among: Sequence[Option]) -> list[Option]:
    """Return the options of the largest size."""
    return [option for option in among if sizes[option] == max(sizes[option] for option in among)]


def choose_ours(request: Request, seed: int) -> list[Option]:
    """Return the largest model of our method that fits."""
    our_options = [option for option in request.answers if option[0] == OURS]
    return list_largest(request.params, our_options)


def choose_largest_learngene(request: Request, seed: int) -> list[Option]:
    """Return the largest model that fits of the learngene that stores most; all of several such."""
    return list_largest(request.params, list_largest(request.stored, request.answers))


def make_elsewhere_policy(all_requests: Sequence[Request]) -> Policy:
    """Return the policy of the option that is the best on average over the other tasks.

    The other tasks have as many images and the same limit. This is the option that measured cards
    would name.
    """

    def choose(request: Request, seed: int) -> list[Option]:
        other_requests = [
            other
            for other in all_requests
            if (other.images, other.limit) == (request.images, request.limit)
            and other.task != request.task
        ]
        common = [
            option
            for option in request.answers
            if other_requests and all(option in other.levels for other in other_requests)
        ]
        means = {
            option: fmean(fmean(other.levels[option].values()) for other in other_requests)
            for option in common
        }
        return [max(common, key=lambda option: means[option])] if common else []

    return choose


def choose_best_of_other_seeds(request: Request, seed: int) -> list[Option]:
    """Return the best option of the same request by the other seeds."""
    other_seeds = [other for other in request.seeds if other != seed]
    return [request.find_best(other_seeds)] if other_seeds else []


def make_policies(
    all_requests: Sequence[Request], probes: Probes, on_shelf: Collection[str]
) -> dict[str, Policy]:
    """Return the compared policies by name."""
    return {
        "recommend, every learngene of the grid": make_recommend_policy(probes),
        "recommend, those on the shelf": make_recommend_policy(probes, on_shelf),
        "the smallest that it does not tell from its first": make_recommend_policy(
            probes, cheapest=True
        ),
        f"always {OURS}": choose_ours,
        "always the largest learngene": choose_largest_learngene,
        "the best on the other tasks": make_elsewhere_policy(all_requests),
        "at random": lambda request, seed: request.answers,
        "the best of the other seeds": choose_best_of_other_seeds,
    }


def make_regret_table(
    values: GridValues,
    probes: Probes,
    on_shelf: Collection[str],
    real: Collection[str],
    left_out: Collection[str],
) -> TextTable:
    """Return a table with a row for each policy: its mean regret with the interval over tasks and
    seeds, its worst, and how often it names the best.
    """
    all_requests = list_requests(values)
    budgets = sorted({request.images for request in all_requests})
    rows = [
        (name, *_format_cells(policy, all_requests, budgets, [real, left_out]))
        for name, policy in make_policies(all_requests, probes, on_shelf).items()
    ]
    columns = (
        "",
        "regret",
        *(f"{images:,} images" for images in budgets),
        "real",
        "left out",
        "worst",
        "best named",
    )
    return TextTable(f"Regret in {len(all_requests)} requests, points", columns, tuple(rows))


def _format_cells(
    policy: Policy,
    all_requests: Sequence[Request],
    budgets: Sequence[int],
    groups: Sequence[Collection[str]],
) -> Iterator[str]:
    """Yield the cells of a policy's row."""
    answers = [
        (request, seed, options)
        for request in all_requests
        for seed in request.seeds
        if (options := policy(request, seed))
    ]
    regrets = [
        (request, seed, request.compute_regret(options, seed)) for request, seed, options in answers
    ]
    units: dict[tuple[str, int], list[float]] = {}
    for request, seed, value in regrets:
        units.setdefault((request.task, seed), []).append(value)
    mean = average({unit: fmean(values) for unit, values in units.items()})
    if mean is None:
        yield from [""] * (len(budgets) + len(groups) + 3)
        return
    ends = "" if mean.low is None or mean.high is None else f" [{mean.low:.1f}, {mean.high:.1f}]"
    yield f"{mean.value:.1f}{ends}"
    for images in budgets:
        yield _format_mean([value for request, _, value in regrets if request.images == images])
    for tasks in groups:
        yield _format_mean([value for request, _, value in regrets if request.task in tasks])
    regrets_of_request = {
        str(request): [value for other, _, value in regrets if other is request]
        for request, _, _ in regrets
    }
    worst = max(regrets_of_request, key=lambda name: fmean(regrets_of_request[name]))
    yield f"{fmean(regrets_of_request[worst]):.1f} ({worst})"
    shares = [
        options.count(request.find_best(request.seeds)) / len(options)
        for request, _, options in answers
    ]
    yield f"{100 * fmean(shares):.0f} %"


def _format_mean(values: Sequence[float]) -> str:
    """Return the mean, empty without values."""
    return f"{fmean(values):.1f}" if values else ""
