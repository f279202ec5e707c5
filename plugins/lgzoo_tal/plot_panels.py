"""The two panels of the picture: the map of graph embeddings, and the similarities of tasks as a matrix with its numbers.

In the map a point is a model, its area proportional to the model's parameters, coloured by task or else by layers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap, ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy import array, mean, ndarray

from learngene_zoo.plugin import Spec, count_params, human_count, plotting

# Diameters of the largest model, also among many tasks, and of the smallest.
LARGEST, CROWDED, SMALLEST = 15.0, 10.0, 3.0
NAME = 0.24  # height of a task's name beside the map, in inches
MOST_WIDTHS = 4  # widths that are labelled in the map
DARKEST, BRIGHTEST = 0.0, 0.88  # of the colours of layers; brighter yellow is invisible on white
MOST_NUMBERED, MOST_NAMED = 14, 32  # tasks in a matrix with numbers, and with names


@dataclass(frozen=True, eq=False)
class Cloud:
    """The models of all sizes for one task; for None if the encoder does not distinguish tasks."""

    task: str | None
    number: int  # of the task, which determines its colour
    specs: tuple[Spec, ...]
    points: ndarray  # (len(specs), h), or (len(specs), 2) in the plane of the map

    @property
    def params(self) -> list[int]:
        """The parameters of every model."""
        return [count_params(spec) for spec in self.specs]


def draw_map(axes: Axes, clouds: Sequence[Cloud], shares: tuple[float, float], tall: float) -> None:
    """Draw all points, with lines between those of one width from depth to depth.

    `shares` are the components' shares of the variance, `tall` is the height of the map in inches.
    """
    shade = _by_layers(axes, clouds[0].specs) if len(clouds) == 1 else None
    for cloud in clouds:
        for run in _runs(cloud.specs):
            colour, alpha = (plotting.LINE, 1.0) if shade else (plotting.mark(cloud.number)["color"], 0.45)
            axes.plot(*cloud.points[run].T, linewidth=1.1, solid_capstyle="round", zorder=2, color=colour, alpha=alpha)
    points = [(cloud, *one) for cloud in clouds for one in zip(cloud.specs, cloud.params, cloud.points)]
    diameter = diameters(clouds)
    # Large ones first, so that they hide no other.
    for cloud, spec, size, place in sorted(points, key=lambda point: -point[2]):
        style: dict[str, Any] = {**plotting.mark(cloud.number), **({"color": shade(spec.layers)} if shade else {})}
        edge: dict[str, Any] = {"markeredgecolor": plotting.PAPER, "markeredgewidth": 0.7}
        axes.plot(*place, markersize=diameter(size), linestyle="none", zorder=3, **edge, **style)
    _frame(axes, shares)
    if _widths_dominate(clouds):
        _label_widths(axes, clouds)
    if len(clouds) > 1:
        _label_tasks(axes, clouds, tall)


def diameters(clouds: Sequence[Cloud]) -> Callable[[int], float]:
    """From a number of parameters to a point's diameter in points; areas are proportional to parameters."""
    most = max(size for cloud in clouds for size in cloud.params)
    largest = LARGEST if len(clouds) <= len(plotting.COLOURS) else CROWDED
    return lambda size: max(largest * (size / most) ** 0.5, SMALLEST)


def size_legend(clouds: Sequence[Cloud]) -> list[Line2D]:
    """Points of three sizes with their parameters."""
    sizes, diameter = sorted({size for cloud in clouds for size in cloud.params}), diameters(clouds)
    shown = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    style: dict[str, Any] = {"marker": "o", "linestyle": "none", "markeredgecolor": plotting.PAPER}
    labels = [human_count(size) + " parameters" * (size == shown[-1]) for size in shown]
    return [
        Line2D([], [], markersize=diameter(size), label=label, color=plotting.QUIET, **style)
        for size, label in zip(shown, labels)
    ]


