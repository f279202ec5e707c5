"""The picture of a pool: its blocks and stitches with one path highlighted, and beside it the accuracy of every path.

The same function draws SN-Net's learngenes. A learngene without `metrics["paths"]` has its paths' parameters drawn
instead: a row of these metrics has the expander's settings, `accuracy` (or `mIoU`) from 0 to 1, and `images`, how many
it was measured on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learngene_zoo.plugin import BadFile, WrongCall, human_count, plotting, proportion, settings_of
from lgzoo_pool.details import StitchedDetails, read_details
from lgzoo_pool.paths import Path
from lgzoo_pool.plot_grid import HIGHLIGHT, colour_of, draw_grid, grid_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from learngene_zoo.plugin import Cost, Expander, Json, Learngene, LearngeneConfig, Member

WIDTH = 12.0  # inches
EDGE, LABELS, GAP, SCORES = 0.2, 1.05, 0.95, 4.1  # across: the margins, the labels of rows, the gap, the scores
TOP, ROW, LEAST, BELOW = 1.15, 1.25, 2.7, 0.95  # down: the titles, every anchor, all of them at least, axis and legends
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


def picture(learngene: Learngene, expander: Expander) -> Figure:
    """The figure, with the path highlighted that the expander's settings name. Raises `WrongCall` if there is none."""
    config = learngene.config
    details = read_details(config)
    members, paths = list(expander.family(config)), details.layout.paths
    number, found = chosen(members, details, expander), scores(config, len(members))
    tall = max(ROW * len(details.anchors), LEAST)
    figure = plotting.new_figure(WIDTH, TOP + tall + BELOW)
    wide = WIDTH - LABELS - GAP - SCORES - 2 * EDGE
    grid = plotting.axes_at(figure, EDGE + LABELS, BELOW, wide, tall)
    beside = plotting.axes_at(figure, WIDTH - EDGE - SCORES, BELOW, SCORES, tall)
    draw_grid(grid, details, paths[number])
    draw_scores(beside, paths, [member.cost() for member in members], number, found)
    plotting.legend_below(figure, grid, grid_legend(paths[number]))
    plotting.legend_below(figure, beside, scores_legend(found))
    result = "" if found is None else f"{100 * found.values[number]:.1f} % {found.metric}"
    plotting.heading(figure, EDGE, title(config, details), caption(members[number], result))
    return figure


def title(config: LearngeneConfig, details: StitchedDetails) -> str:
    """How many blocks, stitches and paths there are."""
    layout, blocks = details.layout, sum(anchor.layers for anchor in details.anchors)
    stitches = len(layout.stitches)
    name = NAMES.get(config.method, config.method)
    return f"{name}: {blocks} blocks, {stitches} stitch{'es' * (stitches > 1)}, {len(layout.paths)} paths"


def caption(member: Member, result: str) -> str:
    """The settings, the cost and the result of the highlighted path."""
    cost = member.cost()
    words = [f"{name} {value}" for name, value in member.settings.items()]
    words += [f"{human_count(cost.params)} parameters", f"{human_count(cost.flops)} FLOPs", result]
    return f"the path drawn: {', '.join(filter(None, words))}"


def chosen(members: Sequence[Member], details: StitchedDetails, expander: Expander) -> int:
    """The number of the path that the expander's settings name: of several the largest, of none a middle one."""
    values = {setting.name: setting.default for setting in settings_of(expander)}
    named = {name: value for name, value in values.items() if name in members[0].settings and value is not None}
    if not named:
        return _middle(members, details)
    fitting = [number for number, member in enumerate(members) if member.settings.items() >= named.items()]
    if not fitting:
        words = " and ".join(f"{name} {value}" for name, value in named.items())
        raise WrongCall(f"there is no path with {words}; lgzoo show lists all")
    return max(fitting, key=lambda number: members[number].cost())


