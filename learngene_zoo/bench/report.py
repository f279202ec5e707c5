"""The report of a bench, written into its folder: `report.html`, `summary.csv`, `.md`, `.json`, and `pictures/`. Cold at its top.

It is made from `results.jsonl` and `grid.json` alone, so that it can be written again at any time, also of a bench that was
interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from learngene_zoo.artifacts.records import versions
from learngene_zoo.bench import tables
from learngene_zoo.bench.cell import Arm, Cell, label
from learngene_zoo.bench.cost_curve import bills
from learngene_zoo.bench.cost_report import ASSUMPTIONS, cost_picture, cost_tables, cost_texts
from learngene_zoo.bench.results import RESULTS, read_rows, select
from learngene_zoo.bench.summary import Summary, summarise
from learngene_zoo.bench.summary import flat as flat_line
from learngene_zoo.bench.tables import READING
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.settings import Json, to_json
from learngene_zoo.storage import new_file, read_json, write_json

GRID = "grid.json"
PAGE = "report.html"
PICTURES = "pictures"


def note_grid(cells: Sequence[Cell], out: Path, *, cost: bool = False) -> None:
    """Write down, before anything is measured, which cells make the grid and what is the same in all of them.

    `cost` says that they are those of a cost curve.
    """
    data = {
        "cost": cost,
        "settings": settings_of(cells),
        "arms": [_arm(arm, cells) for arm in {cell.arm.name: cell.arm for cell in cells}.values()],
        "versions": versions(),
        "keys": list(dict.fromkeys(cell.key for cell in cells)),
    }
    with new_file(out / GRID, force=True) as draft:
        write_json(draft, data)


def settings_of(cells: Sequence[Cell]) -> dict[str, Json]:
    """What a grid varies, and the recipe that its cells share."""
    varied: dict[str, Callable[[Cell], Any]] = {
        "tasks": lambda cell: cell.task,
        "split": lambda cell: cell.split,
        "layers": lambda cell: cell.layers,
        "width": lambda cell: cell.width,
        "sizes": lambda cell: label(cell.size),
        "epochs": lambda cell: cell.recipe.epochs,
        "seeds": lambda cell: cell.seed,
    }
    found: dict[str, Json] = {name: list(dict.fromkeys(map(get, cells))) for name, get in varied.items()}
    for name, default in (("width", [None]), ("sizes", [""])):
        if found[name] == default:
            del found[name]  # it is the learngene's
    recipes = [to_json(cell.recipe) for cell in cells]
    shared = {name for name in recipes[0] if all(recipe[name] == recipes[0][name] for recipe in recipes)}
    return found | {name: value for name, value in recipes[0].items() if name in shared - {"epochs"}}


def _arm(arm: Arm, cells: Sequence[Cell]) -> dict[str, Json]:
    rates = dict.fromkeys(cell.recipe.lr for cell in cells if cell.arm.name == arm.name)
    return {**to_json(arm), "lr": list(rates)}


def read_grid(out: Path) -> dict[str, Any]:
    """What `note_grid` wrote; nothing of a results file without it. Raises `BadFile`."""
    path = out / GRID
    if not path.is_file():
        return {"cost": False, "settings": {}, "arms": [], "versions": {}, "keys": []}
    data = read_json(path)
    kinds = {"cost": bool, "settings": dict, "arms": list, "versions": dict, "keys": list}
    for key, kind in kinds.items():
        if not isinstance(data.get(key), kind):
            raise BadFile(f"{path} lacks the {key} of the grid; run the bench again, it writes the file anew")
    return data


def read_summary(out: Path) -> Summary:
    """What the bench in `out` found: the cells of its newest grid. Raises `WrongCall` if there are no results."""
    if not (out / RESULTS).is_file():
        raise WrongCall(f"there is no {RESULTS} in {out}; name the folder of a bench with -o")
    rows, keys = read_rows(out / RESULTS), read_grid(out)["keys"]
    chosen = select(rows, keys) if keys else rows
    return summarise(chosen, missing=len(keys) - len(chosen) if keys else 0)


def write_report(out: Path) -> list[Path]:
    """Write every form of the report of the bench in `out`; returns where they are, the page first.

    Pictures of an earlier report are removed. Raises `WrongCall` if there are no results, and `BadFile` for a file that cannot
    be read.
    """
    from learngene_zoo.bench.html import page
    from learngene_zoo.bench.pictures import caption, pictures
    from learngene_zoo.plotting import save, svg_text

    summary, grid = read_summary(out), read_grid(out)
    costs = bills(summary.rows) if grid["cost"] and summary.rows else []
    drawn = {**pictures(summary), **({"cost": cost_picture(costs)} if costs else {})}
    inline = {name: svg_text(figure, name, caption(name)) for name, figure in drawn.items()}
    flat = [flat_line(line) for line in summary.lines]
    texts = {
        PAGE: page(summary, grid, inline, costs),
        "summary.md": markdown(summary),
        "summary.csv": tables.csv_text(flat),
        "summary.json": tables.json_text(flat),
        **(cost_texts(costs) if costs else {}),
    }
    for name, text in texts.items():
        with new_file(out / name, force=True) as draft:
            draft.write_text(text, encoding="utf-8")
    shown = {name: out / PICTURES / f"{name}.png" for name in drawn}
    for stale in set((out / PICTURES).glob("*.png")) - set(shown.values()):
        stale.unlink()
    for name, path in shown.items():
        with new_file(path, force=True) as draft:
            save(drawn[name], draft)
    return [*(out / name for name in texts), *shown.values()]


def markdown(summary: Summary) -> str:
    """The tables of a summary with what must be known to read them."""
    found = [*tables.compact(summary), *tables.by_task(summary), tables.without_one(summary), tables.costs(summary)]
    shown = [*found, tables.failures(summary)]
    notes = [f"{tables.state(summary)}.", *tables.lacking(summary), *READING.values()]
    return tables.markdown(table for table in shown if table) + "\n" + "\n\n".join(notes) + "\n"


def print_summary(out: Path) -> None:
    """The averages of the bench in `out` on stdout; of a cost curve also from how many descendants on it pays."""
    summary = read_summary(out)
    tables.print_tables(tables.compact(summary))
    for line in tables.lacking(summary):
        print(line)
    if read_grid(out)["cost"] and summary.rows:
        tables.print_tables(cost_tables(bills(summary.rows)))
        for line in ASSUMPTIONS:
            print(line)
