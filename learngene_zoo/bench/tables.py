"""The summary of a bench as tables for people: in per cent, gains in points, each with its 95 % interval or its range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from learngene_zoo.bench.averages import LEAST, Average, Interval
from learngene_zoo.bench.condition import SCRATCH, Condition
from learngene_zoo.bench.pairs import Pair
from learngene_zoo.bench.statistics import extremes
from learngene_zoo.bench.summary import Line, Summary
from learngene_zoo.plotting import shortened
from learngene_zoo.text import GAP, counted, human_count, human_seconds
from learngene_zoo.text import markdown as escaped

NONE = "-"
AVERAGE = "average"
PROBE = "probe"  # the column of the ridge regression of the features before any training

# What a reader of the tables must know: printed in the Markdown and on the page.
NOTES = (
    "*Over scratch*: the difference to the stronger of the scratch arms, the one with the higher mean over seeds, chosen "
    "separately for each task, size and budget.",
    "*Inherited*: the difference to the arm's own control `shuffled`, whose inherited tensors hold the same numbers in another "
    "order.",
    "*Over stem*: the difference to the stronger of the arm's own controls `stem` and `stem_fan_in`, chosen in the same way. They "
    "inherit only what comes before and after the blocks, which have the initialisation of either scratch arm.",
    "*Real*, *left out*: the metric after the largest budget on the real tasks alone, and on the generated ones whose families "
    "the source task `forms` leaves out (an ancestry model that was trained on `source` has seen their like).",
    "*Untrained*: the metric before any training, with a fresh head. *Class means*: the accuracy of the nearest class mean in the "
    "space of the features before any training.",
    "Every number of epochs is a separate training with its own complete schedule.",
    "Methods against each other: differences under equal conditions, the better method first. Their intervals are not corrected for "
    "the number of pairs: of twenty pairs of equal methods one lies outside its interval by chance.",
    "In brackets stand 95 % confidence intervals: of one task over its test images, seeds pooled (of mIoU over seeds); of average "
    f"gains over tasks and seeds, from {LEAST} of each on; of average metrics over seeds, from {LEAST} on. In parentheses stands the range "
    "from the lowest to the highest value, where there are fewer.",
)
INTERVALS: dict[Interval, str] = {  # how the numbers beside a mean are explained
    "tasks_seeds": "[low, high] of averages: 95 % interval over tasks and seeds",
    "images": "[low, high] of one task: 95 % interval over its test images, seeds pooled",
    "seeds": "[low, high]: 95 % interval over seeds",
    "range": f"(low to high): range over tasks and seeds; an interval over them needs {LEAST} of each",
}
FEW_TASKS = 3  # whose gains are also shown one by one
PAGE_WIDTH = 80  # characters of a terminal's line


@dataclass(frozen=True)
class Table:
    """A title, and rows of texts by column; the first `texts` columns are words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1

    @property
    def width(self) -> int:
        """The characters of its longest line in a terminal."""
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows)]
        return sum(widths) + len(GAP) * (len(widths) - 1)

    def without(self, name: str) -> Table:
        """Return the table without a column."""
        kept = [index for index, column in enumerate(self.columns) if column != name]
        columns, *rows = (tuple(row[index] for index in kept) for row in (self.columns, *self.rows))
        return replace(self, columns=columns, rows=tuple(rows))


def compact(summary: Summary) -> list[Table]:
    """One line per arm and size, averaged over tasks: the metric untrained and with every budget, and the gains.

    The gains are those of the largest budget. There is a table for each split and metric.
    """
    kinds = dict.fromkeys((line.condition.split, line.condition.metric) for line in summary.averages)
    return [_compact(summary, split, metric) for split, metric in kinds]


