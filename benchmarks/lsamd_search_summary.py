"""The summary of the rows of lsamd_search.py: percentiles, agreement between seeds, gains over the
placebos, the sentence and the table.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations
from statistics import mean, stdev
from typing import Any

import numpy as np

from learngene_zoo.artifacts.learngene import load_learngene
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.bench.results.statistics import t_quantile

SEARCH = "search"  # the variant that is compared with the placebos
AUGMENTED = "search, augmented"
UNTRAINED = "0 epochs"
PLACEBOS = (UNTRAINED, "shuffled ancestry", "constant router")
KEPT, LAYERS = (
    5,
    7,
)  # the paper's numbers: of learngene blocks, and of the larger descendant of its comparisons
Kept = tuple[int, ...]
Row = Mapping[str, Any]


class Summary:
    """What the rows of an ancestry model say: those of the searches, the probes and the
    fine-tunings.
    """

    def __init__(self, rows: Sequence[Row], tasks: Sequence[str]) -> None:
        self.rows, self.tasks = rows, tasks

    def of(self, kind: str) -> list[Row]:
        """The rows of a kind."""
        return [row for row in self.rows if row["kind"] == kind]

    @cached_property
    def probed(self) -> dict[Kept, float]:
        """The mean accuracy over the tasks of every set, by untrained probe."""
        return {tuple(row["kept"]): mean(row["accuracy"].values()) for row in self.of("probe")}

    @cached_property
    def trained(self) -> dict[Kept, float]:
        """The same after fine-tuning, of the sets that have all tasks."""
        found: dict[Kept, dict[str, float]] = {}
        for row in self.of("tune"):
            found.setdefault(tuple(row["kept"]), {})[row["task"]] = row["accuracy"]
        return {
            kept: mean(values.values())
            for kept, values in found.items()
            if len(values) == len(self.tasks)
        }

    @cached_property
    def drawn(self) -> list[float]:
        """Of the sets drawn at random, the mean accuracy after fine-tuning."""
        drawn = {tuple(row["kept"]) for row in self.of("tune") if row["drawn"]}
        return [value for kept, value in self.trained.items() if kept in drawn]

    def kept(self, variant: str) -> list[Kept]:
        """What a variant keeps with each seed."""
        return [tuple(row["kept"]) for row in self.of("search") if row["variant"] == variant]

    def percentiles(self, variant: str) -> list[float]:
        """Of each seed's choice, among all sets by untrained probe."""
        return [
            percentile(self.probed[kept], [*self.probed.values()]) for kept in self.kept(variant)
        ]

    def within(self, variant: str) -> list[float]:
        """The same among the sets that have block 1 as the choice does, or lack it as it does."""
        return [
            percentile(
                self.probed[kept],
                [value for other, value in self.probed.items() if (1 in other) == (1 in kept)],
            )
            for kept in self.kept(variant)
        ]

    def variant(self, name: str) -> dict[str, Any]:
        """One line of the table."""
        kept, places = self.kept(name), self.percentiles(name)
        trained = [
            percentile(self.trained[one], self.drawn)
            for one in kept
            if one in self.trained and self.drawn
        ]
        return {
            "variant": name,
            "seeds": len(kept),
            "kept": kept,
            "percentiles": [round(place, 1) for place in places],
            "percentile": round(mean(places), 1),
            "within": round(mean(self.within(name)), 1),
            "accuracy": round(100 * mean(self.probed[one] for one in kept), 1),
            "jaccard": round(mean(similarities(kept)), 2) if len(kept) > 1 else None,
            "tuned_percentile": round(mean(trained), 1) if len(trained) == len(kept) else None,
        }

    def as_json(self) -> dict[str, Any]:
        """All that the table and the sentence need."""
        names = dict.fromkeys(row["variant"] for row in self.of("search"))
        lines = [self.variant(name) for name in names]
        gains = {
            name: gain(self.percentiles(SEARCH), self.percentiles(name))
            for name in PLACEBOS
            if self.kept(name)
        }
        ranked = sorted(self.probed, key=lambda kept: -self.probed[kept])
        both = [kept for kept in self.trained if kept in self.probed]
        first = tuple(range(1, KEPT + 1))
        return {
            "ancestry": self.rows[0]["ancestry"],
            "layers": LAYERS,
            "tasks": list(self.tasks),
            "sets": len(self.probed),
            "variants": lines,
            "chance_jaccard": round(chance_similarity(12, KEPT), 2),
            "by_chance": round(by_chance(self.percentiles(SEARCH)), 3),
            "over_placebos": gains,
            "beats": bool(gains) and all(low > 0 for _, low, _ in gains.values()),
            "first_blocks": (
                round(percentile(self.probed[first], [*self.probed.values()]), 1)
                if first in self.probed
                else None
            ),
            "with_block_1": [
                round(
                    100 * mean(value for kept, value in self.probed.items() if (1 in kept) == has),
                    1,
                )
                for has in (True, False)
            ],
            "best": [ranked[0], round(100 * self.probed[ranked[0]], 1)],
            "worst": [ranked[-1], round(100 * self.probed[ranked[-1]], 1)],
            "tuned_sets": len(self.drawn),
            "rank_correlation": (
                round(rank_correlation(both, self.probed, self.trained), 2)
                if len(both) > 2
                else None
            ),
        }


def percentile(value: float, every: Sequence[float]) -> float:
    """The share of `every` that is below `value`, in per cent; equals count half."""
    return 100 * mean((other < value) + 0.5 * (other == value) for other in every)


