"""The kind of interval of each number of a bench, and its value by an independent formula."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from bench_toy import toy_row

from learngene_zoo.bench.report import captions, gain_tables, tables, text_table
from learngene_zoo.bench.results.averages import Average, average, average_gain, average_metric
from learngene_zoo.bench.results.rows import Row, pack_flags
from learngene_zoo.bench.results.statistics import estimate
from learngene_zoo.bench.results.summary import flatten_line, summarise
from learngene_zoo.intervals import compute_interval

IMAGES = 40
METHODS = {"one": 0.8, "two": 0.7, "three": 0.5}


def draw_rows(
    arms: Sequence[str] = ("one", "two"),
    tasks: Sequence[str] = ("digits",),
    seeds: int = 3,
    images: int = IMAGES,
    flags: bool = True,
) -> list[Row]:
    """Return rows whose images are randomly right, more often for the earlier arms."""
    results = []
    for (number, arm), task, seed in itertools.product(enumerate(arms), tasks, range(seeds)):
        generator = np.random.default_rng([number, len(task), ord(task[0]), seed])
        correct = tuple(bool(flag) for flag in generator.random(images) < 0.9 - 0.2 * number)
        value = sum(correct) / images
        about = {"arm": arm, "method": arm, "task": task, "seed": seed, "value": value, "params": 7}
        shown = {"correct": pack_flags(correct), "evaluated": images} if flags else {}
        results.append(
            toy_row(f"{arm} {task} {seed}", seconds=1.0 + len(results), **about, **shown)
        )
    return results


def of(rows: Sequence[Row], arm: str) -> dict[tuple[str, int], Row]:
    return {(row.task, row.seed): row for row in rows if row.arm == arm}


def flags_of(row: Row) -> np.ndarray:
    bits = "".join(f"{int(digit, 16):04b}" for digit in row.correct or "")
    return np.array([bit == "1" for bit in bits[: row.evaluated]], dtype=float)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_on_one_task_a_gain_has_the_paired_interval_over_its_images(seeds: int) -> None:
    """The mean over images of the difference of two shares of seeds, and 1.96 standard errors of
    this mean.
    """
    rows = draw_rows(seeds=seeds)
    result = average_gain(of(rows, "one"), of(rows, "two"))
    assert result
    ours, theirs = (
        np.mean([flags_of(row) for row in rows if row.arm == arm], axis=0) for arm in ("one", "two")
    )
    d_N = ours - theirs
    half = 1.959964 * d_N.std(ddof=1) / math.sqrt(len(d_N))
    assert result.interval == "images"
    assert (result.value, result.low, result.high) == pytest.approx(
        (d_N.mean(), d_N.mean() - half, d_N.mean() + half)
    )


def test_on_one_task_an_accuracy_has_wilsons_interval() -> None:
    rows = draw_rows(arms=["one"], seeds=1)
    result = average_metric(rows)
    assert result
    assert result.interval == "images"
    assert (result.low, result.high) == pytest.approx(
        compute_interval(int(flags_of(rows[0]).sum()), IMAGES)
    )


def test_a_model_that_is_always_right_has_an_interval() -> None:
    rows = [
        toy_row(str(seed), seed=seed, value=1.0, correct="f" * 10, evaluated=40)
        for seed in range(2)
    ]
    result = average_metric(rows)
    assert result
    assert (result.value, result.high) == (1.0, pytest.approx(1.0))
    assert result.low == pytest.approx(compute_interval(40, 40)[0])


def test_without_flags_one_task_has_an_interval_over_three_seeds_and_a_range_over_two() -> None:
    """Rows of mIoU have no flag for each image, so the interval is Student's: 4.3027 standard
    errors.
    """
    three = average_metric(draw_rows(arms=["one"], flags=False))
    assert three
    values = [row.value or 0 for row in draw_rows(arms=["one"], flags=False)]
    assert three.interval == "seeds"
    assert three.low is not None
    assert three.low <= three.value - 4.3026 * np.std(values, ddof=1) / math.sqrt(3)
    two = average_metric(draw_rows(arms=["one"], flags=False, seeds=2))
    assert two
    assert (two.interval, two.low, two.high) == ("range", min(values[:2]), max(values[:2]))


@pytest.mark.parametrize(
    ("tasks", "seeds", "interval"),
    [
        (3, 3, "tasks_seeds"),
        (4, 3, "tasks_seeds"),
        (3, 2, "range"),
        (2, 3, "range"),
        (2, 9, "range"),
        (3, 1, "range"),
    ],
)
def test_a_gain_on_several_tasks_has_an_interval_from_three_tasks_and_three_seeds_on(
    tasks: int, seeds: int, interval: str
) -> None:
    rows = draw_rows(tasks=["digits", "signs", "wings", "petals"][:tasks], seeds=seeds)
    result = average_gain(of(rows, "one"), of(rows, "two"))
    assert result
    cells = [
        (row.value or 0) - (of(rows, "two")[key].value or 0) for key, row in of(rows, "one").items()
    ]
    assert result.interval == interval
    assert result.value == pytest.approx(sum(cells) / len(cells))
    if interval == "range":
        assert (result.low, result.high) == (min(cells), max(cells))
    else:
        table = [cells[at : at + seeds] for at in range(0, len(cells), seeds)]
        assert (result.low, result.high) == pytest.approx(estimate(table, draws=20_000).interval())


def test_a_metric_on_several_tasks_has_an_interval_over_seeds() -> None:
    result = average_metric(draw_rows(arms=["one"], tasks=["digits", "signs"]))
    assert result
    assert result.interval == "seeds"
    assert result.low is not None
    assert result.high is not None
    assert 0 <= result.low < result.value < result.high <= 1


def test_a_gain_over_rows_that_do_not_say_which_images_were_right_has_no_interval_over_images() -> (
    None
):
    about = {"arm": "one", "task": "digits", "evaluated": 4, "value": 0.5}
    messages = [
        toy_row(f"one {seed}", seed=seed, correct=pack_flags((True, False) * 2), **about)
        for seed in range(3)
    ]
    untold = [replace(row, arm="two", correct=None, value=0.25) for row in messages]
    for ours, theirs, value in ((messages, untold, 0.25), (untold, messages, -0.25)):
        result = average_gain(
            *({(row.task, row.seed): row for row in rows} for rows in (ours, theirs))
        )
        assert result
        assert result.value == pytest.approx(value)
        assert result.interval != "images"


@pytest.mark.parametrize("values", [[0.3], [0.3, 0.3], [0.3, 0.3, 0.3]])
def test_a_single_number_and_equal_numbers_have_no_interval(values: list[float]) -> None:
    result = average({("a", seed): value for seed, value in enumerate(values)})
    assert result
    assert (result.interval, result.low, result.high) == ("none", None, None)


def test_no_bound_lies_beyond_what_is_possible() -> None:
    """For all tasks, seeds and values: accuracies are between 0 and 1, gains between -1 and 1."""
    generator = np.random.default_rng(0)
    for tasks, seeds, images in itertools.product((1, 2, 3), (1, 2, 3), (1, 2, 7)):
        for flags in (True, False):
            rows = []
            for arm, task, seed in itertools.product(("one", "two"), range(tasks), range(seeds)):
                correct = tuple(
                    bool(flag)
                    for flag in generator.random(images) < generator.choice([0.0, 0.5, 1.0])
                )
                shown = {"correct": pack_flags(correct), "evaluated": images} if flags else {}
                about = {
                    "arm": arm,
                    "task": f"task{task}",
                    "seed": seed,
                    "value": sum(correct) / images,
                }
                rows.append(toy_row(f"{arm} {task} {seed}", **about, **shown))
            check_bounds(average_metric([row for row in rows if row.arm == "one"]), 0.0)
            check_bounds(average_gain(of(rows, "one"), of(rows, "two")), -1.0)


def check_bounds(found: Average | None, least: float) -> None:
    assert found
    if found.interval == "none":
        assert (found.low, found.high) == (None, None)
        return
    assert found.low is not None
    assert found.high is not None
    assert least <= found.low <= found.value + 1e-9
    assert found.value - 1e-9 <= found.high <= 1
    assert found.high - found.low > 0, "no interval pretends to be exact"


# What the tables say


def test_a_range_is_written_otherwise_than_an_interval() -> None:
    values = {("a", 0): 0.1, ("a", 1): 0.3}
    result = average(values)
    assert text_table.format_fraction(result, "+.1f") == "+20.0 (+10.0 to +30.0)"
    assert text_table.format_fraction(average({**values, ("a", 2): 0.2}), "+.1f").startswith(
        "+20.0 ["
    )


def test_methods_are_compared_with_each_other_and_the_better_comes_first() -> None:
    summary = summarise(draw_rows(arms=["three", "one", "two"][::-1], tasks=["digits"]))
    pairs = [(pair.arm, pair.rival, pair.task) for pair in summary.pairs if pair.task is None]
    assert pairs == [("two", "one", None), ("two", "three", None), ("one", "three", None)]
    table = gain_tables.build_pair_table(summary)
    assert table
    assert table.columns == ("method", "over", "points", "interval or range")
    assert all(pair.difference.interval == "images" for pair in summary.pairs)
    result = summary.pairs[0].to_flat()
    assert (result["arm"], result["rival"], result["same"], result["interval"]) == (
        "two",
        "one",
        False,
        "images",
    )
    (message,) = captions.list_explanations(summary)
    assert message == (
        "[low, high] of one task: 95 % interval over its test images, seeds pooled "
        "(before training: over seeds, of two seeds their range)"
    )


def test_of_many_methods_each_is_compared_with_the_best() -> None:
    names = ["m0", "m1", "m2", "m3"]
    assert len([pair for pair in summarise(draw_rows(arms=names)).pairs if pair.task is None]) == 6
    more = [*names[:4], *("m4" for _ in range(1)), "m5"]
    pairs = [
        pair for pair in summarise(draw_rows(arms=more, images=300)).pairs if pair.task is None
    ]
    assert {pair.arm for pair in pairs} == {"m0"}
    assert [pair.rival for pair in pairs] == ["m1", "m2", "m3", "m4", "m5"]


def test_two_arms_that_are_the_same_model_are_named() -> None:
    rows = draw_rows(arms=["one", "two", "three"])
    told = {"one": "aa", "two": "bb", "three": "aa"}
    rows = [row.__class__(**{**vars(row), "weights": f"{told[row.arm]}{row.seed}"}) for row in rows]
    twins = [row.__class__(**{**vars(row), "layers": 6, "key": f"6{row.key}"}) for row in rows]
    summary = summarise([*rows, *twins])
    assert summary.same == ("one and three are the same model at 6 and 9 layers",)
    wide = [row.__class__(**{**vars(row), "width": 64, "key": f"w{row.key}"}) for row in rows]
    [sentence] = summarise([*rows, *wide]).same
    assert sentence.endswith("at 9 layers of width 64 and 9 layers of width 96")
    (pair,) = [p for p in summary.pairs if p.same and p.task is None and p.condition.layers == 9]
    assert pair.to_flat()["interval"] == "none"
    table = gain_tables.build_pair_table(summary)
    assert table
    assert ("same model", "-") in {row[-2:] for row in table.rows}


def test_without_digests_a_shared_training_tells_the_same_model() -> None:
    rows = draw_rows(arms=["one", "two"])
    copies = [
        row.__class__(**{**vars(row), "arm": "copy", "key": f"c{row.key}"}) for row in rows[:3]
    ]
    assert summarise([*rows, *copies]).same == ("one and copy are the same model at 9 layers",)
    assert summarise(rows).same == ()


def test_every_number_says_what_its_interval_is() -> None:
    line = next(line for line in summarise(draw_rows()).lines if line.task is None)
    result = flatten_line(line)
    assert result["value_interval"] == "images"
    assert result["untrained_interval"] is None
    assert {name for name in result if name.endswith("_interval")} >= {
        "over_scratch_interval",
        "inherited_interval",
    }


@pytest.mark.parametrize(
    "arms", [["one", "two"], ["weight_selection", "closed_form", "first_k", "x" * 40]]
)
def test_the_tables_of_a_terminal_fit_eighty_columns(arms: list[str]) -> None:
    rows = draw_rows(arms=arms, tasks=["digits", "wings", "signs"])
    for table in tables.build_brief_tables(summarise(rows)):
        assert table.width <= 80 or any(len(arm) > 30 for arm in arms), table
