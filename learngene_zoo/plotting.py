"""Shared parts of all figures: colours, axes, legends, and PNG or SVG files.

The colours are those of Okabe and Ito, which people with any kind of colour vision can distinguish.
Figures are made without pyplot, so that no window system is needed and no global state is changed.
`render_svg` returns an `<svg>` element that follows the light or dark scheme of the page around it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import WrongCall
from learngene_zoo.text import escape_controls, escape_html

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours of text, of secondary text, of lines and of the background.
INK, QUIET, LINE, PAPER = "#1a1b1e", "#5d6168", "#c9ced3", "#ffffff"
GREY = "#8a8a8a"  # readable on white and on black
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "D", "s", "^")
LEGEND_HEIGHT = 0.6  # inches that `subplots` adds below the panels, for a legend of two lines
TITLE, TEXT, SMALL = 13.0, 10.0, 9.0  # font sizes in points
# The CSS colours that replace these within a page: see `render_svg`.
_PAGE = {INK: "currentColor", QUIET: "var(--quiet)", LINE: "var(--line)", PAPER: "var(--paper)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(COLOURS)
}
_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Segoe UI", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9.5,
    "axes.titlesize": TEXT,
    "axes.labelsize": 9.5,
    "axes.edgecolor": QUIET,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "svg.hashsalt": "learngene_zoo",  # no random ids: equal figures give equal files
    "text.parse_math": False,  # names may contain dollars and backslashes
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK
    ),
}


@contextmanager
def style() -> Iterator[None]:
    """Make the common fonts, sizes and colours the defaults of figures within this context."""
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


def mark(number: int) -> dict[str, str]:
    """Return the colour and marker of a series for `Axes.plot`; the first 24 are different."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number // len(COLOURS) % len(MARKERS)],
    }


def tint(colour: str, share: float = 0.2) -> str:
    """Mix `colour` with white; `share` is the fraction of the colour, from 0 to 1."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in parts)


def shorten_label(name: str, most: int = 14) -> str:
    """Return `name` on one line of at most `most` characters.

    The middle of a longer name is replaced by an ellipsis.
    """
    name, half = " ".join(name.split()), most // 2
    return name if len(name) <= most else f"{name[: most - half - 1]}…{name[-half:]}"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty white figure of this size in inches; `add_axes` adds axes to it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


def add_axes(
    figure: Figure, left: float, bottom: float, width: float, height: float, **options: Any
) -> Axes:
    """Add axes at a position in inches from the lower left corner of the figure."""
    wide, tall = figure.get_size_inches()
    return figure.add_axes((left / wide, bottom / tall, width / wide, height / tall), **options)


def subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return a figure with a grid of panels of `size` inches each, and the panels row by row.

    matplotlib computes the layout; `settle` fixes it.
    """
    figure = new_figure(size[0] * columns, size[1] * rows + LEGEND_HEIGHT)
    figure.set_layout_engine("constrained")
    panels = [panel for row in figure.subplots(rows, columns, squeeze=False) for panel in row]
    for panel in panels:
        panel.set_facecolor("none")
        draw_rules(panel)
    return figure, panels


