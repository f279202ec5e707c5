"""The picture of a search: for every data set the path through the layers, above them the usage G and the threshold."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from learngene_zoo.plugin import Expander, Learngene, plotting
from lgzoo_lsamd.blocks import Found, kept_blocks, read_details, stages, usage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

INK, LINE, SMALL = plotting.INK, plotting.LINE, plotting.SMALL
BASE, KEPT = plotting.COLOURS[:2]
SPECIFIC = plotting.tint(plotting.COLOURS[4], 0.4)
CELL, BARS, GAP = 0.52, 1.5, 0.22  # inches: of a cell, of the upper part, and between the parts


def picture(learngene: Learngene, expander: Expander) -> Figure:
    """The paths, and above them the usage; the same for every expander.

    A learngene whose blocks were named (`keep`) has no paths: then its kept blocks are drawn alone.
    """
    config = learngene.config
    details, kept, layers = read_details(config), kept_blocks(config), config.spec.layers
    found, rows = details.datasets, max(len(details.datasets), 1)
    width, below, above = CELL * layers, CELL * rows, BARS if details.datasets else 0.0
    figure = plotting.new_figure(width, below + above)
    lower = plotting.axes_at(figure, 0, 0, width, below)
    if found:
        upper = plotting.axes_at(figure, 0, below + GAP, width, BARS - GAP, sharex=lower)
        _usage(upper, usage(found), kept, details.threshold, len(found))
        _cells(lower, found)
    else:
        _named(lower, layers, kept)
    _layer_axis(lower, layers, kept)
    _stage_marks(lower, kept, rows)
    title = _title(layers, kept, len(found))
    figure.axes[-1].set_title(title, loc="left", pad=12, fontsize=11, color=INK, weight="bold")
    return figure


def _title(layers: int, kept: Sequence[int], data_sets: int) -> str:
    names = ", ".join(map(str, kept))
    found = f"found on {data_sets} data set{'s' * (data_sets > 1)}" if data_sets else "named with --keep"
    return f"LSAMD keeps {len(kept)} of {layers} blocks ({names}), {found}"


def _usage(axes: Axes, counts: Sequence[int], kept: Collection[int], limit: float | None, data_sets: int) -> None:
    """Bars: by how many data sets each base block is preferred, the kept ones in another colour."""
    at = range(1, len(counts) + 1)
    axes.bar(at, counts, width=0.72, color=[KEPT if i in kept else LINE for i in at], zorder=2)
    for i, count in zip(at, counts):
        # On white, so that the line of the threshold does not cross the number.
        paper = {"facecolor": plotting.PAPER, "edgecolor": "none", "pad": 0.8}
        place = count + 0.05 * data_sets
        axes.text(i, place, str(count), ha="center", va="bottom", fontsize=SMALL, color=INK, bbox=paper, zorder=4)
    if limit is not None:
        axes.axhline(limit, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
        axes.text(len(counts) + 0.62, limit, f"τ = {limit:g}", va="center", fontsize=SMALL, color=INK)
    axes.set_ylim(0, data_sets * 1.2)
    axes.set_yticks(range(0, data_sets + 1, max(1, data_sets // 4)))
    axes.set_ylabel("usage G", fontsize=SMALL, color=INK)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    plotting.bare(axes, "left")


def _cells(axes: Axes, found: Mapping[str, Found]) -> None:
    """One rounded cell per data set and layer, with the share of images that prefer the base block in percent."""
    for row, one in enumerate(found.values()):
        for layer, (base, share) in enumerate(zip(one.paths, one.shares), start=1):
            axes.add_patch(_tile(layer, row, BASE if base else SPECIFIC))
            ink = plotting.PAPER if base else INK
            axes.text(layer, row, f"{math.floor(100 * share)}", ha="center", va="center", fontsize=7.5, color=ink)
        end = len(one.paths) + 0.62
        axes.text(end, row, f"{100 * one.validation_accuracy:.1f} %", va="center", fontsize=SMALL, color=INK)
    axes.text(end, -0.72, "accuracy", va="center", fontsize=SMALL, color=INK)
    axes.set_yticks(range(len(found)), list(found), fontsize=plotting.TEXT, color=INK)
    _legend(axes, len(found))


def _legend(axes: Axes, rows: int) -> None:
    from matplotlib.patches import Patch

    axes.legend(
        handles=[
            Patch(color=BASE, label="base block"),
            Patch(color=SPECIFIC, label="specific block"),
            Patch(color="none", label="in the cells: % of validation images that prefer the base block"),
        ],
        loc="upper left",
        bbox_to_anchor=(-0.01, -0.62 / rows),
        ncols=3,
        frameon=False,
        fontsize=SMALL,
        handlelength=1.1,
        columnspacing=1.4,
    )


def _named(axes: Axes, layers: int, kept: Collection[int]) -> None:
    for layer in range(1, layers + 1):
        axes.add_patch(_tile(layer, 0, KEPT if layer in kept else LINE))
    axes.set_yticks([0], ["kept"], fontsize=plotting.TEXT, color=INK)


def _tile(layer: int, row: int, colour: str) -> Patch:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.12"
    place = (layer - 0.43, row - 0.41)
    return FancyBboxPatch(place, 0.86, 0.82, boxstyle=style, facecolor=colour, edgecolor="none", zorder=2)


def _layer_axis(axes: Axes, layers: int, kept: Collection[int]) -> None:
    plotting.bare(axes)
    axes.set(xlim=(0.4, layers + 0.6), xticks=range(1, layers + 1))
    for label in axes.get_xticklabels():
        is_kept = int(label.get_text() or 0) in kept
        label.set(color=KEPT if is_kept else INK, fontweight="bold" if is_kept else "normal", fontsize=SMALL)


def _stage_marks(axes: Axes, kept: Sequence[int], rows: int) -> None:
    """A line under the layer numbers of each stage."""
    axes.set_ylim(rows - 0.45, -0.5)
    for stage in stages(kept):
        axes.plot(
            [stage[0] - 0.36, stage[-1] + 0.36],
            [-0.42 / rows, -0.42 / rows],
            transform=axes.get_xaxis_transform(),
            color=KEPT,
            linewidth=2.4,
            solid_capstyle="round",
            clip_on=False,
        )
