"""The summary of a bench as tables for people.

Numbers are in per cent, gains in points, each with its 95 % interval or its range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from learngene_zoo.bench.results.averages import MIN_COUNT, Average, Interval
from learngene_zoo.bench.results.condition import SCRATCH, Condition
from learngene_zoo.bench.results.pairs import Pair
from learngene_zoo.bench.results.statistics import extremes
from learngene_zoo.bench.results.summary import Line, Summary
from learngene_zoo.plotting import shorten_label
from learngene_zoo.text import COLUMN_GAP, count_noun, human_count, human_seconds
from learngene_zoo.text import markdown as escaped

NONE = "-"
AVERAGE = "average"
PROBE = "probe"  # the column of the ridge regression of the features before any training

# Explanations of the tables: printed in the Markdown and on the page.
NOTES = (
    "*Over scratch*: the difference to the stronger scratch arm, which has the higher mean over "
    "seeds; it is chosen separately for each task, size and budget.",
    "*Inherited*: the difference to the arm's control `shuffled`, in which the entries of each "
    "inherited tensor are permuted.",
    "*Over stem*: the difference to the stronger of the arm's controls `stem` and `stem_fan_in`, "
    "chosen in the same way. These controls inherit only the parts before and after the blocks; "
    "their blocks are initialised as in the two scratch arms.",
    "*Real*, *left out*: the metric after the largest budget on the real tasks alone, and on the "
    "generated tasks whose families are not in the source task `forms` (an ancestry model trained "
    "on `source` has seen similar images).",
    "*Untrained*: the metric before any training, with a new head. *Class means*: the accuracy of "
    "the nearest class mean in the space of the features before any training.",
    "Every number of epochs is a separate training with a complete schedule.",
    "Methods against each other: differences under equal conditions, the better method first. The "
    "intervals are not corrected for the number of pairs: for equal methods, about one interval "
    "in twenty excludes 0 by chance.",
    "Brackets contain 95 % confidence intervals. Intervals of one task are over its test images, "
    "with seeds pooled (of mIoU: over seeds). Intervals of average gains are over tasks and seeds "
    f"and need at least {MIN_COUNT} of each; intervals of average metrics are over seeds and need "
    f"at least {MIN_COUNT}. With fewer, parentheses contain the range from the lowest to the "
    "highest value.",
)
INTERVALS: dict[Interval, str] = {  # explanations of the numbers beside a mean
    "tasks_seeds": "[low, high] of averages: 95 % interval over tasks and seeds",
    "images": "[low, high] of one task: 95 % interval over its test images, seeds pooled",
    "seeds": "[low, high]: 95 % interval over seeds",
    "range": f"(low to high): range over tasks and seeds; an interval over them needs {MIN_COUNT} "
    "of each",
}
FEW_TASKS = 3  # with at most this many tasks, gains are also shown task by task
PAGE_WIDTH = 80  # characters of a terminal's line


@dataclass(frozen=True)
class TextTable:
    """A title, and rows of texts by column.

    The first `texts` columns are words, the others numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1

    @property
    def width(self) -> int:
        """Return the number of characters of the longest line in a terminal."""
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows)]
        return sum(widths) + len(COLUMN_GAP) * (len(widths) - 1)

    def without(self, name: str) -> TextTable:
        """Return the table without a column."""
        indices = [index for index, column in enumerate(self.columns) if column != name]
        columns, *rows = (
            tuple(row[index] for index in indices) for row in (self.columns, *self.rows)
        )
        return replace(self, columns=columns, rows=tuple(rows))


def compact(summary: Summary) -> list[TextTable]:
    """Return tables with one line per arm and size, averaged over tasks.

    The columns are the metric untrained and with every budget, and the gains with the largest
    budget. There is a table for each split and metric.
    """
    kinds = dict.fromkeys(
        (line.condition.split, line.condition.metric) for line in summary.averages
    )
    return [_compact(summary, split, metric) for split, metric in kinds]


