"""A summary as tables: compact ones for people (terminal, Markdown), and every number flat (CSV, JSON). Cold.

Tables for people are in per cent of the images, gains in points, each with its 95 % interval.

What must be known to read a bench's tables: said in the Markdown, on the page, and in the documentation. Cold.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from learngene_zoo.bench.statistics import Spread
from learngene_zoo.bench.summary import Line, Place, Summary
from learngene_zoo.settings import Json, to_json
from learngene_zoo.units import human_count, human_seconds

NONE = "-"


@dataclass(frozen=True)
class Table:
    """A title and rows of texts, by column; the first `texts` columns are words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1


def compact(summary: Summary) -> list[Table]:
    """One line per arm and size, averaged over tasks: what it knows untrained, its metric with every budget, its gains.

    The gains are those of the largest budget. A table per metric.
    """
    return [_compact(summary, split, metric) for split, metric in _kinds(summary)]


def _compact(summary: Summary, split: str, metric: str) -> Table:
    lines = [line for line in summary.averages if (line.place.split, line.place.metric) == (split, metric)]
    budgets = sorted({line.place.epochs for line in lines})
    groups: dict[tuple[str, int, str], dict[int, Line]] = {}
    for line in lines:
        groups.setdefault((line.place.named, line.place.width, line.arm), {})[line.place.epochs] = line
    wide = len({width for _, width, _ in groups}) > 1
    rows = []
    for (size_named, width, _), found in groups.items():
        last = found[max(found)]
        values = [percent(found[epochs].value.value) if epochs in found else NONE for epochs in budgets]
        known = [_mean(last.untrained), _mean(last.probe)]
        gains = [points(last.over_scratch), points(last.inherited)]
        size = (size_named, *([str(width)] if wide else []), human_count(last.params))
        rows.append((_marked(last), *size, *known, *values, *gains))
    sizes = ("layers", *(["width"] if wide else []), "params")
    columns = ("arm", *sizes, "untrained", "probe", *(f"{n} ep" for n in budgets), "over scratch", "inherited")
    return _without_empty(Table(_title(lines, metric, split), columns, tuple(rows)))


def _without_empty(table: Table) -> Table:
    """Without the columns that say nothing of any row."""
    kept = [index for index in range(len(table.columns)) if any(row[index] != NONE for row in table.rows)]
    rows = tuple(tuple(row[index] for index in kept) for row in table.rows)
    return Table(table.title, tuple(table.columns[index] for index in kept), rows, table.texts)


def _marked(line: Line) -> str:
    """The arm's name, with a star if its average lacks tasks that the others have."""
    return f"{line.arm} *" if line.lacks else line.arm


def lacking(summary: Summary) -> list[str]:
    """One line per arm whose averages lack tasks: they must not be compared with the others'; its gains may."""
    found: dict[str, tuple[str, ...]] = {}
    for line in summary.averages:
        if line.lacks:
            found[line.arm] = tuple(dict.fromkeys([*found.get(line.arm, ()), *line.lacks]))
    return [
        f"* averages of {arm} lack {', '.join(tasks)}; its gains are over equal cells" for arm, tasks in found.items()
    ]


def _kinds(summary: Summary) -> list[tuple[str, str]]:
    """The splits and metrics that there are; a mean of accuracies and of mIoU would say nothing."""
    return list(dict.fromkeys((line.place.split, line.place.metric) for line in summary.averages))


def _title(lines: Sequence[Line], metric: str, split: str) -> str:
    tasks = max(len(line.value.tasks) for line in lines)
    seeds = max(line.value.seeds for line in lines)
    last = _many(max(line.place.epochs for line in lines), "epoch")
    return f"{metric} on {split} images, %: mean of {_many(tasks, 'task')} and {_many(seeds, 'seed')}; gains in points after {last}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def by_task(summary: Summary) -> list[Table]:
    """Per size, with the largest budget: a line per task, a column per arm, and what each method gains over scratch."""
    return [_by_task(summary, place) for place in _largest(summary)]


def _largest(summary: Summary) -> list[Place]:
    places: dict[tuple[str, int, str, str], Place] = {}
    for place in (line.place for line in summary.lines):
        key = (place.named, place.width, place.split, place.metric)
        if key not in places or place.epochs > places[key].epochs:
            places[key] = place
    return list(places.values())


def _by_task(summary: Summary, place: Place) -> Table:
    lines = {(line.arm, line.task): line for line in summary.lines if line.place == place}
    arms = [arm for arm in summary.arms if (arm, None) in lines]
    judged = [arm for arm in arms if any(line.over_scratch for (name, _), line in lines.items() if name == arm)]
    methods = [arm for arm in judged if lines[arm, None].control is None]
    tasks: list[str | None] = [task for task in summary.tasks if any((arm, task) in lines for arm in arms)]
    rows = []
    for task in [*tasks, *([None] if len(tasks) > 1 else [])]:
        found = [lines.get((arm, task)) for arm in arms]
        gains = [lines.get((arm, task)) for arm in methods]
        texts = [interval(line.value) if line else NONE for line in found]
        rows.append((task or "average", *texts, *(points(line.over_scratch) if line else NONE for line in gains)))
    title = f"{place.metric} on {place.split} images, %: {place.layers} layers{_size(place)}, {_many(place.epochs, 'epoch')}"
    return Table(title, ("task", *arms, *(f"{arm} over scratch" for arm in methods)), tuple(rows))


