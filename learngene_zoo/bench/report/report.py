"""The report of a bench, written into its folder.

Its files are `report.html`, `summary.csv`, `.md` and `.json`, and `pictures/`. It is made from
`results.jsonl` and `grid.json` alone, so it can be written again at any time, also for an
interrupted bench.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from learngene_zoo import plotting
from learngene_zoo.artifacts.records import list_versions
from learngene_zoo.atomic import new_file
from learngene_zoo.bench.grid.cell import Arm, Cell, label
from learngene_zoo.bench.grid.search import Choice
from learngene_zoo.bench.grid.tuning import TUNING_SEED, describe_tuning
from learngene_zoo.bench.report import captions, gain_tables, tables, text_table
from learngene_zoo.bench.report.cost_curve import (
    ASSUMPTIONS,
    Bill,
    build_cost_tables,
    flatten_costs,
    list_bills,
)
from learngene_zoo.bench.report.page import NO_GRID, Grid, render_report
from learngene_zoo.bench.report.pictures import draw_costs, draw_pictures, find_caption
from learngene_zoo.bench.report.text_table import TextTable
from learngene_zoo.bench.results.rows import RESULTS, read_rows, select
from learngene_zoo.bench.results.summary import Summary, flatten_line, summarise
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.settings import Json, from_json, to_json
from learngene_zoo.storage import read_json, write_json
from learngene_zoo.text import escape_formula, escape_markdown

GRID = "grid.json"
PAGE = "report.html"
PICTURES = "pictures"


def write_grid(
    cells: Sequence[Cell],
    out: Path,
    *,
    cost: bool = False,
    choices: Mapping[str, Choice] = MappingProxyType({}),
    small: Mapping[str, int] = MappingProxyType({}),
    methods: Sequence[str] = (),
) -> None:
    """Write `grid.json`, before anything is measured: the cells and their common settings.

    Args:
        cells: the cells of the grid.
        out: the bench's folder.
        cost: whether they are the cells of a cost curve.
        choices: how the arms were tuned; empty if they were not.
        small: tasks that are too small to tune on, with their numbers of validation images.
        methods: the methods to compare, which may build none of the sizes.
    """
    data = {
        "cost": cost,
        "methods": list(methods),
        "settings": _list_shared_settings(cells),
        "arms": [
            _describe_arm(arm, cells)
            for arm in {cell.arm.name: cell.arm for cell in cells}.values()
        ],
        "tuning": describe_tuning(cells, choices, small),
        "versions": {
            **list_versions(),
            **{cell.arm.method: cell.code for cell in cells if cell.code},
        },
        "keys": list(dict.fromkeys(cell.key for cell in cells)),
    }
    with new_file(out / GRID, force=True) as draft:
        write_json(draft, data)


def _list_shared_settings(cells: Sequence[Cell]) -> dict[str, Json]:
    """Return the values that a grid varies, and the recipe that its cells share."""
    varied: dict[str, Callable[[Cell], Any]] = {
        "tasks": lambda cell: cell.task,
        "split": lambda cell: cell.split,
        "layers": lambda cell: cell.layers,
        "width": lambda cell: cell.width,
        "sizes": lambda cell: label(cell.size),
        "epochs": lambda cell: cell.recipe.epochs,
        "seeds": lambda cell: cell.seed,
    }
    settings: dict[str, Json] = {
        name: list(dict.fromkeys(map(get, cells))) for name, get in varied.items()
    }
    unset = {"width": [None], "sizes": [""]}
    settings = {name: value for name, value in settings.items() if value != unset.get(name)}
    recipes = [to_json(cell.recipe) for cell in cells]
    # A recipe without layer decay has no such key
    shared = {
        name
        for name, value in recipes[0].items()
        if all(recipe.get(name) == value for recipe in recipes)
    }
    return settings | {
        name: value for name, value in recipes[0].items() if name in shared - {"epochs"}
    }


def _describe_arm(arm: Arm, cells: Sequence[Cell]) -> dict[str, Json]:
    rates = dict.fromkeys(cell.recipe.lr for cell in cells if cell.arm.name == arm.name)
    return {**to_json(arm), "lr": list(rates)}


def read_grid(out: Path) -> Grid:
    """Return the content of the file that `write_grid` wrote; an empty grid without the file.

    Raises:
        BadFile: the file cannot be read.
    """
    path = out / GRID
    if not path.is_file():
        return NO_GRID
    try:
        return from_json(Grid, read_json(path), str(path))
    except BadFile as error:
        raise BadFile(f"{error}; run the bench again to write the file anew") from error


def read_summary(out: Path) -> Summary:
    """Return the summary of the newest grid in `out`.

    Raises:
        WrongCall: there are no results.
    """
    if not (out / RESULTS).is_file():
        raise WrongCall(f"there is no {RESULTS} in {out}; name the folder of a bench with -o")
    rows, keys = read_rows(out / RESULTS), read_grid(out).keys
    # without a grid, rates are still being chosen, or an earlier version wrote the rows
    chosen = select(rows, keys) if keys else [row for row in rows if row.seed != TUNING_SEED]
    if rows and not keys and not chosen:
        raise WrongCall(f"the bench in {out} has no results yet: it is still choosing rates")
    others = {row.key for row in rows if row.seed != TUNING_SEED and row.error is None}
    others -= {row.key for row in chosen}
    missing = len(keys) - len(chosen) if keys else 0
    return summarise(chosen, missing=missing, others=len(others))


def read_costs(out: Path, summary: Summary) -> list[Bill]:
    """Return the bills of a cost curve; none if the grid in `out` is not one."""
    return list_bills(summary.rows) if read_grid(out).cost and summary.rows else []


def write_report(out: Path) -> list[Path]:
    """Write the report of the bench in `out` in every format, and return the paths, the page first.

    Pictures of an earlier report are removed.

    Raises:
        WrongCall: there are no results.
        BadFile: a file cannot be read.
    """
    summary = read_summary(out)
    costs = read_costs(out, summary)
    figures = {**draw_pictures(summary), **({"cost": draw_costs(costs)} if costs else {})}
    inline = {
        name: plotting.render_svg(figure, name, find_caption(name))
        for name, figure in figures.items()
    }
    lines = [flatten_line(line) for line in summary.lines]
    texts = {
        PAGE: render_report(summary, read_grid(out), inline, costs),
        "summary.md": _render_markdown(summary, read_grid(out).tuning),
        "summary.csv": format_csv(lines),
        "summary.json": format_json(lines),
    }
    if summary.pairs:
        differences = [pair.to_flat() for pair in summary.pairs]
        texts |= {"pairs.csv": format_csv(differences), "pairs.json": format_json(differences)}
    if costs:
        texts["cost.md"] = (
            text_table.render_markdown(build_cost_tables(costs))
            + "".join(f"\n- {line}" for line in ASSUMPTIONS)
            + "\n"
        )
        texts["cost.json"] = format_json(flatten_costs(costs))
    files: dict[Path, Callable[[Path], Any]] = {
        out / name: partial(Path.write_text, data=text, encoding="utf-8")
        for name, text in texts.items()
    }
    files |= {
        out / PICTURES / f"{name}.png": partial(plotting.save, figure)
        for name, figure in figures.items()
    }
    for path, write in files.items():
        with new_file(path, force=True) as draft:
            write(draft)
    for stale in set((out / PICTURES).glob("*.png")) - set(files):
        # Files of other names are not ours and stay.
        if stale.name.startswith(("pareto", "curves", "cost")):
            stale.unlink()
    return list(files)


def _render_markdown(summary: Summary, tuning: Sequence[str]) -> str:
    """Return the tables of a summary, with the notes needed to read them."""
    several = [
        *tables.build_compact_tables(summary),
        *filter(None, [gain_tables.build_pair_table(summary)]),
        *gain_tables.build_tables_before_training(summary),
        *tables.build_task_tables(summary),
    ]
    single = [
        gain_tables.build_pair_table_by_task(summary),
        gain_tables.leave_one_out(summary),
        tables.build_cost_table(summary),
        tables.build_failure_table(summary),
    ]
    tuned = (
        [
            "How the arms were tuned:\n\n"
            + "\n".join(f"- {escape_markdown(line)}" for line in tuning)
        ]
        if tuning
        else []
    )
    remarks = captions.list_remarks(summary)
    notes = [
        f"{captions.describe_state(summary)}.",
        *tuned,
        *map(escape_markdown, remarks),
        *captions.NOTES,
    ]
    return (
        text_table.render_markdown([*several, *filter(None, single)])
        + "\n"
        + "\n\n".join(notes)
        + "\n"
    )


def build_overview(out: Path) -> tuple[list[TextTable], list[str]]:
    """Return the tables to print after a bench, and the lines below them.

    They include those of a cost curve, if the bench is one.
    """
    summary = read_summary(out)
    costs = read_costs(out, summary)
    printed = [*tables.build_brief_tables(summary), *(build_cost_tables(costs) if costs else [])]
    remarks = captions.list_remarks(summary)
    return printed, [*remarks, *(ASSUMPTIONS if costs else ())]


def format_csv(rows: Sequence[Mapping[str, Json]]) -> str:
    """Return flat objects as CSV with a header; an unknown value is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: escape_formula(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def format_json(rows: Sequence[Mapping[str, Json]]) -> str:
    """Return flat objects as a JSON list."""
    return json.dumps(to_json(list(rows)), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