def _compact(summary: Summary, split: str, metric: str) -> TextTable:
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
        params = human_count(last.params)
        shown_values = (
            (average and percent(average.value)) or NONE
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
    return _drop_constant_columns(TextTable(title, columns, tuple(rows)))


def _drop_constant_columns(table: TextTable) -> TextTable:
    """Return the table without columns that are empty, and without a width that all rows share."""
    values = [set(column) for column in zip(*table.rows)]
    indices = [
        index
        for index, name in enumerate(table.columns)
        if values[index] != {NONE} and (name != "width" or len(values[index]) > 1)
    ]
    columns, *rows = (
        tuple(row[index] for index in indices) for row in (table.columns, *table.rows)
    )
    return replace(table, columns=columns, rows=tuple(rows))


def describe_missing(summary: Summary) -> list[str]:
    """Return one sentence per arm whose averages lack tasks.

    They cannot be compared with the averages of other arms.
    """
    lacks: dict[str, dict[str, None]] = {}
    for line in summary.averages:
        if line.lacks:
            lacks.setdefault(line.arm, {}).update(dict.fromkeys(line.lacks))
    return [
        f"* averages of {arm} lack {', '.join(tasks)}; its gains are over equal cells"
        for arm, tasks in lacks.items()
    ]


def brief(summary: Summary) -> list[TextTable]:
    """Return the tables for a terminal of 80 columns: the metrics of every arm, and the gains.

    They have no columns that are equal in all rows, and lack the least important ones where the
    names of arms are long.
    """
    return [
        *(_narrow(table) for table in compact(summary)),
        *_without_none(gains(summary), pairs(summary)),
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


def _without_none(*tables: TextTable | None) -> list[TextTable]:
    return [table for table in tables if table is not None]


def gains(summary: Summary) -> TextTable | None:
    """Return the gains of each method with the largest budget of each size, or None.

    Of few tasks, whose interval or range is wide, the gains over scratch follow task by task.
    """
    averages = _select_methods(summary)
    few = 1 < len(summary.tasks) <= FEW_TASKS
    entries = [(line, name, gain) for line in averages for name, gain in _gains_of(line).items()]
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
            short_task(line.task) if line.task else AVERAGE,
            *_name_condition(summary, line.condition),
            *_format_gain(gain),
        )
        for line, name, gain in entries
        if gain is not None
    ]
    columns = ("arm", "gain", "task", *_varying_columns(summary), "points", "interval or range")
    if not rows:
        return None
    table = TextTable("gains in points, with the largest budget", columns, tuple(rows), texts=3)
    return table if few else replace(table.without("task"), texts=2)


def short_task(task: str) -> str:
    """Return a task's name in at most 24 letters; of a path its last part."""
    return shorten_label(task.rstrip("/").rpartition("/")[2] if ":" in task else task, 24)


def _gains_of(line: Line) -> dict[str, Average | None]:
    return {
        "over scratch": line.over_scratch,
        "over stem": line.over_stem,
        "inherited": line.inherited,
    }


def pairs(summary: Summary) -> TextTable | None:
    """Return the methods against each other with the largest budget of each size.

    The result is None for fewer than two methods.
    """
    largest = _largest_budgets(summary)
    selected = [pair for pair in summary.pairs if pair.task is None and pair.condition in largest]
    rows = [
        (pair.arm, pair.rival, *_name_condition(summary, pair.condition), *_format_pair(pair))
        for pair in selected
    ]
    columns = ("method", "over", *_varying_columns(summary), "points", "interval or range")
    title = "methods against each other, in points, with the largest budget"
    return _drop_constant_columns(TextTable(title, columns, tuple(rows), texts=2)) if rows else None


def pairs_by_task(summary: Summary) -> TextTable | None:
    """Return the methods against each other for every task; None if there is only one task."""
    largest = _largest_budgets(summary)
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
    columns = ("method", "over", "task", *_varying_columns(summary), "points", "interval or range")
    return _drop_constant_columns(
        TextTable("methods against each other, task by task", columns, tuple(rows), texts=3)
    )


def _name_condition(summary: Summary, condition: Condition) -> tuple[str, ...]:
    """Return the cells of `_varying_columns`: the parts of a condition that differ."""
    cells = {
        "layers": condition.size_label,
        "width": str(condition.width),
        "metric": condition.metric,
    }
    return tuple(cells[name] for name in _varying_columns(summary))


def _varying_columns(summary: Summary) -> tuple[str, ...]:
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


