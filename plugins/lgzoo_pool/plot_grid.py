"""The blocks of every anchor in a row, their height by its width, the stitches between them, and one path highlighted.

x counts blocks from 0; anchors with fewer blocks than the deepest are stretched, as their stitches pair them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from learngene_zoo.plugin import plotting
from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.paths import Path, Stitch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

HIGHLIGHT = plotting.COLOURS[3]
ANCHORS = [colour for colour in plotting.COLOURS if colour != HIGHLIGHT]
TAKEN: dict[str, Any] = {"color": HIGHLIGHT, "linewidth": 4.0, "zorder": 5}
SHARING: dict[str, Any] = {"color": HIGHLIGHT, "linewidth": 1.6, "zorder": 4}
OTHER: dict[str, Any] = {"color": plotting.LINE, "linewidth": 1.1, "zorder": 3}
BOX, TALLEST, LOWEST = 0.72, 0.62, 0.15  # a block's width; the height of the widest and of the lowest blocks, in rows
MOST_NUMBERED = 18  # blocks in a row that have room for their numbers
ROOM = 9  # blocks in a row that leaves stem and head their natural width


def colour_of(anchor: int) -> str:
    """An anchor's colour."""
    return ANCHORS[anchor % len(ANCHORS)]


def draw_grid(axes: Axes, details: StitchedDetails, path: Path) -> None:
    """Draw everything, with the path highlighted."""
    grid = Grid(axes, details, path)
    grid.streams()
    grid.stitches()
    for anchor in range(len(details.anchors)):
        grid.blocks(anchor)
        grid.ends(anchor)
    grid.frame()


class Grid:
    """The axes, and the places of everything on them."""

    def __init__(self, axes: Axes, details: StitchedDetails, path: Path) -> None:
        self.axes, self.details, self.path = axes, details, path
        self.columns = max(anchor.layers for anchor in details.anchors)
        # Deep anchors have narrow blocks; stem and head stay as wide as their words.
        self.end_half = 0.4 * max(1.0, self.columns / ROOM)
        # From the middle of the first and of the last block to that of the stem and of the head.
        self.end = BOX / 2 + 1.5 * self.end_half + 0.09
        self.used = {(part.anchor, block) for part in path.parts for block in range(part.start, part.stop)}

    def x(self, anchor: int, block: int) -> float:
        """The middle of a block."""
        return (block + 0.5) * self.columns / self.details.anchors[anchor].layers - 0.5

    def half(self, anchor: int) -> float:
        """Half the height of an anchor's blocks."""
        widest = self.details.anchors[-1].width
        return max(TALLEST * self.details.anchors[anchor].width / widest, LOWEST) / 2

    def streams(self) -> None:
        """A line through every row, bold where the path runs."""
        left, right = -self.end, self.columns - 1 + self.end
        for row in range(len(self.details.anchors)):
            self.axes.plot([left, right], [row, row], color=plotting.LINE, linewidth=1.2, zorder=1)
        for part in self.path.parts:
            start = left if part.anchor == self.path.first else self.x(part.anchor, part.start)
            stop = right if part.anchor == self.path.last else self.x(part.anchor, part.stop - 1)
            rows, colour = [part.anchor, part.anchor], colour_of(part.anchor)
            self.axes.plot([start, stop], rows, color=colour, linewidth=3.2, solid_capstyle="round", zorder=2)

    def stitches(self) -> None:
        """A line per pair: those of the path bold, those that share their linear layer thin, all others grey."""
        layout = self.details.layout
        ends = zip(self.path.parts, self.path.parts[1:], self.path.stitches)
        taken = {(stitch, before.stop - 1, after.start) for before, after, stitch in ends}
        for joint, (front, end) in enumerate(layout.joints):
            for pair in layout.pairs[joint]:
                stitch = Stitch(joint, pair.window)
                if (stitch, pair.j, pair.k) in taken:
                    style = TAKEN
                else:
                    style = SHARING if stitch in self.path.stitches else OTHER
                xs = [self.x(front, pair.j), self.x(end, pair.k)]
                ys = [front + self.half(front), end - self.half(end)]
                self.axes.plot(xs, ys, solid_capstyle="round", **style)

    def blocks(self, anchor: int) -> None:
        """The boxes of a row, with their numbers from 1."""
        for block in range(self.details.anchors[anchor].layers):
            on = (anchor, block) in self.used
            self._box(self.x(anchor, block), anchor, BOX / 2, self.half(anchor), colour_of(anchor), on)
            if self.columns <= MOST_NUMBERED:
                self._word(self.x(anchor, block), anchor, str(block + 1), on)

    def ends(self, anchor: int) -> None:
        """The stem before a row and the head behind it."""
        first, last = self.path.first == anchor, self.path.last == anchor
        for x, word, on in ((-self.end, "stem", first), (self.columns - 1 + self.end, "head", last)):
            self._box(x, anchor, self.end_half, 0.105, plotting.QUIET, on)
            self._word(x, anchor, word, on)

    def _box(self, x: float, row: float, half: float, tall: float, colour: str, on: bool) -> None:
        from matplotlib.patches import FancyBboxPatch

        style = "round,pad=0,rounding_size=0.06"
        face, edge = (colour, colour) if on else (plotting.tint(colour), plotting.tint(colour, 0.45))
        self.axes.add_patch(
            FancyBboxPatch(
                (x - half, row - tall), 2 * half, 2 * tall, boxstyle=style, facecolor=face, edgecolor=edge,
                linewidth=0.9, zorder=6,
            )
        )  # fmt: skip

    def _word(self, x: float, row: float, word: str, on: bool) -> None:
        style: dict[str, Any] = {"color": plotting.PAPER, "weight": "bold"} if on else {"color": plotting.INK}
        self.axes.text(x, row, word, ha="center", va="center", fontsize=8.5, zorder=7, **style)

    def frame(self) -> None:
        """The labels of the rows."""
        rows = self.details.anchors
        self.axes.set_xlim(-self.end - self.end_half - 0.1, self.columns - 1 + self.end + self.end_half + 0.1)
        self.axes.set_ylim(len(rows) - 0.58, -0.42)
        self.axes.set_xticks([])
        heads = [f"{anchor.heads} head{'s' * (anchor.heads > 1)}" for anchor in rows]
        names = [f"width {anchor.width}\n{anchor.layers} blocks\n{count}" for anchor, count in zip(rows, heads)]
        self.axes.set_yticks(range(len(rows)), names, fontsize=9, color=plotting.INK)
        plotting.bare(self.axes)
        self.axes.tick_params(pad=6)


def grid_legend(path: Path) -> list[Line2D]:
    """What the lines between the rows mean."""
    from matplotlib.lines import Line2D

    shown = {"stitch of the path": TAKEN, "same linear layer": SHARING} if path.stitches else {}
    shown["other stitches" if shown else "stitches"] = OTHER
    return [
        Line2D([], [], label=name, color=style["color"], linewidth=style["linewidth"]) for name, style in shown.items()
    ]
