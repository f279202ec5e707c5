"""One HTML page of the learngenes on the shelf: filters, a picture, and commands to copy.

A row is one measured size of a learngene. The results are those of the cards. The page loads
nothing from anywhere.
"""

from __future__ import annotations

import math
import re
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
from learngene_zoo.text import (
    format_count,
    format_round_count,
    hash_script,
    quote_word,
    render_page,
)

TEMPLATE = "lifecycle/shelf_page.html.jinja"
SCRIPT = Path(__file__).with_name("shelf_page.js")
BOUNDS = (100_000, 300_000, 1_000_000, 10_000_000, 100_000_000)  # parameters, to choose from
# The picture, in units of its coordinates. Letters are 13 high, in narrow windows 18.
LETTER_WIDTH, LABEL_HEIGHT, RADIUS = 10.5, 20, 4
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 44, 12, 14, 34
Box = tuple[float, float, float, float]  # left, top, right, bottom


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
        for name in shelf.list_learngenes()
        for size in list_sizes(name, read_config(shelf.find_cards_folder() / name))
    ]
    sizes.sort(key=lambda size: (size.params or math.inf, size.learngene))
    tasks = list(dict.fromkeys(task for size in sizes for task in size.accuracy))
    bounds = [
        (bound, format_round_count(bound))
        for bound in BOUNDS
        if any(size.params and size.params > bound for size in sizes)
    ]
    script = SCRIPT.read_text(encoding="utf-8")
    return render_page(
        TEMPLATE,
        colours=PAGE_COLOURS,
        script=script,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src '{hash_script(script)}'",
        count=len(shelf.list_learngenes()),
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
        spec, command = config.spec, f"lgzoo expand {quote_word(name)}"
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
    words = [f"--{key.replace('_', '-')} {quote_word(str(value))}" for key, value in sizes.items()]
    return f"lgzoo expand {quote_word(name)} {' '.join(words)}"


def _describe(size: MeasuredSize, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the cells of a row, and the values by which it is filtered."""
    return {
        "learngene": size.learngene,
        "method": size.method,
        "family": size.family,
        "size": f"{size.layers} x {size.width}",
        "params": size.params or "",
        "params_text": format_count(size.params) if size.params else "-",
        "tasks": " ".join(size.accuracy),
        "accuracy": [
            (task, f"{100 * size.accuracy[task]:.1f}" if task in size.accuracy else "-")
            for task in tasks
        ],
        # A line of a command does not end within a word or between an option and its value.
        "command": re.split(r" (?=--)", size.command),
    }


def _draw(task: str, sizes: Sequence[MeasuredSize]) -> dict[str, Any]:
    """Return the points of a task's picture, and the ticks of its axes.

    Parameters are on a logarithmic axis. A name is written at sizes that no smaller one equals,
    where there is space for it.
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

    places = [(place_x(params), place_y(size.accuracy[task])) for _, size, params in measured]
    boxes = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in places]
    points: list[dict[str, Any]] = []
    best = -1.0
    for (index, size, params), (x, y) in zip(measured, places):
        accuracy, label = size.accuracy[task], None
        if accuracy > best:
            best = accuracy
            label = _place_label(size.learngene, x, y, boxes)
        points.append(
            {
                "row": index,
                "x": f"{x:.1f}",
                "y": f"{y:.1f}",
                "label": label and {"text": size.learngene, **label},
                "title": f"{size.learngene}, {size.layers} x {size.width}: "
                f"{format_count(params)} parameters, {100 * accuracy:.1f} %",
            }
        )
    return {
        "task": task,
        "points": points,
        "x_ticks": [(f"{place_x(tick):.1f}", format_round_count(tick)) for tick in ticks],
        "y_ticks": [(f"{place_y(part / 4):.1f}", f"{25 * part}") for part in range(5)],
    }


def _place_label(text: str, x: float, y: float, boxes: list[Box]) -> dict[str, str] | None:
    """Return the position of a label beside its point, and add its box to the others.

    Args:
        text: the label.
        x: horizontal centre of the point.
        y: vertical centre of the point.
        boxes: the boxes of all points and of the earlier labels, which the label may not touch.

    Returns:
        None if there is no space on any side.
    """
    width, gap, below = LETTER_WIDTH * len(text), 2 * RADIUS, LABEL_HEIGHT
    sides = [(x - gap - width, y, "end"), (x + gap, y, "start")]
    sides += [(x - width, y + shift, "end") for shift in (-below, below)]
    sides += [(x, y + shift, "start") for shift in (-below, below)]
    for left, middle, anchor in sides:
        box = (left, middle - below / 2, left + width, middle + below / 2)
        is_inside = box[0] >= LEFT and box[2] <= WIDTH and box[1] >= 0 and box[3] <= HEIGHT - BOTTOM
        if is_inside and not any(_has_overlap(box, other) for other in boxes):
            boxes.append(box)
            label_x = left + width if anchor == "end" else left
            return {"x": f"{label_x:.1f}", "y": f"{middle:.1f}", "anchor": anchor}
    return None


def _has_overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _choose_ticks(counts: Sequence[int]) -> list[int]:
    """Return 1 and 3 times powers of ten, from at most the least count to at least the largest."""
    ticks = [factor * 10**power for power in range(20) for factor in (1, 3)]
    low, high = min(counts, default=1), max(counts, default=1)
    first = max(index for index, tick in enumerate(ticks) if tick <= low)
    last = min(index for index, tick in enumerate(ticks) if tick >= high)
    return ticks[first : max(last, first + 1) + 1]