def _size(place: Place) -> str:
    return f" ({place.size})" if place.size else ""


def without_one(summary: Summary) -> Table | None:
    """What is left of the gains if any one task is left out; None where there is one task."""
    rows = []
    for place in _largest(summary):
        for line in summary.averages:
            if line.place != place or line.control is not None:
                continue
            for words, gain in (("over scratch", line.over_scratch), ("inherited", line.inherited)):
                if gain and gain.without:
                    rows.append((line.arm, words, place.named, str(place.epochs), points(gain), *_ends(gain)))
    columns = ("arm", "gain", "layers", "epochs", "all tasks", "least", "without", "most", "without")
    return Table("gains in points, with one task left out", columns, tuple(rows), texts=2) if rows else None


def _ends(gain: Spread) -> tuple[str, str, str, str]:
    least, most = (pick(gain.without, key=lambda task: gain.without[task]) for pick in (min, max))
    return f"{100 * gain.without[least]:+.1f}", least, f"{100 * gain.without[most]:+.1f}", most


def costs(summary: Summary) -> Table:
    """What every arm's extraction took, what must be stored, and what one fine-tuning takes with the largest budget."""
    rows = []
    for place in _largest(summary):
        for line in summary.averages:
            if line.place == place and line.control is None:
                spent = (human_count(line.extraction_images), duration(line.extraction_seconds))
                size = (place.named, human_count(line.params), human_count(line.flops))
                rows.append((line.arm, *size, human_count(line.stored_params), *spent, duration(line.seconds)))
    columns = ("arm", "layers", "params", "FLOPs", "stored params", "extraction images", "extraction", "fine-tuning")
    return Table("per arm and size, with the largest budget", columns, tuple(rows))


def failures(summary: Summary) -> Table | None:
    """The cells that failed; None if all went well."""
    rows = [
        (row.arm, row.task, row.size or str(row.layers), str(row.epochs), str(row.seed), row.error or "")
        for row in summary.failures
    ]
    columns = ("arm", "task", "layers", "epochs", "seed", "error")
    return Table(f"{_many(len(rows), 'cell')} failed", columns, tuple(rows), texts=6) if rows else None


def state(summary: Summary) -> str:
    """How many cells there are, and of what kind."""
    parts = [f"{_many(len(summary.rows), 'cell')} measured"]
    if summary.failures:
        parts.append(f"{len(summary.failures)} failed")
    if summary.missing:
        parts.append(f"{summary.missing} not measured yet")
    return ", ".join(parts)


# Numbers for people
def percent(value: float) -> str:
    """A fraction in per cent."""
    return f"{100 * value:.1f}"


def interval(found: Spread) -> str:
    """A fraction in per cent with its interval, where it has one."""
    if found.low is None or found.high is None:
        return percent(found.value)
    return f"{percent(found.value)} [{percent(found.low)}, {percent(found.high)}]"


def points(gain: Spread | None) -> str:
    """A difference in points with its interval."""
    if gain is None:
        return NONE
    if gain.low is None or gain.high is None:
        return f"{100 * gain.value:+.1f}"
    return f"{100 * gain.value:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"


def _mean(found: Spread | None) -> str:
    return percent(found.value) if found else NONE


def duration(value: float) -> str:
    """Seconds for people; nothing for none."""
    return human_seconds(value) if value else NONE


# Forms
def markdown(tables: Iterable[Table]) -> str:
    """Tables one below the other."""
    return "\n\n".join(f"### {table.title}\n\n{_markdown(table)}" for table in tables) + "\n"


def _markdown(table: Table) -> str:
    rule = [":---" if index < table.texts else "---:" for index in range(len(table.columns))]
    rows = [table.columns, tuple(rule), *(tuple(_cell(text) for text in row) for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def csv_text(rows: Sequence[Mapping[str, Json]]) -> str:
    """Flat objects as CSV with a head; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def json_text(rows: Sequence[Mapping[str, Json]]) -> str:
    """Flat objects as a bare list."""
    return json.dumps(to_json(list(rows)), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def print_tables(tables: Iterable[Table]) -> None:
    """On stdout, as rich draws them; in a pipe nothing is cut or wrapped."""
    import sys

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 4096, highlight=False)
    for table in tables:
        drawn = Drawn(title=table.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for index, column in enumerate(table.columns):
            drawn.add_column(column, justify="left" if index < table.texts else "right")
        for row in table.rows:
            drawn.add_row(*(Text(text) for text in row))
        console.print(drawn)


READING = {
    "over scratch": "*Over scratch*: the difference to the stronger of the scratch arms: the one with the higher mean over seeds, "
    "chosen for each task, size and budget by itself.",
    "inherited": "*Inherited*: the difference to the arm's own control `shuffled`, whose inherited tensors hold the same numbers in "
    "another order. The control `stem` inherits only what comes before and after the blocks.",
    "untrained": "*Untrained*: the metric before any training, with a fresh head. *Probe*: the share of images that lie nearest to "
    "the mean of their own class, by their features before any training.",
    "epochs": "Every number of epochs is a training of its own, with its own complete schedule.",
    "intervals": "Intervals hold 95 %. Those of average gains speak of other tasks and other seeds; all others speak of other "
    "seeds on these tasks.",
}
