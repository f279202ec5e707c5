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

from inheritance_page import OURS, SCRATCH, Measured, Name
from learngene_zoo.bench.report.text_table import TextTable
from learngene_zoo.bench.results.averages import average
from learngene_zoo.lifecycle.recommendation import sort_candidates
from recommend_probes import Option, Probes


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks, and what the grid knows of every arm that fits."""

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
        """Everything that a learngene builds within the limit."""
        return [option for option in self.levels if option[0] not in SCRATCH]

    def best(self, seeds: Collection[int], among: Collection[Option] | None = None) -> Option:
        """The option with the highest mean over some seeds."""
        return max(
            among or self.levels,
            key=lambda option: fmean(self.levels[option][seed] for seed in seeds),
        )

    def regret(self, named: Sequence[Option], seed: int) -> float:
        """In points; of several options the mean."""
        most = self.levels[self.best(self.seeds)][seed]
        return most - fmean(self.levels[option][seed] for option in named)


Policy = Callable[
    [Request, int], Sequence[Option]
]  # a request and a seed; several options: one of them at random


def requests(found: Measured) -> list[Request]:
    """Every task, number of images and limit of the grid."""
    tasks = dict.fromkeys(task for values in found.values.values() for task, _, _ in values)
    return [
        made
        for place, task in product(found.places, tasks)
        if (made := _request(found, task, *place))
    ]


def _request(found: Measured, task: str, images: int, limit: Name) -> Request | None:
    own = {}
    for (arm, (budget, size)), rows in found.rows.items():
        of_task = [row for row in rows if row.task == task]
        if of_task and budget == images and arm in (*found.methods, *SCRATCH):
            own[arm, size] = of_task
    allowed = max((rows[0].params for (_, size), rows in own.items() if size == limit), default=0)
    fitting = {option: rows for option, rows in own.items() if rows[0].params <= allowed}
    seeds = {row.seed for rows in fitting.values() for row in rows}
    whole = {
        option: rows for option, rows in fitting.items() if {row.seed for row in rows} == seeds
    }
    if not any(arm not in SCRATCH for arm, _ in whole):
        return None
    return Request(
        task=task,
        images=images,
        limit=limit,
        levels={
            option: {row.seed: 100 * (row.value or 0.0) for row in rows}
            for option, rows in whole.items()
        },
        params={option: rows[0].params for option, rows in whole.items()},
        stored={option: rows[0].stored_params for option, rows in whole.items()},
    )


def recommended(probes: Probes, among: Collection[str] = (), *, cheapest: bool = False) -> Policy:
    """What `recommend` ranks first of the learngenes `among` (none: all), or the cheapest that it
    does not tell from the first.
    """

    def policy(asked: Request, seed: int) -> list[Option]:
        offered = [
            one
            for one in probes.get((asked.task, asked.images, seed), ())
            if one.option in asked.levels and (not among or one.option[0] in among)
        ]
        if not offered:
            return []
        ranked = sort_candidates(
            (str(place), one.member, one.right_N) for place, one in enumerate(offered)
        )
        tied = [one for one in ranked if one.is_tied]
        chosen = min(tied, key=lambda one: one.member.cost()) if cheapest else ranked[0]
        return [offered[int(chosen.learngene)].option]

    return policy


def largest(sizes: Mapping[Option, int], among: Sequence[Option]) -> list[Option]:
    """All of the largest ones."""
    return [option for option in among if sizes[option] == max(sizes[one] for one in among)]


def always_ours(asked: Request, seed: int) -> list[Option]:
    """Its largest model that fits."""
    own = [option for option in asked.answers if option[0] == OURS]
    return largest(asked.params, own)


def largest_learngene(asked: Request, seed: int) -> list[Option]:
    """The largest model that fits of the learngene that stores most; of several such learngenes,
    one at random.
    """
    return largest(asked.params, largest(asked.stored, asked.answers))


def best_elsewhere(every: Sequence[Request]) -> Policy:
    """The best on average over the other tasks, with as many images and the same limit: what
    measured cards would name.
    """

    def policy(asked: Request, seed: int) -> list[Option]:
        others = [
            one
            for one in every
            if (one.images, one.limit) == (asked.images, asked.limit) and one.task != asked.task
        ]
        known = [
            option
            for option in asked.answers
            if others and all(option in one.levels for one in others)
        ]
        means = {
            option: fmean(fmean(one.levels[option].values()) for one in others) for option in known
        }
        return [max(known, key=lambda option: means[option])] if known else []

    return policy


def best_of_other_seeds(asked: Request, seed: int) -> list[Option]:
    """What the grid itself would name for this very request, from the other seeds."""
    others = [one for one in asked.seeds if one != seed]
    return [asked.best(others)] if others else []


def policies(
    every: Sequence[Request], probes: Probes, on_shelf: Collection[str]
) -> dict[str, Policy]:
    """What is compared, by name."""
    return {
        "recommend, every learngene of the grid": recommended(probes),
        "recommend, those on the shelf": recommended(probes, on_shelf),
        "the smallest that it does not tell from its first": recommended(probes, cheapest=True),
        f"always {OURS}": always_ours,
        "always the largest learngene": largest_learngene,
        "the best on the other tasks": best_elsewhere(every),
        "at random": lambda asked, seed: asked.answers,
        "the best of the other seeds": best_of_other_seeds,
    }


def regret_table(
    found: Measured,
    probes: Probes,
    on_shelf: Collection[str],
    real: Collection[str],
    left_out: Collection[str],
) -> TextTable:
    """A line for each policy: its mean regret with the interval over tasks and seeds, its worst,
    and how often it names the best.
    """
    every = requests(found)
    budgets = sorted({asked.images for asked in every})
    rows = [
        (name, *_cells(policy, every, budgets, [real, left_out]))
        for name, policy in policies(every, probes, on_shelf).items()
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
    return TextTable(f"Regret in {len(every)} requests, points", columns, tuple(rows))


def _cells(
    policy: Policy,
    every: Sequence[Request],
    budgets: Sequence[int],
    groups: Sequence[Collection[str]],
) -> Iterator[str]:
    answered = [
        (asked, seed, named)
        for asked in every
        for seed in asked.seeds
        if (named := policy(asked, seed))
    ]
    regrets = [(asked, seed, asked.regret(named, seed)) for asked, seed, named in answered]
    units: dict[tuple[str, int], list[float]] = {}
    for asked, seed, value in regrets:
        units.setdefault((asked.task, seed), []).append(value)
    whole = average({unit: fmean(values) for unit, values in units.items()})
    if whole is None:
        yield from [""] * (len(budgets) + len(groups) + 3)
        return
    ends = (
        "" if whole.low is None or whole.high is None else f" [{whole.low:.1f}, {whole.high:.1f}]"
    )
    yield f"{whole.value:.1f}{ends}"
    for images in budgets:
        yield _mean([value for asked, _, value in regrets if asked.images == images])
    for tasks in groups:
        yield _mean([value for asked, _, value in regrets if asked.task in tasks])
    of = {
        str(asked): [value for one, _, value in regrets if one is asked] for asked, _, _ in regrets
    }
    worst = max(of, key=lambda name: fmean(of[name]))
    yield f"{fmean(of[worst]):.1f} ({worst})"
    shares = [named.count(asked.best(asked.seeds)) / len(named) for asked, _, named in answered]
    yield f"{100 * fmean(shares):.0f} %"


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f}" if values else ""
