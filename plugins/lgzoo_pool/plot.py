"""Draw a pool: its blocks and stitches with one path highlighted, and the accuracy of every path.

The same function draws SN-Net's learngenes. A learngene without `metrics["paths"]` has its paths'
parameters drawn instead: a row of these metrics has the expander's settings, `accuracy` (or `mIoU`)
from 0 to 1, and `images`, the number of images that it was measured on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learngene_zoo.plugin import (
    BadFile,
    WrongCall,
    compute_interval,
    format_count,
    list_settings,
    plotting,
)
from lgzoo_pool.details import StitchedDetails, read_details
from lgzoo_pool.paths import Path
from lgzoo_pool.plot_grid import HIGHLIGHT, build_grid_legend, draw_grid, pick_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from learngene_zoo.plugin import Cost, Expander, Json, Learngene, LearngeneConfig, Member

WIDTH = 12.0  # inches
# Across: the margins, the labels of rows, the gap, the scores.
EDGE, LABELS, GAP, SCORES = 0.2, 1.05, 0.95, 4.1
# Down: the titles, every anchor, all of them at least, axis and legends.
TOP, ROW, LEAST, BELOW = 1.15, 1.25, 2.7, 0.95
NAMES = {"pool": "Learngene Pool", "snnet": "SN-Net"}
METRICS = ("accuracy", "mIoU")
MANY = 40  # paths, of which smaller points are drawn


@dataclass(frozen=True)
class Scores:
    """The value of a metric for every path, and how many images it was measured on."""

    metric: str
    values: tuple[float, ...]
    images: int
    task: str  # on which, with its classes; no descendant is fine-tuned yet


def draw_picture(learngene: Learngene, expander: Expander) -> Figure:
    """Draw the figure, with the path highlighted that the expander's settings name.

    Raises `WrongCall` if there is no such path.
    """
    config = learngene.config
    details = read_details(config)
    members, paths = list(expander.family(config)), details.layout.paths
    number, scores = select_path(members, details, expander), read_scores(config, len(members))
    tall = max(ROW * len(details.anchors), LEAST)
    figure = plotting.new_figure(WIDTH, TOP + tall + BELOW)
    wide = WIDTH - LABELS - GAP - SCORES - 2 * EDGE
    grid = plotting.add_axes(figure, EDGE + LABELS, BELOW, wide, tall)
    beside = plotting.add_axes(figure, WIDTH - EDGE - SCORES, BELOW, SCORES, tall)
    draw_grid(grid, details, paths[number])
    draw_scores(beside, paths, [member.cost() for member in members], number, scores)
    plotting.draw_legend_below(figure, grid, build_grid_legend(paths[number]))
    plotting.draw_legend_below(figure, beside, build_scores_legend(scores))
    result = "" if scores is None else f"{100 * scores.values[number]:.1f} % {scores.metric}"
    caption = format_caption(members[number], result)
    plotting.draw_heading(figure, EDGE, format_title(config, details), caption)
    return figure


def format_title(config: LearngeneConfig, details: StitchedDetails) -> str:
    """Return the numbers of blocks, stitches and paths in words."""
    layout, blocks = details.layout, sum(anchor.layers for anchor in details.anchors)
    stitches, paths = len(layout.stitches), len(layout.paths)
    name = NAMES.get(config.method, config.method)
    return f"{name}: {blocks} blocks, {stitches} stitch{'es' * (stitches > 1)}, {paths} paths"


def format_caption(member: Member, result: str) -> str:
    """Return the settings, the cost and the result of the highlighted path in words."""
    cost = member.cost()
    words = [f"{name} {value}" for name, value in member.settings.items()]
    words += [
        f"{format_count(cost.params)} parameters",
        f"{format_count(cost.flops)} FLOPs",
        result,
    ]
    return f"the path drawn: {', '.join(filter(None, words))}"


def select_path(members: Sequence[Member], details: StitchedDetails, expander: Expander) -> int:
    """Return the number of the path that the expander's settings name.

    Of several it is the largest path; without settings a middle one.
    """
    values = {setting.name: setting.default for setting in list_settings(expander)}
    named = {
        name: value
        for name, value in values.items()
        if name in members[0].settings and value is not None
    }
    if not named:
        return _select_middle(members, details)
    fitting = [
        number for number, member in enumerate(members) if member.settings.items() >= named.items()
    ]
    if not fitting:
        words = " and ".join(f"{name} {value}" for name, value in named.items())
        raise WrongCall(f"there is no path with {words}; lgzoo show lists all")
    return max(fitting, key=lambda number: members[number].cost())


def _select_middle(members: Sequence[Member], details: StitchedDetails) -> int:
    """Return the path of median FLOPs of those stitched to the last anchor.

    If possible it has as many blocks as that anchor.
    """
    last = len(details.anchors) - 1
    stitched = [
        number
        for number, path in enumerate(details.layout.paths)
        if path.stitches and path.last == last
    ]
    depth = details.anchors[-1].layers
    as_deep = [number for number in stitched if members[number].spec.layers == depth]
    ranking = sorted(
        as_deep or stitched or range(len(members)),
        key=lambda number: members[number].cost().flops,
    )
    return ranking[len(ranking) // 2]


def read_scores(config: LearngeneConfig, paths: int) -> Scores | None:
    """Return the metrics of every path, or None.

    Raises `BadFile` for metrics that are wrong.
    """
    rows = config.metrics.get("paths")
    if rows is None:
        return None
    is_list = isinstance(rows, list) and len(rows) == paths
    if not is_list or not all(isinstance(row, dict) for row in rows):
        raise _build_error(f"expected a list with a row for each of the {paths} paths")
    metric = next((name for name in METRICS if paths and name in rows[0]), METRICS[0])
    values = tuple(_read_share(row, metric) for row in rows)
    images = rows[0].get("images") if rows else None
    if type(images) is not int or images < 1 or any(row.get("images") != images for row in rows):
        raise _build_error("expected the same number of images in every row, at least 1")
    task = next((f" of {task.name} ({task.classes:,} classes)" for task in config.tasks), "")
    return Scores(metric, values, images, task)


def _read_share(row: dict[str, Json], metric: str) -> float:
    value = row.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _build_error(f"expected a number from 0 to 1 as {metric}, got {value!r}")
    return float(value)


def _build_error(why: str) -> BadFile:
    return BadFile(f"metrics of the learngene, paths: {why}; extract or fetch it again")


def draw_scores(
    axes: Axes,
    paths: Sequence[Path],
    costs: Sequence[Cost],
    number: int,
    scores: Scores | None,
) -> None:
    """Draw a point per path.

    It is filled with the colour of the anchor that the path ends in, and ringed with that of the
    anchor that it begins in.
    """
    scale, unit = (1e9, "G") if max(cost.flops for cost in costs) >= 1e9 else (1e6, "M")
    xs = [cost.flops / scale for cost in costs]
    ys = [cost.params / 1e6 for cost in costs]
    if scores:
        ys = [100 * value for value in scores.values]
        _draw_best(axes, xs, ys)
        _draw_intervals(axes, xs, scores, paths)
    for x, y, path in zip(xs, ys, paths):
        size = 6.5 if len(paths) <= MANY else 5.0
        mark: dict[str, Any] = {"marker": "o", "markersize": size, "zorder": 4}
        if not path.stitches:
            mark = {"marker": "D", "markersize": 9, "zorder": 5}
        ring: dict[str, Any] = {
            "markeredgecolor": pick_colour(path.first),
            "markeredgewidth": 1.6,
            "linestyle": "none",
        }
        axes.plot(x, y, color=pick_colour(path.last), **ring, **mark)
    around: dict[str, Any] = {
        "marker": "o",
        "markersize": 17,
        "markerfacecolor": "none",
        "markeredgecolor": HIGHLIGHT,
    }
    axes.plot(xs[number], ys[number], markeredgewidth=2.6, zorder=6, **around)
    axes.set_xlabel(f"FLOPs of one image, {unit}")
    measured = (
        f"{scores.metric} in % on {scores.images:,} validation images{scores.task}"
        if scores
        else ""
    )
    axes.set_title(measured or "parameters, M (no accuracies are recorded)", loc="left", pad=8)
    axes.set_xlim(left=0)
    axes.margins(x=0.06)
    plotting.draw_rules(axes)


def _draw_best(axes: Axes, xs: Sequence[float], ys: Sequence[float]) -> None:
    """Draw the best path of all that cost no more."""
    costs = sorted(set(xs))
    best = [max(y for x, y in zip(xs, ys) if x <= cost) for cost in costs]
    axes.step(costs, best, where="post", color=plotting.LINE, linewidth=6, zorder=1)


def _draw_intervals(axes: Axes, xs: Sequence[float], scores: Scores, paths: Sequence[Path]) -> None:
    if scores.metric != "accuracy":
        return
    for x, value, path in zip(xs, scores.values, paths):
        low, high = compute_interval(round(value * scores.images), scores.images)
        axes.plot(
            [x, x],
            [100 * low, 100 * high],
            color=pick_colour(path.last),
            linewidth=1.0,
            alpha=0.45,
            zorder=2,
        )


def build_scores_legend(scores: Scores | None) -> list[Line2D]:
    """Return the meaning of the points and, with scores, of the line."""
    from matplotlib.lines import Line2D

    plain: dict[str, Any] = {
        "linestyle": "none",
        "markerfacecolor": plotting.PAPER,
        "markeredgecolor": plotting.INK,
    }
    ring = {**plain, "markeredgecolor": HIGHLIGHT, "markeredgewidth": 2.2}
    points = [
        Line2D([], [], marker="D", markersize=8, label="one model", **plain),
        Line2D([], [], marker="o", markersize=6.5, label="stitched", **plain),
        Line2D([], [], marker="o", markersize=12, label="path drawn", **ring),
    ]
    line = Line2D([], [], color=plotting.LINE, linewidth=6, label="best so far")
    return [*points, line] if scores else points
