"""The picture of a closed_form learngene: the losses of smaller depths and of smaller widths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from learngene_zoo.plugin import Expander, Learngene, from_json, plotting
from lgzoo_closed_form.closed_form import ClosedFormDetails

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (3.9, 2.7)  # inches


def draw_picture(learngene: Learngene, expander: Expander) -> Figure:
    """Draw the objective of the best cuts by depth, and the variance that each width keeps.

    Both were computed in the extraction, so the picture is the same for every expander.
    """
    details = from_json(ClosedFormDetails, learngene.config.details, "details")
    figure, (depth, width) = plotting.subplots(1, 2, PANEL)
    depths = range(1, len(details.objective) + 1)
    _draw_curve(depth, depths, details.objective, "layers of the descendant")
    depth.set_ylabel("objective of the cuts")
    depth.set_title("What depth loses", loc="left")
    shares = list(accumulate(details.variance))
    _draw_curve(width, range(1, len(shares) + 1), shares, "width of the descendant")
    width.set_ylabel("share of the variance kept")
    width.set_title("What width keeps", loc="left")
    return plotting.settle(figure)


def _draw_curve(axes: Axes, sizes: Sequence[int], values: Sequence[float], label: str) -> None:
    marker = "o" if len(sizes) <= 24 else ""
    axes.plot(sizes, values, color=plotting.COLOURS[0], marker=marker, markersize=4)
    axes.set_ylim(0, 1.05 * max([*values, 1e-9]))
    axes.set_xlabel(label)