def _middle(members: Sequence[Member], details: StitchedDetails) -> int:
    """The path of median FLOPs of those stitched to the last anchor, if possible with as many blocks as it has."""
    last = len(details.anchors) - 1
    stitched = [number for number, path in enumerate(details.layout.paths) if path.stitches and path.last == last]
    whole = [number for number in stitched if members[number].spec.layers == details.anchors[-1].layers]
    ranked = sorted(whole or stitched or range(len(members)), key=lambda number: members[number].cost().flops)
    return ranked[len(ranked) // 2]


def scores(config: LearngeneConfig, paths: int) -> Scores | None:
    """The metrics of every path; None if there are none. Raises `BadFile` for metrics that are wrong."""
    rows = config.metrics.get("paths")
    if rows is None:
        return None
    if not isinstance(rows, list) or len(rows) != paths or not all(isinstance(row, dict) for row in rows):
        raise _bad(f"expected a list with a row for each of the {paths} paths")
    metric = next((name for name in METRICS if paths and name in rows[0]), METRICS[0])
    values = tuple(_share(row, metric) for row in rows)
    images = rows[0].get("images") if rows else None
    if type(images) is not int or images < 1 or any(row.get("images") != images for row in rows):
        raise _bad("expected the same number of images in every row, at least 1")
    seen = next((f" of {task.name} ({task.classes:,} classes)" for task in config.tasks), "")
    return Scores(metric, values, images, seen)


def _share(row: dict[str, Json], metric: str) -> float:
    value = row.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _bad(f"expected a number from 0 to 1 as {metric}, got {value!r}")
    return float(value)


def _bad(why: str) -> BadFile:
    return BadFile(f"metrics of the learngene, paths: {why}; extract or fetch it again")


def draw_scores(axes: Axes, paths: Sequence[Path], costs: Sequence[Cost], number: int, found: Scores | None) -> None:
    """A point per path: filled with the colour of the anchor it ends in, ringed with that of the one it begins in."""
    scale, unit = (1e9, "G") if max(cost.flops for cost in costs) >= 1e9 else (1e6, "M")
    xs = [cost.flops / scale for cost in costs]
    ys = [100 * value for value in found.values] if found else [cost.params / 1e6 for cost in costs]
    if found:
        _best(axes, xs, ys)
        _intervals(axes, xs, found, paths)
    for x, y, path in zip(xs, ys, paths):
        mark: dict[str, Any] = {"marker": "o", "markersize": 6.5 if len(paths) <= MANY else 5.0, "zorder": 4}
        if not path.stitches:
            mark = {"marker": "D", "markersize": 9, "zorder": 5}
        ring: dict[str, Any] = {"markeredgecolor": colour_of(path.first), "markeredgewidth": 1.6, "linestyle": "none"}
        axes.plot(x, y, color=colour_of(path.last), **ring, **mark)
    around: dict[str, Any] = {"marker": "o", "markersize": 17, "markerfacecolor": "none", "markeredgecolor": HIGHLIGHT}
    axes.plot(xs[number], ys[number], markeredgewidth=2.6, zorder=6, **around)
    axes.set_xlabel(f"FLOPs of one image, {unit}")
    measured = f"{found.metric} in % on {found.images:,} validation images{found.task}" if found else ""
    axes.set_title(measured or "parameters, M (no accuracies are recorded)", loc="left", pad=8)
    axes.set_xlim(left=0)
    axes.margins(x=0.06)
    plotting.ruled(axes)


def _best(axes: Axes, xs: Sequence[float], ys: Sequence[float]) -> None:
    """The best path of all that cost no more."""
    costs = sorted(set(xs))
    best = [max(y for x, y in zip(xs, ys) if x <= cost) for cost in costs]
    axes.step(costs, best, where="post", color=plotting.LINE, linewidth=6, zorder=1)


def _intervals(axes: Axes, xs: Sequence[float], found: Scores, paths: Sequence[Path]) -> None:
    if found.metric != "accuracy":
        return
    for x, value, path in zip(xs, found.values, paths):
        low, high = proportion(round(value * found.images), found.images)
        axes.plot([x, x], [100 * low, 100 * high], color=colour_of(path.last), linewidth=1.0, alpha=0.45, zorder=2)


def scores_legend(found: Scores | None) -> list[Line2D]:
    """What the points mean, and where something was measured, the line."""
    from matplotlib.lines import Line2D

    plain: dict[str, Any] = {"linestyle": "none", "markerfacecolor": plotting.PAPER, "markeredgecolor": plotting.INK}
    ring = {**plain, "markeredgecolor": HIGHLIGHT, "markeredgewidth": 2.2}
    points = [
        Line2D([], [], marker="D", markersize=8, label="one model", **plain),
        Line2D([], [], marker="o", markersize=6.5, label="stitched", **plain),
        Line2D([], [], marker="o", markersize=12, label="path drawn", **ring),
    ]
    return [*points, Line2D([], [], color=plotting.LINE, linewidth=6, label="best so far")] if found else points
