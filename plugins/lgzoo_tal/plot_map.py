"""The map of graph embeddings: a point for every size, as large as the model, coloured by task or else by layers. Cold at its top."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from learngene_zoo.plugin import ViTSpec, human_count
from learngene_zoo.plugin import count_params as params
from lgzoo_tal.plot_style import INK, LINE, PAPER, QUIET_INK, TASKS, look, name_size, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from numpy import ndarray

LARGEST, CROWDED, SMALLEST = 15.0, 10.0, 3.0  # diameters of points: the largest model's, among many tasks, and at least
NAME = 0.24  # inches: what a name beside the map takes of its height
MOST_WIDTHS = 4  # widths that are written into the map; of more the points' sizes tell enough
DARKEST, BRIGHTEST = 0.0, 0.88  # of the colours of layers; the brightest yellow is lost on white


@dataclass(frozen=True, eq=False)
class Placed:
    """Where the models of one task lie, or those of all tasks (None)."""

    task: str | None
    number: int  # the task's place among all that are drawn
    specs: tuple[ViTSpec, ...]
    plane: ndarray  # (len(specs), 2)

    @property
    def params(self) -> list[int]:
        """Of every model."""
        return [params(spec) for spec in self.specs]


def draw_map(axes: Axes, groups: Sequence[Placed], shares: tuple[float, float], tall: float) -> None:
    """All points; those of one width are joined from depth to depth.

    `shares` are the components' of the variance, `tall` is how many inches the map is.
    """
    shade = _by_layers(axes, groups[0].specs) if len(groups) == 1 else None
    for group in groups:
        for run in _runs(group.specs):
            trail: dict[str, Any] = {
                "color": LINE if shade else look(group.number)["color"],
                "alpha": 1.0 if shade else 0.45,
            }
            axes.plot(*group.plane[run].T, linewidth=1.1, solid_capstyle="round", zorder=2, **trail)
    points = [(group, *one) for group in groups for one in zip(group.specs, group.params, group.plane)]
    diameter = diameters(groups)
    # Large ones first, so that none is hidden behind another.
    for group, spec, size, place in sorted(points, key=lambda point: -point[2]):
        style: dict[str, Any] = {**look(group.number), **({"color": shade(spec.layers)} if shade else {})}
        edge: dict[str, Any] = {"markeredgecolor": PAPER, "markeredgewidth": 0.7}
        axes.plot(*place, markersize=diameter(size), linestyle="none", zorder=3, **edge, **style)
    _frame(axes, shares)
    if _widths_lead(groups):
        _widths(axes, groups)
    if len(groups) > 1:
        _names(axes, groups, tall)


def diameters(groups: Sequence[Placed]) -> Callable[[int], float]:
    """From parameters to a point's diameter, in typographic points: its area goes with the parameters."""
    most = max(size for group in groups for size in group.params)
    largest = LARGEST if len(groups) <= len(TASKS) else CROWDED
    return lambda size: max(largest * (size / most) ** 0.5, SMALLEST)


def _runs(specs: Sequence[ViTSpec]) -> Iterator[list[int]]:
    """The models of each width, from shallow to deep."""
    for width in sorted({spec.width for spec in specs}):
        yield sorted((at for at, spec in enumerate(specs) if spec.width == width), key=lambda at: specs[at].layers)


