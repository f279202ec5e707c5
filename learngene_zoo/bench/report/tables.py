"""The summary of a bench as tables for people.

Numbers are in per cent, gains in points, each with its 95 % interval or its range.
"""

from __future__ import annotations

from dataclasses import replace

from learngene_zoo.bench.report.captions import describe_arms_at_chance, describe_losses
from learngene_zoo.bench.report.gain_tables import (
    build_gain_table,
    build_pair_table,
    build_tables_before_training,
    find_largest_budgets,
    select_methods,
)
from learngene_zoo.bench.report.text_table import (
    AVERAGE,
    NONE,
    PROBE,
    TextTable,
    drop_constant_columns,
    format_duration,
    format_fraction,
    format_percent,
)
from learngene_zoo.bench.results.condition import SCRATCH, Condition
from learngene_zoo.bench.results.summary import Line, Summary
from learngene_zoo.text import count_noun, format_count

PAGE_WIDTH = 80  # characters of a terminal's line


def build_compact_tables(summary: Summary) -> list[TextTable]:
    """Return tables with one line per arm and size, averaged over tasks.

    The columns are the metric untrained and with every budget, and the gains with the largest
    budget. There is a table for each split and metric; below the last one are the warnings about
    arms that lose by their training or end at chance.
    """
    kinds = dict.fromkeys(
        (line.condition.split, line.condition.metric) for line in summary.averages
    )
    tables = [_build_compact_table(summary, split, metric) for split, metric in kinds]
    note = "\n".join(filter(None, (describe_losses(summary), describe_arms_at_chance(summary))))
    return [*tables[:-1], *(replace(table, note=note) for table in tables[-1:])]


def _build_compact_table(summary: Summary, split: str, metric: str) -> TextTable:
    lines = [
        line
        for line in summary.averages
        if (line.condition.split, line.condition.metric) == (split, metric)
    ]
    budgets = sorted({line.condition.epochs for line in lines})
    groups: dict[tuple[str, int, str], dict[int, Line]] = {}
    for line in lines:
        groups.setdefault((line.condition.size_label, line.condition.width, line.arm), {})[
            line.condition.epochs
        ] = line
    rows = []
    for (size, width, arm), by_epochs in groups.items():
        last = by_epochs[max(by_epochs)]
        values = [
            last.untrained,
            last.probe,
            *(by_epochs[epochs].value if epochs in by_epochs else None for epochs in budgets),
        ]
        gains = [
            format_fraction(gain, "+.1f")
            for gain in (last.over_scratch, last.over_stem, last.inherited)
        ]
        marked = f"{arm} *" if last.lacks else arm  # the star: see `describe_missing`
        params = format_count(last.params)
        shown_values = (
            (average and format_percent(average.value)) or NONE
            for average in (*values, last.real, last.left_out)
        )
        rows.append((marked, size, str(width), params, *shown_values, *gains))
    budget_names = (f"{epochs} ep" for epochs in budgets)
    columns = (
        "arm",
        "layers",
        "width",
        "params",
        "untrained",
        PROBE,
        *budget_names,
        "real",
        "left out",
        "over scratch",
        "over stem",
        "inherited",
    )
    title = (
        f"{metric} on {split} images, %: mean of "
        f"{count_noun(max(len(line.value.tasks) for line in lines), 'task')} and "
        f"{count_noun(max(line.value.seeds for line in lines), 'seed')}; gains in points after "
        f"{count_noun(budgets[-1], 'epoch')}"
    )
    return drop_constant_columns(TextTable(title, columns, tuple(rows)))


def build_brief_tables(summary: Summary) -> list[TextTable]:
    """Return the tables for a terminal of 80 columns: the metrics of every arm, and the gains.

    They have no columns that are equal in all rows, and lack the least important ones where the
    names of arms are long.
    """
    return [
        *(_narrow(table) for table in build_compact_tables(summary)),
        *_drop_none(build_gain_table(summary), build_pair_table(summary)),
        *build_tables_before_training(summary),
    ]


def _narrow(table: TextTable) -> TextTable:
    """Return a compact table for a terminal, without the gains, which have a separate table."""
    for name in ("over scratch", "over stem", "inherited"):
        table = table.without(name)
    size = ""
    for name in ("layers", "params"):
        values = set(dict(zip(table.columns, zip(*table.rows))).get(name, ()))
        if len(values) == 1:
            table, size = table.without(name), size or f"; {values.pop()} {name}"
    for names in (("untrained",), ("params",), ("real", "left out"), (PROBE,)):
        for name in names if table.width > PAGE_WIDTH else ():
            table = table.without(name)
    return replace(table, title=table.title.partition(";")[0] + size)


def _drop_none(*tables: TextTable | None) -> list[TextTable]:
    return [table for table in tables if table is not None]


def build_task_tables(summary: Summary) -> list[TextTable]:
    """Return for each size, with the largest budget, a line per arm and a column per task.

    The gains of each method over scratch follow.
    """
    return [_build_task_table(summary, condition) for condition in find_largest_budgets(summary)]


def _build_task_table(summary: Summary, condition: Condition) -> TextTable:
    lines = {(line.arm, line.task): line for line in summary.lines if line.condition == condition}
    arms = [arm for arm in summary.arms if (arm, None) in lines]
    tasks: list[str | None] = [
        task for task in summary.tasks if any((arm, task) in lines for arm in arms)
    ]
    columns = [*tasks, *([None] if len(tasks) > 1 else [])]
    rows = [
        (
            arm,
            *(
                format_fraction(line.value if (line := lines.get((arm, task))) else None)
                for task in columns
            ),
        )
        for arm in arms
    ]
    gaining = {
        arm for (arm, _), line in lines.items() if line.over_scratch and line.control is None
    }
    for arm in (arm for arm in arms if arm in gaining):
        over = (
            format_fraction(line.over_scratch if (line := lines.get((arm, task))) else None, "+.1f")
            for task in columns
        )
        rows.append((f"{arm} over scratch", *over))
    title = (
        f"{condition.metric} on {condition.split} images, %: {condition.size_in_words}, "
        f"{count_noun(condition.epochs, 'epoch')}"
    )
    return TextTable(title, ("arm", *(task or AVERAGE for task in columns)), tuple(rows))


def build_cost_table(summary: Summary) -> TextTable:
    """Return the cost of each arm: its extraction, stored parameters and one fine-tuning.

    The fine-tuning is that with the largest budget; scratch has no extraction.
    """
    rows = []
    for line in select_methods(summary):
        size = (line.condition.size_label, format_count(line.params), format_count(line.flops))
        extraction = (NONE, NONE, NONE)
        if line.method != SCRATCH:
            stored, images = format_count(line.stored_params), format_count(line.extraction_images)
            extraction = (stored, images, format_duration(line.extraction_seconds))
        rows.append((line.arm, *size, *extraction, format_duration(line.seconds)))
    columns = (
        "arm",
        "layers",
        "params",
        "FLOPs",
        "stored params",
        "extraction images",
        "extraction",
        "fine-tuning",
    )
    return TextTable("per arm and size, with the largest budget", columns, tuple(rows))


def build_failure_table(summary: Summary) -> TextTable | None:
    """Return the cells that failed; None if there are none."""
    rows = [
        (
            row.arm,
            row.task,
            row.size or str(row.layers),
            str(row.epochs),
            str(row.seed),
            row.error or "",
        )
        for row in summary.failures
    ]
    columns = ("arm", "task", "layers", "epochs", "seed", "error")
    return (
        TextTable(f"{count_noun(len(rows), 'cell')} failed", columns, tuple(rows), texts=6)
        if rows
        else None
    )
