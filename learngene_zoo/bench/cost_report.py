"""A cost curve as tables, as JSON, and as a picture. Cold at its top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from learngene_zoo.bench import tables
from learngene_zoo.bench.cost_curve import UNITS, Bill, Reading, Spent, Unit, is_rival, readings
from learngene_zoo.bench.pictures import Style, styles
from learngene_zoo.bench.tables import Table
from learngene_zoo.plotting import GREY, legend, settle, style, subplots
from learngene_zoo.settings import Json
from learngene_zoo.units import human_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_SHOWN, MOST_SHOWN = 12, 60  # descendants on the axis of the picture
SCALES: dict[Unit, tuple[float, str]] = {"seconds": (60.0, "minutes"), "images": (1000.0, "thousand images")}
TOTALS = (1, 4, 16)  # descendants whose sums the table shows
ASSUMPTIONS = (
    "Each descendant has another size and is trained for one task: an extraction is paid once, pretraining and distillation for "
    "each descendant, scratch pays for fine-tuning alone.",
    "The ancestry model is there already; what it took is not counted, neither for the learngenes nor for distillation.",
    "Costs are means over the measured tasks, sizes and seeds; N descendants are taken to cost N times the mean. Fine-tuning takes "
    "equal models equally long: its seconds are means over the arms too.",
    "Seconds of fine-tuning are those of its training alone, seconds of an extraction are all that it takes; images are those that "
    "training saw, whatever a step with them took. A teacher that must first be fine-tuned is so for each size.",
    "Equal quality is the most that both reach on average, and each is charged for the least measured budget that reaches it; "
    "nothing is interpolated between budgets.",
)


def bill_table(found: Sequence[Bill]) -> Table:
    """What every arm takes with its largest budget."""
    rows = []
    for bill in found:
        epochs = bill.longest
        sums = [_spent(bill.total(count, epochs)) for count in TOTALS]
        costs = (_spent(bill.once), _spent(bill.each(epochs)), *sums)
        rows.append((bill.arm, str(epochs), tables.percent(bill.values[epochs]), *costs))
    columns = ("arm", "epochs", "metric, %", "once", "each descendant", *(f"{count} in all" for count in TOTALS))
    return Table("time, and training images, with the largest budget", columns, tuple(rows))


def budget_table(found: Sequence[Bill]) -> Table:
    """The metric of every arm with every budget."""
    budgets = list(found[0].values)
    rows = tuple((bill.arm, *(tables.percent(bill.values[n]) for n in budgets)) for bill in found)
    return Table("metric by epochs, %", ("arm", *map(str, budgets)), rows)


def reading_table(found: Sequence[Bill]) -> Table:
    """From how many descendants on each method is cheaper than each rival."""
    columns = ("method", "against", "reading", "epochs", "theirs", "metric, %", "theirs", "by time", "by images")
    return Table("from how many descendants a learngene pays", columns, tuple(map(_reading, readings(found))), texts=3)


def _reading(one: Reading) -> tuple[str, ...]:
    values = (one.ours.values[one.epochs], one.theirs.values[one.their_epochs])
    counts = (one.pays_from(unit) for unit in UNITS)
    words = ("never" if count is None else str(count) for count in counts)
    epochs = (str(one.epochs), str(one.their_epochs))
    return (one.ours.arm, one.theirs.arm, one.kind, *epochs, *map(tables.percent, values), *words)


def _spent(spent: Spent) -> str:
    if not spent.seconds and not spent.images:
        return tables.NONE
    return f"{tables.duration(spent.seconds)}, {human_count(round(spent.images))}"


def cost_tables(found: Sequence[Bill]) -> list[Table]:
    """All of them."""
    return [reading_table(found), bill_table(found), budget_table(found)]


def flat_costs(found: Sequence[Bill]) -> list[dict[str, Json]]:
    """Bills and readings as flat objects of raw numbers, told apart by `kind`."""
    return [
        *(_flat_bill(bill, epochs) for bill in found for epochs in bill.values),
        *map(_flat_reading, readings(found)),
    ]


def _flat_bill(bill: Bill, epochs: int) -> dict[str, Json]:
    parts = {"once": bill.once, "size": bill.size, "tuning": bill.tuning[epochs]}
    costs = {f"{name}_{unit}": getattr(spent, unit) for name, spent in parts.items() for unit in UNITS}
    return {"kind": "bill", "arm": bill.arm, "epochs": epochs, "value": bill.values[epochs], **costs}


def _flat_reading(one: Reading) -> dict[str, Json]:
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


def cost_texts(found: Sequence[Bill]) -> dict[str, str]:
    """The files `cost.md` and `cost.json`, by their names."""
    notes = "\n".join(f"- {line}" for line in ASSUMPTIONS)
    return {
        "cost.md": f"{tables.markdown(cost_tables(found))}\n{notes}\n",
        "cost.json": tables.json_text(flat_costs(found)),
    }


def cost_picture(found: Sequence[Bill]) -> Figure:
    """Total cost over the number of descendants: with equal budgets on the left, to equal quality on the right.

    Above in minutes, below in images. Equal quality is here what the stronger scratch arm reaches at best; arms that do not
    reach it with any budget are not drawn there.
    """
    looks = styles([(bill.arm, bill.method, None) for bill in found])
    scratch = [bill for bill in found if bill.method == "scratch"]
    level = max((value for bill in scratch for value in bill.values.values()), default=None)
    sides: dict[str, list[tuple[Bill, int]]] = {
        f"{found[0].longest} epochs each": [(bill, bill.longest) for bill in found],
    }
    if level is not None:
        enough = [(bill, bill.reaches(level)) for bill in found]
        sides[f"as long as it takes to {100 * level:.1f} %"] = [(bill, n) for bill, n in enough if n is not None]
    with style():
        figure, panels = subplots(len(UNITS), len(sides), (4.7, 2.9))
        for index, unit in enumerate(UNITS):
            for panel, (title, arms) in zip(panels[index * len(sides) :], sides.items()):
                _cost_panel(panel, arms, unit, looks)
                panel.set_title(title if index == 0 else "")
                panel.set_xlabel("descendants" if index == len(UNITS) - 1 else "")
            panels[index * len(sides)].set_ylabel(f"{SCALES[unit][1]} in all")
        legend(figure, panels, 5)
        return settle(figure)


def _cost_panel(panel: Axes, arms: Sequence[tuple[Bill, int]], unit: Unit, looks: dict[str, Style]) -> None:
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
        colour = looks[theirs.arm].colour
        panel.plot([count], [total], "o", color=looks[ours.arm].colour, markersize=6, zorder=5)
        panel.plot([count, count], [0, total], color=GREY, linewidth=0.8, linestyle=":", zorder=2)
        panel.text(0.02, 0.96 - 0.085 * rank, f"from {count}: cheaper than {theirs.arm}", color=colour, fontsize=8.5,
                   transform=panel.transAxes, va="top")  # fmt: skip
    panel.set_xlim(0, most)
    panel.locator_params(axis="x", integer=True)
    panel.set_ylim(bottom=0)


def _crossings(arms: Sequence[tuple[Bill, int]], unit: Unit) -> list[tuple[Bill, Bill, int]]:
    """(method, rival, descendants) for each pair where the method pays."""
    found = []
    for ours, epochs in arms:
        for theirs, their_epochs in arms:
            if is_rival(theirs) and not is_rival(ours):
                one = Reading(ours=ours, theirs=theirs, kind="equal quality", epochs=epochs, their_epochs=their_epochs)
                count = one.pays_from(unit)
                if count is not None:
                    found.append((ours, theirs, count))
    return found
