"""How similar the tasks' embeddings are: their cosines as a matrix with its numbers. Cold at its top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lgzoo_tal.plot_style import INK, PAPER, look, name_size, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy import ndarray

MOST_NUMBERED = 14  # tasks whose cells have room for their numbers
MOST_NAMED = 32


def draw_similarity(axes: Axes, tasks: Sequence[str], similar: ndarray, order: Sequence[int]) -> None:
    """The matrix (tasks, tasks) with its rows and columns in `order`. The least similar pair is white, equal ones are blue."""
    from matplotlib.colors import LinearSegmentedColormap

    count = len(order)
    matrix = similar[list(order)][:, list(order)]
    least = min(float(matrix.min()), 0.99)
    blues = LinearSegmentedColormap.from_list("white to blue", ["#f4f8fb", "#7fb7d9", "#0072b2"])
    axes.pcolormesh(matrix, cmap=blues, vmin=least, vmax=1, edgecolors=PAPER, linewidth=1.5 if count <= 16 else 0.4)
    for row in range(count if count <= MOST_NUMBERED else 0):
        for column in range(count):
            value = float(matrix[row, column])
            dark = (value - least) / (1 - least) > 0.6
            axes.text(
                column + 0.5, row + 0.5, "1" if row == column else number(value), ha="center", va="center",
                fontsize=min(11, 74 / count), color=PAPER if dark else INK,
            )  # fmt: skip
    axes.set(xlim=(0, count), ylim=(count, 0), aspect="equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    _names(axes, tasks, order)


def number(value: float) -> str:
    """Two digits behind the point; a small negative one is no minus nought."""
    return f"{round(value, 2) + 0.0:.2f}"


def _names(axes: Axes, tasks: Sequence[str], order: Sequence[int]) -> None:
    """Before the rows and on top of the columns, with the colours of the map."""
    count = len(order)
    unit = count / 100
    style: dict[str, Any] = {"fontsize": name_size(count), "color": INK, "parse_math": False, "clip_on": False}
    for place, task in enumerate(order):
        at, name = place + 0.5, shortened(tasks[task]) if count <= MOST_NAMED else ""
        mark: dict[str, Any] = {"markersize": min(8, 110 / count), "clip_on": False, "linestyle": "none", **look(task)}
        axes.plot(-3 * unit, at, **mark)
        axes.plot(at, -3 * unit, **mark)
        axes.text(-6 * unit, at, name, ha="right", va="center_baseline", **style)
        axes.text(
            at - 1 * unit, -5.5 * unit, name, ha="left", va="bottom", rotation=38, rotation_mode="anchor", **style
        )
