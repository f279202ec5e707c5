"""How good every path is against what it costs, out of a learngene's metrics. Cold at its top.

`metrics["paths"]` holds a row for every path, in the order of their numbers: the expander's settings, `accuracy` (or `mIoU`) from
0 to 1, and the `images` it was measured on. A learngene without them has its paths' parameters drawn instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from learngene_zoo.plugin import BadFile, Cost, Json, LearngeneConfig, proportion
from lgzoo_pool.plot_style import INK, LINE, PAPER, QUIET_INK, STITCH, colour_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

METRICS = ("accuracy", "mIoU")
MANY = 40  # paths of which smaller points are drawn


@dataclass(frozen=True)
class Scores:
    """One number per path, and on how many images it was measured."""

    metric: str
    values: tuple[float, ...]
    images: int

    def told(self, number: int) -> str:
        """One path's, in words."""
        return f"{100 * self.values[number]:.1f} % {self.metric}"


class Drawn(NamedTuple):
    """What of a path is drawn: the anchors it begins and ends in, and its cost."""

    first: int
    last: int
    cost: Cost


def scores(config: LearngeneConfig, paths: int) -> Scores | None:
    """What the metrics say of every path; None if they say nothing. Raises `BadFile` for what cannot be."""
    rows = config.metrics.get("paths")
    if rows is None:
        return None
    if not isinstance(rows, list) or len(rows) != paths or not all(isinstance(row, dict) for row in rows):
        raise _bad(f"a list with a row for each of the {paths} paths is wanted")
    metric = next((name for name in METRICS if paths and name in rows[0]), METRICS[0])
    values = tuple(_share(row, metric) for row in rows)
    images = rows[0].get("images") if rows else None
    if type(images) is not int or images < 1 or any(row.get("images") != images for row in rows):
        raise _bad("every row needs the same number of images, at least 1")
    return Scores(metric, values, images)


def _share(row: dict[str, Json], metric: str) -> float:
    value = row.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _bad(f"{metric} {value!r} is no number from 0 to 1")
    return float(value)


def _bad(why: str) -> BadFile:
    return BadFile(f"metrics of the learngene, paths: {why}; extract or fetch it again")


def draw_scores(axes: Axes, drawn: Sequence[Drawn], number: int, found: Scores | None) -> None:
    """A point per path: filled with the colour of the anchor it ends in, ringed with that of the one it begins in."""
    scale, unit = _scale(max(one.cost.flops for one in drawn))
    xs = [one.cost.flops / scale for one in drawn]
    ys = [100 * value for value in found.values] if found else [one.cost.params / 1e6 for one in drawn]
    if found:
        _best(axes, xs, ys)
        _intervals(axes, xs, found, drawn)
    small = 6.5 if len(drawn) <= MANY else 5.0
    for x, y, one in zip(xs, ys, drawn):
        mark: dict[str, Any] = {"marker": "o", "markersize": small, "zorder": 4}
        if one.first == one.last:
            mark = {"marker": "D", "markersize": 9, "zorder": 5}
        ring = colour_of(one.first)
        axes.plot(x, y, color=colour_of(one.last), markeredgecolor=ring, markeredgewidth=1.6, linestyle="none", **mark)
    around: dict[str, Any] = {"marker": "o", "markersize": 17, "markerfacecolor": "none", "markeredgecolor": STITCH}
    axes.plot(xs[number], ys[number], markeredgewidth=2.6, zorder=6, **around)
    _frame(axes, unit, found)


def _scale(most: int) -> tuple[float, str]:
    return (1e9, "G") if most >= 1e9 else (1e6, "M")


def _best(axes: Axes, xs: Sequence[float], ys: Sequence[float]) -> None:
    """Of all paths that cost no more the best one's."""
    costs = sorted(set(xs))
    best = [max(y for x, y in zip(xs, ys) if x <= cost) for cost in costs]
    axes.step([*costs, max(costs)], [*best, best[-1]], where="post", color=LINE, linewidth=6, zorder=1)


def _intervals(axes: Axes, xs: Sequence[float], found: Scores, drawn: Sequence[Drawn]) -> None:
    if found.metric != "accuracy":
        return
    for x, value, one in zip(xs, found.values, drawn):
        low, high = proportion(round(value * found.images), found.images)
        axes.plot([x, x], [100 * low, 100 * high], color=colour_of(one.last), linewidth=1.0, alpha=0.45, zorder=2)


def _frame(axes: Axes, unit: str, found: Scores | None) -> None:
    axes.set_xlabel(f"FLOPs of one image, {unit}", fontsize=9.5, color=INK)
    told = (
        f"{found.metric} in % on {found.images:,} validation images"
        if found
        else "parameters, M (no accuracies are recorded)"
    )
    axes.set_title(told, fontsize=10, color=INK, loc="left", pad=8)
    axes.set_xlim(left=0)
    axes.margins(x=0.06)
    axes.grid(color=LINE, alpha=0.5, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(QUIET_INK)
    axes.tick_params(colors=INK, labelsize=9)


def scores_legend(found: Scores | None) -> list[Line2D]:
    """What the points mean, and the line that is there only where something was measured."""
    from matplotlib.lines import Line2D

    plain: dict[str, Any] = {"linestyle": "none", "markerfacecolor": PAPER, "markeredgecolor": INK}
    ring = {**plain, "markeredgecolor": STITCH, "markeredgewidth": 2.2}
    points = [
        Line2D([], [], marker="D", markersize=8, label="one model", **plain),
        Line2D([], [], marker="o", markersize=6.5, label="stitched", **plain),
        Line2D([], [], marker="o", markersize=12, label="path drawn", **ring),
    ]
    return [*points, Line2D([], [], color=LINE, linewidth=6, label="best so far")] if found else points
