"""The picture of a hypernetwork: the graph embeddings of models of many sizes, and how similar its tasks are (TAL, Figure 5).

On the left each point is a model: the mean of what the encoder makes of its graph's nodes, under its task, in the plane of the
first two principal components. On the right are the cosines between the tasks' embeddings, where at least two are stored.
GHN-3 and LoGAH are not told the task: their map is coloured by layers, and stands alone. Cold at its top. Drawn without
pyplot, so that no window system and no global state is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from learngene_zoo.plugin import Expander, Learngene, ViTSpec
from lgzoo_tal.details import read_details
from lgzoo_tal.plot_map import Placed, draw_map, size_legend
from lgzoo_tal.plot_similarity import draw_similarity
from lgzoo_tal.plot_style import INK, QUIET_INK, shortened
from lgzoo_tal.principal import cosines, neighbourly, principal_plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 12.0, 6.3  # inches
LEFT, RIGHT, TOP, BELOW = 0.45, 0.78, 1.2, 1.0
MAP, MATRIX = 4.4, 3.4  # across, where there are both
ALONE, BAR, TASKS_BESIDE = 7.0, 0.3, 1.0  # across: of a map by itself, of the colours or the names beside it
MOST = 60  # sizes that are drawn
NAMES = {"ghn3": "GHN-3", "logah": "LoGAH", "tal": "TAL"}


def picture(learngene: Learngene, expander: Expander) -> Figure:
    """The figure; its sizes are the expander's family. Raises `BadFile` for a learngene whose tensors or details cannot be."""
    from matplotlib.figure import Figure

    from lgzoo_tal.graph_embeddings import stored_embeddings

    groups, shares = placed(learngene, sizes(learngene, expander))
    tasks, embeddings = stored_embeddings(learngene)
    both = embeddings is not None and len(tasks) > 1
    beside = BAR if len(groups) == 1 else TASKS_BESIDE
    across = MAP if both else ALONE
    wide = WIDTH if both else LEFT + across + beside + RIGHT
    figure = Figure(figsize=(wide, HEIGHT), facecolor="white")
    tall = HEIGHT - TOP - BELOW
    axes = figure.add_axes((LEFT / wide, BELOW / HEIGHT, across / wide, tall / HEIGHT))
    draw_map(axes, groups, shares, tall)
    _sizes_below(figure, axes, groups)
    if embeddings is not None and both:
        similar = cosines(embeddings)
        place = (
            (wide - RIGHT - MATRIX) / wide,
            (HEIGHT - TOP - 0.75 - MATRIX) / HEIGHT,
            MATRIX / wide,
            MATRIX / HEIGHT,
        )
        draw_similarity(figure.add_axes(place), tasks, similar, neighbourly(similar))
    _titles(figure, learngene, groups, both)
    return figure


def sizes(learngene: Learngene, expander: Expander) -> list[ViTSpec]:
    """What the expander can build; of a large family all depths and widths evenly between the least and the most."""
    specs = [member.spec for member in expander.family(learngene.config)]
    depths = thinned(sorted({spec.layers for spec in specs}), MOST // 2)
    widths = thinned(sorted({spec.width for spec in specs}), max(MOST // len(depths), 2))
    return [spec for spec in specs if spec.layers in depths and spec.width in widths]


def thinned(values: Sequence[int], count: int) -> list[int]:
    """At most so many (2 or more) of them, evenly from the first to the last."""
    if len(values) <= count:
        return list(values)
    return [values[round(at * (len(values) - 1) / (count - 1))] for at in range(count)]


def placed(learngene: Learngene, specs: Sequence[ViTSpec]) -> tuple[list[Placed], tuple[float, float]]:
    """Where the models of these sizes lie, for every task, and the components' shares of the variance."""
    from numpy import concatenate, split

    from lgzoo_tal.graph_embeddings import clouds

    found = clouds(learngene, specs)
    plane, shares = principal_plane(concatenate([cloud.points for cloud in found]))
    planes = split(plane, len(found))
    details = read_details(learngene.config)
    # The order of the stored embeddings, so that both panels give a task the same colour.
    names = list(dict.fromkeys((*details.embedded, *details.tasks, None)))
    groups = [Placed(one.task, names.index(one.task), one.specs, points) for one, points in zip(found, planes)]
    return groups, shares


def _sizes_below(figure: Figure, axes: Axes, groups: Sequence[Placed]) -> None:
    place = axes.get_position()
    figure.legend(
        handles=size_legend(groups), loc="center", ncols=3, frameon=False, fontsize=10, labelcolor=INK,
        bbox_to_anchor=((place.x0 + place.x1) / 2, 0.33 / HEIGHT), columnspacing=1.6, handletextpad=0.5,
    )  # fmt: skip


def _titles(figure: Figure, learngene: Learngene, groups: Sequence[Placed], both: bool) -> None:
    wide, config, first = figure.get_figwidth(), learngene.config, groups[0]
    told = f"{NAMES.get(config.method, config.method)}: {len(first.specs)} sizes"
    if first.task is not None:
        told += f" for each of {len(groups)} tasks" if len(groups) > 1 else f" for {shortened(first.task)}"
    encoder = "the task's own encoder" if read_details(config).apart else "the encoder"
    _title(figure, LEFT / wide, told, f"the mean over a model's graph of what {encoder} makes of it")
    if both:
        left = (wide - RIGHT - MATRIX) / wide
        _title(figure, left, "similarity of the tasks", "cosine of their embeddings")


def _title(figure: Figure, left: float, title: str, under: str) -> None:
    style: dict[str, Any] = {"va": "center", "parse_math": False}
    figure.text(left, 1 - 0.4 / HEIGHT, title, fontsize=13, weight="bold", color=INK, **style)
    figure.text(left, 1 - 0.72 / HEIGHT, under, fontsize=10, color=QUIET_INK, **style)