def _by_layers(axes: Axes, specs: Sequence[ViTSpec]) -> Any:
    """From a number of layers to its colour, with a bar beside the map that says which is which."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    depths = sorted({spec.layers for spec in specs})
    steps = [DARKEST + (BRIGHTEST - DARKEST) * at / max(len(depths) - 1, 1) for at in range(len(depths))]
    colours = colormaps["viridis"](steps)
    bounds = [at - 0.5 for at in range(len(depths) + 1)]
    scale = ScalarMappable(BoundaryNorm(bounds, len(depths)), ListedColormap(colours))
    bar = axes.figure.colorbar(scale, cax=axes.inset_axes((1.03, 0.0, 0.025, 1.0)), ticks=range(len(depths)))
    bar.set_ticklabels([str(depth) for depth in depths], fontsize=10, color=INK)
    bar.minorticks_off()
    bar.ax.tick_params(length=0)
    bar.ax.set_title("layers", fontsize=10, color=INK, loc="left", pad=8)
    bar.outline.set_visible(False)
    return lambda layers: colours[depths.index(layers)]


def _frame(axes: Axes, shares: tuple[float, float]) -> None:
    told = [
        f"{name} component, {100 * share:.0f} % of the variance" for name, share in zip(("first", "second"), shares)
    ]
    axes.set_xlabel(told[0], fontsize=10, color=INK)
    axes.set_ylabel(told[1], fontsize=10, color=INK)
    axes.margins(0.06)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(QUIET_INK)


def _widths_lead(groups: Sequence[Placed]) -> bool:
    """Whether widths are few and lie further apart than tasks, so that one word can stand for all models of a width."""
    widths = _centres(groups, lambda group, spec: spec.width)
    tasks = _centres(groups, lambda group, spec: group.number)
    return 1 < len(widths) <= MOST_WIDTHS and float(widths.var(axis=0).sum()) >= float(tasks.var(axis=0).sum())


def _centres(groups: Sequence[Placed], kind: Callable[[Placed, ViTSpec], int]) -> ndarray:
    """(kinds, 2) the mean place of the models of each kind."""
    from numpy import array, mean

    found: dict[int, list[ndarray]] = {}
    for group in groups:
        for spec, place in zip(group.specs, group.plane):
            found.setdefault(kind(group, spec), []).append(place)
    return array([mean(places, axis=0) for places in found.values()])


def _widths(axes: Axes, groups: Sequence[Placed]) -> None:
    """Each width once, above the highest of its models."""
    from matplotlib.patheffects import withStroke

    widths = sorted({spec.width for group in groups for spec in group.specs})
    for width in widths:
        places = [place for group in groups for spec, place in zip(group.specs, group.plane) if spec.width == width]
        axes.annotate(
            f"width {width}", max(places, key=lambda place: float(place[1])), (0, 9), textcoords="offset points",
            ha="center", va="bottom", fontsize=9.5, color=QUIET_INK, zorder=5,
            path_effects=[withStroke(linewidth=2.5, foreground=PAPER)],
        )  # fmt: skip


def _names(axes: Axes, groups: Sequence[Placed], tall: float) -> None:
    """The tasks' names beside the map, each joined to its rightmost model."""
    axes.autoscale_view()
    low, high = axes.get_ylim()
    ends = [group.plane[group.plane[:, 0].argmax()] for group in groups]
    heights = spread([float((end[1] - low) / (high - low)) for end in ends], NAME / tall)
    for group, end, height in zip(groups, ends, heights):
        style: dict[str, Any] = {**look(group.number)}
        line = {"arrowstyle": "-", "color": style["color"], "linewidth": 0.8, "alpha": 0.7, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, (1.04, height), textcoords="axes fraction", arrowprops=line, zorder=1)
        axes.plot(1.045, height, markersize=8, transform=axes.transAxes, clip_on=False, linestyle="none", **style)
        axes.text(
            1.07, height, shortened(group.task or ""), transform=axes.transAxes, fontsize=name_size(len(groups)),
            color=INK, va="center_baseline", parse_math=False,
        )  # fmt: skip


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places from 0 to 1 near those wanted and in their order, `gap` apart, or as far as there is room for all."""
    gap = min(gap, 1 / max(len(wanted) - 1, 1))
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    places = [min(max(place, 0.0), 1.0) for place in wanted]
    for before, number in pairwise(order):
        places[number] = max(places[number], places[before] + gap)
    ceiling = 1.0
    for number in reversed(order):
        places[number] = min(places[number], ceiling)
        ceiling = places[number] - gap
    return places


def size_legend(groups: Sequence[Placed]) -> list[Line2D]:
    """Points of three sizes with their parameters."""
    from matplotlib.lines import Line2D

    sizes, diameter = sorted({size for group in groups for size in group.params}), diameters(groups)
    shown = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    style: dict[str, Any] = {"marker": "o", "linestyle": "none", "color": QUIET_INK, "markeredgecolor": PAPER}
    told = [human_count(size) for size in shown]
    told[-1] += " parameters"
    return [Line2D([], [], markersize=diameter(size), label=label, **style) for size, label in zip(shown, told)]