def _runs(specs: Sequence[Spec]) -> Iterator[list[int]]:
    """The indices of the models of each width, by increasing depth."""
    for width in sorted({spec.width for spec in specs}):
        yield sorted((at for at, spec in enumerate(specs) if spec.width == width), key=lambda at: specs[at].layers)


def _by_layers(axes: Axes, specs: Sequence[Spec]) -> Any:
    """From a number of layers to its colour; draws the colour bar."""
    depths = sorted({spec.layers for spec in specs})
    steps = [DARKEST + (BRIGHTEST - DARKEST) * at / max(len(depths) - 1, 1) for at in range(len(depths))]
    colours = colormaps["viridis"](steps)
    bounds = [at - 0.5 for at in range(len(depths) + 1)]
    scale = ScalarMappable(BoundaryNorm(bounds, len(depths)), ListedColormap(colours))
    bar = axes.figure.colorbar(scale, cax=axes.inset_axes((1.03, 0.0, 0.025, 1.0)), ticks=range(len(depths)))
    bar.set_ticklabels([str(depth) for depth in depths], fontsize=plotting.TEXT, color=plotting.INK)
    bar.minorticks_off()
    bar.ax.tick_params(length=0)
    bar.ax.set_title("layers", fontsize=plotting.TEXT, color=plotting.INK, loc="left", pad=8)
    bar.outline.set_visible(False)
    return lambda layers: colours[depths.index(layers)]


def _frame(axes: Axes, shares: tuple[float, float]) -> None:
    first, second = (f"component, {100 * share:.0f} % of the variance" for share in shares)
    axes.set(xlabel=f"first {first}", ylabel=f"second {second}", xticks=[], yticks=[])
    axes.margins(0.06)
    plotting.bare(axes, "left", "bottom")
    axes.spines[:].set_color(plotting.QUIET)


def _widths_dominate(clouds: Sequence[Cloud]) -> bool:
    """Whether there are few widths and they lie further apart than tasks, so that one label fits all models of a width."""
    widths = _centres(clouds, lambda cloud, spec: spec.width)
    tasks = _centres(clouds, lambda cloud, spec: cloud.number)
    return 1 < len(widths) <= MOST_WIDTHS and float(widths.var(axis=0).sum()) >= float(tasks.var(axis=0).sum())


def _centres(clouds: Sequence[Cloud], kind: Callable[[Cloud, Spec], int]) -> ndarray:
    """(kinds, 2) the mean place of the models of each kind."""
    found: dict[int, list[ndarray]] = {}
    for cloud in clouds:
        for spec, place in zip(cloud.specs, cloud.points):
            found.setdefault(kind(cloud, spec), []).append(place)
    return array([mean(places, axis=0) for places in found.values()])


def _label_widths(axes: Axes, clouds: Sequence[Cloud]) -> None:
    """Each width once, above the highest of its models."""
    for width in sorted({spec.width for cloud in clouds for spec in cloud.specs}):
        places = [place for cloud in clouds for spec, place in zip(cloud.specs, cloud.points) if spec.width == width]
        axes.annotate(
            f"width {width}", max(places, key=lambda place: float(place[1])), (0, 9), textcoords="offset points",
            ha="center", va="bottom", fontsize=9.5, color=plotting.QUIET, zorder=5,
            path_effects=[withStroke(linewidth=2.5, foreground=plotting.PAPER)],
        )  # fmt: skip


