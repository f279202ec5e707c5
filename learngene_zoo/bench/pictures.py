"""The two pictures of a bench: metric against parameters (the Pareto view), and learning curves over budgets. Cold at its top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learngene_zoo.bench.statistics import Spread
from learngene_zoo.bench.summary import Line, Summary
from learngene_zoo.plotting import COLOURS, GREY, INK, PAPER, legend, settle, style, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 4  # panels of learning curves side by side
MOST_SIZES = 4  # that have curves; of more the least, the middle and the largest

_MARKERS = ("o", "^", "v", "P", "X", "*")
_DASHES: Mapping[str | None, Any] = {None: "-", "shuffled": (0, (5, 2)), "stem": (0, (1, 1.5))}


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
        """The options of `Axes.plot`."""
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
        colour, marker = COLOURS[index % len(COLOURS)], _MARKERS[index % len(_MARKERS)]
        found[name] = Style(colour, _DASHES.get(control, "--"), marker, control is not None, 1.3 if control else 2.3)
    return found


def pictures(summary: Summary) -> dict[str, Figure]:
    """Every picture of a summary by its name: one Pareto view per metric, one of curves per size and metric."""
    looks = styles(list(dict.fromkeys((line.arm, line.method, line.control) for line in summary.lines)))
    found = {}
    for metric in dict.fromkeys(line.place.metric for line in summary.lines):
        lines = [line for line in summary.lines if line.place.metric == metric]
        suffix = "" if metric == "accuracy" else f"-{metric}"
        whole = [line for line in lines if not line.lacks]  # an average over fewer tasks is no rival of the others
        found[f"pareto{suffix}"] = pareto([line for line in whole if line.task is None], looks)
        sizes = sorted({(line.place.layers, line.place.width, line.place.size) for line in lines})
        wide = len({width for _, width, _ in sizes}) > 1
        sizes = sizes if len(sizes) <= MOST_SIZES else [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
        for layers, width, size in sizes:
            own = [
                line
                for line in whole
                if (line.place.layers, line.place.width, line.place.size) == (layers, width, size)
            ]
            shown = f"{layers}x{width}" if wide else f"{layers}"
            found[f"curves{suffix}-{_slug(size) or shown}"] = curves(own, looks)
    return found


def _slug(size: str) -> str:
    """A size's name as a part of a file's: `low3_high3`."""
    return size.replace(", ", "_").replace(" ", "")


def pareto(averages: Sequence[Line], looks: dict[str, Style]) -> Figure:
    """Metric against parameters, a line per arm through its sizes; a panel for the smallest and the largest budget.

    The band is the Pareto front: no model has fewer parameters and a better metric than one on it.
    """
    budgets = sorted({line.place.epochs for line in averages})
    shown = list(dict.fromkeys((budgets[0], budgets[-1])))
    with style():
        figure, panels = subplots(1, len(shown), (5.6 if len(shown) == 1 else 4.7, 3.7))
        for panel, epochs in zip(panels, shown):
            _pareto_panel(panel, [line for line in averages if line.place.epochs == epochs], looks)
            panel.set_title(f"after {epochs} epoch" + ("s" if epochs != 1 else ""))
            panel.set_xlabel("parameters of the model")
        low, high = min(p.get_ylim()[0] for p in panels), max(p.get_ylim()[1] for p in panels)
        for panel in panels:
            panel.set_ylim(low, high)
        panels[0].set_ylabel(_label(averages[0]))
        legend(figure, panels, 3)
        return settle(figure)


def _pareto_panel(panel: Axes, lines: Sequence[Line], looks: dict[str, Style]) -> None:
    arms = list(dict.fromkeys(line.arm for line in lines))
    places: dict[tuple[float, float], float] = {}  # where a point is drawn
    for index, arm in enumerate(arms):
        own = sorted((line for line in lines if line.arm == arm), key=lambda line: line.params)
        # Arms of one size have one number of parameters: a step aside of a hundredth keeps their intervals apart.
        x = [line.params * 1.012 ** (index - (len(arms) - 1) / 2) for line in own]
        look = looks[arm]
        panel.plot(x, [100 * line.value.value for line in own], label=arm, zorder=3, **look.line)
        for place, line in zip(x, own):
            _whisker(panel, place, line.value, look)
            places[line.params, 100 * line.value.value] = place
    front = [(places[point], point[1]) for point in pareto_front(list(places))]
    panel.plot(
        *zip(*front), color=INK, alpha=0.16, linewidth=9, solid_capstyle="round", marker="o", markersize=14,
        markeredgewidth=0, zorder=1, label="Pareto front",
    )  # fmt: skip
    _parameter_axis(panel, sorted({line.params for line in lines}))


def _whisker(panel: Axes, x: float, found: Spread, look: Style) -> None:
    if found.low is not None and found.high is not None:
        panel.plot([x, x], [100 * found.low, 100 * found.high], color=look.colour, linewidth=1.1, alpha=0.8, zorder=2)


def _parameter_axis(panel: Axes, params: Sequence[int]) -> None:
    """A logarithmic axis whose ticks are the models' own sizes, as far as their labels do not run into each other."""
    panel.set_xscale("log")
    ticks: list[int] = []
    for value in params:
        if not ticks or value / ticks[-1] > (params[-1] / params[0]) ** 0.14 * 1.02:
            ticks.append(value)
    panel.set_xticks(ticks, [_short(value) for value in ticks])
    panel.set_xticks([], minor=True)
    panel.margins(x=0.12, y=0.08)


