"""A bench as one HTML page that any browser opens offline: tables, pictures, settings, failures.

`page.html` beside this file is its frame, into which `page.css` and `page.js` are copied. Columns
of tables can be sorted.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from learngene_zoo.bench.report import tables
from learngene_zoo.bench.report.cost_curve import ASSUMPTIONS, Bill, cost_tables
from learngene_zoo.bench.report.pictures import caption
from learngene_zoo.bench.report.tables import TextTable
from learngene_zoo.bench.results.condition import SCRATCH
from learngene_zoo.bench.results.summary import Summary
from learngene_zoo.colours import PAGE_COLOURS
from learngene_zoo.settings import Json
from learngene_zoo.text import count_noun, html, json_text

# how `tables.format_fraction` writes an interval, and a range
_ENDS = r"\[[-+0-9., ]+\]|\([-+0-9.]+ to [-+0-9.]+\)"
MAX_OPEN_FAILURES = 12  # shown without a click


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The content of grid.json."""

    cost: bool  # whether it is that of a cost curve
    settings: Mapping[str, Json]  # varied values, and the recipe that all cells share
    arms: tuple[Mapping[str, Json], ...]
    versions: Mapping[str, str]
    keys: tuple[str, ...]  # of its cells
    tuning: tuple[str, ...] = ()  # one sentence an arm; () in the grids of earlier versions
    methods: tuple[str, ...] = ()  # to be compared; () in the grids of earlier versions


NO_GRID = Grid(cost=False, settings={}, arms=(), versions={}, keys=())


def page(
    summary: Summary, grid: Grid, pictures: Mapping[str, str], costs: Sequence[Bill] = ()
) -> str:
    """Return the whole page as HTML.

    Args:
        summary: the summary of the bench.
        grid: the content of grid.json.
        pictures: `<svg>` elements by name.
        costs: the bills of a cost curve; empty for other benches.
    """
    failures = tables.failures(summary)
    notes = [*summary.same, *tables.explanations(summary), *tables.describe_missing(summary)]
    sections = {
        "At a glance": [*_tables(tables.compact(summary), stacked=True), *map(_note, notes)],
        "Methods against each other": [
            *_tables([tables.pairs(summary)]),
            *_tables([tables.pairs_by_task(summary)], open_at_most=0),
        ],
        "Cost curve": [_figure("cost", pictures), *_tables(cost_tables(costs)), _list(ASSUMPTIONS)]
        if costs
        else [],
        "Accuracy against parameters": _collapse_all_but_first(pictures, "pareto"),
        "Learning curves": _collapse_all_but_first(pictures, "curves"),
        "Task by task": _tables(tables.by_task(summary), open_at_most=1, stacked=True),
        "One task left out": _tables([tables.without_one(summary)]),
        "What it costs": _tables([tables.costs(summary)]),
        "How the arms were tuned": [_list(grid.tuning)] if grid.tuning else [],
        "Failures": _tables(
            [failures],
            open_at_most=int(failures is None or len(failures.rows) <= MAX_OPEN_FAILURES),
        ),
        "How to read this": [_list(tables.NOTES)],
        "Settings": [_settings(grid), *_machines(summary)],
    }
    bodies = [_section(title, parts) for title, parts in sections.items() if parts]
    methods = dict.fromkeys(
        line.arm for line in summary.lines if line.control is None and line.method != SCRATCH
    )
    title = html(f"lgzoo bench: {', '.join(methods) or SCRATCH}")
    parts = {
        "title": title,
        "policy": _policy(),
        "facts": html(_facts(summary)),
        "sections": "\n".join(bodies),
    }
    return Template(_read_asset("page.html")).substitute(
        parts, css=PAGE_COLOURS + _read_asset("page.css"), js=_read_asset("page.js")
    )


