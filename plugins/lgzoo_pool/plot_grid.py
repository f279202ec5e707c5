"""Draw the anchors of a pool: blocks in rows, the stitches between them, one path highlighted.

A block is as high as its anchor is wide. x counts blocks from 0; anchors with fewer blocks than the
deepest are stretched, as their stitches pair them.
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
ON_PATH: dict[str, Any] = {"color": HIGHLIGHT, "linewidth": 4.0, "zorder": 5}
SHARING: dict[str, Any] = {"color": HIGHLIGHT, "linewidth": 1.6, "zorder": 4}
OTHER: dict[str, Any] = {"color": plotting.LINE, "linewidth": 1.1, "zorder": 3}
# A block's width; the height of the widest and of the lowest blocks, in rows.
BOX, TALLEST, LOWEST = 0.72, 0.62, 0.15
MAX_NUMBERED = 18  # blocks in a row that have room for their numbers
ROOM = 9  # blocks in a row that leaves stem and head their natural width


def pick_colour(anchor: int) -> str:
    """Return an anchor's colour."""
    return ANCHORS[anchor % len(ANCHORS)]


def draw_grid(axes: Axes, details: StitchedDetails, path: Path) -> None:
    """Draw everything, with the path highlighted."""
    grid = BlockGrid(axes, details, path)
    grid.draw_streams()
    grid.draw_stitches()
    for anchor in range(len(details.anchors)):
        grid.draw_blocks(anchor)
        grid.draw_ends(anchor)
    grid.draw_frame()


class BlockGrid:
    """The axes, and the positions of everything on them."""

    def __init__(self, axes: Axes, details: StitchedDetails, path: Path) -> None:
        self.axes, self.details, self.path = axes, details, path
        self.columns = max(anchor.layers for anchor in details.anchors)
        # Deep anchors have narrow blocks; stem and head stay as wide as their words.
        self.end_half = 0.4 * max(1.0, self.columns / ROOM)
        # From the middle of the first and of the last block to that of the stem and of the head.
        self.end = BOX / 2 + 1.5 * self.end_half + 0.09
        self.used = {
            (part.anchor, block) for part in path.parts for block in range(part.start, part.stop)
        }

    def locate(self, anchor: int, block: int) -> float:
        """Return the middle of a block."""
        return (block + 0.5) * self.columns / self.details.anchors[anchor].layers - 0.5

    def measure_half_height(self, anchor: int) -> float:
        """Return half the height of an anchor's blocks."""
        widest = self.details.anchors[-1].width
        return max(TALLEST * self.details.anchors[anchor].width / widest, LOWEST) / 2

    def draw_streams(self) -> None:
        """Draw a line through every row, bold where the path runs."""
        left, right = -self.end, self.columns - 1 + self.end
        for row in range(len(self.details.anchors)):
            self.axes.plot([left, right], [row, row], color=plotting.LINE, linewidth=1.2, zorder=1)
        for part in self.path.parts:
            start = left if part.anchor == self.path.first else self.locate(part.anchor, part.start)
            stop = (
                right if part.anchor == self.path.last else self.locate(part.anchor, part.stop - 1)
            )
            rows, colour = [part.anchor, part.anchor], pick_colour(part.anchor)
            self.axes.plot(
                [start, stop], rows, color=colour, linewidth=3.2, solid_capstyle="round", zorder=2
            )

    def draw_stitches(self) -> None:
        """Draw a line per pair.

        Those of the path are bold, those that share their linear layer thin, all other ones grey.
        """
        layout = self.details.layout
        ends = zip(self.path.parts, self.path.parts[1:], self.path.stitches)
        pairs_on_path = {(stitch, before.stop - 1, after.start) for before, after, stitch in ends}
        for joint, (front, end) in enumerate(layout.joints):
            for pair in layout.pairs[joint]:
                stitch = Stitch(joint, pair.window)
                if (stitch, pair.j, pair.k) in pairs_on_path:
                    style = ON_PATH
                else:
                    style = SHARING if stitch in self.path.stitches else OTHER
                xs = [self.locate(front, pair.j), self.locate(end, pair.k)]
                ys = [front + self.measure_half_height(front), end - self.measure_half_height(end)]
                self.axes.plot(xs, ys, solid_capstyle="round", **style)

    def draw_blocks(self, anchor: int) -> None:
        """Draw the boxes of a row, with their numbers from 1."""
        for block in range(self.details.anchors[anchor].layers):
            is_used = (anchor, block) in self.used
            x, half_height = self.locate(anchor, block), self.measure_half_height(anchor)
            self._draw_box(x, anchor, BOX / 2, half_height, pick_colour(anchor), is_used)
            if self.columns <= MAX_NUMBERED:
                self._draw_word(x, anchor, str(block + 1), is_used)

    def draw_ends(self, anchor: int) -> None:
        """Draw the stem before a row and the head behind it."""
        first, last = self.path.first == anchor, self.path.last == anchor
        for x, word, is_used in (
            (-self.end, "stem", first),
            (self.columns - 1 + self.end, "head", last),
        ):
            self._draw_box(x, anchor, self.end_half, 0.105, plotting.QUIET, is_used)
            self._draw_word(x, anchor, word, is_used)

    def _draw_box(
        self, x: float, row: float, half: float, tall: float, colour: str, is_used: bool
    ) -> None:
        from matplotlib.patches import FancyBboxPatch

        style = "round,pad=0,rounding_size=0.06"
        face, edge = (colour, colour)
        if not is_used:
            face, edge = plotting.tint(colour), plotting.tint(colour, 0.45)
        corner, width, height = (x - half, row - tall), 2 * half, 2 * tall
        box = FancyBboxPatch(corner, width, height, boxstyle=style, facecolor=face, edgecolor=edge)
        box.set(linewidth=0.9, zorder=6)
        self.axes.add_patch(box)

    def _draw_word(self, x: float, row: float, word: str, is_used: bool) -> None:
        style: dict[str, Any] = {"color": plotting.INK}
        if is_used:
            style = {"color": plotting.PAPER, "weight": "bold"}
        self.axes.text(x, row, word, ha="center", va="center", fontsize=8.5, zorder=7, **style)

    def draw_frame(self) -> None:
        """Draw the labels of the rows."""
        rows = self.details.anchors
        self.axes.set_xlim(
            -self.end - self.end_half - 0.1, self.columns - 1 + self.end + self.end_half + 0.1
        )
        self.axes.set_ylim(len(rows) - 0.58, -0.42)
        self.axes.set_xticks([])
        heads = [f"{anchor.heads} head{'s' * (anchor.heads > 1)}" for anchor in rows]
        names = [
            f"width {anchor.width}\n{anchor.layers} blocks\n{count}"
            for anchor, count in zip(rows, heads)
        ]
        self.axes.set_yticks(range(len(rows)), names, fontsize=9, color=plotting.INK)
        plotting.hide_edges(self.axes)
        self.axes.tick_params(pad=6)


def build_grid_legend(path: Path) -> list[Line2D]:
    """Return the meaning of the lines between the rows."""
    from matplotlib.lines import Line2D

    styles = {"stitch of the path": ON_PATH, "same linear layer": SHARING} if path.stitches else {}
    styles["other stitches" if styles else "stitches"] = OTHER
    return [
        Line2D([], [], label=name, color=style["color"], linewidth=style["linewidth"])
        for name, style in styles.items()
    ]
