"""Draw the two panels of the picture: the map of graph embeddings, and the similarities of tasks.

In the map a point is a model, its area proportional to the model's parameters, coloured by task or
else by layers. The similarities are a matrix with its numbers.
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

from learngene_zoo.plugin import Spec, count_params, format_count, plotting

# Diameters of the largest model, also among many tasks, and of the smallest.
LARGEST, CROWDED, SMALLEST = 15.0, 10.0, 3.0
NAME = 0.24  # height of a task's name beside the map, in inches
MAX_WIDTHS = 4  # widths that are labelled in the map
DARKEST, BRIGHTEST = 0.0, 0.88  # of the colours of layers; brighter yellow is invisible on white
MAX_NUMBERED, MAX_NAMED = 14, 32  # tasks in a matrix with numbers, and with names


@dataclass(frozen=True, eq=False)
class Cloud:
    """The models of all sizes for one task; for None if the encoder does not distinguish tasks."""

    task: str | None
    number: int  # of the task, which determines its colour
    specs: tuple[Spec, ...]
    points: ndarray  # (len(specs), h), or (len(specs), 2) in the plane of the map

    @property
    def params(self) -> list[int]:
        """Return the number of parameters of every model."""
        return [count_params(spec) for spec in self.specs]


def draw_map(axes: Axes, clouds: Sequence[Cloud], shares: tuple[float, float], tall: float) -> None:
    """Draw all points, with lines between those of one width from depth to depth.

    Args:
        axes: the panel.
        clouds: the points by task.
        shares: the components' shares of the variance.
        tall: the height of the map in inches.
    """
    shade = _draw_colour_bar(axes, clouds[0].specs) if len(clouds) == 1 else None
    for cloud in clouds:
        for run in _group_by_width(cloud.specs):
            colour, alpha = (
                (plotting.LINE, 1.0) if shade else (plotting.mark(cloud.number)["color"], 0.45)
            )
            axes.plot(
                *cloud.points[run].T,
                linewidth=1.1,
                solid_capstyle="round",
                zorder=2,
                color=colour,
                alpha=alpha,
            )
    points = [
        (cloud, *model)
        for cloud in clouds
        for model in zip(cloud.specs, cloud.params, cloud.points)
    ]
    diameter = build_diameter_scale(clouds)
    # Large ones first, so that they hide no other.
    for cloud, spec, size, position in sorted(points, key=lambda point: -point[2]):
        style: dict[str, Any] = {
            **plotting.mark(cloud.number),
            **({"color": shade(spec.layers)} if shade else {}),
        }
        edge: dict[str, Any] = {"markeredgecolor": plotting.PAPER, "markeredgewidth": 0.7}
        axes.plot(*position, markersize=diameter(size), linestyle="none", zorder=3, **edge, **style)
    _draw_frame(axes, shares)
    if _widths_dominate(clouds):
        _label_widths(axes, clouds)
    if len(clouds) > 1:
        _label_tasks(axes, clouds, tall)


def build_diameter_scale(clouds: Sequence[Cloud]) -> Callable[[int], float]:
    """Return the function from a number of parameters to a point's diameter in points.

    Areas are proportional to parameters.
    """
    largest_size = max(size for cloud in clouds for size in cloud.params)
    largest = LARGEST if len(clouds) <= len(plotting.COLOURS) else CROWDED
    return lambda size: max(largest * (size / largest_size) ** 0.5, SMALLEST)


def build_size_legend(clouds: Sequence[Cloud]) -> list[Line2D]:
    """Return points of three sizes with their parameters."""
    sizes = sorted({size for cloud in clouds for size in cloud.params})
    diameter = build_diameter_scale(clouds)
    chosen = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    style: dict[str, Any] = {"marker": "o", "linestyle": "none", "markeredgecolor": plotting.PAPER}
    labels = [format_count(size) + " parameters" * (size == chosen[-1]) for size in chosen]
    return [
        Line2D([], [], markersize=diameter(size), label=label, color=plotting.QUIET, **style)
        for size, label in zip(chosen, labels)
    ]


def _group_by_width(specs: Sequence[Spec]) -> Iterator[list[int]]:
    """Yield the indices of the models of each width, by increasing depth."""
    for width in sorted({spec.width for spec in specs}):
        yield sorted(
            (at for at, spec in enumerate(specs) if spec.width == width),
            key=lambda at: specs[at].layers,
        )


def _draw_colour_bar(axes: Axes, specs: Sequence[Spec]) -> Any:
    """Draw the colour bar and return the function from a number of layers to its colour."""
    depths = sorted({spec.layers for spec in specs})
    steps = [
        DARKEST + (BRIGHTEST - DARKEST) * at / max(len(depths) - 1, 1) for at in range(len(depths))
    ]
    colours = colormaps["viridis"](steps)
    bounds = [at - 0.5 for at in range(len(depths) + 1)]
    scale = ScalarMappable(BoundaryNorm(bounds, len(depths)), ListedColormap(colours))
    bar = axes.figure.colorbar(
        scale, cax=axes.inset_axes((1.03, 0.0, 0.025, 1.0)), ticks=range(len(depths))
    )
    bar.set_ticklabels([str(depth) for depth in depths], fontsize=plotting.TEXT, color=plotting.INK)
    bar.minorticks_off()
    bar.ax.tick_params(length=0)
    bar.ax.set_title("layers", fontsize=plotting.TEXT, color=plotting.INK, loc="left", pad=8)
    bar.outline.set_visible(False)
    return lambda layers: colours[depths.index(layers)]


def _draw_frame(axes: Axes, shares: tuple[float, float]) -> None:
    first, second = (f"component, {100 * share:.0f} % of the variance" for share in shares)
    axes.set(xlabel=f"first {first}", ylabel=f"second {second}", xticks=[], yticks=[])
    axes.margins(0.06)
    plotting.hide_edges(axes, "left", "bottom")
    axes.spines[:].set_color(plotting.QUIET)


def _widths_dominate(clouds: Sequence[Cloud]) -> bool:
    """Return whether one label fits all models of a width.

    There are few widths then, and they lie further apart than tasks.
    """
    widths = _compute_centres(clouds, lambda cloud, spec: spec.width)
    tasks = _compute_centres(clouds, lambda cloud, spec: cloud.number)
    spread, task_spread = (float(centres.var(axis=0).sum()) for centres in (widths, tasks))
    return 1 < len(widths) <= MAX_WIDTHS and spread >= task_spread


def _compute_centres(clouds: Sequence[Cloud], kind: Callable[[Cloud, Spec], int]) -> ndarray:
    """Return (kinds, 2) the mean position of the models of each kind."""
    groups: dict[int, list[ndarray]] = {}
    for cloud in clouds:
        for spec, point in zip(cloud.specs, cloud.points):
            groups.setdefault(kind(cloud, spec), []).append(point)
    return array([mean(points, axis=0) for points in groups.values()])


def _label_widths(axes: Axes, clouds: Sequence[Cloud]) -> None:
    """Label each width once, above the highest of its models."""
    for width in sorted({spec.width for cloud in clouds for spec in cloud.specs}):
        points = [
            point
            for cloud in clouds
            for spec, point in zip(cloud.specs, cloud.points)
            if spec.width == width
        ]
        axes.annotate(
            f"width {width}", max(points, key=lambda point: float(point[1])), (0, 9),
            textcoords="offset points",
            ha="center", va="bottom", fontsize=9.5, color=plotting.QUIET, zorder=5,
            path_effects=[withStroke(linewidth=2.5, foreground=plotting.PAPER)],
        )  # fmt: skip


def _label_tasks(axes: Axes, clouds: Sequence[Cloud], tall: float) -> None:
    """Write the tasks' names beside the map, each joined to its rightmost model."""
    axes.autoscale_view()
    low, high = axes.get_ylim()
    ends = [cloud.points[cloud.points[:, 0].argmax()] for cloud in clouds]
    heights = spread_heights([float((end[1] - low) / (high - low)) for end in ends], NAME / tall)
    for cloud, end, height in zip(clouds, ends, heights):
        style: dict[str, Any] = {**plotting.mark(cloud.number)}
        line = {
            "arrowstyle": "-",
            "color": style["color"],
            "linewidth": 0.8,
            "alpha": 0.7,
            "shrinkA": 0,
            "shrinkB": 0,
        }
        axes.annotate(
            "", end, (1.04, height), textcoords="axes fraction", arrowprops=line, zorder=1
        )
        axes.plot(
            1.045,
            height,
            markersize=8,
            transform=axes.transAxes,
            clip_on=False,
            linestyle="none",
            **style,
        )
        axes.text(
            1.07, height, plotting.shorten_label(cloud.task or ""), transform=axes.transAxes,
            fontsize=choose_name_size(len(clouds)),
            color=plotting.INK, va="center_baseline", parse_math=False,
        )  # fmt: skip


