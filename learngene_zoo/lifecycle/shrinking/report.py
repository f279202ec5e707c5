"""The page of `shrink`, `OUT.html`, and the texts of its table."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from learngene_zoo.atomic import new_file
from learngene_zoo.intervals import compute_interval
from learngene_zoo.lifecycle.shrinking.table import ShrinkRow, ShrinkTable
from learngene_zoo.lifecycle.training_warnings import MIN_VALIDATION
from learngene_zoo.text import format_count, format_round_count

# The sizes in inches of the pictures for wide and for narrow windows: letters keep their size.
PICTURES = {"wide": (7.0, 3.6), "narrow": (3.6, 3.2)}
DODGE = 0.022  # least distance of two models, as a share of the axis


def write_report(table: ShrinkTable, path: Path) -> None:
    """Write the page of a table."""
    from learngene_zoo.colours import PAGE_COLOURS
    from learngene_zoo.text import render_page

    winner = table.winner
    size = f"{format_count(winner.params)} parameters, {winner.megabytes:.1f} MB"
    page = render_page(
        "lifecycle/shrinking/report.html.jinja",
        colours=PAGE_COLOURS,
        title=f"Shrunk for {table.task}" if table.task else "Shrunk without labels",
        facts=(
            f"{winner.method}, {winner.layers} layers of width {winner.width}, {size}, "
            f"{1000 * winner.latency:.1f} ms for one {_describe_input(table)}"
        ),
        results=table.describe(),
        trainings=[training.describe() for training in table.trainings],
        note=describe_columns(table),
        columns=[name for name, _ in list_cells(table, table.rows[0])],
        rows=[(row.kept, list_cells(table, row)) for row in table.rows],
        pictures=[(name, draw_sizes(table, name, size)) for name, size in PICTURES.items()],
        caption=describe_picture(table),
    )
    with new_file(path, force=True) as draft:
        draft.write_text(page, encoding="utf-8")


def describe_columns(table: ShrinkTable, shown: Collection[str] | None = None) -> str:
    """Describe the measurements of the columns.

    Args:
        table: the models.
        shown: headings of the columns that a terminal shows; None: all. Those of megabytes and
            milliseconds are described only if they are among them.
    """
    noun, sizes = table.noun, _describe_sizes(table, shown)
    if table.task is None:
        return (
            "R² is the share of the variance of the original's features that a ridge map predicts "
            f"from the candidate's, on {table.images} held-out {noun}s, before and after healing. "
            f"{sizes}"
        )
    is_text = noun == "text"
    inputs = "of the inputs of the head, " if is_text else ""
    without_head = "a linear probe of the features that it has without a head"
    reference = without_head if is_text else "its linear probe"
    return (
        f"The probe is a leave-one-out linear probe {inputs}of {table.images} training {noun}s, "
        f"before any training. Validation is the {table.metric} on {table.validation_images} "
        f"{noun}s {_describe_training(table)}; of the original, validation "
        f"and test are those of {reference}. {_describe_choice(table)}{sizes}"
    )


def _describe_choice(table: ShrinkTable) -> str:
    """Describe how the result was chosen, if the validation images are few; see `choose_winner`."""
    if table.metric != "accuracy" or table.validation_images >= MIN_VALIDATION:
        return ""
    return (
        f"With so few validation {table.noun}s, the choice uses the mean of both, weighted by "
        f"their numbers of {table.noun}s. "
    )


def _describe_sizes(table: ShrinkTable, shown: Collection[str] | None) -> str:
    """Describe the columns of sizes that are shown."""
    described = {
        "MB": "MB are of fp32 weights",
        "ms": f"ms are those of one {_describe_input(table)} on this machine"
        f"{', which was busy with other programs' if table.is_disturbed else ''}",
    }
    parts = [text for name, text in described.items() if shown is None or name in shown]
    return f"{', '.join(['The size is layers x width', *parts])}."


def _name_stage(table: ShrinkTable) -> str:
    """Return whether validation is measured after or without fine-tuning."""
    return "after fine-tuning" if table.trainings else "without fine-tuning"


def _describe_training(table: ShrinkTable) -> str:
    """Describe when validation is measured, with the candidates that no epoch made better."""
    starts: dict[str, list[str]] = {}
    for training in table.trainings:
        if not training.kept_epoch:
            starts.setdefault(training.start, []).append(training.candidate)
    return _name_stage(table) + "".join(
        f" (of {' and '.join(names)} at epoch 0: every later epoch was worse than {start})"
        for start, names in starts.items()
    )


def _describe_input(table: ShrinkTable) -> str:
    return "text of the largest length" if table.noun == "text" else table.noun


def list_cells(table: ShrinkTable, row: ShrinkRow) -> list[tuple[str, str]]:
    """Return the headings and texts of a row for people."""
    probe = "probe (95 %)" if table.task else "R² (95 %)"
    cells = [
        ("", "*" if row.kept else ""),
        ("method", row.method),
        ("size", f"{row.layers}x{row.width}"),
        ("params", format_count(row.params)),
        ("MB", f"{row.megabytes:.1f}"),
        ("ms", f"{1000 * row.latency:.1f}"),
        (probe, f"{row.probe:.3f} [{row.low:.3f}, {row.high:.3f}]"),
    ]
    if table.task is None:
        return [*cells, ("R² healed", _fraction(row.validation))]
    return [*cells, ("validation", _fraction(row.validation)), ("test", _fraction(row.test))]


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def describe_picture(table: ShrinkTable) -> str:
    """Return the caption of the picture."""
    bars = "Points with bars are {} with 95 % intervals; models of similar size are moved apart."
    if table.task is None:
        return (
            f"{bars.format('R² before healing')} Stars are R² after healing.{_name_budget(table)}"
        )
    intervals = " with 95 % intervals" if table.metric == "accuracy" else ""
    stars = (
        f"Stars are the {table.metric} on validation {table.noun}s{intervals}: of candidates "
        f"{_name_stage(table)}, of the original with its probe."
    )
    return f"{bars.format('linear probes of training images')} {stars}{_name_budget(table)}"


def _name_budget(table: ShrinkTable) -> str:
    """Return the sentence about the line of the budget; "" without a bound on parameters."""
    if table.max_params is None:
        return ""
    return f" The dashed line is the budget, {format_round_count(table.max_params)} parameters."


def draw_sizes(table: ShrinkTable, name: str, size: tuple[float, float]) -> str:
    """Return a picture of accuracy over parameters as an `<svg>` element.

    Args:
        table: the models.
        name: prefix of the ids of the element.
        size: width and height in inches.
    """
    from learngene_zoo import plotting

    with plotting.style():
        figure, (axes,) = plotting.subplots(1, 1, size)
        positions = dodge_sizes([row.params for row in table.rows], table.max_params)
        drawn = list(zip(table.rows, positions))
        methods = list(dict.fromkeys(row.method for row in table.rows[1:]))
        for number, method in enumerate(methods):
            points = [(row, x) for row, x in drawn[1:] if row.method == method]
            _draw_points(axes, points, label=method, **plotting.mark(number))
        _draw_points(axes, drawn[:1], label="original", color=plotting.GREY, marker="o")
        colours = {method: plotting.mark(number)["color"] for number, method in enumerate(methods)}
        _draw_stars(axes, table, drawn, {**colours, table.rows[0].method: plotting.GREY})
        if table.max_params is not None:
            axes.axvline(
                table.max_params,
                color=plotting.QUIET,
                linestyle="dashed",
                linewidth=1,
                label="budget",
            )
        _scale_parameters(axes, round(size[0]))
        axes.set_xlabel("parameters")
        axes.set_ylabel(table.metric if table.task else "R² of the original's features")
        plotting.draw_legend(figure, [axes], 4)
        return plotting.render_svg(plotting.settle(figure), name, "accuracy over parameters")


def dodge_sizes(params: Sequence[int], bound: int | None = None) -> list[float]:
    """Return positions on a logarithmic axis: similar sizes are moved apart.

    The positions are the nearest ones (in squared distance) that keep the order and a distance of
    `DODGE` of the axis: an isotonic regression, by pooling adjacent violators. Sizes up to `bound`
    are not moved beyond it.
    """
    logs = [math.log(max(1, count)) for count in params]
    step = DODGE * (max(logs) - min(logs)) or 0.02
    order = sorted(range(len(logs)), key=lambda index: logs[index])
    pools: list[list[float]] = []  # values less their rank times the step; ascending means
    for rank, index in enumerate(order):
        pools.append([logs[index] - rank * step])
        while len(pools) > 1 and fmean(pools[-2]) >= fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    means = [fmean(pool) for pool in pools for _ in pool]
    places = [mean + rank * step for rank, mean in enumerate(means)]
    within = sum(count <= bound for count in params) if bound is not None else 0
    for rank in range(within):
        places[rank] = min(places[rank], math.log(bound or 1) - (within - 1 - rank) * step)
    positions = dict(zip(order, places))
    return [math.exp(positions[index]) for index in range(len(logs))]


def _scale_parameters(axes: Any, steps: int) -> None:
    """Make the horizontal axis logarithmic, with ticks such as 500K.

    Between sizes of less than a factor of 5 there are at most that many `steps`, of equal size.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    is_near = high < 5 * low
    axes.xaxis.set_major_locator(
        MaxNLocator(steps, steps=(1, 2, 5, 10)) if is_near else LogLocator(subs=(1, 2, 5))
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_round_count(round(value))))


