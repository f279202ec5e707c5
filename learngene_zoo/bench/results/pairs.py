"""Methods against each other: paired differences, and arms that are the same model.

Every method is compared with every other, as long as these are at most ten pairs; of more methods
each with the best. No interval is corrected for the number of pairs: of twenty pairs of equal
methods one lies outside its 95 % interval by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from learngene_zoo.bench.results.averages import Average, Key, average_gain, average_metric
from learngene_zoo.bench.results.condition import SCRATCH, Condition
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.settings import Json
from learngene_zoo.text import count_noun

MAX_PAIRS = 10  # of five methods; of more, each is compared with the best


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The gain of one method over another under equal conditions, on one task or over tasks."""

    arm: str  # the one with the higher mean over all tasks
    rival: str
    task: str | None  # None: the average over tasks
    condition: Condition
    same: bool  # whether both arms are the same model; their difference is not measured
    difference: Average

    def to_flat(self) -> dict[str, Json]:
        """Return raw numbers under flat keys, for CSV and JSON."""
        difference = self.difference
        measured = (
            (difference.low, difference.high, difference.interval)
            if not self.same
            else (None, None, "none")
        )
        names: dict[str, Json] = {
            "arm": self.arm,
            "rival": self.rival,
            "task": self.task,
            "same": self.same,
        }
        low, high, interval = measured
        numbers: dict[str, Json] = {
            "value": difference.value,
            "low": low,
            "high": high,
            "interval": interval,
        }
        return {
            **names,
            "tasks": len(difference.tasks),
            "seeds": difference.seeds,
            **self.condition._asdict(),
            **numbers,
        }


def compare_methods(conditions: Mapping[Condition, Mapping[str, Sequence[Row]]]) -> list[Pair]:
    """Return the pairs of every condition, from the rows of its arms: averages before tasks."""
    return [
        pair
        for condition in sorted(conditions)
        for pair in _compare(condition, conditions[condition])
    ]


def _compare(condition: Condition, arms: Mapping[str, Sequence[Row]]) -> Iterable[Pair]:
    """Yield the pairs of one condition, each first averaged and then by task."""
    methods = {name: rows for name, rows in arms.items() if is_method(rows[0])}
    means = {
        name: average.value for name, rows in methods.items() if (average := average_metric(rows))
    }
    ranked = sorted(means, key=lambda name: -means[name])
    every = list(combinations(ranked, 2))
    for arm, rival in (
        every if len(every) <= MAX_PAIRS else [(ranked[0], name) for name in ranked[1:]]
    ):
        same = are_same(methods[arm], methods[rival])
        tasks = list(dict.fromkeys(row.task for row in methods[arm]))
        for task in [None, *tasks]:
            ours, theirs = (_index_by_key(methods[name], task) for name in (arm, rival))
            difference = average_gain(ours, theirs)
            if difference is not None:
                yield Pair(
                    arm=arm,
                    rival=rival,
                    task=task,
                    condition=condition,
                    same=same,
                    difference=difference,
                )


def is_method(row: Row) -> bool:
    """Return whether a row's arm is a method: neither a control nor scratch."""
    return row.control is None and row.method != SCRATCH


def _index_by_key(rows: Iterable[Row], task: str | None) -> dict[Key, Row]:
    return {(row.task, row.seed): row for row in rows if task in (None, row.task)}


def are_same(ours: Iterable[Row], theirs: Iterable[Row]) -> bool:
    """Return whether two arms built the same model wherever both have a row.

    Models are compared by the digest before their training. Rows of earlier versions have no
    digest; there the models are equal if they share one training, whose seconds are equal to the
    last digit.
    """
    our_rows, their_rows = ({_name_cell(row): row for row in rows} for rows in (ours, theirs))
    shared = [(our_rows[cell], their_rows[cell]) for cell in our_rows if cell in their_rows]
    return bool(shared) and all(_are_built_alike(row, rival) for row, rival in shared)


def _name_cell(row: Row) -> tuple[object, ...]:
    return row.task, row.seed, row.layers, row.width, row.size, row.epochs, row.split


def _are_built_alike(row: Row, rival: Row) -> bool:
    if row.weights and rival.weights:
        return row.weights == rival.weights
    shared = (row.seconds, row.value, row.correct, row.params)
    return row.seconds > 0 and shared == (rival.seconds, rival.value, rival.correct, rival.params)


def describe_same_models(conditions: Mapping[Condition, Mapping[str, Sequence[Row]]]) -> list[str]:
    """Return a sentence for each group of arms that are one model.

    An example is `a and b are the same model at 6 and 9 layers`.
    """
    by_size: dict[str, dict[str, list[Row]]] = {}
    has_widths = len({condition.width for condition in conditions}) > 1
    for condition in sorted(conditions):
        size = condition.size_in_words
        if has_widths and not condition.size:
            size = f"{size} of width {condition.width}"
        for name, rows in conditions[condition].items():
            by_size.setdefault(size, {}).setdefault(name, []).extend(rows)
    sizes: dict[tuple[str, ...], list[str]] = {}
    for size, arms in by_size.items():
        for group in _group_arms(arms):
            sizes.setdefault(group, []).append(size)
    return [
        f"{_join_words(group)} are the same model at {_format_sizes(names)}"
        for group, names in sizes.items()
    ]


def _group_arms(arms: Mapping[str, Sequence[Row]]) -> list[tuple[str, ...]]:
    """Return the arms that are the same model, by group; groups of one arm are left out."""
    groups: list[list[str]] = []
    for name, rows in arms.items():
        group_of_arm = next((group for group in groups if are_same(arms[group[0]], rows)), None)
        if group_of_arm is None:
            groups.append([name])
        else:
            group_of_arm.append(name)
    return [tuple(group) for group in groups if len(group) > 1]


def _format_sizes(sizes: Sequence[str]) -> str:
    """Return `6 and 9 layers` for depths alone, else every size in full."""
    depths = [size.removesuffix(" layers") for size in sizes]
    if all(depth.isdigit() for depth in depths):
        return f"{_join_words(depths)} layers" if depths != ["1"] else count_noun(1, "layer")
    return _join_words(sizes)


def _join_words(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
