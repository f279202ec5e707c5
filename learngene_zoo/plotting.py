"""How pictures of a bench look, as PNG and as SVG that follows a page's light or dark scheme. Cold at its top.

Colours are those of Okabe and Ito, which people with any kind of colour vision tell apart; markers and dashes say the same again.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.storage import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PAPER = "#1a1b1e", "#fefdfc"  # lines and letters, and what lies under them: an SVG takes both from its page
GREY = "#8a8a8a"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SERIES = {colour: f"var(--series-{number})" for number, colour in enumerate(COLOURS)}
MARKERS = ("o", "^", "v", "P", "X", "*")
_DASHES: Mapping[str | None, Any] = {None: "-", "shuffled": (0, (5, 2)), "stem": (0, (1, 1.5))}
_FONTS = ["DejaVu Sans", "Segoe UI", "Helvetica", "Arial", "sans-serif"]


@dataclass(frozen=True)
class Style:
    """How an arm is drawn, the same in every picture."""

    colour: str
    dashes: Any
    marker: str
    hollow: bool
    width: float

    @property
    def line(self) -> dict[str, Any]:
        """What `Axes.plot` is told."""
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": self.width,
            "marker": self.marker,
            "markersize": 5.5 if self.marker != "*" else 8,
            "markerfacecolor": PAPER if self.hollow else self.colour,
            "markeredgewidth": 1.2,
        }


def styles(arms: Sequence[tuple[str, str, str | None]]) -> dict[str, Style]:
    """By arm, from (arm, method, control): a colour per method, its controls dashed in that colour, scratch in grey."""
    found: dict[str, Style] = {}
    own = [name for name, method, control in arms if method != "scratch" and control is None]
    scratch = [name for name, method, _ in arms if method == "scratch"]
    for name, method, control in arms:
        if method == "scratch":
            rank = scratch.index(name)
            found[name] = Style(GREY, _DASHES[None] if rank else (0, (6, 1.5, 1.5, 1.5)), "Ds"[rank % 2], not rank, 1.6)
            continue
        base = name.removesuffix(f" {control}") if control else name
        index = own.index(base) if base in own else len(own)
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        found[name] = Style(colour, _DASHES.get(control, "--"), marker, control is not None, 1.3 if control else 2.3)
    return found


@contextmanager
def look() -> Iterator[None]:
    """Within, figures are made in this style."""
    import matplotlib

    settings = {
        "font.family": "sans-serif",
        "font.sans-serif": _FONTS,
        "font.size": 9.5,
        "svg.fonttype": "none",
        "axes.titlesize": 10,
        "axes.labelsize": 9.5,
        "legend.fontsize": 9.5,
    }
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    with matplotlib.rc_context({**settings, **dict.fromkeys(inks, INK), "legend.frameon": False}):
        yield


def figure_of(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of panels, each of `size` inches, row by row; those not needed are to be removed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.6), layout="constrained", facecolor="none")
    FigureCanvasAgg(figure)
    panels = [panel for row in figure.subplots(rows, columns, squeeze=False) for panel in row]
    for panel in panels:
        panel.set_facecolor("none")
        panel.grid(color=GREY, alpha=0.25, linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels


def legend(figure: Figure, panels: Sequence[Axes], columns: int) -> None:
    """One legend below all panels, with every name once."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels()):
            found.setdefault(name, handle)
    figure.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=max(1, min(columns, len(found))),
        handlelength=3.2,
    )


def settle(figure: Figure) -> Figure:
    """Lay the panels out now, once for all forms in which the figure is saved."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def save_png(figure: Figure, path: Path) -> Path:
    """A PNG on white."""
    with new_file(path, force=True) as draft:
        figure.savefig(draft, dpi=160, facecolor="white", metadata={"Software": None})
    return path


def svg_text(figure: Figure, name: str, label: str) -> str:
    """An `<svg>` element to stand in a page: its names begin with `name`, its ink is the page's, and it refers to nothing else."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(
            text, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{name}-', svg).replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)  # a hundredth of a point is no less sharp, and half the size
    for colour, name_in_page in {INK: "currentColor", PAPER: "var(--paper)", **SERIES}.items():
        svg = svg.replace(colour, name_in_page)
    # As wide as the page, but with letters no larger than the page's own.
    width = f"max-width: {115 * figure.get_figwidth():.0f}px"
    opening = rf'<svg role="img" aria-label="{escape(label)}" style="{width}" \1>'
    return re.sub(r'^<svg [^>]*(viewBox="[^"]*")[^>]*>', opening, svg)