def _compact(summary: Summary, split: str, metric: str) -> Table:
    lines = [line for line in summary.averages if (line.condition.split, line.condition.metric) == (split, metric)]
    budgets = sorted({line.condition.epochs for line in lines})
    groups: dict[tuple[str, int, str], dict[int, Line]] = {}
    for line in lines:
        groups.setdefault((line.condition.named, line.condition.width, line.arm), {})[line.condition.epochs] = line
    rows = []
    for (size, width, arm), found in groups.items():
        last = found[max(found)]
        values = [last.untrained, last.probe, *(found[epochs].value if epochs in found else None for epochs in budgets)]
        gains = [shown(gain, "+.1f") for gain in (last.over_scratch, last.over_stem, last.inherited)]
        marked = f"{arm} *" if last.lacks else arm  # the star: see `lacking`
        params = human_count(last.params)
        shown_values = ((one and percent(one.value)) or NONE for one in (*values, last.real, last.left_out))
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
        f"{metric} on {split} images, %: mean of {counted(max(len(line.value.tasks) for line in lines), 'task')} and "
        f"{counted(max(line.value.seeds for line in lines), 'seed')}; gains in points after {counted(budgets[-1], 'epoch')}"
    )
    return _telling(Table(title, columns, tuple(rows)))


def _telling(table: Table) -> Table:
    """Without the columns that say nothing: they are empty, or the width that all rows share."""
    values = [set(column) for column in zip(*table.rows)]
    kept = [
        index
        for index, name in enumerate(table.columns)
        if values[index] != {NONE} and (name != "width" or len(values[index]) > 1)
    ]
    columns, *rows = (tuple(row[index] for index in kept) for row in (table.columns, *table.rows))
    return replace(table, columns=columns, rows=tuple(rows))


def lacking(summary: Summary) -> list[str]:
    """One sentence per arm whose averages lack tasks, so that they cannot be compared with those of other arms."""
    found: dict[str, dict[str, None]] = {}
    for line in summary.averages:
        if line.lacks:
            found.setdefault(line.arm, {}).update(dict.fromkeys(line.lacks))
    return [
        f"* averages of {arm} lack {', '.join(tasks)}; its gains are over equal cells" for arm, tasks in found.items()
    ]


def brief(summary: Summary) -> list[Table]:
    """Return the tables for a terminal of 80 columns: the metrics of every arm, and what methods gain.

    They have no columns that are equal in all rows, and lack the least important ones where the names of arms are long.
    """
    return [*(_brief(table) for table in compact(summary)), *_present(gains(summary), pairs(summary))]


def _brief(table: Table) -> Table:
    """A compact table without its gains, which have a table of their own, and narrow enough."""
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


def _present(*tables: Table | None) -> list[Table]:
    return [table for table in tables if table is not None]


def gains(summary: Summary) -> Table | None:
    """Return what each method gains with the largest budget of each size; None if there is nothing to compare it with.

    Of few tasks, whose interval or range is wide, the gains over scratch follow task by task.
    """
    averages = _of_methods(summary)
    few = 1 < len(summary.tasks) <= FEW_TASKS
    found = [(line, name, gain) for line in averages for name, gain in _gains(line).items()]
    for average in averages if few else ():
        own = [
            one for one in summary.lines if one.task and (one.arm, one.condition) == (average.arm, average.condition)
        ]
        found += [(line, "over scratch", line.over_scratch) for line in own]
    rows = [
        (
            line.arm,
            name,
            short_task(line.task) if line.task else AVERAGE,
            *_about(summary, line.condition),
            *_points(gain),
        )
        for line, name, gain in found
        if gain is not None
    ]
    columns = ("arm", "gain", "task", *_about_columns(summary), "points", "interval or range")
    if not rows:
        return None
    table = Table("gains in points, with the largest budget", columns, tuple(rows), texts=3)
    return table if few else replace(table.without("task"), texts=2)


def short_task(task: str) -> str:
    """Return a task's name in at most 24 letters; of a path its last part."""
    return shortened(task.rstrip("/").rpartition("/")[2] if ":" in task else task, 24)


def _gains(line: Line) -> dict[str, Average | None]:
    return {"over scratch": line.over_scratch, "over stem": line.over_stem, "inherited": line.inherited}


