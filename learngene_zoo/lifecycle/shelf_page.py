"""One HTML page of the learngenes on the shelf: filters, a picture, and commands to copy.

A row is one measured size of a learngene. The results are those of the cards. The page loads
nothing from anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.artifacts.records import LearngeneConfig, Measured
from learngene_zoo.colours import PAGE_COLOURS
from learngene_zoo.method.sizes import AXES
from learngene_zoo.text import hash_script, human_count, render_page, shell_word

TEMPLATE = "lifecycle/shelf_page.html.jinja"
SCRIPT = Path(__file__).with_name("shelf_page.js")
BOUNDS = (100_000, 300_000, 1_000_000, 10_000_000, 100_000_000)  # parameters, to choose from
# The picture, in units of its coordinates.
LABEL_WIDTH, LABEL_HEIGHT = 130, 16
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 44, 12, 14, 34


@dataclass(frozen=True, kw_only=True)
class MeasuredSize:
    """One size of a learngene, with its accuracy on each task."""

    learngene: str
    method: str
    family: str
    layers: int
    width: int
    params: int | None  # None: nothing was measured
    command: str  # that builds it
    accuracy: Mapping[str, float] = field(default_factory=dict)


def build_shelf_page() -> str:
    """Return the page. Raises `BadFile` for a card that cannot be read."""
    sizes = [
        size
        for name in shelf.learngenes()
        for size in list_sizes(name, read_config(shelf.cards_folder() / name))
    ]
    sizes.sort(key=lambda size: (size.params or math.inf, size.learngene))
    tasks = list(dict.fromkeys(task for size in sizes for task in size.accuracy))
    bounds = [
        (bound, human_count(bound).replace(".00", ""))
        for bound in BOUNDS
        if any(size.params and size.params > bound for size in sizes)
    ]
    script = SCRIPT.read_text(encoding="utf-8")
    return render_page(
        TEMPLATE,
        colours=PAGE_COLOURS,
        script=script,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src '{hash_script(script)}'",
        count=len(shelf.learngenes()),
        rows=[_describe(size, tasks) for size in sizes],
        tasks=tasks,
        bounds=bounds,
        methods=sorted({size.method for size in sizes}),
        families=sorted({size.family for size in sizes}),
        pictures=[_draw(task, sizes) for task in tasks],
        frame={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "bottom": BOTTOM},
    )


def list_sizes(name: str, config: LearngeneConfig) -> list[MeasuredSize]:
    """Return every measured size of a learngene; without results, its default size.

    Args:
        name: its name on the shelf.
        config: its config.
    """
    build = partial(MeasuredSize, learngene=name, method=config.method, family=config.spec.family)
    results = config.card.worth if config.card else None
    if results is None or not results.rows:
        spec, command = config.spec, f"lgzoo expand {shell_word(name)}"
        return [build(layers=spec.layers, width=spec.width, params=None, command=command)]
    groups: dict[str, list[Measured]] = {}
    for row in results.rows:
        groups.setdefault(_write_command(name, row), []).append(row)
    # The number of parameters differs between tasks by that of the head: the smallest is given.
    return [
        build(
            layers=rows[0].layers,
            width=rows[0].width,
            params=min(row.params for row in rows),
            command=command,
            accuracy={row.task: next(iter(row.accuracy.values())) for row in rows if row.accuracy},
        )
        for command, rows in groups.items()
    ]


def _write_command(name: str, row: Measured) -> str:
    """Return the command that builds a measured size.

    Settings of the expander that are not sizes determine layers and width.
    """
    sizes: dict[str, Any] = dict(row.size)
    if sizes.keys() <= set(AXES):
        sizes = {"layers": row.layers, "width": row.width, **sizes}
    words = [f"--{key.replace('_', '-')} {shell_word(str(value))}" for key, value in sizes.items()]
    return f"lgzoo expand {shell_word(name)} {' '.join(words)}"


def _describe(size: MeasuredSize, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the cells of a row, and the values by which it is filtered."""
    return {
        "learngene": size.learngene,
        "method": size.method,
        "family": size.family,
        "size": f"{size.layers} x {size.width}",
        "params": size.params or "",
        "params_text": human_count(size.params) if size.params else "-",
        "tasks": " ".join(size.accuracy),
        "accuracy": [
            (task, f"{100 * size.accuracy[task]:.1f}" if task in size.accuracy else "-")
            for task in tasks
        ],
        "command": size.command,
    }


def _draw(task: str, sizes: Sequence[MeasuredSize]) -> dict[str, Any]:
    """Return the points of a task's picture, and the ticks of its axes.

    Parameters are on a logarithmic axis. A name is written at sizes that no smaller one equals,
    where it does not touch the one before.
    """
    measured = sorted(
        (
            (index, size, size.params)
            for index, size in enumerate(sizes)
            if task in size.accuracy and size.params
        ),
        key=lambda item: (item[2], -item[1].accuracy[task]),
    )
    ticks = _choose_ticks([params for _, _, params in measured])

    def place_x(params: float) -> float:
        share = math.log(params / ticks[0]) / math.log(ticks[-1] / ticks[0])
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def place_y(accuracy: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - accuracy)

    points: list[dict[str, Any]] = []
    best, last_x, last_y = -1.0, -math.inf, -math.inf
    for index, size, params in measured:
        accuracy = size.accuracy[task]
        x, y = place_x(params), place_y(accuracy)
        label = ""
        if accuracy > best:
            best = accuracy
            if x - last_x > LABEL_WIDTH or abs(y - last_y) > LABEL_HEIGHT:
                label, last_x, last_y = size.learngene, x, y
        points.append(
            {
                "row": index,
                "x": f"{x:.1f}",
                "y": f"{y:.1f}",
                "label": label,
                "label_y": f"{y - 8 if y > 2 * TOP else y + 16:.1f}",
                "anchor": "end" if x > WIDTH * 0.7 else "start",
                "title": f"{size.learngene}, {size.layers} x {size.width}: "
                f"{human_count(params)} parameters, {100 * accuracy:.1f} %",
            }
        )
    return {
        "task": task,
        "points": points,
        "x_ticks": [
            (f"{place_x(tick):.1f}", human_count(tick).replace(".00", "")) for tick in ticks
        ],
        "y_ticks": [(f"{place_y(part / 4):.1f}", f"{25 * part}") for part in range(5)],
    }


def _choose_ticks(counts: Sequence[int]) -> list[int]:
    """Return 1 and 3 times powers of ten, from at most the least count to at least the largest."""
    ticks = [factor * 10**power for power in range(20) for factor in (1, 3)]
    low, high = min(counts, default=1), max(counts, default=1)
    first = max(index for index, tick in enumerate(ticks) if tick <= low)
    last = min(index for index, tick in enumerate(ticks) if tick >= high)
    return ticks[first : max(last, first + 1) + 1]
