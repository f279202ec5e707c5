"""The page, the figure and the numbers of inheritance.py, from its cells and their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from learngene_zoo.bench.claims.contrasts import Unit, Values, stronger, sum_weighted
from learngene_zoo.bench.grid.cell import Cell, label
from learngene_zoo.bench.report.pictures import parameter_axis
from learngene_zoo.bench.report.text_table import TextTable, duration, markdown, markdown_table
from learngene_zoo.bench.results.averages import Average, average
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.plotting import COLOURS, GREY, legend, mark, save, settle, style, subplots
from learngene_zoo.text import count_noun, human_count
from machine import write
from pages import DOCS, replace_between

OURS = "closed_form"
SCRATCH = ("scratch timm", "scratch fan_in")
STEMS = ("stem", "stem_fan_in")
Name = str  # of a size
Place = tuple[int, Name]  # images of the fine-tuning, size


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A difference in points, with its 95 % interval over tasks and seeds."""

    value: float
    low: float | None
    high: float | None
    spread: str = (
        ""  # the range over tasks and seeds, where there are too few of either for an interval
    )

    def __str__(self) -> str:
        ends = (
            self.spread
            if self.low is None or self.high is None
            else f" [{self.low:+.1f}, {self.high:+.1f}]"
        )
        return f"{self.value:+.1f}{ends}"

    @property
    def clear(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low is not None and self.low > 0


class Measured:
    """The values of every arm, by size, budget, task and seed."""

    def __init__(
        self, found: Iterable[tuple[Cell, Row]], names: Mapping[tuple[int | str, ...], Name]
    ) -> None:
        self.values: dict[tuple[str, Place], dict[Unit, float]] = {}
        self.rows: dict[tuple[str, Place], list[Row]] = {}
        self.recipes: dict[
            tuple[str, Place], str
        ] = {}  # the chosen rate, and the augmentation if there is one
        for cell, row in found:
            if row.error is None and row.value is not None:
                settings = [label(cell.size)] if cell.size else []
                size = names[cell.layers, cell.width or row.width, *settings]
                at = (row.arm, (cell.recipe.images or 0, size))
                self.values.setdefault(at, {})[row.task, size, row.seed] = 100 * row.value
                self.rows.setdefault(at, []).append(row)
                augment = "" if cell.recipe.augment == "none" else f", {cell.recipe.augment}"
                self.recipes[at] = f"{cell.recipe.lr:g}{augment}"
        arms = dict.fromkeys(arm for arm, _ in self.values)
        self.methods = [
            arm for arm in arms if arm not in SCRATCH and not arm.endswith(("shuffled", *STEMS))
        ]
        self.places = list(dict.fromkeys(place for _, place in self.values))

    def level(self, arm: str, place: Place, tasks: Collection[str] | None = None) -> float | None:
        """The mean accuracy of an arm, over some of the tasks."""
        values = self.values.get((arm, place), {})
        kept = [value for (task, _, _), value in values.items() if tasks is None or task in tasks]
        return sum(kept) / len(kept) if kept else None

    def best_level(self, arms: Iterable[str], place: Place, tasks: Collection[str]) -> float | None:
        """The mean over some tasks of the arm that is the best on them."""
        return max(
            (level for arm in arms if (level := self.level(arm, place, tasks)) is not None),
            default=None,
        )

    def whole_cost(self, arm: str, places: Iterable[Place]) -> tuple[int, int, float]:
        """Stored numbers, images and seconds of all extractions that an arm needs at these places;
        one that serves several counts once.
        """
        rows = [self.rows[arm, place][0] for place in places if (arm, place) in self.rows]
        costs = {(row.stored_params, row.extraction_images, row.extraction_seconds) for row in rows}
        return (
            sum(cost[0] for cost in costs),
            sum(cost[1] for cost in costs),
            sum(cost[2] for cost in costs),
        )

    def rival(self, arms: Sequence[str], place: Place) -> Values | None:
        """The strongest of some arms, for each task; None without any."""
        own = {arm: self.values[arm, place] for arm in arms if (arm, place) in self.values}
        return stronger(own)[0] if own else None

    def gain(self, ours: Values | None, theirs: Values | None) -> Gain | None:
        """The paired difference, over the tasks and seeds that both have."""
        if not ours or not theirs:
            return None
        both = ours.keys() & theirs.keys()
        pairs = [{unit: side[unit] for unit in ours if unit in both} for side in (ours, theirs)]
        found: Average | None = average(
            {(task, seed): value for (task, _, seed), value in sum_weighted(pairs).items()}
        )
        if found is None:
            return None
        if found.interval == "range":  # of fewer than three tasks or seeds
            return Gain(
                value=found.value,
                low=None,
                high=None,
                spread=f" ({found.low:+.1f} to {found.high:+.1f})",
            )
        return Gain(value=found.value, low=found.low, high=found.high)

    def over(self, arm: str, arms: Sequence[str], place: Place) -> Gain | None:
        """The gain of an arm over the strongest of others at one place."""
        return self.gain(self.values.get((arm, place)), self.rival(arms, place))


def controls(method: str, names: Sequence[str]) -> list[str]:
    """The names of a method's arms under these controls."""
    return [f"{method} {name}" for name in names]


def comparison(
    found: Measured, place: Place, real: Sequence[str], left_out: Sequence[str]
) -> TextTable:
    """Every method at one size after one fine-tuning, the best first."""
    rows: list[tuple[str, ...]] = []
    for arm in sorted([*found.methods, *SCRATCH], key=lambda arm: -(found.level(arm, place) or 0)):
        own = found.rows.get((arm, place))
        if not own:
            continue
        levels = [found.level(arm, place, tasks) for tasks in (None, real, left_out)]
        gains = [
            found.over(arm, rivals, place)
            for rivals in (SCRATCH, controls(arm, STEMS), controls(arm, ["shuffled"]))
        ]
        counts = [human_count(number) for number in (own[0].params, own[0].flops)]
        texts = ["" if level is None else f"{level:.1f}" for level in levels]
        over = ["" if gain is None or arm in SCRATCH else str(gain) for gain in gains]
        rows.append((arm, *texts, *over, found.recipes[arm, place], *counts, *_costs(arm, own)))
    header = (
        "",
        "mean",
        "real",
        "left out",
        "over scratch",
        "over stem",
        "over shuffled",
        "rate",
        "parameters",
        "FLOPs",
    )
    last = ("stored", "images of its extraction", "total time")
    return TextTable(f"{place[1].capitalize()}, {place[0]:,} images", (*header, *last), tuple(rows))


def _costs(arm: Name, own: Sequence[Row]) -> tuple[str, ...]:
    """What is stored, the images of the extraction, and all time; empty where the extraction's cost
    is not known.
    """
    if not own[0].extraction_seconds and arm not in SCRATCH:
        return "", "", ""
    spent = own[0].extraction_seconds + sum(row.seconds for row in own) / len(own)
    return human_count(own[0].stored_params), human_count(own[0].extraction_images), duration(spent)


def front(
    found: Measured,
    images: int,
    sizes: Sequence[Name],
    real: Sequence[str],
    left_out: Sequence[str],
) -> TextTable:
    """The table of the methods: what each reaches at every size, and what all of these sizes cost
    together before any fine-tuning.
    """
    levels = {
        arm: [
            [found.level(arm, (images, size), tasks) for tasks in (real, left_out, None)]
            for size in sizes
        ]
        for arm in (*found.methods, *SCRATCH)
    }
    rows = []
    for arm in sorted(levels, key=lambda arm: -(levels[arm][0][-1] or 0)):  # by the first size
        shown = [
            "" if None in level else f"{level[0]:.1f} / {level[1]:.1f}" for level in levels[arm]
        ]
        stored, shows, seconds = found.whole_cost(arm, [(images, size) for size in sizes])
        costs = (
            (human_count(stored), human_count(shows), duration(seconds))
            if seconds and arm not in SCRATCH
            else ("", "", "")
        )
        if any(shown):
            rows.append((arm, *shown, *costs))
    return TextTable("", ("", *sizes, "stored", "images", "extraction"), tuple(rows))


def split(found: Measured, images: int, sizes: Sequence[Name], shallow: Name) -> TextTable:
    """What is inherited: the scale of numbers, the stem, the features of the blocks, and what
    further layers are worth.
    """
    rows: list[tuple[str, ...]] = []
    for arm, size in product(found.methods, sizes):
        place = (images, size)
        parts = [
            found.rival(names, place)
            for names in (controls(arm, ["shuffled"]), controls(arm, STEMS))
        ]
        scratch, own = found.rival(SCRATCH, place), found.values.get((arm, place))
        features = found.gain(own, found.rival(controls(arm, ("shuffled", *STEMS)), place))
        depth = _depth(found, arm, images, size, shallow)
        if own and parts[0] and parts[1]:
            gains = [found.gain(part, scratch) for part in parts]
            rows.append(
                (
                    arm,
                    size,
                    *("" if gain is None else str(gain) for gain in (*gains, features, depth)),
                )
            )
    header = (
        "",
        "size",
        "scale: shuffled over scratch",
        "stem over scratch",
        "features: over the stronger of both",
    )
    columns = (*header, "depth: more than scratch gains by it")
    return TextTable(f"What is inherited, {images:,} images", columns, tuple(rows), texts=2)


def _depth(found: Measured, arm: str, images: int, size: Name, shallow: Name) -> Gain | None:
    """What more layers are worth to an heir, beyond what they are worth to scratch."""
    places = [(images, name) for name in (size, shallow)]
    own = [_unsized(found.values.get((arm, place))) for place in places]
    plain = [_unsized(found.rival(SCRATCH, place)) for place in places]
    if size == shallow or not all((*own, *plain)):
        return None
    both = [
        {unit: deep[unit] - flat[unit] for unit in deep.keys() & flat.keys()}
        for deep, flat in (own, plain)
    ]
    return found.gain(*both)


def _unsized(values: Values | None) -> dict[Unit, float]:
    return {(task, "", seed): value for (task, _, seed), value in (values or {}).items()}


def leads(found: Measured, places: Sequence[Place]) -> TextTable:
    """Our method against each rival everywhere."""
    rivals, rows = [arm for arm in found.methods if arm != OURS], list[tuple[str, ...]]()
    for rival in rivals:
        gains = [found.over(OURS, [rival], place) for place in places]
        if any(gains):
            rows.append((rival, *("" if gain is None else str(gain) for gain in gains)))
    return TextTable(
        f"{OURS} over", ("", *(f"{size}, {images:,}" for images, size in places)), tuple(rows)
    )


def pays(found: Measured, size: Name) -> TextTable:
    """From how many images of the fine-tuning each method is ahead of scratch, and whether it still
    is with the most.
    """
    budgets = sorted({images for images, name in found.places if name == size})
    rows: list[tuple[str, ...]] = []
    for arm in found.methods:
        gains = {images: found.over(arm, SCRATCH, (images, size)) for images in budgets}
        clear = [images for images, gain in gains.items() if gain and gain.clear]
        if any(gains.values()):
            shown = f"{clear[0]:,}" if clear else "not shown"
            rows.append((arm, *(str(gain or "") for gain in gains.values()), shown))
    columns = ("", *(f"{images:,} images" for images in budgets), "shown from")
    return TextTable(f"Over scratch, {size}", columns, tuple(rows))


def sentence(found: Measured, places: Sequence[Place]) -> str:
    """In how many comparisons our method leads, and where it does not, in words."""
    gains = [
        (f"{rival} ({place[1]}, {place[0]:,} images: {gain})", gain)
        for rival, place in product([arm for arm in found.methods if arm != OURS], places)
        if (gain := found.over(OURS, [rival], place)) is not None
    ]
    ahead, shown = sum(gain.value > 0 for _, gain in gains), sum(gain.clear for _, gain in gains)
    lost = [text for text, gain in gains if gain.high is not None and gain.high < 0]
    behind = [text for text, gain in gains if gain.value <= 0 and text not in lost]
    said = [
        (
            f"In {count_noun(len(gains), 'comparison')} (a rival, a size, a number of images)"
            f" `{OURS}` is ahead in {ahead}; beyond its interval in {shown}."
        ),
        (
            f"It is behind, beyond the interval: {'; '.join(lost)}."
            if lost
            else "It is nowhere behind beyond the interval."
        ),
        *([f"Behind, or level, within the interval: {'; '.join(behind)}."] if behind else []),
    ]
    return " ".join(said)


@style()
def figure(found: Measured, images: int) -> Any:
    """Mean accuracy against parameters, and against total time."""
    made, panels = subplots(1, 2, (4.7, 3.7))
    for number, arm in enumerate([*found.methods, *SCRATCH]):
        places = [
            place for place in found.places if place[0] == images and (arm, place) in found.rows
        ]
        points = []
        for place in places:
            rows = found.rows[arm, place]
            spent = rows[0].extraction_seconds + sum(row.seconds for row in rows) / len(rows)
            points.append((rows[0].params, max(spent, 0.1), found.level(arm, place) or 0.0))
        plain = (
            {"color": GREY, "linestyle": "--" if arm == SCRATCH[0] else "-"}
            if arm in SCRATCH
            else {}
        )
        look = {**mark(number), **plain, "markersize": 5, "label": arm}
        for panel, column in zip(panels, (0, 1)):
            ordered = sorted(points, key=lambda point: point[column])
            line = (
                look if panel is panels[0] else {**look, "linestyle": ""}
            )  # sizes are no series in time
            panel.plot(
                [point[column] for point in ordered], [point[2] for point in ordered], **line
            )  # type: ignore[arg-type]
    parameter_axis(panels[0], sorted({rows[0].params for rows in found.rows.values()}))
    panels[0].set_xlabel("parameters of the model")
    panels[1].set_xscale("log")
    panels[1].xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    panels[1].set_xlabel("seconds of extraction and fine-tuning")
    panels[0].set_ylabel(f"accuracy after {images:,} images, %")
    legend(made, panels, 4)
    return settle(made)


def write_page(
    found: Measured,
    names: Sequence[Name],
    real: Sequence[str],
    left_out: Sequence[str],
    *,
    more: Sequence[TextTable] = (),
    publish: bool,
) -> None:
    """Print every table, last those of `more`; with `publish` also write the page, the figure and
    the numbers.
    """
    sizes = [name for name in names if any(place[1] == name for place in found.places)]
    shallow, budgets = names[-1], sorted({images for images, _ in found.places})
    compared = [size for size in sizes if size != shallow] or sizes
    places = [(images, size) for size in compared for images in budgets]
    tables = [comparison(found, place, real, left_out) for place in places]
    tables += [leads(found, places), split(found, budgets[-1], compared, shallow)]
    tables += [*(pays(found, size) for size in compared), *more]
    text = f"{sentence(found, places)}\n\n{markdown(tables)}"
    if not publish:
        print(text)
        return
    save(figure(found, budgets[-1]), DOCS / "images" / "inheritance.png")
    replace_between(
        DOCS / "methods" / "index.md",
        "front",
        markdown_table(front(found, budgets[-1], compared, real, left_out)),
    )
    replace_between(DOCS / "inheritance.md", "inheritance", text)
    print(write("inheritance", {"tables": [asdict(table) for table in tables]}))


@style()
def of_methods(found: Measured, place: Place, real: Sequence[str], left_out: Sequence[str]) -> Any:
    """A line for every method, the best at the top: with all that it inherits, the stem alone, and
    the same numbers shuffled.
    """
    methods = sorted(
        (arm for arm in found.methods if (arm, place) in found.rows),
        key=lambda arm: found.level(arm, place) or 0,
    )
    made, panels = subplots(1, 2, (4.4, 0.6 + 0.19 * len(methods)))
    heights = range(len(methods))
    for panel, tasks in zip(panels, (real, left_out)):
        for rivals, look in (
            (
                lambda arm: controls(arm, ["shuffled"]),
                {"marker": "x", "color": GREY, "label": "shuffled"},
            ),
            (
                lambda arm: controls(arm, STEMS),
                {"marker": "|", "color": COLOURS[1], "label": "stem alone"},
            ),
            (lambda arm: [arm], {"marker": "o", "color": COLOURS[0], "label": "the method"}),
        ):
            levels = [found.best_level(rivals(arm), place, tasks) for arm in methods]
            panel.plot(levels, heights, linestyle="", markersize=5, **look)
        scratch = found.best_level(SCRATCH, place, tasks)
        if scratch is not None:
            panel.axvline(scratch, color=GREY, linestyle="--", linewidth=1, label="scratch")
        panel.set_yticks(list(heights), methods if panel is panels[0] else [""] * len(methods))
        panel.set_xlabel(f"accuracy on {' and '.join(tasks)}, %")
        panel.margins(y=0.02)
    legend(made, panels, 4)
    return settle(made)


def write_methods(found: Measured, real: Sequence[str], left_out: Sequence[str]) -> None:
    """Write the tables of all methods into the page, and the numbers."""
    tables = [comparison(found, place, real, left_out) for place in found.places]
    save(of_methods(found, found.places[0], real, left_out), DOCS / "images" / "methods.png")
    replace_between(DOCS / "inheritance.md", "methods", f"{markdown(tables)}\n\n{augmented(found)}")
    print(write("methods", {"tables": [asdict(table) for table in tables]}))


def augmented(found: Measured) -> str:
    """How many arms were trained with an augmentation, by their own choice."""
    arms = {arm: recipe for (arm, _), recipe in found.recipes.items()}
    chosen = sum("," in recipe for recipe in arms.values())
    return (
        f"Of {len(arms)} arms (methods, controls, scratch) {chosen} chose an augmentation on the"
        " validation images, the others none."
    )
