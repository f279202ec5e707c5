"""A bench as one page that any browser opens without a network: tables that sort, pictures, settings, failures. Cold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from learngene_zoo.bench import tables
from learngene_zoo.bench.cost_curve import Bill
from learngene_zoo.bench.cost_report import ASSUMPTIONS, cost_tables
from learngene_zoo.bench.page_style import SCRIPT, STYLE
from learngene_zoo.bench.pictures import caption
from learngene_zoo.bench.reading import READING
from learngene_zoo.bench.summary import Summary
from learngene_zoo.bench.tables import Table

AVERAGE = "average"
MOST_FAILURES = 12  # shown at once


def page(summary: Summary, grid: Mapping[str, Any], pictures: Mapping[str, str], costs: Sequence[Bill] = ()) -> str:
    """The whole page. `grid` is what grid.json holds, `pictures` are `<svg>` elements by name, `costs` those of a cost curve."""
    sections = [
        _section("At a glance", *_tables(tables.compact(summary)), *map(_note, tables.lacking(summary))),
        _cost_curve(pictures, costs),
        *_pictures(pictures),
        _section("Task by task", *_tables(tables.by_task(summary), folded=True)),
        _section("One task left out", *_tables([tables.without_one(summary)])),
        _section("What it costs", *_tables([tables.costs(summary)])),
        _section("Failures", *_failures(tables.failures(summary))),
        _section("How to read this", _list(map(_marked, READING.values()))),
        _section("Settings", *_settings(grid), _machines(summary)),
    ]
    title = f"lgzoo bench: {_methods(summary)}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<header><h1>{escape(title)}</h1><p>{escape(_facts(summary))}</p></header>\n<main>\n"
        + "\n".join(filter(None, sections))
        + f"\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _methods(summary: Summary) -> str:
    own = dict.fromkeys(line.arm for line in summary.lines if line.control is None and line.method != "scratch")
    return ", ".join(own) or "scratch"


def _facts(summary: Summary) -> str:
    """One line under the title."""
    seeds = {row.seed for row in summary.rows}
    newest = max((row.finished for row in summary.rows), default="")[:10]
    count = f"{len(summary.tasks)} tasks, {len(summary.arms)} arms, {len(seeds)} seeds"
    return " · ".join(filter(None, (tables.state(summary), count, newest)))


def _section(title: str, *parts: str) -> str:
    """Nothing, if there is nothing in it."""
    inside = "\n".join(filter(None, parts))
    return f'<section id="{_slug(title)}"><h2>{escape(title)}</h2>\n{inside}\n</section>' if inside else ""


def _pictures(pictures: Mapping[str, str]) -> list[str]:
    """The Pareto views, then the curves, all but the first of each kind folded away."""
    kinds = {"Accuracy against parameters": "pareto", "Learning curves": "curves"}
    found = []
    for title, prefix in kinds.items():
        own = [_figure(name, svg) for name, svg in pictures.items() if name.startswith(prefix)]
        names = [name for name in pictures if name.startswith(prefix)]
        rest = [_folded(caption(name), figure) for name, figure in zip(names[1:], own[1:])]
        found.append(_section(title, *own[:1], *rest))
    return found


def _cost_curve(pictures: Mapping[str, str], costs: Sequence[Bill]) -> str:
    """From how many descendants on a learngene pays; nothing of a bench that did not ask."""
    if not costs:
        return ""
    return _section(
        "Cost curve", _figure("cost", pictures["cost"]), *_tables(cost_tables(costs)), _list(map(escape, ASSUMPTIONS))
    )


def _figure(name: str, svg: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption(name))}</figcaption></figure>"


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{inside}\n</details>"


def _tables(found: Iterable[Table | None], folded: bool = False) -> list[str]:
    """Tables with their titles; with `folded`, all but the first are folded away."""
    shown = [table for table in found if table]
    drawn = [f"<h3>{escape(table.title)}</h3>\n{_table(table)}" for table in shown]
    if not folded:
        return drawn
    return [*drawn[:1], *(_folded(table.title, _table(table)) for table in shown[1:])]


def _failures(table: Table | None) -> list[str]:
    """Folded away if they are many."""
    if table is None or len(table.rows) <= MOST_FAILURES:
        return _tables([table])
    return [_folded(table.title, _table(table))]


def _table(table: Table) -> str:
    """A table whose heads sort it; a line of averages stays at its foot."""
    classes = ["text" if index < table.texts else "number" for index in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{escape(name)}</button></th>'
        for kind, name in zip(classes, table.columns)
    )
    body = [_row(row, classes) for row in table.rows if row[0] != AVERAGE]
    foot = [_row(row, classes) for row in table.rows if row[0] == AVERAGE]
    end = f"<tfoot>{''.join(foot)}</tfoot>" if foot else ""
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>\n<tbody>{chr(10).join(body)}</tbody>{end}</table></div>'


def _row(row: Sequence[str], classes: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td class={kind}>{_interval(text)}</td>' for kind, text in zip(classes, row))}</tr>"


def _interval(text: str) -> str:
    """A cell, its interval in a quieter tone."""
    return re.sub(r" (\[[^]]*\])$", r' <span class="interval">\1</span>', escape(text))


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def _marked(text: str) -> str:
    """Escaped, with Markdown's stars and backticks."""
    text = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", escape(text, quote=False))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def _settings(grid: Mapping[str, Any]) -> list[str]:
    """What grid.json says: what was varied, the recipe, every arm, the versions."""
    pairs = {**grid["settings"], **{f"version of {name}": value for name, value in grid["versions"].items()}}
    found = [_pairs(pairs)] if pairs else []
    arms = [{name: value for name, value in arm.items() if value not in (None, [], {}, False)} for arm in grid["arms"]]
    if arms:
        columns = list(dict.fromkeys(name for arm in arms for name in arm))
        rows = tuple(tuple(_said(arm.get(name)) for name in columns) for arm in arms)
        found += _tables([Table("arms", tuple(columns), rows, texts=len(columns))])
    return found


def _pairs(pairs: Mapping[str, Any]) -> str:
    return f"<dl>{''.join(f'<div><dt>{escape(name)}</dt><dd>{escape(_said(value))}</dd></div>' for name, value in pairs.items())}</dl>"


def _said(value: Any) -> str:
    if value is None or value == []:
        return tables.NONE
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_said(item)}" for name, item in value.items())
    return ", ".join(map(_said, value)) if isinstance(value, (list, tuple)) else str(value)


def _machines(summary: Summary) -> str:
    seconds: dict[str, float] = {}
    for row in summary.rows:
        seconds[row.machine] = seconds.get(row.machine, 0.0) + row.seconds
    lines = [f"{escape(name)}: {escape(tables.duration(total))} of training" for name, total in seconds.items()]
    return f"<h3>machines</h3>\n{_list(lines)}" if lines else ""


def _slug(title: str) -> str:
    return re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
