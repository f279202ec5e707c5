"""The pictures of a bench: metric against parameters, metric over budgets, and the cost curve."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from learngene_zoo.bench.report.cost_curve import UNITS, Bill, CostUnit, matches
from learngene_zoo.bench.report.gain_tables import shorten_task
from learngene_zoo.bench.results.averages import Average, find_bounds
from learngene_zoo.bench.results.condition import SCRATCH
from learngene_zoo.bench.results.summary import Line, Summary
from learngene_zoo.plotting import (
    COLOURS,
    GREY,
    INK,
    PAPER,
    draw_legend,
    settle,
    shorten_label,
    style,
    subplots,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_COLUMNS = 4  # panels of learning curves side by side
MAX_ARMS = 8  # arms with their controls in one picture: of more arms, controls are left out
MAX_LETTERS = 36  # of a name in a picture
# sizes with learning curves; of more the smallest, the middle and the largest are drawn
MAX_SIZES = 4
ONE_SIZE = 2.0  # the axis of a single size reaches from its half to its double
MIN_DESCENDANTS, MAX_DESCENDANTS = 12, 60  # descendants on the axis of a cost curve
SCALES: dict[CostUnit, tuple[float, str]] = {
    "seconds": (60.0, "minutes"),
    "images": (1000.0, "thousand images"),
}
_MARKERS = ("o", "^", "v", "P", "X")
_DASHES: Mapping[str | None, Any] = {
    None: "-",
    "shuffled": (0, (5, 2)),
    "stem": (0, (1, 1.5)),
    "stem_fan_in": (0, (1, 3)),
}
Look = dict[str, Any]  # the options of `Axes.plot`


def choose_looks(arms: Sequence[tuple[str, str, str | None]]) -> dict[str, Look]:
    """Return the plot options of each arm, from (arm, method, control).

    There is a colour per method; its controls are dashed in that colour, scratch is grey.
    """
    looks: dict[str, Look] = {}
    methods = [name for name, method, control in arms if method != SCRATCH and control is None]
    scratch = [name for name, method, _ in arms if method == SCRATCH]
    for name, method, control in arms:
        if method == SCRATCH:
            rank = scratch.index(name)
            dashes = "-" if rank else (0, (6, 1.5, 1.5, 1.5))
            looks[name] = _look(GREY, dashes, "Ds"[rank % 2], hollow=not rank, width=1.6)
            continue
        base = name.removesuffix(f" {control}") if control else name
        number = methods.index(base) if base in methods else len(methods)
        colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)]
        looks[name] = _look(
            colour,
            _DASHES.get(control, "--"),
            marker,
            hollow=bool(control),
            width=1.3 if control else 2.3,
        )
    return looks


def _look(colour: str, dashes: Any, marker: str, *, hollow: bool, width: float) -> Look:
    face = PAPER if hollow else colour
    line = {"color": colour, "linestyle": dashes, "linewidth": width}
    return {
        **line,
        "marker": marker,
        "markersize": 5.5,
        "markerfacecolor": face,
        "markeredgewidth": 1.2,
    }


def draw_pictures(summary: Summary) -> dict[str, Figure]:
    """Return every picture of a summary by its name.

    There is one Pareto view per metric, and one picture of learning curves per size and metric.
    """
    looks = choose_looks(
        list(dict.fromkeys((line.arm, line.method, line.control) for line in summary.lines))
    )
    with_controls = len(looks) <= MAX_ARMS
    selected = [line for line in summary.lines if with_controls or line.control is None]
    figures = {}
    for metric in dict.fromkeys(line.condition.metric for line in selected):
        # An average that lacks a task cannot be compared with the others.
        lines = [line for line in selected if line.condition.metric == metric and not line.lacks]
        suffix = "" if metric == "accuracy" else f"-{_make_word(metric)}"
        figures[f"pareto{suffix}"] = draw_pareto(
            [line for line in lines if line.task is None], looks
        )
        for name, lines_of_size in _group_by_size(lines).items():
            if _has_curves(lines_of_size):
                figures[f"curves{suffix}-{name}"] = draw_curves(lines_of_size, looks)
    return figures


def _has_curves(lines: Sequence[Line]) -> bool:
    """Return whether an arm has several budgets, or a value before any training."""
    budgets = {line.condition.epochs for line in lines}
    return len(budgets) > 1 or any(line.untrained is not None for line in lines)


def _group_by_size(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the lines of each size by its name in a file's name.

    The names are `9`, `9x96` if widths differ, or `low3_high3`.
    """
    groups: dict[tuple[int, int, str], list[Line]] = {}
    for line in lines:
        groups.setdefault(
            (line.condition.layers, line.condition.width, line.condition.size), []
        ).append(line)
    sizes = sorted(groups)
    wide = len({width for _, width, _ in sizes}) > 1
    sizes = sizes if len(sizes) <= MAX_SIZES else [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    return {
        _make_word(size) or (f"{layers}x{width}" if wide else f"{layers}"): groups[
            layers, width, size
        ]
        for layers, width, size in sizes
    }


def _make_word(text: str) -> str:
    """Return a metric or a size as a part of a file's name."""
    return re.sub(r"[^\w.-]", "", text.replace(", ", "_"))[:60]


@style()
def draw_pareto(averages: Sequence[Line], looks: Mapping[str, Look]) -> Figure:
    """Plot metric against parameters, with a line per arm through its sizes.

    There is a panel for the smallest and one for the largest budget. The band is the Pareto front:
    no model has fewer parameters and a better metric than one on it.
    """
    budgets = sorted({line.condition.epochs for line in averages})
    panel_epochs = list(dict.fromkeys((budgets[0], budgets[-1])))
    figure, panels = subplots(1, len(panel_epochs), (5.6 if len(panel_epochs) == 1 else 4.7, 3.7))
    for panel, epochs in zip(panels, panel_epochs):
        _draw_pareto_panel(
            panel, [line for line in averages if line.condition.epochs == epochs], looks
        )
        panel.set_title(f"after {epochs} epoch" + ("s" if epochs != 1 else ""))
        panel.set_xlabel(_describe_parameters([line.params for line in averages]))
    low, high = (
        min(panel.get_ylim()[0] for panel in panels),
        max(panel.get_ylim()[1] for panel in panels),
    )
    for panel in panels:
        panel.set_ylim(low, high)
    panels[0].set_ylabel(_label(averages[0]))
    draw_legend(figure, panels, 3)
    return settle(figure)


def _describe_parameters(params: Sequence[int]) -> str:
    """Return the label of the axis of parameters; of a single size it says so."""
    if len(set(params)) > 1:
        return "parameters of the model"
    return f"all models have {_count(params[0])} parameters; points are moved apart"


def _draw_pareto_panel(panel: Axes, lines: Sequence[Line], looks: Mapping[str, Look]) -> None:
    arms = list(dict.fromkeys(line.arm for line in lines))
    drawn_at: dict[tuple[float, float], float] = {}
    is_one_size = len({line.params for line in lines}) == 1
    step = ONE_SIZE ** min(0.1, 1 / len(arms)) if is_one_size else 1.012
    for index, arm in enumerate(arms):
        lines_of_arm = sorted(
            (line for line in lines if line.arm == arm), key=lambda line: line.params
        )
        # Arms of one size have equal numbers of parameters: moving each a little keeps their
        # intervals apart.
        xs = [line.params * step ** (index - (len(arms) - 1) / 2) for line in lines_of_arm]
        panel.plot(
            xs,
            [100 * line.value.value for line in lines_of_arm],
            label=_name(arm),
            zorder=3,
            **looks[arm],
        )
        for x, line in zip(xs, lines_of_arm):
            ends = _select_interval(line.value)
            if ends:
                panel.plot(
                    [x, x], ends, color=looks[arm]["color"], linewidth=1.1, alpha=0.8, zorder=2
                )
            drawn_at[line.params, 100 * line.value.value] = x
    front = [(drawn_at[point], point[1]) for point in find_pareto_front(list(drawn_at))]
    panel.plot(
        *zip(*front), color=INK, alpha=0.16, linewidth=9, solid_capstyle="round", marker="o",
        markersize=14, markeredgewidth=0, zorder=1, label="Pareto front of the means",
    )  # fmt: skip
    format_parameter_axis(panel, sorted({line.params for line in lines}))


def _select_interval(average: Average) -> tuple[float, float] | None:
    """Return the interval in per cent; None for a range, which is not drawn."""
    if average.low is None or average.high is None or average.interval == "range":
        return None
    return 100 * average.low, 100 * average.high


def format_parameter_axis(panel: Axes, params: Sequence[int]) -> None:
    """Make the axis logarithmic, with ticks at the models' sizes if their labels do not overlap."""
    panel.set_xscale("log")
    params, ticks = [max(1, count) for count in params], list[int]()
    for value in params:
        if not ticks or value / ticks[-1] > (params[-1] / params[0]) ** 0.14 * 1.02:
            ticks.append(value)
    panel.set_xticks(ticks, [_count(value) for value in ticks])
    panel.set_xticks([], minor=True)
    panel.margins(x=0.12, y=0.08)
    if len(ticks) == 1:
        panel.set_xlim(ticks[0] / ONE_SIZE, ticks[0] * ONE_SIZE)


def _count(params: int) -> str:
    return f"{params / 1e6:.3g}M" if params >= 1e6 else f"{params / 1e3:.3g}K"


def find_pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (cost, quality) that no other point beats in both, by ascending cost."""
    front: list[tuple[float, float]] = []
    for cost, quality in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or quality > front[-1][1]:
            front.append((cost, quality))
    return front


@style()
def draw_curves(lines: Sequence[Line], looks: Mapping[str, Look]) -> Figure:
    """Plot metric over budgets at one size, with 95 % intervals as bands.

    There is a panel for the average over tasks, then one per task. Every point is a separate
    training with its own complete schedule; 0 epochs is before any training.
    """
    tasks = list(dict.fromkeys(line.task for line in lines if line.task is not None))
    panel_tasks: list[str | None] = [None, *tasks] if len(tasks) > 1 else [*tasks]
    budgets = sorted({line.condition.epochs for line in lines} | {0})
    columns = min(MAX_COLUMNS, len(panel_tasks))
    figure, panels = subplots(
        -(-len(panel_tasks) // columns), columns, (2.9, 2.5) if columns > 1 else (5.4, 3.7)
    )
    for panel, task in zip(panels, panel_tasks):
        for arm in dict.fromkeys(line.arm for line in lines):
            by_epochs = {
                line.condition.epochs: line
                for line in lines
                if (line.arm, line.task) == (arm, task)
            }
            if by_epochs:
                _draw_curve(panel, by_epochs, budgets, looks[arm], arm)
        panel.set_xticks(range(len(budgets)), [str(epochs) for epochs in budgets])
        panel.set_title(
            shorten_task(task) if task else f"average of {len(tasks)} tasks",
            weight="normal" if task else "bold",
        )
        if panel in panels[::columns]:
            panel.set_ylabel(f"{_name(lines[0].condition.metric)}, %")
        least, most = (100 * bound for bound in find_bounds([lines[0].condition.metric]))
        panel.set_ylim(bottom=max(least, panel.get_ylim()[0]), top=min(most, panel.get_ylim()[1]))
    for panel in panels[len(panel_tasks) :]:
        panel.remove()
    for panel in panels[max(0, len(panel_tasks) - columns) : len(panel_tasks)]:
        panel.set_xlabel("epochs of training")
    condition = lines[0].condition
    figure.suptitle(_name(f"{condition.size_in_words}, {condition.split} images"), fontsize=10)
    draw_legend(figure, panels[: len(panel_tasks)], 2 * columns if columns > 1 else 3)
    return settle(figure)


def _draw_curve(
    panel: Axes, by_epochs: dict[int, Line], budgets: Sequence[int], look: Look, arm: str
) -> None:
    before = by_epochs[min(by_epochs)].untrained
    averages = {
        **({0: before} if before and 0 not in by_epochs else {}),
        **{n: line.value for n, line in by_epochs.items()},
    }
    xs = [budgets.index(epochs) for epochs in sorted(averages)]
    values = [averages[epochs] for epochs in sorted(averages)]
    panel.plot(
        xs,
        [100 * average.value for average in values],
        label=_name(arm),
        zorder=3,
        **{**look, "markersize": 4},
    )
    intervals = [(x, *ends) for x, ends in zip(xs, map(_select_interval, values)) if ends]
    if len(intervals) > 1:
        positions, lows, highs = zip(*intervals)
        alpha = 0.08 if look["color"] == GREY else 0.12
        panel.fill_between(positions, lows, highs, color=look["color"], alpha=alpha, linewidth=0)
    for x, low, high in intervals if len(intervals) == 1 else ():
        panel.plot([x, x], [low, high], color=look["color"], linewidth=1.1, alpha=0.8, zorder=2)


def _name(text: str) -> str:
    """Return a user's name, shortened to fit a line of a picture."""
    return shorten_label(text, MAX_LETTERS)


def _label(line: Line) -> str:
    return f"{_name(line.condition.metric)} on {line.condition.split} images, %"


@style()
def draw_costs(bills: Sequence[Bill]) -> Figure:
    """Plot total cost over the number of descendants.

    Equal budgets are on the left, equal quality on the right; minutes above, images below. Equal
    quality is here the best mean of the scratch arms; arms that do not reach it with any budget are
    not drawn there.
    """
    looks = choose_looks([(bill.arm, bill.method, None) for bill in bills])
    sides = {f"{bills[0].longest} epochs each": [(bill, bill.longest) for bill in bills]}
    level = max(
        (value for bill in bills if bill.method == SCRATCH for value in bill.values.values()),
        default=None,
    )
    if level is not None:
        enough = [(bill, bill.reaches(level)) for bill in bills]
        sides[f"as long as it takes to {100 * level:.1f} %"] = [
            (bill, n) for bill, n in enough if n is not None
        ]
    pays = [count for match in matches(bills) for unit in UNITS if (count := match.pays_from(unit))]
    max_count = min(
        MAX_DESCENDANTS, max([MIN_DESCENDANTS, *(round(1.5 * count) for count in pays)])
    )
    figure, panels = subplots(len(UNITS), len(sides), (4.7, 2.9))
    for index, unit in enumerate(UNITS):
        for panel, (title, side) in zip(panels[index * len(sides) :], sides.items()):
            _draw_cost_panel(panel, side, unit, looks, max_count)
            panel.set_title(title if index == 0 else "")
            panel.set_xlabel("descendants" if index == len(UNITS) - 1 else "")
        panels[index * len(sides)].set_ylabel(f"{SCALES[unit][1]} in all")
    draw_legend(figure, panels, 5)
    return settle(figure)


def _draw_cost_panel(
    panel: Axes,
    arms: Sequence[tuple[Bill, int]],
    unit: CostUnit,
    looks: Mapping[str, Look],
    max_count: int,
) -> None:
    scale, _ = SCALES[unit]
    solid = [index for index, (bill, _) in enumerate(arms) if looks[bill.arm]["linestyle"] == "-"]
    for index, (bill, epochs) in enumerate(arms):
        line = {**looks[bill.arm], "marker": None}
        # lines may coincide: of two neighbours one is dashed, and drawn over the other
        if index in solid[2::2]:
            line["linestyle"] = (0, (4, 2.5))
        totals = [getattr(bill.total(count, epochs), unit) / scale for count in (0, max_count)]
        panel.plot(
            (0, max_count),
            totals,
            label=_name(bill.arm),
            zorder=3 if line["linestyle"] == "-" else 4,
            **line,
        )
    panel.set_xlim(0, max_count)
    panel.locator_params(axis="x", integer=True)
    panel.set_ylim(bottom=0)


def find_caption(name: str) -> str:
    """Return the caption of the picture with this name."""
    kind, _, rest = name.partition("-")
    if kind == "pareto":
        return (
            "Models by their parameters, with the smallest and the largest budget: average over "
            "tasks, with 95 % intervals (of one task over its images, of several over three or "
            "more seeds; ranges are not drawn). Arms of one size are drawn slightly apart. The "
            "front compares means only: an arm beside it may be level with it. An average that "
            "lacks a task is not drawn, nor are controls where there are more than eight arms."
        )
    if kind == "cost":
        return (
            "Total cost of N descendants: on the left with the largest budget each, on the right "
            "with the smallest budget that "
            "reaches the best of scratch; arms that do not reach it are not drawn there."
        )
    size = rest.rpartition("-")[2]
    layers, _, width = size.partition("x")
    size_text = (
        f"{layers} layers{f' of width {width}' if width else ''}"
        if layers.isdigit()
        else size.replace("_", " ")
    )
    return (
        f"{size_text}: average and every task; bands are 95 % intervals (of one task over its "
        "images; ranges are not drawn)."
    )
