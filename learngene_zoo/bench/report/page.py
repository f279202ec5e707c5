"""A bench as one HTML page that any browser opens offline: tables, pictures, settings, failures.

`page.html.jinja` beside this file is its template, into which `page.css` and `page.js` are copied.
Columns of tables can be sorted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learngene_zoo.bench.report import captions, gain_tables, tables, text_table
from learngene_zoo.bench.report.cost_curve import ASSUMPTIONS, Bill, build_cost_tables
from learngene_zoo.bench.report.pictures import find_caption
from learngene_zoo.bench.report.text_table import TextTable
from learngene_zoo.bench.results.condition import SCRATCH
from learngene_zoo.bench.results.summary import Summary
from learngene_zoo.colours import PAGE_COLOURS
from learngene_zoo.settings import Json
from learngene_zoo.text import count_noun, format_json, hash_script, render_page

# how `text_table.format_fraction` writes an interval, and a range
_ENDS = r"\[[-+0-9., ]+\]|\([-+0-9.]+ to [-+0-9.]+\)"
# columns that a narrow window hides where all rows agree, so that the results are in sight
SHARED = ("layers", "width", "params")
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


Part = dict[str, Any]  # of a section: a table, a figure, a note, a list or code


def render_report(
    summary: Summary, grid: Grid, pictures: Mapping[str, str], costs: Sequence[Bill] = ()
) -> str:
    """Return the whole page as HTML.

    Args:
        summary: the summary of the bench.
        grid: the content of grid.json.
        pictures: `<svg>` elements by name.
        costs: the bills of a cost curve; empty for other benches.
    """
    failures = tables.build_failure_table(summary)
    sections: dict[str, list[Part]] = {
        "At a glance": [
            *_list_tables(tables.build_compact_tables(summary), stacked=True),
            *({"kind": "note", "text": note} for note in captions.list_remarks(summary)),
        ],
        "Methods against each other": [
            *_list_tables([gain_tables.build_pair_table(summary)]),
            *_list_tables([gain_tables.build_pair_table_by_task(summary)], open_at_most=0),
        ],
        "Before training": _list_tables(gain_tables.build_tables_before_training(summary)),
        "Cost curve": [
            _make_figure("cost", pictures),
            *_list_tables(build_cost_tables(costs)),
            _make_list(ASSUMPTIONS),
        ]
        if costs
        else [],
        "Accuracy against parameters": _list_figures(pictures, "pareto"),
        "Learning curves": _list_figures(pictures, "curves"),
        "Task by task": _list_tables(
            tables.build_task_tables(summary), open_at_most=1, stacked=True
        ),
        "One task left out": _list_tables([gain_tables.leave_one_out(summary)]),
        "Costs": _list_tables([tables.build_cost_table(summary)]),
        "How the arms were tuned": [_make_list(grid.tuning)] if grid.tuning else [],
        "Failures": _list_tables(
            [failures],
            open_at_most=int(failures is None or len(failures.rows) <= MAX_OPEN_FAILURES),
        ),
        "How to read this": [_make_list(captions.NOTES)],
        "Settings": [_describe_settings(grid), *_list_machines(summary)],
    }
    methods = dict.fromkeys(
        line.arm for line in summary.lines if line.control is None and line.method != SCRATCH
    )
    return render_page(
        "bench/report/page.html.jinja",
        title=f"lgzoo bench: {', '.join(methods) or SCRATCH}",
        policy=_write_policy(),
        colours=PAGE_COLOURS,
        facts=_describe_facts(summary),
        script=_read_script(),
        sections=[
            {"title": title, "slug": _make_slug(title), "parts": parts}
            for title, parts in sections.items()
            if parts
        ],
    )


def _write_policy() -> str:
    """Return the content security policy: our own script may run, and nothing is fetched.

    Text from rows is never executed.
    """
    source = hash_script(_read_script())
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src '{source}'"


def _read_script() -> str:
    return Path(__file__).with_name("page.js").read_text(encoding="utf-8")


def _make_slug(title: str) -> str:
    return re.sub(r"[^a-z]+", "-", title.lower()).strip("-")


def _describe_facts(summary: Summary) -> str:
    """Return the line below the title."""
    seeds = {row.seed for row in summary.rows}
    newest = max((row.finished for row in summary.rows), default="")[:10]
    counts = ", ".join(
        count_noun(len(names), noun)
        for names, noun in ((summary.tasks, "task"), (summary.arms, "arm"), (seeds, "seed"))
    )
    return " · ".join(filter(None, (captions.describe_state(summary), counts, newest)))


def _list_figures(pictures: Mapping[str, str], prefix: str) -> list[Part]:
    """Return the pictures of one kind, all but the first collapsed."""
    names = [name for name in pictures if name.startswith(prefix)]
    return [
        {**_make_figure(name, pictures), "collapsed": index > 0} for index, name in enumerate(names)
    ]


def _make_figure(name: str, pictures: Mapping[str, str]) -> Part:
    caption_text = find_caption(name)
    return {
        "kind": "figure",
        "svg": pictures[name],
        "width": _read_width(pictures[name]),
        "caption": caption_text,
        "collapsed": False,
    }


def _read_width(svg: str) -> str:
    """Return the width at which the letters of a picture have their size, in CSS; "" if unknown."""
    match = re.search(r'viewBox="\S+ \S+ ([0-9.]+) ', svg)
    return f"{match[1]}pt" if match else ""


def _list_tables(
    candidates: Iterable[TextTable | None], open_at_most: int = 100, stacked: bool = False
) -> list[Part]:
    """Return tables with their titles; further ones are collapsed.

    `stacked`: intervals are shown below their numbers.
    """
    present = [table for table in candidates if table]
    return [
        _make_table(table, stacked, collapsed=index >= open_at_most)
        for index, table in enumerate(present)
    ]


def _make_table(table: TextTable, stacked: bool, collapsed: bool) -> Part:
    """Return a table whose column heads sort it."""
    kinds = ["text" if index < table.texts else "number" for index in range(len(table.columns))]
    for index, (name, values) in enumerate(zip(table.columns, zip(*table.rows))):
        if name in SHARED and len(set(values)) == 1:
            kinds[index] += " shared"
    return {
        "kind": "table",
        "title": table.title,
        "columns": list(zip(table.columns, kinds)),
        "rows": [[_make_cell(text, kind) for text, kind in zip(row, kinds)] for row in table.rows],
        "stacked": stacked,
        "note": table.note,
        "collapsed": collapsed,
    }


def _make_cell(text: str, kind: str) -> dict[str, str]:
    """Return a cell; an interval or a range at its end is shown in a quieter colour."""
    match = re.search(rf" ({_ENDS})$", text)
    if match is None:
        return {"text": text, "interval": "", "kind": kind}
    return {"text": text[: match.start()], "interval": match[1], "kind": kind}


def _make_list(items: Iterable[str], title: str = "") -> Part:
    """Return a list of sentences, with emphasis and code for Markdown's stars and backticks."""
    return {"kind": "list", "entries": list(items), "title": title}


def _describe_settings(grid: Grid) -> Part:
    """Return the content of grid.json about the cells, collapsed."""
    data = {"settings": grid.settings, "arms": grid.arms, "versions": grid.versions}
    title = "Settings of all cells, and every arm"
    return {"kind": "code", "title": title, "text": format_json(data, indent=1)}


def _list_machines(summary: Summary) -> list[Part]:
    seconds: dict[str, float] = {}
    for row in summary.rows:
        seconds[row.machine] = seconds.get(row.machine, 0.0) + row.seconds
    lines = [
        f"{name}: {text_table.format_duration(total)} of training"
        for name, total in seconds.items()
    ]
    return [_make_list(lines, title="machines")] if lines else []