def draw_rules(axes: Axes) -> None:
    """Draw a light grid behind the data, and only the left and lower edges of the axes."""
    axes.grid(color=GREY, alpha=0.25, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def hide_edges(axes: Axes, *edges: str) -> None:
    """Hide tick marks and all edges except the named ones ("left", "bottom", "right", "top")."""
    for name, edge in axes.spines.items():
        edge.set_visible(name in edges)
    axes.tick_params(length=0)


def draw_heading(figure: Figure, left: float, title: str, under: str = "") -> None:
    """Draw a bold title and a line below it in the upper 0.9 inches.

    Args:
        figure: the figure.
        left: left edge of the text in inches.
        title: the bold title.
        under: the line below it.
    """
    wide, tall = figure.get_size_inches()
    alignment: dict[str, Any] = {"va": "center", "parse_math": False}
    figure.text(
        left / wide, 1 - 0.38 / tall, title, fontsize=TITLE, weight="bold", color=INK, **alignment
    )
    figure.text(left / wide, 1 - 0.7 / tall, under, fontsize=TEXT, color=QUIET, **alignment)


def draw_legend_below(
    figure: Figure, axes: Axes, handles: Sequence[Artist], **options: Any
) -> None:
    """Draw a legend on one line at the bottom of the figure, centred below the axes."""
    position, foot = axes.get_position(), 0.3 / figure.get_figheight()
    middle = ((position.x0 + position.x1) / 2, foot)
    spaces = {"columnspacing": 1.4, "handlelength": 1.5, "handletextpad": 0.6, **options}
    figure.legend(
        handles=list(handles),
        loc="center",
        bbox_to_anchor=middle,
        ncols=len(handles),
        fontsize=SMALL,
        frameon=False,
        labelcolor=INK,
        **spaces,
    )


def draw_legend(figure: Figure, panels: Sequence[Axes], columns: int) -> None:
    """Draw a common legend below all panels, with every name once.

    It has as many columns, at most `columns`, as the width of the figure permits. The figure grows
    by the height of the legend, so that the panels keep their height.
    """
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels()):
            handles.setdefault(name, handle)
    if not handles:
        return
    for count in range(max(1, min(columns, len(handles))), 0, -1):
        box_legend = figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=count,
            handlelength=3.2,
            frameon=False,
        )
        renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        box = box_legend.get_window_extent(renderer)
        if count == 1 or box.width <= figure.bbox.width:
            break
        box_legend.remove()
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + max(0.0, box.height / figure.dpi - LEGEND_HEIGHT))


def settle(figure: Figure) -> Figure:
    """Compute the layout of the panels once, for all formats in which the figure is saved."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def check_suffix(path: Path) -> None:
    """Raise `WrongCall` unless `path` ends in .png or .svg."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise WrongCall(f"expected a file name that ends in .png or .svg, got {path.name}")


def save(figure: Figure, path: Path) -> None:
    """Write a PNG or SVG on white, by the suffix of `path`. Equal figures give equal bytes."""
    check_suffix(path)
    _make_labels_printable(figure)
    undated = {".png": "Software", ".svg": "Date"}[path.suffix.lower()]
    with style():
        figure.savefig(
            path,
            dpi=160,
            facecolor="white",
            bbox_inches="tight",
            pad_inches=0.18,
            metadata={undated: None},
        )


def render_svg(figure: Figure, name: str, label: str) -> str:
    """Return the figure as an `<svg>` element for a page.

    It uses the page's current colour and its variables `--quiet`, `--line`, `--paper` and
    `--series-0` to `--series-5`.

    Args:
        figure: the figure.
        name: prefix of all ids.
        label: description for screen readers.
    """
    import matplotlib

    text, name = io.StringIO(), re.sub(r"[^\w.-]", "_", name)
    _make_labels_printable(figure)
    with matplotlib.rc_context(
        {"svg.hashsalt": name, "svg.fonttype": "none", "text.parse_math": False}
    ):
        figure.savefig(
            text,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = (
        re.sub(r'\bid="', f'id="{name}-', svg)
        .replace('href="#', f'href="#{name}-')
        .replace("url(#", f"url(#{name}-")
    )
    # Two decimals (hundredths of a point) are precise enough, and halve the size.
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
    for colour, in_page in _PAGE.items():
        svg = svg.replace(colour, in_page)
    # As wide as the page, as long as the letters do not become larger than the page's.
    width = f"max-width: {115 * figure.get_figwidth():.0f}px"
    opening = f'<svg role="img" aria-label="{escape_html(label)}" style="{width}"'
    return re.sub(
        r'^<svg [^>]*(viewBox="[^"]*")[^>]*>', lambda match: f"{opening} {match[1]}>", svg
    )


def _make_labels_printable(figure: Figure) -> None:
    """Remove characters from all labels that fonts lack and that XML forbids."""
    from matplotlib.text import Text

    for label in figure.findobj(Text):
        lines = label.get_text().split("\n")
        label.set_text("\n".join(map(escape_controls, lines)))
