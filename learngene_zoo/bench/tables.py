"""The summary of a bench as tables for people: in per cent, gains in points, each with its 95 % interval."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from learngene_zoo.bench.statistics import Average, extremes
from learngene_zoo.bench.summary import SCRATCH, Condition, Line, Summary
from learngene_zoo.text import counted, human_count, human_seconds
from learngene_zoo.text import markdown as escaped

NONE = "-"

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
    "*Untrained*: the metric before any training, with a fresh head. *Probe*: the accuracy of the nearest class mean in the space "
    "of the features before any training.",
    "Every number of epochs is a separate training with its own complete schedule.",
    "Intervals are 95 % confidence intervals. Those of average gains generalise over tasks and seeds, all others over seeds only.",
)


@dataclass(frozen=True)
class Table:
    """A title, and rows of texts by column; the first `texts` columns are words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1


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
        "probe",
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


def by_task(summary: Summary) -> list[Table]:
    """Per size, with the largest budget: a line per task, a column per arm, and what each method gains over scratch."""
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
    gaining = {arm for (arm, _), line in lines.items() if line.over_scratch and line.control is None}
    methods = [arm for arm in arms if arm in gaining]
    tasks: list[str | None] = [task for task in summary.tasks if any((arm, task) in lines for arm in arms)]
    rows = []
    for task in [*tasks, *([None] if len(tasks) > 1 else [])]:
        found = {arm: lines.get((arm, task)) for arm in arms}
        values = [shown(line.value if line else None) for line in found.values()]
        gains = [shown(line.over_scratch if (line := found[arm]) else None, "+.1f") for arm in methods]
        rows.append((task or "average", *values, *gains))
    size = f"{condition.layers} layers" + (f" ({condition.size})" if condition.size else "")
    title = f"{condition.metric} on {condition.split} images, %: {size}, {counted(condition.epochs, 'epoch')}"
    return Table(title, ("task", *arms, *(f"{arm} over scratch" for arm in methods)), tuple(rows))


def without_one(summary: Summary) -> Table | None:
    """The lowest and highest gains if any one task is left out; None if there is only one task."""
    rows = []
    for line in _of_methods(summary):
        gains = {"over scratch": line.over_scratch, "over stem": line.over_stem, "inherited": line.inherited}
        for words, gain in gains.items():
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
    """A fraction in per cent, or with the form `+.1f` a difference in points; with its interval if it has one."""
    if found is None:
        return NONE
    value, *ends = (f"{100 * number:{form}}" for number in (found.value, found.low, found.high) if number is not None)
    return f"{value} [{', '.join(ends)}]" if ends else value


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