def pairs(summary: Summary) -> Table | None:
    """Return the methods against each other with the largest budget of each size; None for fewer than two."""
    largest = _largest(summary)
    found = [pair for pair in summary.pairs if pair.task is None and pair.condition in largest]
    rows = [(pair.arm, pair.rival, *_about(summary, pair.condition), *_pair_points(pair)) for pair in found]
    columns = ("method", "over", *_about_columns(summary), "points", "interval or range")
    title = "methods against each other, in points, with the largest budget"
    return _telling(Table(title, columns, tuple(rows), texts=2)) if rows else None


def pairs_by_task(summary: Summary) -> Table | None:
    """Return the same for every task; None if there is only one task."""
    largest = _largest(summary)
    found = [pair for pair in summary.pairs if pair.task is not None and pair.condition in largest]
    if len({pair.task for pair in found}) < 2:
        return None
    rows = [
        (pair.arm, pair.rival, pair.task or "", *_about(summary, pair.condition), *_pair_points(pair)) for pair in found
    ]
    columns = ("method", "over", "task", *_about_columns(summary), "points", "interval or range")
    return _telling(Table("methods against each other, task by task", columns, tuple(rows), texts=3))


def _about(summary: Summary, condition: Condition) -> tuple[str, ...]:
    """Of a condition what is not equal in all of them: the cells of `_about_columns`."""
    cells = {"layers": condition.named, "width": str(condition.width), "metric": condition.metric}
    return tuple(cells[name] for name in _about_columns(summary))


def _about_columns(summary: Summary) -> tuple[str, ...]:
    conditions = [line.condition for line in summary.lines]
    values = {
        "layers": [condition.named for condition in conditions],
        "width": [str(condition.width) for condition in conditions],
        "metric": [condition.metric for condition in conditions],
    }
    return tuple(name for name, found in values.items() if len(set(found)) > 1)


def _pair_points(pair: Pair) -> tuple[str, str]:
    return ("same model", NONE) if pair.same else _points(pair.difference)


def _points(gain: Average) -> tuple[str, str]:
    """A gain in points, and its interval or range."""
    value, _, ends = shown(gain, "+.1f").partition(" ")
    return value, ends or NONE


def explanations(summary: Summary) -> list[str]:
    """Return what stands in brackets and in parentheses in the tables of averages, one sentence for each kind."""
    shown_tasks = len(summary.tasks) <= FEW_TASKS
    found = [gain for line in summary.averages for gain in _gains(line).values() if gain]
    found += [line.over_scratch for line in summary.lines if line.task and line.over_scratch and shown_tasks]
    found += [pair.difference for pair in summary.pairs if pair.task is None and not pair.same]
    kinds = {gain.interval for gain in found}
    return [text for kind, text in INTERVALS.items() if kind in kinds]


def by_task(summary: Summary) -> list[Table]:
    """Per size, with the largest budget: a line per arm, a column per task, and what each method gains over scratch."""
    return [_by_task(summary, condition) for condition in _largest(summary)]


def _largest(summary: Summary) -> list[Condition]:
    """For each size the condition with most epochs."""
    found: dict[tuple[str, int, str, str], Condition] = {}
    for condition in (line.condition for line in summary.lines):
        key = (condition.named, condition.width, condition.split, condition.metric)
        if key not in found or condition.epochs > found[key].epochs:
            found[key] = condition
    return list(found.values())


def _by_task(summary: Summary, condition: Condition) -> Table:
    lines = {(line.arm, line.task): line for line in summary.lines if line.condition == condition}
    arms = [arm for arm in summary.arms if (arm, None) in lines]
    tasks: list[str | None] = [task for task in summary.tasks if any((arm, task) in lines for arm in arms)]
    columns = [*tasks, *([None] if len(tasks) > 1 else [])]
    rows = [
        (arm, *(shown(line.value if (line := lines.get((arm, task))) else None) for task in columns)) for arm in arms
    ]
    gaining = {arm for (arm, _), line in lines.items() if line.over_scratch and line.control is None}
    for arm in (arm for arm in arms if arm in gaining):
        over = (shown(line.over_scratch if (line := lines.get((arm, task))) else None, "+.1f") for task in columns)
        rows.append((f"{arm} over scratch", *over))
    title = (
        f"{condition.metric} on {condition.split} images, %: {condition.in_words}, {counted(condition.epochs, 'epoch')}"
    )
    return Table(title, ("arm", *(task or AVERAGE for task in columns)), tuple(rows))


