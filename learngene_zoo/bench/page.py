"""A bench as one HTML page that any browser opens offline: tables that sort, pictures, settings, failures.

`page.html` beside this file is its frame, into which `page.css` and `page.js` are copied.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from learngene_zoo.bench import tables
from learngene_zoo.bench.condition import SCRATCH
from learngene_zoo.bench.cost_curve import ASSUMPTIONS, Bill, cost_tables
from learngene_zoo.bench.pictures import caption
from learngene_zoo.bench.summary import Summary
from learngene_zoo.bench.tables import Table
from learngene_zoo.colours import PAGE_COLOURS
from learngene_zoo.settings import Json
from learngene_zoo.text import counted, html, json_text

_ENDS = r"\[[-+0-9., ]+\]|\([-+0-9.]+ to [-+0-9.]+\)"  # how `tables.shown` writes an interval, and a range
MOST_FAILURES = 12  # shown without a click


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What grid.json holds."""

    cost: bool  # whether it is that of a cost curve
    settings: Mapping[str, Json]  # what was varied, and the recipe that all cells share
    arms: tuple[Mapping[str, Json], ...]
    versions: Mapping[str, str]
    keys: tuple[str, ...]  # of its cells
    tuning: tuple[str, ...] = ()  # one sentence an arm; () in the grids of earlier versions
    methods: tuple[str, ...] = ()  # that were to be compared; likewise


NO_GRID = Grid(cost=False, settings={}, arms=(), versions={}, keys=())


def page(summary: Summary, grid: Grid, pictures: Mapping[str, str], costs: Sequence[Bill] = ()) -> str:
    """The whole page. `pictures` are `<svg>` elements by name, `costs` a cost curve's."""
    failures = tables.failures(summary)
    said = [*summary.same, *tables.explanations(summary), *tables.lacking(summary)]
    sections = {
        "At a glance": [*_tables(tables.compact(summary), stacked=True), *map(_note, said)],
        "Methods against each other": [
            *_tables([tables.pairs(summary)]),
            *_tables([tables.pairs_by_task(summary)], open_at_most=0),
        ],
        "Cost curve": [_figure("cost", pictures), *_tables(cost_tables(costs)), _list(ASSUMPTIONS)] if costs else [],
        "Accuracy against parameters": _first_open(pictures, "pareto"),
        "Learning curves": _first_open(pictures, "curves"),
        "Task by task": _tables(tables.by_task(summary), open_at_most=1, stacked=True),
        "One task left out": _tables([tables.without_one(summary)]),
        "What it costs": _tables([tables.costs(summary)]),
        "How the arms were tuned": [_list(grid.tuning)] if grid.tuning else [],
        "Failures": _tables([failures], open_at_most=int(failures is None or len(failures.rows) <= MOST_FAILURES)),
        "How to read this": [_list(tables.NOTES)],
        "Settings": [_settings(grid), *_machines(summary)],
    }
    shown = [_section(title, parts) for title, parts in sections.items() if parts]
    methods = dict.fromkeys(line.arm for line in summary.lines if line.control is None and line.method != SCRATCH)
    title = html(f"lgzoo bench: {', '.join(methods) or SCRATCH}")
    parts = {"title": title, "policy": _policy(), "facts": html(_facts(summary)), "sections": "\n".join(shown)}
    return Template(_beside("page.html")).substitute(
        parts, css=PAGE_COLOURS + _beside("page.css"), js=_beside("page.js")
    )


def _policy() -> str:
    """What a browser may do: run our own script, and fetch nothing. Whatever a row says, it is no program."""
    digest = base64.b64encode(hashlib.sha256(_beside("page.js").encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _facts(summary: Summary) -> str:
    """The line below the title."""
    seeds = {row.seed for row in summary.rows}
    newest = max((row.finished for row in summary.rows), default="")[:10]
    counts = ", ".join(
        counted(len(found), noun) for found, noun in ((summary.tasks, "task"), (summary.arms, "arm"), (seeds, "seed"))
    )
    return " · ".join(filter(None, (tables.state(summary), counts, newest)))


def _section(title: str, parts: Sequence[str]) -> str:
    slug = re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
    inside = "\n".join(parts)
    return f'<section id="{slug}"><h2>{html(title)}</h2>\n{inside}\n</section>'


def _first_open(pictures: Mapping[str, str], prefix: str) -> list[str]:
    """The pictures of one kind, all but the first collapsed."""
    names = [name for name in pictures if name.startswith(prefix)]
    rest = [_collapsed(caption(name), _figure(name, pictures)) for name in names[1:]]
    return [*(_figure(name, pictures) for name in names[:1]), *rest]


def _figure(name: str, pictures: Mapping[str, str]) -> str:
    return f"<figure>{pictures[name]}<figcaption>{html(caption(name))}</figcaption></figure>"


def _collapsed(title: str, inside: str) -> str:
    return f"<details><summary>{html(title)}</summary>\n{inside}\n</details>"


def _tables(found: Iterable[Table | None], open_at_most: int = 100, stacked: bool = False) -> list[str]:
    """Tables with their titles; further ones are collapsed. `stacked`: intervals stand below their numbers."""
    shown = [table for table in found if table]
    drawn = [f"<h3>{html(table.title)}</h3>\n{_table(table, stacked)}" for table in shown[:open_at_most]]
    return [*drawn, *(_collapsed(table.title, _table(table, stacked)) for table in shown[open_at_most:])]


def _table(table: Table, stacked: bool) -> str:
    """A table that its column heads sort."""
    classes = ["text" if index < table.texts else "number" for index in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{html(name)}</button></th>'
        for kind, name in zip(classes, table.columns)
    )
    body = "\n".join(_row(row, classes) for row in table.rows)
    kind = ' class="stacked"' if stacked else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _row(row: Sequence[str], classes: Sequence[str]) -> str:
    # An interval or a range is shown in a quieter colour.
    cells = (re.sub(rf" ({_ENDS})$", r' <span class="interval">\1</span>', html(text)) for text in row)
    return f"<tr>{''.join(f'<td class={kind}>{cell}</td>' for kind, cell in zip(classes, cells))}</tr>"


def _note(text: str) -> str:
    return f'<p class="note">{html(text)}</p>'


def _list(items: Iterable[str]) -> str:
    """Sentences with Markdown's stars and backticks."""
    marked = (re.sub(r"\*([^*]+)\*", r"<em>\1</em>", html(item)) for item in items)
    coded = (re.sub(r"`([^`]+)`", r"<code>\1</code>", item) for item in marked)
    return f"<ul>{''.join(f'<li>{item}</li>' for item in coded)}</ul>"


def _settings(grid: Grid) -> str:
    """What grid.json says about the cells."""
    shown = {"settings": grid.settings, "arms": grid.arms, "versions": grid.versions}
    return _collapsed(
        "what the cells have in common, and every arm", f"<pre>{escape(json_text(shown, indent=1))}</pre>"
    )


def _machines(summary: Summary) -> list[str]:
    seconds: dict[str, float] = {}
    for row in summary.rows:
        seconds[row.machine] = seconds.get(row.machine, 0.0) + row.seconds
    lines = [f"{name}: {tables.duration(total)} of training" for name, total in seconds.items()]
    return ["<h3>machines</h3>", _list(lines)] if lines else []