def explanations(summary: Summary) -> list[str]:
    """Return the meaning of brackets and parentheses in the tables, one sentence for each kind."""
    shown_tasks = len(summary.tasks) <= FEW_TASKS
    averages = [gain for line in summary.averages for gain in _gains_of(line).values() if gain]
    averages += [
        line.over_scratch
        for line in summary.lines
        if line.task and line.over_scratch and shown_tasks
    ]
    averages += [pair.difference for pair in summary.pairs if pair.task is None and not pair.same]
    kinds = {gain.interval for gain in averages}
    return [text for kind, text in INTERVALS.items() if kind in kinds]


def by_task(summary: Summary) -> list[TextTable]:
    """Return for each size, with the largest budget, a line per arm and a column per task.

    The gains of each method over scratch follow.
    """
    return [_by_task(summary, condition) for condition in _largest_budgets(summary)]


def _largest_budgets(summary: Summary) -> list[Condition]:
    """Return for each size the condition with most epochs."""
    largest: dict[tuple[str, int, str, str], Condition] = {}
    for condition in (line.condition for line in summary.lines):
        key = (condition.size_label, condition.width, condition.split, condition.metric)
        if key not in largest or condition.epochs > largest[key].epochs:
            largest[key] = condition
    return list(largest.values())


def _by_task(summary: Summary, condition: Condition) -> TextTable:
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


def without_one(summary: Summary) -> TextTable | None:
    """Return the lowest and highest gains if any one task is left out; None for only one task."""
    rows = []
    for line in _select_methods(summary):
        for words, gain in _gains_of(line).items():
            if gain and gain.without:
                ends = [
                    text
                    for task, mean in extremes(gain.without)
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


def costs(summary: Summary) -> TextTable:
    """Return the cost of each arm: its extraction, stored parameters and one fine-tuning.

    The fine-tuning is that with the largest budget; scratch has no extraction.
    """
    rows = []
    for line in _select_methods(summary):
        size = (line.condition.size_label, human_count(line.params), human_count(line.flops))
        extraction = (NONE, NONE, NONE)
        if line.method != SCRATCH:
            stored, images = human_count(line.stored_params), human_count(line.extraction_images)
            extraction = (stored, images, duration(line.extraction_seconds))
        rows.append((line.arm, *size, *extraction, duration(line.seconds)))
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


def _select_methods(summary: Summary) -> list[Line]:
    """Return the averages of all arms but controls, with the largest budget of each size."""
    conditions = _largest_budgets(summary)
    lines = [
        line for line in summary.averages if line.condition in conditions and line.control is None
    ]
    return sorted(lines, key=lambda line: conditions.index(line.condition))


def failures(summary: Summary) -> TextTable | None:
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


def state(summary: Summary) -> str:
    """Return how many cells are measured, failed or missing."""
    parts = [f"{count_noun(len(summary.rows), 'cell')} measured"]
    if summary.failures:
        parts.append(f"{len(summary.failures)} failed")
    if summary.missing:
        parts.append(f"{summary.missing} not measured yet")
    return ", ".join(parts)


def percent(value: float) -> str:
    """Return a fraction in per cent."""
    return f"{100 * value:.1f}"


def format_fraction(average: Average | None, form: str = ".1f") -> str:
    """Return a fraction in per cent, with [its interval] or (its range).

    With the form `+.1f` it is a difference in points.
    """
    if average is None:
        return NONE
    value, *ends = (
        f"{100 * number:{form}}"
        for number in (average.value, average.low, average.high)
        if number is not None
    )
    if not ends:
        return value
    return (
        f"{value} ({' to '.join(ends)})"
        if average.interval == "range"
        else f"{value} [{', '.join(ends)}]"
    )


def duration(seconds: float) -> str:
    """Return seconds in words."""
    return human_seconds(seconds) if seconds else NONE


def markdown(tables: Iterable[TextTable]) -> str:
    """Return tables one below the other, each with its title."""
    return (
        "\n\n".join(f"### {escaped(table.title)}\n\n{markdown_table(table)}" for table in tables)
        + "\n"
    )


def markdown_table(table: TextTable) -> str:
    """Return a table without its title."""
    rule = tuple(":---" if index < table.texts else "---:" for index in range(len(table.columns)))
    columns, *rows = (tuple(map(escaped, row)) for row in (table.columns, *table.rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *rows))
