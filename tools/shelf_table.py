"""Make the table of the learngenes on the shelf: the results of each one's middle size.

    python tools/shelf.py table

It reads the cards; `shelf.py worth` measures.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.artifacts.records import CardCost, LearngeneConfig, Measured
from learngene_zoo.storage import CONFIG
from learngene_zoo.text import format_count, format_seconds
from shelf_worth import TASKS

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from grids import DESCENDANT

RIVALS = {"stem": "over stem", "scratch": "over scratch"}
COSTS = ("kept", "images", "extraction")


def make_table(cards: Sequence[Path]) -> str:
    """Return the table, the best on its first task first, and the learngenes without results."""
    configs = [read_config(card) for card in cards if (card / CONFIG).is_file()]
    lines = {config.method: find_middle(config) for config in configs}
    names = sorted(
        (name for name in lines if lines[name]),
        key=lambda name: -lines[name][TASKS[0]].accuracy[DESCENDANT],
    )
    costs = {config.method: config.card.cost if config.card else None for config in configs}
    header = [
        "learngene",
        "layers x width",
        "parameters",
        *TASKS,
        *RIVALS.values(),
        *(COSTS if any(costs.values()) else ()),
    ]
    cells = [
        [*format_row(name, lines[name]), *format_cost(costs[name])][: len(header)] for name in names
    ]
    rows = [header, ["---", *["---:"] * (len(header) - 1)], *cells]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    missing = ", ".join(f"`{name}`" for name in sorted(lines) if not lines[name])
    return f"{table}\n\nNot measured yet: {missing}." if missing else table


def format_cost(cost: CardCost | None) -> list[str]:
    """Return stored numbers, images of the training, and seconds; empty without a cost."""
    if cost is None:
        return ["", "", ""]
    return [
        format_count(cost.params),
        format_count(cost.images) if cost.images else "0",
        format_seconds(cost.seconds),
    ]


def find_middle(config: LearngeneConfig) -> dict[str, Measured]:
    """Return the results of the middle one of a card's three sizes, by task; {} without results."""
    worth = config.card.worth if config.card else None
    if worth is None:
        return {}
    by_task = {task: [row for row in worth.rows if row.task == task] for task in TASKS}
    if not all(by_task.values()):
        return {}
    return {
        task: sorted(rows, key=lambda row: row.params)[len(rows) // 2]
        for task, rows in by_task.items()
    }


def format_row(name: str, measured: Mapping[str, Measured]) -> list[str]:
    """Return the cells of a row; gains are the means over the tasks."""
    size = measured[TASKS[0]]
    accuracies = [f"{100 * measured[task].accuracy[DESCENDANT]:.1f}" for task in TASKS]
    gains = [
        f"{100 * sum(row.gains[rival][0] for row in measured.values()) / len(TASKS):+.1f}"
        for rival in RIVALS
    ]
    return [
        f"`{name}`",
        f"{size.layers} x {size.width}",
        format_count(size.params),
        *accuracies,
        *gains,
    ]