def without_one(summary: Summary) -> Table | None:
    """The lowest and highest gains if any one task is left out; None if there is only one task."""
    rows = []
    for line in _of_methods(summary):
        for words, gain in _gains(line).items():
            if gain and gain.without:
                ends = [text for task, mean in extremes(gain.without) for text in (f"{100 * mean:+.1f}", task)]
                about = (line.condition.named, str(line.condition.epochs), shown(gain, "+.1f"))
                rows.append((line.arm, words, *about, *ends))
    columns = ("arm", "gain", "layers", "epochs", "all tasks", "least", "without", "most", "without")
    return Table("gains in points, with one task left out", columns, tuple(rows), texts=2) if rows else None


def costs(summary: Summary) -> Table:
    """What each extraction took (scratch has none), what must be stored, and what one fine-tuning takes with the largest budget."""
    rows = []
    for line in _of_methods(summary):
        size = (line.condition.named, human_count(line.params), human_count(line.flops))
        extraction = (NONE, NONE, NONE)
        if line.method != SCRATCH:
            stored, images = human_count(line.stored_params), human_count(line.extraction_images)
            extraction = (stored, images, duration(line.extraction_seconds))
        rows.append((line.arm, *size, *extraction, duration(line.seconds)))
    columns = ("arm", "layers", "params", "FLOPs", "stored params", "extraction images", "extraction", "fine-tuning")
    return Table("per arm and size, with the largest budget", columns, tuple(rows))


def _of_methods(summary: Summary) -> list[Line]:
    """The averages of all arms but controls, with the largest budget of each size."""
    shown = _largest(summary)
    found = [line for line in summary.averages if line.condition in shown and line.control is None]
    return sorted(found, key=lambda line: shown.index(line.condition))


def failures(summary: Summary) -> Table | None:
    """The cells that failed; None if there are none."""
    rows = [
        (row.arm, row.task, row.size or str(row.layers), str(row.epochs), str(row.seed), row.error or "")
        for row in summary.failures
    ]
    columns = ("arm", "task", "layers", "epochs", "seed", "error")
    return Table(f"{counted(len(rows), 'cell')} failed", columns, tuple(rows), texts=6) if rows else None


def state(summary: Summary) -> str:
    """How many cells are measured, failed or missing."""
    parts = [f"{counted(len(summary.rows), 'cell')} measured"]
    if summary.failures:
        parts.append(f"{len(summary.failures)} failed")
    if summary.missing:
        parts.append(f"{summary.missing} not measured yet")
    return ", ".join(parts)


def percent(value: float) -> str:
    """A fraction in per cent."""
    return f"{100 * value:.1f}"


def shown(found: Average | None, form: str = ".1f") -> str:
    """A fraction in per cent, or with the form `+.1f` a difference in points: with [its interval] or (its range)."""
    if found is None:
        return NONE
    value, *ends = (f"{100 * number:{form}}" for number in (found.value, found.low, found.high) if number is not None)
    if not ends:
        return value
    return f"{value} ({' to '.join(ends)})" if found.interval == "range" else f"{value} [{', '.join(ends)}]"


def duration(seconds: float) -> str:
    """Seconds for people."""
    return human_seconds(seconds) if seconds else NONE


def markdown(tables: Iterable[Table]) -> str:
    """Tables one below the other, each with its title."""
    return "\n\n".join(f"### {escaped(table.title)}\n\n{markdown_table(table)}" for table in tables) + "\n"


def markdown_table(table: Table) -> str:
    """A table without its title."""
    rule = tuple(":---" if index < table.texts else "---:" for index in range(len(table.columns)))
    columns, *rows = (tuple(map(escaped, row)) for row in (table.columns, *table.rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *rows))
