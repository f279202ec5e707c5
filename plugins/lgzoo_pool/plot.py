"""The picture of a pool: its blocks and stitches with one path through them, and beside it how good every path is.

The same function draws SN-Net's learngenes. Cold at its top. Drawn without pyplot, so that no window system and no global
state is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from learngene_zoo.plugin import Expander, Json, Learngene, LearngeneConfig, Member, WrongCall, human_count, settings_of
from lgzoo_pool.details import Details, read_details
from lgzoo_pool.plot_grid import draw_grid, grid_legend
from lgzoo_pool.plot_scores import Drawn, draw_scores, scores, scores_legend
from lgzoo_pool.plot_style import INK, QUIET_INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTH = 12.0  # inches
EDGE, LABELS, BETWEEN, SCORES = 0.2, 1.05, 0.95, 4.1  # across: the margins, the rows' labels, the gap, the scores
TOP, ROW, LEAST, BELOW = 1.15, 1.25, 2.7, 0.95  # down: the titles, every anchor, all of them at least, axis and legends
NAMES = {"pool": "Learngene Pool", "snnet": "SN-Net"}


def picture(learngene: Learngene, expander: Expander) -> Figure:
    """The figure; the expander's settings say which path stands out. Raises `WrongCall` if no path has the expander's settings."""
    from matplotlib.figure import Figure

    config = learngene.config
    details = read_details(config)
    members, every = list(expander.family(config)), details.layout.paths
    number, found = chosen(members, details, expander), scores(config, len(members))
    tall = max(ROW * len(details.anchors), LEAST)
    height = TOP + tall + BELOW
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    across = WIDTH - LABELS - BETWEEN - SCORES - 2 * EDGE
    boxes = ((EDGE + LABELS, across), (WIDTH - EDGE - SCORES, SCORES))
    grid, beside = (figure.add_axes((at / WIDTH, BELOW / height, wide / WIDTH, tall / height)) for at, wide in boxes)
    draw_grid(grid, details, every[number])
    drawn = [Drawn(path.parts[0].anchor, path.last, member.cost()) for path, member in zip(every, members)]
    draw_scores(beside, drawn, number, found)
    _legend(figure, grid, grid_legend(every[number]))
    _legend(figure, beside, scores_legend(found))
    _titles(figure, config, details, members[number], "" if found is None else found.told(number))
    return figure


def _legend(figure: Figure, axes: Axes, handles: list[Line2D]) -> None:
    """In one line at the foot of the figure, below the middle of the axes."""
    place, foot = axes.get_position(), 0.24 / figure.get_figheight()
    figure.legend(
        handles=handles, loc="center", bbox_to_anchor=((place.x0 + place.x1) / 2, foot), ncols=len(handles), frameon=False,
        fontsize=9, labelcolor=INK, columnspacing=1.2, handlelength=1.5, handletextpad=0.6,
    )  # fmt: skip


def chosen(members: Sequence[Member], details: Details, expander: Expander) -> int:
    """The number of the path that the expander's settings name, of several the largest; if they name none the middle one."""
    values = {setting.name: setting.default for setting in settings_of(expander)}
    asked = {name: value for name, value in values.items() if name in members[0].settings and value is not None}
    if not asked:
        return _middle(members, details)
    fitting = [number for number, member in enumerate(members) if _has(member, asked)]
    if not fitting:
        named = " and ".join(f"{name} {value}" for name, value in asked.items())
        raise WrongCall(f"there is no path with {named}; lgzoo show lists those there are")
    return max(fitting, key=lambda number: members[number].cost())


def _middle(members: Sequence[Member], details: Details) -> int:
    """Of the paths stitched to the last anchor, those with as many blocks as it has if there are any, the one of middle FLOPs."""
    last = len(details.anchors) - 1
    stitched = [number for number, path in enumerate(details.layout.paths) if path.stitches and path.last == last]
    whole = [number for number in stitched if members[number].spec.layers == details.anchors[-1].layers]
    ranked = sorted(whole or stitched or range(len(members)), key=lambda number: members[number].cost().flops)
    return ranked[len(ranked) // 2]


def _has(member: Member, asked: Mapping[str, Json]) -> bool:
    return all(member.settings[name] == value for name, value in asked.items())


def _titles(figure: Figure, config: LearngeneConfig, details: Details, member: Member, result: str) -> None:
    height = figure.get_figheight()
    layout, cost = details.layout, member.cost()
    stitches, blocks = len(layout.stitches), sum(anchor.layers for anchor in details.anchors)
    name = NAMES.get(config.method, config.method)
    title = f"{name}: {blocks} blocks, {stitches} stitch{'es' * (stitches > 1)}, {len(layout.paths)} paths"
    said = [f"{name} {value}" for name, value in member.settings.items()]
    said += [f"{human_count(cost.params)} parameters", f"{human_count(cost.flops)} FLOPs", result]
    under = f"the path drawn: {', '.join(filter(None, said))}"
    left = EDGE / WIDTH
    figure.text(left, 1 - 0.34 / height, title, fontsize=13, weight="bold", color=INK, va="center")
    figure.text(left, 1 - 0.64 / height, under, fontsize=10, color=QUIET_INK, va="center")
