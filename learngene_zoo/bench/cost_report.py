"""A cost curve as tables, as flat JSON, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from learngene_zoo.bench import tables
from learngene_zoo.bench.cost_curve import UNITS, Bill, CostUnit, Effort, Match, matches
from learngene_zoo.bench.pictures import Look, looks_of
from learngene_zoo.bench.summary import SCRATCH
from learngene_zoo.bench.tables import Table
from learngene_zoo.plotting import GREY, legend, settle, style, subplots
from learngene_zoo.settings import Json
from learngene_zoo.units import human_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_SHOWN, MOST_SHOWN = 12, 60  # descendants on the axis of the picture
SCALES: dict[CostUnit, tuple[float, str]] = {"seconds": (60.0, "minutes"), "images": (1000.0, "thousand images")}
TOTALS = (1, 4, 16)  # descendants whose totals the table shows
ASSUMPTIONS = (
    "Each descendant has another size and is trained for one task: an extraction is paid once, pretraining and distillation for "
    "each descendant, and scratch pays for fine-tuning only.",
    "The ancestry model exists already; its cost is not counted, neither for the learngenes nor for distillation.",
    "Costs are means over the measured tasks, sizes and seeds; N descendants are assumed to cost N times the mean. The seconds of "
    "fine-tuning are also averaged over the arms whose models are equal.",
    "Seconds of fine-tuning are those of its training alone, seconds of an extraction are its total; images are those seen in "
    "training, whatever the cost of a step. A teacher that must first be fine-tuned is fine-tuned for each size.",
    "Equal quality is the best mean that both reach, and each is charged for the smallest measured budget that reaches it; "
    "nothing is interpolated between budgets.",
)


def cost_tables(found: Sequence[Bill]) -> list[Table]:
    """From how many descendants on each method pays, what every arm costs, and its metric with every budget."""
    pays = ("method", "against", "comparison", "epochs", "theirs", "metric, %", "theirs", "by time", "by images")
    costs = ("arm", "epochs", "metric, %", "once", "each descendant", *(f"{count} in all" for count in TOTALS))
    budgets = tuple((bill.arm, *map(tables.percent, bill.values.values())) for bill in found)
    return [
        Table("from how many descendants a learngene pays", pays, tuple(map(_pays, matches(found))), texts=3),
        Table("time, and training images, with the largest budget", costs, tuple(map(_costs, found))),
        Table("metric by epochs, %", ("arm", *map(str, found[0].values)), budgets),
    ]


def _pays(one: Match) -> tuple[str, ...]:
    values = (one.ours.values[one.epochs], one.theirs.values[one.their_epochs])
    counts = (one.pays_from(unit) for unit in UNITS)
    shown = ("never" if count is None else str(count) for count in counts)
    epochs = (str(one.epochs), str(one.their_epochs))
    return (one.ours.arm, one.theirs.arm, one.kind, *epochs, *map(tables.percent, values), *shown)


def _costs(bill: Bill) -> tuple[str, ...]:
    """With the largest budget."""
    epochs = bill.longest
    costs = (bill.once, bill.each(epochs), *(bill.total(count, epochs) for count in TOTALS))
    return (bill.arm, str(epochs), tables.percent(bill.values[epochs]), *map(_effort, costs))


def _effort(one: Effort) -> str:
    nothing = not one.seconds and not one.images
    return tables.NONE if nothing else f"{tables.duration(one.seconds)}, {human_count(round(one.images))}"


def flat_costs(found: Sequence[Bill]) -> list[dict[str, Json]]:
    """Bills and readings as flat objects of raw numbers, told apart by `kind`; docs/bench.md explains the keys."""
    return [
        *(_flat_bill(bill, epochs) for bill in found for epochs in bill.values),
        *map(_flat_match, matches(found)),
    ]


def _flat_bill(bill: Bill, epochs: int) -> dict[str, Json]:
    parts = {"once": bill.once, "size": bill.size, "tuning": bill.tuning[epochs]}
    costs = {f"{name}_{unit}": getattr(effort, unit) for name, effort in parts.items() for unit in UNITS}
    return {"kind": "bill", "arm": bill.arm, "epochs": epochs, "value": bill.values[epochs], **costs}


def _flat_match(one: Match) -> dict[str, Json]:
    return {
        "kind": "reading",
        "arm": one.ours.arm,
        "rival": one.theirs.arm,
        "reading": one.kind,
        "epochs": one.epochs,
        "rival_epochs": one.their_epochs,
        "value": one.ours.values[one.epochs],
        "rival_value": one.theirs.values[one.their_epochs],
        **{f"pays_from_{unit}": one.pays_from(unit) for unit in UNITS},
    }


@style()
def cost_picture(found: Sequence[Bill]) -> Figure:
    """Total cost over the number of descendants: with equal budgets on the left, to equal quality on the right.

    Above in minutes, below in images. Equal quality is here the best mean of the scratch arms; arms that do not reach it
    with any budget are not drawn there.
    """
    looks = looks_of([(bill.arm, bill.method, None) for bill in found])
    sides = {f"{found[0].longest} epochs each": [(bill, bill.longest) for bill in found]}
    level = max((value for bill in found if bill.method == SCRATCH for value in bill.values.values()), default=None)
    if level is not None:
        enough = [(bill, bill.reaches(level)) for bill in found]
        sides[f"as long as it takes to {100 * level:.1f} %"] = [(bill, n) for bill, n in enough if n is not None]
    figure, panels = subplots(len(UNITS), len(sides), (4.7, 2.9))
    for index, unit in enumerate(UNITS):
        for panel, (title, arms) in zip(panels[index * len(sides) :], sides.items()):
            _cost_panel(panel, arms, unit, looks)
            panel.set_title(title if index == 0 else "")
            panel.set_xlabel("descendants" if index == len(UNITS) - 1 else "")
        panels[index * len(sides)].set_ylabel(f"{SCALES[unit][1]} in all")
    legend(figure, panels, 5)
    return settle(figure)


def _cost_panel(panel: Axes, arms: Sequence[tuple[Bill, int]], unit: CostUnit, looks: Mapping[str, Look]) -> None:
    scale, _ = SCALES[unit]
    crossings = _crossings(arms, unit)
    most = min(MOST_SHOWN, max([LEAST_SHOWN, *(round(1.5 * count) for _, _, count in crossings)]))
    solid = [index for index, (bill, _) in enumerate(arms) if looks[bill.arm].dashes == "-"]
    for index, (bill, epochs) in enumerate(arms):
        line = {**looks[bill.arm].line, "marker": None}
        if index in solid[2::2]:  # lines may coincide: of two neighbours one is dashed, and drawn over the other
            line["linestyle"] = (0, (4, 2.5))
        totals = [getattr(bill.total(count, epochs), unit) / scale for count in (0, most)]
        panel.plot((0, most), totals, label=bill.arm, zorder=3 if line["linestyle"] == "-" else 4, **line)
    for rank, (ours, theirs, count) in enumerate(one for one in crossings if one[2] <= most):
        total = next(getattr(bill.total(count, n), unit) / scale for bill, n in arms if bill is ours)
        panel.plot([count], [total], "o", color=looks[ours.arm].colour, markersize=6, zorder=5)
        panel.plot([count, count], [0, total], color=GREY, linewidth=0.8, linestyle=":", zorder=2)
        words, place = f"from {count}: cheaper than {theirs.arm}", (0.02, 0.96 - 0.085 * rank)
        colour = looks[theirs.arm].colour
        panel.text(*place, words, color=colour, fontsize=8.5, transform=panel.transAxes, va="top")
    panel.set_xlim(0, most)
    panel.locator_params(axis="x", integer=True)
    panel.set_ylim(bottom=0)


def _crossings(arms: Sequence[tuple[Bill, int]], unit: CostUnit) -> list[tuple[Bill, Bill, int]]:
    """(method, rival, descendants) for each pair in which the method pays."""
    found = []
    for ours, epochs in arms:
        for theirs, their_epochs in arms:
            if theirs.is_rival and not ours.is_rival:
                one = Match(ours=ours, theirs=theirs, kind="equal quality", epochs=epochs, their_epochs=their_epochs)
                count = one.pays_from(unit)
                if count is not None:
                    found.append((ours, theirs, count))
    return found