def _label_tasks(axes: Axes, clouds: Sequence[Cloud], tall: float) -> None:
    """The tasks' names beside the map, each joined to its rightmost model."""
    axes.autoscale_view()
    low, high = axes.get_ylim()
    ends = [cloud.points[cloud.points[:, 0].argmax()] for cloud in clouds]
    heights = spread([float((end[1] - low) / (high - low)) for end in ends], NAME / tall)
    for cloud, end, height in zip(clouds, ends, heights):
        style: dict[str, Any] = {**plotting.mark(cloud.number)}
        line = {"arrowstyle": "-", "color": style["color"], "linewidth": 0.8, "alpha": 0.7, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, (1.04, height), textcoords="axes fraction", arrowprops=line, zorder=1)
        axes.plot(1.045, height, markersize=8, transform=axes.transAxes, clip_on=False, linestyle="none", **style)
        axes.text(
            1.07, height, plotting.shortened(cloud.task or ""), transform=axes.transAxes, fontsize=name_size(len(clouds)),
            color=plotting.INK, va="center_baseline", parse_math=False,
        )  # fmt: skip


def name_size(tasks: int) -> float:
    """The font size of the tasks' names in points."""
    return plotting.TEXT if tasks <= len(plotting.COLOURS) else max(9.5 - 0.15 * max(tasks - 12, 0), 6.0)


def spread(preferred: Sequence[float], gap: float) -> list[float]:
    """Places from 0 to 1 near the preferred ones, in the same order, at least `gap` apart if there is room for all."""
    gap = min(gap, 1 / max(len(preferred) - 1, 1))
    order = sorted(range(len(preferred)), key=lambda number: preferred[number])
    places = [min(max(place, 0.0), 1.0) for place in preferred]
    for before, number in pairwise(order):
        places[number] = max(places[number], places[before] + gap)
    ceiling = 1.0
    for number in reversed(order):
        places[number] = min(places[number], ceiling)
        ceiling = places[number] - gap
    return places


def draw_similarity(axes: Axes, tasks: Sequence[str], similar: ndarray, order: Sequence[int]) -> None:
    """Draw the matrix (tasks, tasks), rows and columns in `order`, from white for the least similar pair to blue for 1."""
    count = len(order)
    matrix = similar[list(order)][:, list(order)]
    least = min(float(matrix.min()), 0.99)
    blues = LinearSegmentedColormap.from_list("white to blue", ["#f4f8fb", "#7fb7d9", plotting.COLOURS[0]])
    axes.pcolormesh(
        matrix, cmap=blues, vmin=least, vmax=1, edgecolors=plotting.PAPER, linewidth=1.5 if count <= 16 else 0.4
    )
    for row in range(count if count <= MOST_NUMBERED else 0):
        for column in range(count):
            value = float(matrix[row, column])
            dark = (value - least) / (1 - least) > 0.6
            axes.text(
                column + 0.5, row + 0.5, "1" if row == column else number(value), ha="center", va="center",
                fontsize=min(11, 74 / count), color=plotting.PAPER if dark else plotting.INK,
            )  # fmt: skip
    axes.set(xlim=(0, count), ylim=(count, 0), aspect="equal", xticks=[], yticks=[])
    plotting.bare(axes)
    _label_rows_and_columns(axes, tasks, order)


def number(value: float) -> str:
    """Two decimals, without a minus before 0.00."""
    return f"{round(value, 2) + 0.0:.2f}"


def _label_rows_and_columns(axes: Axes, tasks: Sequence[str], order: Sequence[int]) -> None:
    """Names and marks of the tasks, left of the rows and above the columns, in the colours of the map."""
    count = len(order)
    unit = count / 100
    style: dict[str, Any] = {"fontsize": name_size(count), "color": plotting.INK, "parse_math": False, "clip_on": False}
    for place, task in enumerate(order):
        at, name = place + 0.5, plotting.shortened(tasks[task]) if count <= MOST_NAMED else ""
        dot: dict[str, Any] = {"markersize": min(8, 110 / count), "clip_on": False, **plotting.mark(task)}
        for mark in ((-3 * unit, at), (at, -3 * unit)):
            axes.plot(*mark, linestyle="none", **dot)
        axes.text(-6 * unit, at, name, ha="right", va="center_baseline", **style)
        axes.text(
            at - 1 * unit, -5.5 * unit, name, ha="left", va="bottom", rotation=38, rotation_mode="anchor", **style
        )
