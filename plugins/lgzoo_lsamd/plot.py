"""The picture of a search: for every data set the path through the layers, above it the usage G and the threshold.

Cold at its top. Drawn without pyplot, so that no window system and no global state is touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from learngene_zoo.plugin import Expander, Learngene
from lgzoo_lsamd.details import Path, kept_blocks, paths, threshold, usage
from lgzoo_lsamd.stages import stages

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASE, SPECIFIC, KEPT, QUIET, INK = "#2f6f8f", "#f0d9b5", "#c8553d", "#c9ced3", "#22303a"
CELL, BARS, GAP = 0.52, 1.5, 0.22  # inches: of a cell, of the upper part, and between the parts


def picture(learngene: Learngene, expander: Expander) -> Figure:
    """The paths, and above them the usage; the same for every expander.

    A learngene whose blocks were named by hand (`keep`) has no paths: then its kept blocks are drawn alone.
    """
    from matplotlib.figure import Figure

    config = learngene.config
    layers, kept, found = config.spec.layers, kept_blocks(config), paths(config)
    rows = max(len(found), 1)
    width, below, above = CELL * layers, CELL * rows, BARS if found else 0.0
    figure = Figure(figsize=(width, below + above), facecolor="white")
    lower = figure.add_axes((0, 0, 1, below / (below + above)))
    if found:
        upper = figure.add_axes((0, (below + GAP) / (below + above), 1, (BARS - GAP) / (below + above)), sharex=lower)
        _usage(upper, usage(config), kept, threshold(config), len(found))
        _cells(lower, found)
    else:
        _hand_made(lower, layers, kept)
    _layer_axis(lower, layers, kept)
    _stage_marks(lower, kept, rows)
    title = _title(learngene, kept, len(found))
    figure.axes[-1].set_title(title, loc="left", pad=12, fontsize=11, color=INK, weight="bold")
    return figure


def _title(learngene: Learngene, kept: Sequence[int], data_sets: int) -> str:
    names = ", ".join(map(str, kept))
    found = f"found on {data_sets} data set{'s' * (data_sets > 1)}" if data_sets else "named by hand"
    return f"LSAMD keeps {len(kept)} of {learngene.config.spec.layers} blocks ({names}), {found}"


def _usage(axes: Axes, counts: Sequence[int], kept: Sequence[int], limit: float | None, data_sets: int) -> None:
    """Bars: by how many data sets each base block is preferred; the kept ones stand out."""
    at = range(1, len(counts) + 1)
    axes.bar(at, counts, width=0.72, color=[KEPT if i in kept else QUIET for i in at], zorder=2)
    for i, count in zip(at, counts):
        # On white, so that the line of the threshold does not cross the number.
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        place = count + 0.05 * data_sets
        axes.text(i, place, str(count), ha="center", va="bottom", fontsize=8, color=INK, bbox=paper, zorder=4)
    if limit is not None:
        axes.axhline(limit, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
        axes.text(len(counts) + 0.62, limit, f"τ = {limit:g}", va="center", fontsize=9, color=INK)
    axes.set_ylim(0, data_sets * 1.2)
    axes.set_yticks(range(0, data_sets + 1, max(1, data_sets // 4)))
    axes.set_ylabel("usage G", fontsize=9, color=INK)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    _bare(axes, "left")


def _cells(axes: Axes, found: Sequence[Path]) -> None:
    """One rounded cell per data set and layer, with the share of images that prefer the base block in percent."""
    from matplotlib.patches import FancyBboxPatch, Patch

    for row, path in enumerate(found):
        for layer, (base, share) in enumerate(zip(path.base, path.shares), start=1):
            colour = BASE if base else SPECIFIC
            axes.add_patch(_tile(FancyBboxPatch, layer, row, colour))
            ink = "white" if base else INK
            axes.text(layer, row, f"{math.floor(100 * share)}", ha="center", va="center", fontsize=7.5, color=ink)
        axes.text(len(path.base) + 0.62, row, f"{100 * path.accuracy:.1f} %", va="center", fontsize=9, color=INK)
    axes.text(len(found[0].base) + 0.62, -0.72, "accuracy", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(found)), [path.task for path in found], fontsize=9.5, color=INK)
    axes.legend(
        handles=[
            Patch(color=BASE, label="base block"),
            Patch(color=SPECIFIC, label="specific block"),
            Patch(color="none", label="in the cells: % of validation images that prefer the base block"),
        ],
        loc="upper left",
        bbox_to_anchor=(-0.01, -0.62 / len(found)),
        ncols=3,
        frameon=False,
        fontsize=8,
        handlelength=1.1,
        columnspacing=1.4,
    )


def _hand_made(axes: Axes, layers: int, kept: Sequence[int]) -> None:
    from matplotlib.patches import FancyBboxPatch

    for layer in range(1, layers + 1):
        axes.add_patch(_tile(FancyBboxPatch, layer, 0, KEPT if layer in kept else QUIET))
    axes.set_yticks([0], ["kept"], fontsize=9.5, color=INK)


def _tile(kind: Any, layer: int, row: int, colour: str) -> Any:
    style = "round,pad=0,rounding_size=0.12"
    return kind((layer - 0.43, row - 0.41), 0.86, 0.82, boxstyle=style, facecolor=colour, edgecolor="none", zorder=2)


def _layer_axis(axes: Axes, layers: int, kept: Sequence[int]) -> None:
    _bare(axes, None)
    axes.set_xlim(0.4, layers + 0.6)
    axes.set_xticks(range(1, layers + 1))
    for label in axes.get_xticklabels():
        is_kept = int(label.get_text() or 0) in kept
        label.set_color(KEPT if is_kept else INK)
        label.set_fontweight("bold" if is_kept else "normal")
        label.set_fontsize(9)


def _stage_marks(axes: Axes, kept: Sequence[int], rows: int) -> None:
    """A line under the layer numbers of each stage."""
    axes.set_ylim(rows - 0.45, -0.5)
    below = axes.get_xaxis_transform()
    for stage in stages(kept):
        axes.plot(
            [stage[0] - 0.36, stage[-1] + 0.36],
            [-0.42 / rows, -0.42 / rows],
            transform=below,
            color=KEPT,
            linewidth=2.4,
            solid_capstyle="round",
            clip_on=False,
        )


def _bare(axes: Axes, spine: str | None) -> None:
    for side, line in axes.spines.items():
        line.set_visible(side == spine)
        line.set_color(QUIET)
    axes.tick_params(length=0, colors=INK)