def _policy() -> str:
    """Return the content security policy: our own script may run, and nothing is fetched.

    Text from rows is never executed.
    """
    digest = base64.b64encode(hashlib.sha256(_read_asset("page.js").encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _read_asset(name: str) -> str:
    """Return the text of a file beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _facts(summary: Summary) -> str:
    """Return the line below the title."""
    seeds = {row.seed for row in summary.rows}
    newest = max((row.finished for row in summary.rows), default="")[:10]
    counts = ", ".join(
        count_noun(len(names), noun)
        for names, noun in ((summary.tasks, "task"), (summary.arms, "arm"), (seeds, "seed"))
    )
    return " · ".join(filter(None, (tables.state(summary), counts, newest)))


def _section(title: str, parts: Sequence[str]) -> str:
    slug = re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
    inside = "\n".join(parts)
    return f'<section id="{slug}"><h2>{html(title)}</h2>\n{inside}\n</section>'


def _collapse_all_but_first(pictures: Mapping[str, str], prefix: str) -> list[str]:
    """Return the pictures of one kind, all but the first collapsed."""
    names = [name for name in pictures if name.startswith(prefix)]
    rest = [_write_details(caption(name), _figure(name, pictures)) for name in names[1:]]
    return [*(_figure(name, pictures) for name in names[:1]), *rest]


def _figure(name: str, pictures: Mapping[str, str]) -> str:
    return f"<figure>{pictures[name]}<figcaption>{html(caption(name))}</figcaption></figure>"


def _write_details(title: str, inside: str) -> str:
    return f"<details><summary>{html(title)}</summary>\n{inside}\n</details>"


def _tables(
    candidates: Iterable[TextTable | None], open_at_most: int = 100, stacked: bool = False
) -> list[str]:
    """Return tables with their titles; further ones are collapsed.

    `stacked`: intervals are shown below their numbers.
    """
    present = [table for table in candidates if table]
    expanded = [
        f"<h3>{html(table.title)}</h3>\n{_table(table, stacked)}"
        for table in present[:open_at_most]
    ]
    return [
        *expanded,
        *(_write_details(table.title, _table(table, stacked)) for table in present[open_at_most:]),
    ]


def _table(table: TextTable, stacked: bool) -> str:
    """Return a table whose column heads sort it."""
    classes = ["text" if index < table.texts else "number" for index in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{html(name)}</button></th>'
        for kind, name in zip(classes, table.columns)
    )
    body = "\n".join(_row(row, classes) for row in table.rows)
    kind = ' class="stacked"' if stacked else ""
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[str], classes: Sequence[str]) -> str:
    # An interval or a range is shown in a quieter colour.
    cells = (
        re.sub(rf" ({_ENDS})$", r' <span class="interval">\1</span>', html(text)) for text in row
    )
    return (
        f"<tr>{''.join(f'<td class={kind}>{cell}</td>' for kind, cell in zip(classes, cells))}</tr>"
    )


def _note(text: str) -> str:
    return f'<p class="note">{html(text)}</p>'


def _list(items: Iterable[str]) -> str:
    """Return a list of sentences, with emphasis and code for Markdown's stars and backticks."""
    marked = (re.sub(r"\*([^*]+)\*", r"<em>\1</em>", html(item)) for item in items)
    coded = (re.sub(r"`([^`]+)`", r"<code>\1</code>", item) for item in marked)
    return f"<ul>{''.join(f'<li>{item}</li>' for item in coded)}</ul>"


def _settings(grid: Grid) -> str:
    """Return the content of grid.json about the cells, collapsed."""
    data = {"settings": grid.settings, "arms": grid.arms, "versions": grid.versions}
    return _write_details(
        "what the cells have in common, and every arm",
        f"<pre>{escape(json_text(data, indent=1))}</pre>",
    )


def _machines(summary: Summary) -> list[str]:
    seconds: dict[str, float] = {}
    for row in summary.rows:
        seconds[row.machine] = seconds.get(row.machine, 0.0) + row.seconds
    lines = [f"{name}: {tables.duration(total)} of training" for name, total in seconds.items()]
    return ["<h3>machines</h3>", _list(lines)] if lines else []
