"""A bench as one page that any browser opens without a network: tables that sort, pictures, settings, failures. Cold.

How the page of a bench looks in light and dark, and the script that sorts its tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from learngene_zoo.bench import tables
from learngene_zoo.bench.cost_curve import Bill
from learngene_zoo.bench.cost_report import ASSUMPTIONS, cost_tables
from learngene_zoo.bench.pictures import caption
from learngene_zoo.bench.summary import Summary
from learngene_zoo.bench.tables import READING, Table

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


STYLE = """
:root { --ink: #1a1b1e; --quiet: #5d6168; --paper: #fdfdfc; --panel: #f4f4f1; --line: #d9d9d4; --accent: #0072b2;
  --series-0: #0072b2; --series-1: #d55e00; --series-2: #009e73; --series-3: #cc79a7; --series-4: #e69f00; --series-5: #56b4e9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e3; --quiet: #a0a4ab; --paper: #17181b; --panel: #212327; --line: #3a3d43; --accent: #62b5e5;
    --series-0: #4aa3df; --series-1: #f0803c; --series-2: #2fc79b; --series-3: #e29cc4; --series-4: #f2b430; --series-5: #9ad4f5; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 1.5rem clamp(1rem, 3vw, 2.5rem) 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .8rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: .95rem; font-weight: 600; color: var(--quiet); margin: 1.2rem 0 .4rem; }
header p, .note, figcaption { color: var(--quiet); margin: 0; }
.note, figcaption { font-size: .875rem; margin-top: .5rem; }
figure { margin: 0; }
svg { display: block; width: 100%; height: auto; color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: .2rem; }
td.number, th.number { text-align: right; }
td.text:nth-child(n+6) { white-space: normal; min-width: 18rem; }
tbody tr:hover { background: var(--panel); }
tfoot td { font-weight: 600; border-bottom: 0; border-top: 2px solid var(--line); }
th button { all: unset; cursor: pointer; font-weight: 600; color: var(--quiet); }
th button:hover, th[aria-sort] button { color: var(--accent); }
th button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
th[aria-sort="ascending"] button::after { content: " \\2191"; }
th[aria-sort="descending"] button::after { content: " \\2193"; }
.interval { color: var(--quiet); font-weight: 400; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--accent); font-size: .95rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: .1rem 2rem; margin: 0; font-size: .875rem; }
dl div { display: flex; gap: .8rem; border-bottom: 1px solid var(--line); padding: .2rem 0; }
dt { color: var(--quiet); flex: 0 0 10rem; }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; }
li { margin: .25rem 0; }
@media print { body { max-width: none; } .scroll { overflow: visible; } }
"""

SCRIPT = """
const scales = { K: 1e3, M: 1e6, G: 1e9, T: 1e12, us: 1e-6, ms: 1e-3, s: 1, m: 60, h: 3600 };
function value(text) {
  text = text.replace(/\\[.*$/, "").trim();
  const parts = [...text.matchAll(/([-+]?[0-9][0-9.]*) ?(us|ms|[KMGTsmh])?(?![a-z])/g)];
  if (!parts.length || !/^[-+0-9]/.test(text)) return text === "-" ? null : text.toLowerCase();
  return parts.reduce((sum, part) => sum + Number(part[1]) * (scales[part[2]] || 1), 0);
}
function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "descending" ||
      (!head.hasAttribute("aria-sort") && head.className === "text") ? 1 : -1;
    const index = [...head.parentElement.children].indexOf(head);
    const rows = [...body.rows].map((row) => [value(row.cells[index].textContent), row]);
    rows.sort((a, b) => a[0] === null || b[0] === null ? compare(a[0], b[0]) : down * compare(a[0], b[0]));
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
    body.append(...rows.map((pair) => pair[1]));
  });
}
"""