def choose_name_size(tasks: int) -> float:
    """Return the font size of the tasks' names in points."""
    return (
        plotting.TEXT
        if tasks <= len(plotting.COLOURS)
        else max(9.5 - 0.15 * max(tasks - 12, 0), 6.0)
    )


def spread_heights(preferred: Sequence[float], gap: float) -> list[float]:
    """Return heights from 0 to 1 near the preferred ones, in the same order.

    They are at least `gap` apart if there is room for all.
    """
    gap = min(gap, 1 / max(len(preferred) - 1, 1))
    order = sorted(range(len(preferred)), key=lambda number: preferred[number])
    places = [min(max(height, 0.0), 1.0) for height in preferred]
    for before, number in pairwise(order):
        places[number] = max(places[number], places[before] + gap)
    ceiling = 1.0
    for number in reversed(order):
        places[number] = min(places[number], ceiling)
        ceiling = places[number] - gap
    return places


def draw_similarity(
    axes: Axes, tasks: Sequence[str], similar: ndarray, order: Sequence[int]
) -> None:
    """Draw the matrix of similarities, from white for the least similar pair to blue for 1.

    Args:
        axes: the panel.
        tasks: the names.
        similar: (tasks, tasks).
        order: of rows and columns.
    """
    count = len(order)
    matrix = similar[list(order)][:, list(order)]
    minimum = min(float(matrix.min()), 0.99)
    blues = LinearSegmentedColormap.from_list(
        "white to blue", ["#f4f8fb", "#7fb7d9", plotting.COLOURS[0]]
    )
    axes.pcolormesh(
        matrix,
        cmap=blues,
        vmin=minimum,
        vmax=1,
        edgecolors=plotting.PAPER,
        linewidth=1.5 if count <= 16 else 0.4,
    )
    for row in range(count if count <= MAX_NUMBERED else 0):
        for column in range(count):
            value = float(matrix[row, column])
            dark = (value - minimum) / (1 - minimum) > 0.6
            axes.text(
                column + 0.5, row + 0.5, "1" if row == column else format_cosine(value),
                ha="center", va="center",
                fontsize=min(11, 74 / count), color=plotting.PAPER if dark else plotting.INK,
            )  # fmt: skip
    axes.set(xlim=(0, count), ylim=(count, 0), aspect="equal", xticks=[], yticks=[])
    plotting.hide_edges(axes)
    _label_rows_and_columns(axes, tasks, order)


def format_cosine(value: float) -> str:
    """Return two decimals, without a minus before 0.00."""
    return f"{round(value, 2) + 0.0:.2f}"


def _label_rows_and_columns(axes: Axes, tasks: Sequence[str], order: Sequence[int]) -> None:
    """Draw names and marks of the tasks, left of the rows and above the columns.

    Their colours are those of the map.
    """
    count = len(order)
    unit = count / 100
    style: dict[str, Any] = {
        "fontsize": choose_name_size(count),
        "color": plotting.INK,
        "parse_math": False,
        "clip_on": False,
    }
    for position, task in enumerate(order):
        at, name = position + 0.5, plotting.shorten_label(tasks[task]) if count <= MAX_NAMED else ""
        dot: dict[str, Any] = {
            "markersize": min(8, 110 / count),
            "clip_on": False,
            **plotting.mark(task),
        }
        for mark in ((-3 * unit, at), (at, -3 * unit)):
            axes.plot(*mark, linestyle="none", **dot)
        axes.text(-6 * unit, at, name, ha="right", va="center_baseline", **style)
        axes.text(
            at - 1 * unit,
            -5.5 * unit,
            name,
            ha="left",
            va="bottom",
            rotation=38,
            rotation_mode="anchor",
            **style,
        )
