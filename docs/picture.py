"""Draw what a learngene is, from the bundled one of LSAMD: `python docs/picture.py` writes
docs/images/learngene.png.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

import learngene_zoo as lg
from learngene_zoo.plotting import COLOURS, PAPER, QUIET, TEXT, TITLE, add_axes, new_figure, style
from learngene_zoo.text import format_count

PLACE = Path(__file__).resolve().parent / "images" / "learngene.png"
WIDE, TALL = 10.0, 4.6  # inches
FLOOR, STEP = 0.85, 0.26  # where stacks begin, and the height of a block
SIZES = (5, 7, 9, 12)
FADED = "#dfe2e6"


def main() -> None:
    """An ancestry model, the blocks of it that are kept, and descendants of several depths that are
    built of these.
    """
    kept = lg.load("lsamd").config.details["kept"]
    colours = {block: COLOURS[number % len(COLOURS)] for number, block in enumerate(kept)}
    with style():
        figure = new_figure(WIDE, TALL)
        axes = add_axes(figure, 0, 0, WIDE, TALL, xlim=(0, WIDE), ylim=(0, TALL))
        axes.axis("off")
        stack(
            axes,
            1.1,
            [colours.get(block, FADED) for block in range(1, 13)],
            "12 layers, pretrained",
        )
        stack(axes, 4.3, [colours[block] for block in kept], f"{len(kept)} of its blocks")
        for place, layers in enumerate(SIZES):
            made = lg.expand("lsamd", layers=layers)
            blocks = [colours[block] for block in made.provenance["blocks"]]
            stack(
                axes,
                6.85 + 0.92 * place,
                blocks,
                f"{layers} layers\n{format_count(made.cost().params)}",
                wide=0.72,
            )
        for middle, word in (
            (1.1, "ancestry model"),
            (4.3, "learngene"),
            (6.85 + 0.92 * 1.5, "descendants"),
        ):
            axes.text(
                middle, TALL - 0.3, word, ha="center", va="center", weight="bold", fontsize=TITLE
            )
        arrow(axes, 1.9, 3.5, "extract\nonce")
        arrow(axes, 5.0, 6.25, "expand\nto any size")
        figure.savefig(PLACE, dpi=144, metadata={"Software": None})
    print(PLACE)


def stack(axes: Axes, middle: float, colours: Sequence[str], under: str, wide: float = 1.0) -> None:
    """Blocks of these colours from below, the first one first, with a text below them."""
    for number, colour in enumerate(colours):
        place = (middle - wide / 2 + 0.02, FLOOR + number * STEP + 0.02)
        box = FancyBboxPatch(
            place, wide - 0.04, STEP - 0.06, "round,pad=0,rounding_size=0.05", fc=colour, ec=PAPER
        )
        axes.add_patch(box)
    axes.text(middle, FLOOR - 0.1, under, ha="center", va="top", fontsize=TEXT, color=QUIET)


def arrow(axes: Axes, left: float, right: float, word: str) -> None:
    """An arrow between two stacks, with a verb above it."""
    height = FLOOR + 2.5 * STEP
    axes.annotate(
        "",
        (right, height),
        (left, height),
        arrowprops={"arrowstyle": "-|>", "color": QUIET, "lw": 1.6},
    )
    axes.text((left + right) / 2, height + 0.1, word, ha="center", va="bottom", fontsize=TEXT)


if __name__ == "__main__":
    main()