def similarities(sets: Sequence[Kept]) -> list[float]:
    """The Jaccard index of every two sets."""
    return [len({*a} & {*b}) / len({*a} | {*b}) for a, b in combinations(sets, 2)]


def chance_similarity(blocks: int, kept: int) -> float:
    """The expected Jaccard index of two sets drawn at random."""
    ways = {k: math.comb(kept, k) * math.comb(blocks - kept, kept - k) for k in range(kept + 1)}
    return sum(count * k / (2 * kept - k) for k, count in ways.items()) / math.comb(blocks, kept)


def gain(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The difference of two means with its 95 % interval (Welch's); all numbers are possible where
    a side has one run.
    """
    value = mean(ours) - mean(theirs)
    if len(ours) < 2 or len(theirs) < 2:
        return round(value, 1), -100.0, 100.0
    parts = [(stdev(runs) ** 2 / len(runs), len(runs) - 1) for runs in (ours, theirs)]
    error = sum(part for part, _ in parts)
    freedom = error**2 / sum(part**2 / n for part, n in parts) if error else math.inf
    width = t_quantile(0.975, min(freedom, 1000)) * math.sqrt(error)
    return round(value, 1), round(value - width, 1), round(value + width, 1)


def by_chance(places: Sequence[float], draws: int = 20_000) -> float:
    """How often as many sets drawn at random have a mean percentile as high: uniform percentiles,
    by simulation.
    """
    drawn = np.random.default_rng(0).uniform(0, 100, (draws, len(places))).mean(axis=1)
    return float((drawn >= mean(places)).mean())


def rank_correlation(sets: Sequence[Kept], *judges: Mapping[Kept, float]) -> float:
    """Spearman's, of two judgements of the same sets."""
    ranks = [np.argsort(np.argsort([judge[kept] for kept in sets])) for judge in judges]
    return float(np.corrcoef(*ranks)[0, 1])


def sentence(found: Mapping[str, Any]) -> str:
    """Whether the search beats its placebos, in one sentence."""
    search = next(line for line in found["variants"] if line["variant"] == SEARCH)
    others = {line["variant"]: line for line in found["variants"] if line["variant"] in PLACEBOS}
    placebos = ", ".join(
        f"{name} {line['percentile']:.0f} with {line['seeds']}" for name, line in others.items()
    )
    verdict = "beats" if found["beats"] else "is not shown to beat"
    return (
        f"The search {verdict} its placebos: among all {found['sets']} sets of five blocks, judged"
        f" by an untrained probe, the sets that it keeps with {search['seeds']} seeds stand at"
        f" percentile {search['percentile']:.0f} on average (placebos: {placebos}; sets drawn at"
        " random 50, and as high a mean as the search's with a probability of"
        f" {found['by_chance']})."
    )


def own_place(summary: Summary) -> str:
    """Where the blocks of the learngene on the shelf stand, in one sentence."""
    kept = tuple(load_learngene(find("lsamd")).config.details["kept"])
    if kept not in summary.probed:
        return ""
    first = " (simply the first ones)" if kept == tuple(range(1, len(kept) + 1)) else ""
    place = percentile(summary.probed[kept], [*summary.probed.values()])
    return (
        f" The blocks of the bundled learngene, {' '.join(map(str, kept))}{first}, stand at"
        f" percentile {place:.0f}."
    )


def table(found: Mapping[str, Any]) -> str:
    """Markdown."""
    lines = [
        (
            "| variant | seeds | percentile among all sets, mean (each seed) | among those alike in"
            " block 1 | probe, mean accuracy | Jaccard between seeds | percentile after"
            " fine-tuning |"
        ),
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for line in found["variants"]:
        each = " ".join(f"{place:.0f}" for place in line["percentiles"])
        rest = (
            "-" if line[name] is None else str(line[name])
            for name in ("jaccard", "tuned_percentile")
        )
        lines.append(
            f"| {line['variant']} | {line['seeds']} | {line['percentile']:.0f} ({each}) |"
            f" {line['within']:.0f} | {line['accuracy']} | {' | '.join(rest)} |"
        )
    return "\n".join([*lines, "", textwrap.fill(f"{sentence(found)} {about(found)}", 150)])


def about(found: Mapping[str, Any]) -> str:
    """What the table does not show, in sentences."""
    best, worst = (
        f"{' '.join(map(str, kept))} ({value} %)" for kept, value in (found["best"], found["worst"])
    )
    gains = "; ".join(
        f"{name} {v:+.0f} [{low:+.0f}, {high:+.0f}]"
        for name, (v, low, high) in found["over_placebos"].items()
    )
    said = [
        f"Its gains over the placebos in percentiles, with 95 % intervals over seeds: {gains}.",
        f"Two sets drawn at random have a Jaccard index of {found['chance_jaccard']} on average.",
        f"The best set is {best}, the worst {worst}.",
        "Sets with block 1 have {} % on average, the others {} %.".format(*found["with_block_1"]),
    ]
    if found["first_blocks"] is not None:
        said.append(f"The first five blocks stand at percentile {found['first_blocks']:.0f}.")
    if found["tuned_sets"]:
        said.append(
            f"After fine-tuning {found['tuned_sets']} sets drawn at random, the probe's ranks agree"
            f" with those of the trained models with a correlation of {found['rank_correlation']}."
        )
    return " ".join(said)