def _short(value: int) -> str:
    """Three digits are enough for a tick."""
    return f"{value / 1e6:.3g}M" if value >= 1e6 else f"{value / 1e3:.3g}K"


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (cost, quality) those that no other beats in both, by ascending cost."""
    front: list[tuple[float, float]] = []
    for cost, quality in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or quality > front[-1][1]:
            front.append((cost, quality))
    return front


def curves(lines: Sequence[Line], looks: dict[str, Style]) -> Figure:
    """Metric over budgets, at one size: a panel for the average over tasks, then one per task; bands are 95 % intervals.

    Every point is a training of its own with its own complete schedule; 0 epochs is before any training.
    """
    tasks = list(dict.fromkeys(line.task for line in lines if line.task is not None))
    shown: list[str | None] = [None, *tasks] if len(tasks) > 1 else [*tasks]
    budgets = sorted({line.place.epochs for line in lines} | {0})
    columns = min(MOST_COLUMNS, len(shown))
    with style():
        figure, panels = subplots(-(-len(shown) // columns), columns, (2.9, 2.5) if columns > 1 else (5.4, 3.7))
        for panel, task in zip(panels, shown):
            for arm in dict.fromkeys(line.arm for line in lines):
                own = {line.place.epochs: line for line in lines if (line.arm, line.task) == (arm, task)}
                if own:
                    _curve(panel, own, budgets, looks[arm], arm)
            panel.set_xticks(range(len(budgets)), [str(epochs) for epochs in budgets])
            panel.set_title(
                _named(task) if task else f"average of {len(tasks)} tasks", fontweight="bold" if task is None else None
            )
            panel.set_ylim(bottom=max(0.0, panel.get_ylim()[0]), top=min(100.0, panel.get_ylim()[1]))
        for panel in panels[len(shown) :]:
            panel.remove()
        for panel in panels[max(0, len(shown) - columns) : len(shown)]:
            panel.set_xlabel("epochs of training")
        first = lines[0]
        size = first.place.size or f"{first.place.layers} layers"
        figure.supylabel(f"{_label(first)}, {size}", fontsize=9.5, color=INK)
        legend(figure, panels[: len(shown)], 2 * columns if columns > 1 else 3)
        return settle(figure)


def _curve(panel: Axes, own: dict[int, Line], budgets: Sequence[int], look: Style, arm: str) -> None:
    before = own[min(own)].untrained
    found = {**({0: before} if before and 0 not in own else {}), **{n: line.value for n, line in own.items()}}
    x = [budgets.index(epochs) for epochs in sorted(found)]
    spreads = [found[epochs] for epochs in sorted(found)]
    panel.plot(x, [100 * one.value for one in spreads], label=arm, zorder=3, **{**look.line, "markersize": 4})
    if all(one.low is not None for one in spreads):
        lows, highs = ([100 * (end or 0.0) for end in ends] for ends in zip(*((one.low, one.high) for one in spreads)))
        shade = 0.08 if look.colour == GREY else 0.12
        panel.fill_between(x, lows, highs, color=look.colour, alpha=shade, linewidth=0)


def _named(task: str) -> str:
    """A task by its name; one by its place on disk by the end of it."""
    return task.rstrip("/").rpartition("/")[2] if ":" in task else task


def _label(line: Line) -> str:
    return f"{line.place.metric} on {line.place.split} images, %"


def caption(name: str) -> str:
    """What a picture shows, by its name."""
    kind, _, rest = name.partition("-")
    if kind == "pareto":
        return (
            "Models by their parameters, with the smallest and the largest budget: average over tasks, 95 % intervals over seeds. "
            "Arms of one size are drawn a little apart; one whose average lacks a task is not drawn."
        )
    if kind == "cost":
        return (
            "What N descendants take together: on the left with the largest budget each, on the right with the least budget that "
            "reaches what scratch reaches at best; arms that do not reach it are not drawn there."
        )
    size = rest.rpartition("-")[2]
    layers, _, width = size.partition("x")
    shown = f"{layers} layers{f' of width {width}' if width else ''}" if layers.isdigit() else size.replace("_", " ")
    return f"{shown}: average and every task; bands are 95 % intervals over seeds."