def _draw_stars(
    axes: Any,
    table: ShrinkTable,
    points: Sequence[tuple[ShrinkRow, float]],
    colours: Mapping[str, str],
) -> None:
    """Draw the results of the original and the tried candidates; accuracies have intervals.

    They are a little to the right of the probes, so that the bars do not cover each other.

    Args:
        axes: the picture.
        table: the models.
        points: the rows with their positions.
        colours: the colour of every method.
    """
    from learngene_zoo import plotting

    tuned = [(x, row, row.validation) for row, x in points if row.validation is not None]
    if not tuned:
        return
    params = [row.params for row in table.rows]
    shift = (max(params) / min(params)) ** (DODGE / 3)
    look: dict[str, Any] = {"linestyle": "none", "marker": "*", "markersize": 11}
    for x, row, value in tuned:
        bars = None
        if table.task is not None and table.metric == "accuracy":
            images = table.validation_images
            low, high = compute_interval(value * images, images)
            bars = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.errorbar([shift * x], [value], yerr=bars, color=colours[row.method], **look)
    label = "validation" if table.task else "healed"
    axes.plot([], [], color=plotting.INK, label=label, **look)


def _draw_points(axes: Any, points: Sequence[tuple[ShrinkRow, float]], **look: Any) -> None:
    """Draw probes with their intervals at these positions."""
    values = [row.probe for row, _ in points]
    below = [max(0.0, row.probe - row.low) for row, _ in points]
    above = [max(0.0, row.high - row.probe) for row, _ in points]
    axes.errorbar([x for _, x in points], values, yerr=[below, above], linestyle="none", **look)
