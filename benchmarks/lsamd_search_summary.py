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
from learngene_zoo.bench.results.statistics import compute_t_quantile

SEARCH = "search"  # the variant that is compared with the placebos
AUGMENTED = "search, augmented"
UNTRAINED = "0 epochs"
PLACEBOS = (UNTRAINED, "shuffled ancestry", "constant router")
KEPT, LAYERS = (
    5,
    7,
)  # the paper's numbers: of learngene blocks, and of the larger descendant of its comparisons
Blocks = tuple[int, ...]
Row = Mapping[str, Any]


class Summary:
    """The summary of the rows of an ancestry model: searches, probes and fine-tunings."""

    def __init__(self, rows: Sequence[Row], tasks: Sequence[str]) -> None:
        self.rows, self.tasks = rows, tasks

    def select(self, kind: str) -> list[Row]:
        """Return the rows of a kind."""
        return [row for row in self.rows if row["kind"] == kind]

    @cached_property
    def probe_accuracies(self) -> dict[Blocks, float]:
        """The mean accuracy over the tasks of every set, by untrained probe."""
        return {tuple(row["kept"]): mean(row["accuracy"].values()) for row in self.select("probe")}

    @cached_property
    def tuned_accuracies(self) -> dict[Blocks, float]:
        """The same after fine-tuning, of the sets that have all tasks."""
        accuracies: dict[Blocks, dict[str, float]] = {}
        for row in self.select("tune"):
            accuracies.setdefault(tuple(row["kept"]), {})[row["task"]] = row["accuracy"]
        return {
            blocks: mean(values.values())
            for blocks, values in accuracies.items()
            if len(values) == len(self.tasks)
        }

    @cached_property
    def random_accuracies(self) -> list[float]:
        """The mean accuracies after fine-tuning of the sets drawn at random."""
        random_sets = {tuple(row["kept"]) for row in self.select("tune") if row["drawn"]}
        return [value for blocks, value in self.tuned_accuracies.items() if blocks in random_sets]

    def list_sets(self, variant: str) -> list[Blocks]:
        """Return the set that a variant chooses with each seed."""
        return [tuple(row["kept"]) for row in self.select("search") if row["variant"] == variant]

    def compute_percentiles(self, variant: str) -> list[float]:
        """Return the percentile of each seed's choice among all sets, by untrained probe."""
        return [
            compute_percentile(self.probe_accuracies[blocks], [*self.probe_accuracies.values()])
            for blocks in self.list_sets(variant)
        ]

    def compute_percentiles_within(self, variant: str) -> list[float]:
        """Return the same among the sets that agree with the choice on block 1."""
        return [
            compute_percentile(
                self.probe_accuracies[blocks],
                [
                    value
                    for other, value in self.probe_accuracies.items()
                    if (1 in other) == (1 in blocks)
                ],
            )
            for blocks in self.list_sets(variant)
        ]

    def summarise_variant(self, name: str) -> dict[str, Any]:
        """Return a row of the table."""
        sets, percentiles = self.list_sets(name), self.compute_percentiles(name)
        trained = [
            compute_percentile(self.tuned_accuracies[blocks], self.random_accuracies)
            for blocks in sets
            if blocks in self.tuned_accuracies and self.random_accuracies
        ]
        return {
            "variant": name,
            "seeds": len(sets),
            "kept": sets,
            "percentiles": [round(percentile_of_seed, 1) for percentile_of_seed in percentiles],
            "percentile": round(mean(percentiles), 1),
            "within": round(mean(self.compute_percentiles_within(name)), 1),
            "accuracy": round(100 * mean(self.probe_accuracies[blocks] for blocks in sets), 1),
            "jaccard": round(mean(compute_similarities(sets)), 2) if len(sets) > 1 else None,
            "tuned_percentile": round(mean(trained), 1) if len(trained) == len(sets) else None,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the content of the results file."""
        names = dict.fromkeys(row["variant"] for row in self.select("search"))
        lines = [self.summarise_variant(name) for name in names]
        gains = {
            name: compute_gain(self.compute_percentiles(SEARCH), self.compute_percentiles(name))
            for name in PLACEBOS
            if self.list_sets(name)
        }
        ranked = sorted(self.probe_accuracies, key=lambda blocks: -self.probe_accuracies[blocks])
        common = [blocks for blocks in self.tuned_accuracies if blocks in self.probe_accuracies]
        first = tuple(range(1, KEPT + 1))
        return {
            "ancestry": self.rows[0]["ancestry"],
            "layers": LAYERS,
            "tasks": list(self.tasks),
            "sets": len(self.probe_accuracies),
            "variants": lines,
            "chance_jaccard": round(compute_chance_similarity(12, KEPT), 2),
            "by_chance": round(compute_chance(self.compute_percentiles(SEARCH)), 3),
            "over_placebos": gains,
            "beats": bool(gains) and all(low > 0 for _, low, _ in gains.values()),
            "first_blocks": (
                round(
                    compute_percentile(
                        self.probe_accuracies[first], [*self.probe_accuracies.values()]
                    ),
                    1,
                )
                if first in self.probe_accuracies
                else None
            ),
            "with_block_1": [
                round(
                    100
                    * mean(
                        value
                        for blocks, value in self.probe_accuracies.items()
                        if (1 in blocks) == has_block_1
                    ),
                    1,
                )
                for has_block_1 in (True, False)
            ],
            "best": [ranked[0], round(100 * self.probe_accuracies[ranked[0]], 1)],
            "worst": [ranked[-1], round(100 * self.probe_accuracies[ranked[-1]], 1)],
            "tuned_sets": len(self.random_accuracies),
            "rank_correlation": (
                round(
                    compute_rank_correlation(common, self.probe_accuracies, self.tuned_accuracies),
                    2,
                )
                if len(common) > 2
                else None
            ),
        }


def compute_percentile(value: float, values: Sequence[float]) -> float:
    """Return the share of `values` that is below `value`, in per cent; equal ones count half."""
    return 100 * mean((other < value) + 0.5 * (other == value) for other in values)


def compute_similarities(sets: Sequence[Blocks]) -> list[float]:
    """Return the Jaccard index of every two sets."""
    return [len({*a} & {*b}) / len({*a} | {*b}) for a, b in combinations(sets, 2)]


def compute_chance_similarity(blocks: int, size: int) -> float:
    """Return the expected Jaccard index of two random sets of `size` blocks."""
    counts = {k: math.comb(size, k) * math.comb(blocks - size, size - k) for k in range(size + 1)}
    return sum(count * k / (2 * size - k) for k, count in counts.items()) / math.comb(blocks, size)


def compute_gain(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return the difference of two means with its 95 % interval (Welch's).

    The interval is -100 to 100 if a side has one run.
    """
    value = mean(ours) - mean(theirs)
    if len(ours) < 2 or len(theirs) < 2:
        return round(value, 1), -100.0, 100.0
    parts = [(stdev(runs) ** 2 / len(runs), len(runs) - 1) for runs in (ours, theirs)]
    error = sum(part for part, _ in parts)
    freedom = error**2 / sum(part**2 / n for part, n in parts) if error else math.inf
    width = compute_t_quantile(0.975, min(freedom, 1000)) * math.sqrt(error)
    return round(value, 1), round(value - width, 1), round(value + width, 1)


def compute_chance(percentiles: Sequence[float], draws: int = 20_000) -> float:
    """Return the probability that as many random sets have at least this mean percentile.

    It is simulated with uniform percentiles.
    """
    means = np.random.default_rng(0).uniform(0, 100, (draws, len(percentiles))).mean(axis=1)
    return float((means >= mean(percentiles)).mean())


def compute_rank_correlation(sets: Sequence[Blocks], *judges: Mapping[Blocks, float]) -> float:
    """Return Spearman's correlation of two judgements of the same sets."""
    ranks = [np.argsort(np.argsort([judge[blocks] for blocks in sets])) for judge in judges]
    return float(np.corrcoef(*ranks)[0, 1])


def make_sentence(result: Mapping[str, Any]) -> str:
    """Return the sentence that says whether the search beats its placebos."""
    search = next(line for line in result["variants"] if line["variant"] == SEARCH)
    lines = {line["variant"]: line for line in result["variants"] if line["variant"] in PLACEBOS}
    placebos = ", ".join(
        f"{name} {line['percentile']:.0f} with {line['seeds']}" for name, line in lines.items()
    )
    verdict = "beats" if result["beats"] else "is not shown to beat"
    return (
        f"The search {verdict} its placebos: among all {result['sets']} sets of five blocks, judged"
        f" by an untrained probe, the sets that it keeps with {search['seeds']} seeds stand at"
        f" percentile {search['percentile']:.0f} on average (placebos: {placebos}; sets drawn at"
        " random 50, and as high a mean as the search's with a probability of"
        f" {result['by_chance']})."
    )


def describe_bundled_set(summary: Summary) -> str:
    """Return the sentence with the percentile of the bundled learngene's blocks."""
    blocks = tuple(load_learngene(find("lsamd")).config.details["kept"])
    if blocks not in summary.probe_accuracies:
        return ""
    first = " (simply the first ones)" if blocks == tuple(range(1, len(blocks) + 1)) else ""
    rank = compute_percentile(
        summary.probe_accuracies[blocks], [*summary.probe_accuracies.values()]
    )
    return (
        f" The blocks of the bundled learngene, {' '.join(map(str, blocks))}{first}, stand at"
        f" percentile {rank:.0f}."
    )


def make_table(result: Mapping[str, Any]) -> str:
    """Return the table in Markdown, and the sentences below it."""
    lines = [
        (
            "| variant | seeds | percentile among all sets, mean (each seed) | among those alike in"
            " block 1 | probe, mean accuracy | Jaccard between seeds | percentile after"
            " fine-tuning |"
        ),
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for line in result["variants"]:
        each = " ".join(f"{value:.0f}" for value in line["percentiles"])
        rest = (
            "-" if line[name] is None else str(line[name])
            for name in ("jaccard", "tuned_percentile")
        )
        lines.append(
            f"| {line['variant']} | {line['seeds']} | {line['percentile']:.0f} ({each}) |"
            f" {line['within']:.0f} | {line['accuracy']} | {' | '.join(rest)} |"
        )
    return "\n".join(
        [*lines, "", textwrap.fill(f"{make_sentence(result)} {make_details(result)}", 150)]
    )


def make_details(result: Mapping[str, Any]) -> str:
    """Return further results in sentences."""
    best, worst = (
        f"{' '.join(map(str, blocks))} ({value} %)"
        for blocks, value in (result["best"], result["worst"])
    )
    gains = "; ".join(
        f"{name} {v:+.0f} [{low:+.0f}, {high:+.0f}]"
        for name, (v, low, high) in result["over_placebos"].items()
    )
    sentences = [
        f"Its gains over the placebos in percentiles, with 95 % intervals over seeds: {gains}.",
        f"Two sets drawn at random have a Jaccard index of {result['chance_jaccard']} on average.",
        f"The best set is {best}, the worst {worst}.",
        "Sets with block 1 have {} % on average, the others {} %.".format(*result["with_block_1"]),
    ]
    if result["first_blocks"] is not None:
        sentences.append(f"The first five blocks stand at percentile {result['first_blocks']:.0f}.")
    if result["tuned_sets"]:
        sentences.append(
            f"After fine-tuning {result['tuned_sets']} sets drawn at random, the probe's ranks"
            " agree with those of the trained models with a correlation of"
            f" {result['rank_correlation']}."
        )
    return " ".join(sentences)
