"""Draw a search: for every data set the path through the layers, above them usage and threshold."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from learngene_zoo.plugin import Expander, Learngene, plotting
from lgzoo_lsamd.blocks import (
    SearchResult,
    count_usage,
    read_details,
    read_kept_blocks,
    split_stages,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

INK, LINE, SMALL = plotting.INK, plotting.LINE, plotting.SMALL
BASE, KEPT = plotting.COLOURS[:2]
SPECIFIC = plotting.tint(plotting.COLOURS[4], 0.4)
CELL, BARS, GAP = 0.52, 1.5, 0.22  # inches: of a cell, of the upper part, and between the parts


def draw_picture(learngene: Learngene, expander: Expander) -> Figure:
    """Draw the paths, and above them the usage; the same for every expander.

    A learngene whose blocks were named (`keep`) has no paths: then its kept blocks are drawn alone.
    """
    config = learngene.config
    details, blocks, layers = read_details(config), read_kept_blocks(config), config.spec.layers
    results, rows = details.datasets, max(len(details.datasets), 1)
    width, below, above = CELL * layers, CELL * rows, BARS if results else 0.0
    figure = plotting.new_figure(width, below + above)
    lower = plotting.add_axes(figure, 0, 0, width, below)
    if results:
        upper = plotting.add_axes(figure, 0, below + GAP, width, BARS - GAP, sharex=lower)
        _draw_usage(upper, count_usage(results), blocks, details.threshold, len(results))
        _draw_cells(lower, results)
    else:
        _draw_kept(lower, layers, blocks)
    _draw_layer_axis(lower, layers, blocks)
    _draw_stages(lower, blocks, rows)
    title = _format_title(layers, blocks, len(results))
    figure.axes[-1].set_title(title, loc="left", pad=12, fontsize=11, color=INK, weight="bold")
    return figure


def _format_title(layers: int, blocks: Sequence[int], data_sets: int) -> str:
    names = ", ".join(map(str, blocks))
    origin = (
        f"found on {data_sets} data set{'s' * (data_sets > 1)}"
        if data_sets
        else "named with --keep"
    )
    return f"LSAMD keeps {len(blocks)} of {layers} blocks ({names}), {origin}"


def _draw_usage(
    axes: Axes,
    counts: Sequence[int],
    blocks: Collection[int],
    threshold: float | None,
    data_sets: int,
) -> None:
    """Draw by how many data sets each base block is preferred, kept ones in another colour."""
    xs = range(1, len(counts) + 1)
    axes.bar(xs, counts, width=0.72, color=[KEPT if i in blocks else LINE for i in xs], zorder=2)
    for i, count in zip(xs, counts):
        # On white, so that the line of the threshold does not cross the number.
        paper = {"facecolor": plotting.PAPER, "edgecolor": "none", "pad": 0.8}
        y = count + 0.05 * data_sets
        axes.text(
            i,
            y,
            str(count),
            ha="center",
            va="bottom",
            fontsize=SMALL,
            color=INK,
            bbox=paper,
            zorder=4,
        )
    if threshold is not None:
        axes.axhline(threshold, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
        axes.text(
            len(counts) + 0.62,
            threshold,
            f"τ = {threshold:g}",
            va="center",
            fontsize=SMALL,
            color=INK,
        )
    axes.set_ylim(0, data_sets * 1.2)
    axes.set_yticks(range(0, data_sets + 1, max(1, data_sets // 4)))
    axes.set_ylabel("usage G", fontsize=SMALL, color=INK)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    plotting.hide_edges(axes, "left")


def _draw_cells(axes: Axes, results: Mapping[str, SearchResult]) -> None:
    """Draw a cell per data set and layer, with the per cent of images that prefer the base."""
    for row, result in enumerate(results.values()):
        for layer, (base, share) in enumerate(zip(result.paths, result.shares), start=1):
            axes.add_patch(_build_tile(layer, row, BASE if base else SPECIFIC))
            ink, text = plotting.PAPER if base else INK, f"{math.floor(100 * share)}"
            axes.text(layer, row, text, ha="center", va="center", fontsize=7.5, color=ink)
        end, accuracy = len(result.paths) + 0.62, f"{100 * result.validation_accuracy:.1f} %"
        axes.text(end, row, accuracy, va="center", fontsize=SMALL, color=INK)
    axes.text(end, -0.72, "accuracy", va="center", fontsize=SMALL, color=INK)
    axes.set_yticks(range(len(results)), list(results), fontsize=plotting.TEXT, color=INK)
    _draw_legend(axes, len(results))


def _draw_legend(axes: Axes, rows: int) -> None:
    from matplotlib.patches import Patch

    axes.legend(
        handles=[
            Patch(color=BASE, label="base block"),
            Patch(color=SPECIFIC, label="specific block"),
            Patch(
                color="none",
                label="in the cells: % of validation images that prefer the base block",
            ),
        ],
        loc="upper left",
        bbox_to_anchor=(-0.01, -0.62 / rows),
        ncols=3,
        frameon=False,
        fontsize=SMALL,
        handlelength=1.1,
        columnspacing=1.4,
    )


def _draw_kept(axes: Axes, layers: int, blocks: Collection[int]) -> None:
    for layer in range(1, layers + 1):
        axes.add_patch(_build_tile(layer, 0, KEPT if layer in blocks else LINE))
    axes.set_yticks([0], ["kept"], fontsize=plotting.TEXT, color=INK)


def _build_tile(layer: int, row: int, colour: str) -> Patch:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.12"
    corner = (layer - 0.43, row - 0.41)
    return FancyBboxPatch(
        corner, 0.86, 0.82, boxstyle=style, facecolor=colour, edgecolor="none", zorder=2
    )


def _draw_layer_axis(axes: Axes, layers: int, blocks: Collection[int]) -> None:
    plotting.hide_edges(axes)
    axes.set(xlim=(0.4, layers + 0.6), xticks=range(1, layers + 1))
    for label in axes.get_xticklabels():
        is_kept = int(label.get_text() or 0) in blocks
        label.set(
            color=KEPT if is_kept else INK,
            fontweight="bold" if is_kept else "normal",
            fontsize=SMALL,
        )


def _draw_stages(axes: Axes, blocks: Sequence[int], rows: int) -> None:
    """Draw a line under the layer numbers of each stage."""
    axes.set_ylim(rows - 0.45, -0.5)
    for stage in split_stages(blocks):
        axes.plot(
            [stage[0] - 0.36, stage[-1] + 0.36],
            [-0.42 / rows, -0.42 / rows],
            transform=axes.get_xaxis_transform(),
            color=KEPT,
            linewidth=2.4,
            solid_capstyle="round",
            clip_on=False,
        )
