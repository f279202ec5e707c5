"""Tables of gains: over the controls, and of the methods against each other."""

from __future__ import annotations

from dataclasses import replace

from learngene_zoo.bench.report.captions import FEW_TASKS, list_gains
from learngene_zoo.bench.report.text_table import (
    AVERAGE,
    NONE,
    TextTable,
    drop_constant_columns,
    format_fraction,
)
from learngene_zoo.bench.results.averages import Average
from learngene_zoo.bench.results.condition import Condition
from learngene_zoo.bench.results.pairs import Pair
from learngene_zoo.bench.results.statistics import find_extremes
from learngene_zoo.bench.results.summary import Line, Summary, summarise
from learngene_zoo.plotting import shorten_label

LARGEST = "with the largest budget"


def build_gain_table(summary: Summary) -> TextTable | None:
    """Return the gains of each method with the largest budget of each size, or None.

    Of few tasks, whose interval or range is wide, the gains over scratch follow task by task.
    """
    averages = select_methods(summary)
    few = 1 < len(summary.tasks) <= FEW_TASKS
    entries = [(line, name, gain) for line in averages for name, gain in list_gains(line).items()]
    for average in averages if few else ():
        task_lines = [
            line
            for line in summary.lines
            if line.task and (line.arm, line.condition) == (average.arm, average.condition)
        ]
        entries += [(line, "over scratch", line.over_scratch) for line in task_lines]
    rows = [
        (
            line.arm,
            name,
            shorten_task(line.task) if line.task else AVERAGE,
            *_name_condition(summary, line.condition),
            *_format_gain(gain),
        )
        for line, name, gain in entries
        if gain is not None
    ]
    columns = (
        "arm",
        "gain",
        "task",
        *_list_varying_columns(summary),
        "points",
        "interval or range",
    )
    if not rows:
        return None
    table = TextTable(f"gains in points, {LARGEST}", columns, tuple(rows), texts=3)
    return table if few else replace(table.without("task"), texts=2)


def build_tables_before_training(summary: Summary) -> list[TextTable]:
    """Return the tables of gains and pairs of the untrained models; none if they were not measured.

    They compare the probes, whose regression is fitted to plain images in every arm: the head of an
    arm that trains with an augmentation is fitted to augmented images too. Of mIoU, which has no
    probe, they compare the untrained models. Images are not compared one by one: only the metric
    of each cell is recorded.
    """
    values = {row.key: row.untrained if row.probe is None else row.probe for row in summary.rows}
    rows = [
        replace(row, value=values[row.key], correct=None, evaluated=0, epochs=0)
        for row in summary.rows
        if row.epochs and values[row.key] is not None
    ]
    if not rows:
        return []
    untrained = summarise(rows)
    return [
        replace(table, title=table.title.replace(LARGEST, "before any training"))
        for table in (build_gain_table(untrained), build_pair_table(untrained))
        if table is not None
    ]


def shorten_task(task: str) -> str:
    """Return a task's name in at most 24 letters; of a path its last part."""
    return shorten_label(task.rstrip("/").rpartition("/")[2] if ":" in task else task, 24)


def build_pair_table(summary: Summary) -> TextTable | None:
    """Return the methods against each other with the largest budget of each size.

    The result is None for fewer than two methods.
    """
    largest = find_largest_budgets(summary)
    selected = [pair for pair in summary.pairs if pair.task is None and pair.condition in largest]
    rows = [
        (pair.arm, pair.rival, *_name_condition(summary, pair.condition), *_format_pair(pair))
        for pair in selected
    ]
    columns = ("method", "over", *_list_varying_columns(summary), "points", "interval or range")
    title = f"methods against each other, in points, {LARGEST}"
    return drop_constant_columns(TextTable(title, columns, tuple(rows), texts=2)) if rows else None


def build_pair_table_by_task(summary: Summary) -> TextTable | None:
    """Return the methods against each other for every task; None if there is only one task."""
    largest = find_largest_budgets(summary)
    selected = [
        pair for pair in summary.pairs if pair.task is not None and pair.condition in largest
    ]
    if len({pair.task for pair in selected}) < 2:
        return None
    rows = [
        (
            pair.arm,
            pair.rival,
            pair.task or "",
            *_name_condition(summary, pair.condition),
            *_format_pair(pair),
        )
        for pair in selected
    ]
    columns = (
        "method",
        "over",
        "task",
        *_list_varying_columns(summary),
        "points",
        "interval or range",
    )
    return drop_constant_columns(
        TextTable("methods against each other, task by task", columns, tuple(rows), texts=3)
    )


def _name_condition(summary: Summary, condition: Condition) -> tuple[str, ...]:
    """Return the cells of `_list_varying_columns`: the parts of a condition that differ."""
    cells = {
        "layers": condition.size_label,
        "width": str(condition.width),
        "metric": condition.metric,
    }
    return tuple(cells[name] for name in _list_varying_columns(summary))


def _list_varying_columns(summary: Summary) -> tuple[str, ...]:
    conditions = [line.condition for line in summary.lines]
    values = {
        "layers": [condition.size_label for condition in conditions],
        "width": [str(condition.width) for condition in conditions],
        "metric": [condition.metric for condition in conditions],
    }
    return tuple(name for name, texts in values.items() if len(set(texts)) > 1)


def _format_pair(pair: Pair) -> tuple[str, str]:
    return ("same model", NONE) if pair.same else _format_gain(pair.difference)


def _format_gain(gain: Average) -> tuple[str, str]:
    """Return a gain in points, and its interval or range."""
    value, _, ends = format_fraction(gain, "+.1f").partition(" ")
    return value, ends or NONE


def find_largest_budgets(summary: Summary) -> list[Condition]:
    """Return for each size the condition with most epochs."""
    largest: dict[tuple[str, int, str, str], Condition] = {}
    for condition in (line.condition for line in summary.lines):
        key = (condition.size_label, condition.width, condition.split, condition.metric)
        if key not in largest or condition.epochs > largest[key].epochs:
            largest[key] = condition
    return list(largest.values())


def leave_one_out(summary: Summary) -> TextTable | None:
    """Return the lowest and highest gains if any one task is left out; None for only one task."""
    rows = []
    for line in select_methods(summary):
        for words, gain in list_gains(line).items():
            if gain and gain.without:
                ends = [
                    text
                    for task, mean in find_extremes(gain.without)
                    for text in (f"{100 * mean:+.1f}", task)
                ]
                settings = (
                    line.condition.size_label,
                    str(line.condition.epochs),
                    format_fraction(gain, "+.1f"),
                )
                rows.append((line.arm, words, *settings, *ends))
    columns = (
        "arm",
        "gain",
        "layers",
        "epochs",
        "all tasks",
        "least",
        "without",
        "most",
        "without",
    )
    return (
        TextTable("gains in points, with one task left out", columns, tuple(rows), texts=2)
        if rows
        else None
    )


def select_methods(summary: Summary) -> list[Line]:
    """Return the averages of all arms but controls, with the largest budget of each size."""
    conditions = find_largest_budgets(summary)
    lines = [
        line for line in summary.averages if line.condition in conditions and line.control is None
    ]
    return sorted(lines, key=lambda line: conditions.index(line.condition))
