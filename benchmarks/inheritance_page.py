"""The page, the figure and the numbers of inheritance.py, from its cells and their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from learngene_zoo.bench.claims.contrasts import Unit, Values, choose_stronger, sum_weighted
from learngene_zoo.bench.grid.cell import Cell, label
from learngene_zoo.bench.report.pictures import format_parameter_axis
from learngene_zoo.bench.report.text_table import (
    TextTable,
    format_duration,
    render_markdown,
    render_table,
)
from learngene_zoo.bench.results.averages import Average, average
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.plotting import COLOURS, GREY, draw_legend, mark, save, settle, style, subplots
from learngene_zoo.text import count_noun, format_count
from machine import write
from pages import DOCS, replace_between

OURS = "closed_form"
SCRATCH = ("scratch timm", "scratch fan_in")
STEMS = ("stem", "stem_fan_in")
Name = str  # of a size
Condition = tuple[int, Name]  # images of the fine-tuning, and size


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
    def is_clear(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low is not None and self.low > 0


class GridValues:
    """The values of every arm, by size, budget, task and seed."""

    def __init__(
        self, cells: Iterable[tuple[Cell, Row]], names: Mapping[tuple[int | str, ...], Name]
    ) -> None:
        self.values: dict[tuple[str, Condition], dict[Unit, float]] = {}
        self.rows: dict[tuple[str, Condition], list[Row]] = {}
        self.recipes: dict[
            tuple[str, Condition], str
        ] = {}  # the chosen rate, and the augmentation if there is one
        for cell, row in cells:
            if row.error is None and row.value is not None:
                settings = [label(cell.size)] if cell.size else []
                size = names[cell.layers, cell.width or row.width, *settings]
                key = (row.arm, (cell.recipe.images or 0, size))
                self.values.setdefault(key, {})[row.task, size, row.seed] = 100 * row.value
                self.rows.setdefault(key, []).append(row)
                augment = "" if cell.recipe.augment == "none" else f", {cell.recipe.augment}"
                self.recipes[key] = f"{cell.recipe.lr:g}{augment}"
        arms = dict.fromkeys(arm for arm, _ in self.values)
        self.methods = [
            arm for arm in arms if arm not in SCRATCH and not arm.endswith(("shuffled", *STEMS))
        ]
        self.conditions = list(dict.fromkeys(condition for _, condition in self.values))

    def compute_level(
        self, arm: str, condition: Condition, tasks: Collection[str] | None = None
    ) -> float | None:
        """Return the mean accuracy of an arm, over some of the tasks; None without any."""
        values = self.values.get((arm, condition), {})
        selected = [
            value for (task, _, _), value in values.items() if tasks is None or task in tasks
        ]
        return sum(selected) / len(selected) if selected else None

    def compute_best_level(
        self, arms: Iterable[str], condition: Condition, tasks: Collection[str]
    ) -> float | None:
        """Return the mean over some tasks of the arm that is the best on them."""
        return max(
            (
                level
                for arm in arms
                if (level := self.compute_level(arm, condition, tasks)) is not None
            ),
            default=None,
        )

    def sum_costs(self, arm: str, conditions: Iterable[Condition]) -> tuple[int, int, float]:
        """Return stored numbers, images and seconds of all extractions that an arm needs.

        An extraction that serves several conditions counts once.
        """
        rows = [
            self.rows[arm, condition][0]
            for condition in conditions
            if (arm, condition) in self.rows
        ]
        costs = {(row.stored_params, row.extraction_images, row.extraction_seconds) for row in rows}
        return (
            sum(cost[0] for cost in costs),
            sum(cost[1] for cost in costs),
            sum(cost[2] for cost in costs),
        )

    def find_strongest(self, arms: Sequence[str], condition: Condition) -> Values | None:
        """Return the values of the strongest of some arms, for each task; None without any."""
        values_of_arm = {
            arm: self.values[arm, condition] for arm in arms if (arm, condition) in self.values
        }
        return choose_stronger(values_of_arm)[0] if values_of_arm else None

    def compute_gain(self, ours: Values | None, theirs: Values | None) -> Gain | None:
        """Return the paired difference, over the tasks and seeds that both have."""
        if not ours or not theirs:
            return None
        shared = ours.keys() & theirs.keys()
        pairs = [{unit: side[unit] for unit in ours if unit in shared} for side in (ours, theirs)]
        mean: Average | None = average(
            {(task, seed): value for (task, _, seed), value in sum_weighted(pairs).items()}
        )
        if mean is None:
            return None
        if mean.interval == "range":  # of fewer than three tasks or seeds
            return Gain(
                value=mean.value,
                low=None,
                high=None,
                spread=f" ({mean.low:+.1f} to {mean.high:+.1f})",
            )
        return Gain(value=mean.value, low=mean.low, high=mean.high)

    def compute_gain_over(self, arm: str, arms: Sequence[str], condition: Condition) -> Gain | None:
        """Return the gain of an arm over the strongest of others."""
        return self.compute_gain(
            self.values.get((arm, condition)), self.find_strongest(arms, condition)
        )


def name_controls(method: str, names: Sequence[str]) -> list[str]:
    """Return the names of a method's arms under these controls."""
    return [f"{method} {name}" for name in names]


def make_comparison(
    values: GridValues, condition: Condition, real: Sequence[str], left_out: Sequence[str]
) -> TextTable:
    """Return the table of all methods at one size after one fine-tuning, the best first."""
    rows: list[tuple[str, ...]] = []
    for arm in sorted(
        [*values.methods, *SCRATCH], key=lambda arm: -(values.compute_level(arm, condition) or 0)
    ):
        arm_rows = values.rows.get((arm, condition))
        if not arm_rows:
            continue
        levels = [values.compute_level(arm, condition, tasks) for tasks in (None, real, left_out)]
        gains = [
            values.compute_gain_over(arm, rivals, condition)
            for rivals in (SCRATCH, name_controls(arm, STEMS), name_controls(arm, ["shuffled"]))
        ]
        counts = [format_count(number) for number in (arm_rows[0].params, arm_rows[0].flops)]
        texts = ["" if level is None else f"{level:.1f}" for level in levels]
        over = ["" if gain is None or arm in SCRATCH else str(gain) for gain in gains]
        rows.append(
            (
                arm,
                *texts,
                *over,
                values.recipes[arm, condition],
                *counts,
                *_format_costs(arm, arm_rows),
            )
        )
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
    return TextTable(
        f"{condition[1].capitalize()}, {condition[0]:,} images", (*header, *last), tuple(rows)
    )


def _format_costs(arm: Name, arm_rows: Sequence[Row]) -> tuple[str, ...]:
    """Return stored numbers, images of the extraction, and total time.

    They are empty if the cost of the extraction is not known.
    """
    if not arm_rows[0].extraction_seconds and arm not in SCRATCH:
        return "", "", ""
    seconds = arm_rows[0].extraction_seconds + sum(row.seconds for row in arm_rows) / len(arm_rows)
    return (
        format_count(arm_rows[0].stored_params),
        format_count(arm_rows[0].extraction_images),
        format_duration(seconds),
    )


def make_front(
    values: GridValues,
    images: int,
    sizes: Sequence[Name],
    real: Sequence[str],
    left_out: Sequence[str],
) -> TextTable:
    """Return the table of the methods: accuracies at every size, and the total cost of all sizes
    before any fine-tuning.
    """
    levels = {
        arm: [
            [values.compute_level(arm, (images, size), tasks) for tasks in (real, left_out, None)]
            for size in sizes
        ]
        for arm in (*values.methods, *SCRATCH)
    }
    rows = []
    for arm in sorted(levels, key=lambda arm: -(levels[arm][0][-1] or 0)):  # by the first size
        texts = [
            "" if None in level else f"{level[0]:.1f} / {level[1]:.1f}" for level in levels[arm]
        ]
        stored, shows, seconds = values.sum_costs(arm, [(images, size) for size in sizes])
        costs = (
            (format_count(stored), format_count(shows), format_duration(seconds))
            if seconds and arm not in SCRATCH
            else ("", "", "")
        )
        if any(texts):
            rows.append((arm, *texts, *costs))
    return TextTable("", ("", *sizes, "stored", "images", "extraction"), tuple(rows))


def make_split(values: GridValues, images: int, sizes: Sequence[Name], shallow: Name) -> TextTable:
    """Return the table of the inherited parts: scale of numbers, stem, features of the blocks, and
    the gain by further layers.
    """
    rows: list[tuple[str, ...]] = []
    for arm, size in product(values.methods, sizes):
        condition = (images, size)
        parts = [
            values.find_strongest(names, condition)
            for names in (name_controls(arm, ["shuffled"]), name_controls(arm, STEMS))
        ]
        scratch, values_of_arm = (
            values.find_strongest(SCRATCH, condition),
            values.values.get((arm, condition)),
        )
        features = values.compute_gain(
            values_of_arm,
            values.find_strongest(name_controls(arm, ("shuffled", *STEMS)), condition),
        )
        depth = _compute_depth_gain(values, arm, images, size, shallow)
        if values_of_arm and parts[0] and parts[1]:
            gains = [values.compute_gain(part, scratch) for part in parts]
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


def _compute_depth_gain(
    values: GridValues, arm: str, images: int, size: Name, shallow: Name
) -> Gain | None:
    """Return the gain of an arm by further layers, beyond the gain of scratch by them."""
    conditions = [(images, name) for name in (size, shallow)]
    arm_values = [_drop_size(values.values.get((arm, condition))) for condition in conditions]
    scratch_values = [
        _drop_size(values.find_strongest(SCRATCH, condition)) for condition in conditions
    ]
    if size == shallow or not all((*arm_values, *scratch_values)):
        return None
    depth_gains = [
        {unit: deep[unit] - flat[unit] for unit in deep.keys() & flat.keys()}
        for deep, flat in (arm_values, scratch_values)
    ]
    return values.compute_gain(*depth_gains)


def _drop_size(values: Values | None) -> dict[Unit, float]:
    """Return the values without the names of their sizes."""
    return {(task, "", seed): value for (task, _, seed), value in (values or {}).items()}


def make_leads(values: GridValues, conditions: Sequence[Condition]) -> TextTable:
    """Return the table of the gains of our method over each rival."""
    rivals, rows = [arm for arm in values.methods if arm != OURS], list[tuple[str, ...]]()
    for rival in rivals:
        gains = [values.compute_gain_over(OURS, [rival], condition) for condition in conditions]
        if any(gains):
            rows.append((rival, *("" if gain is None else str(gain) for gain in gains)))
    return TextTable(
        f"{OURS} over", ("", *(f"{size}, {images:,}" for images, size in conditions)), tuple(rows)
    )


def make_thresholds(values: GridValues, size: Name) -> TextTable:
    """Return the table of gains over scratch by number of images, with the least number at which
    the gain is clear.
    """
    budgets = sorted({images for images, name in values.conditions if name == size})
    rows: list[tuple[str, ...]] = []
    for arm in values.methods:
        gains = {
            images: values.compute_gain_over(arm, SCRATCH, (images, size)) for images in budgets
        }
        clear = [images for images, gain in gains.items() if gain and gain.is_clear]
        if any(gains.values()):
            first = f"{clear[0]:,}" if clear else "not shown"
            rows.append((arm, *(str(gain or "") for gain in gains.values()), first))
    columns = ("", *(f"{images:,} images" for images in budgets), "shown from")
    return TextTable(f"Over scratch, {size}", columns, tuple(rows))


def make_sentence(values: GridValues, conditions: Sequence[Condition]) -> str:
    """Return the number of comparisons that our method leads, and those that it does not, in
    sentences.
    """
    gains = [
        (f"{rival} ({condition[1]}, {condition[0]:,} images: {gain})", gain)
        for rival, condition in product([arm for arm in values.methods if arm != OURS], conditions)
        if (gain := values.compute_gain_over(OURS, [rival], condition)) is not None
    ]
    num_ahead, num_clear = (
        sum(gain.value > 0 for _, gain in gains),
        sum(gain.is_clear for _, gain in gains),
    )
    lost = [text for text, gain in gains if gain.high is not None and gain.high < 0]
    behind = [text for text, gain in gains if gain.value <= 0 and text not in lost]
    sentences = [
        (
            f"In {count_noun(len(gains), 'comparison')} (a rival, a size, a number of images)"
            f" `{OURS}` is ahead in {num_ahead}; beyond its interval in {num_clear}."
        ),
        (
            f"It is behind, beyond the interval: {'; '.join(lost)}."
            if lost
            else "It is nowhere behind beyond the interval."
        ),
        *([f"Behind, or level, within the interval: {'; '.join(behind)}."] if behind else []),
    ]
    return " ".join(sentences)


@style()
def draw_figure(values: GridValues, images: int) -> Any:
    """Draw the mean accuracy against parameters, and against total time."""
    figure, panels = subplots(1, 2, (4.7, 3.7))
    for number, arm in enumerate([*values.methods, *SCRATCH]):
        conditions = [
            condition
            for condition in values.conditions
            if condition[0] == images and (arm, condition) in values.rows
        ]
        points = []
        for condition in conditions:
            rows = values.rows[arm, condition]
            seconds = rows[0].extraction_seconds + sum(row.seconds for row in rows) / len(rows)
            points.append(
                (rows[0].params, max(seconds, 0.1), values.compute_level(arm, condition) or 0.0)
            )
        scratch_style = (
            {"color": GREY, "linestyle": "--" if arm == SCRATCH[0] else "-"}
            if arm in SCRATCH
            else {}
        )
        arm_style = {**mark(number), **scratch_style, "markersize": 5, "label": arm}
        for panel, column in zip(panels, (0, 1)):
            ordered = sorted(points, key=lambda point: point[column])
            panel_style = (
                arm_style if panel is panels[0] else {**arm_style, "linestyle": ""}
            )  # sizes are no series in time
            panel.plot(
                [point[column] for point in ordered], [point[2] for point in ordered], **panel_style
            )  # type: ignore[arg-type]
    format_parameter_axis(panels[0], sorted({rows[0].params for rows in values.rows.values()}))
    panels[0].set_xlabel("parameters of the model")
    panels[1].set_xscale("log")
    panels[1].xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    panels[1].set_xlabel("seconds of extraction and fine-tuning")
    panels[0].set_ylabel(f"accuracy after {images:,} images, %")
    draw_legend(figure, panels, 4)
    return settle(figure)


def write_page(
    values: GridValues,
    names: Sequence[Name],
    real: Sequence[str],
    left_out: Sequence[str],
    *,
    more: Sequence[TextTable] = (),
    publish: bool,
) -> None:
    """Print every table, last those of `more`.

    With `publish`, also write the page, the figure and the numbers.
    """
    sizes = [name for name in names if any(condition[1] == name for condition in values.conditions)]
    shallow, budgets = names[-1], sorted({images for images, _ in values.conditions})
    compared = [size for size in sizes if size != shallow] or sizes
    conditions = [(images, size) for size in compared for images in budgets]
    tables = [make_comparison(values, condition, real, left_out) for condition in conditions]
    tables += [make_leads(values, conditions), make_split(values, budgets[-1], compared, shallow)]
    tables += [*(make_thresholds(values, size) for size in compared), *more]
    text = f"{make_sentence(values, conditions)}\n\n{render_markdown(tables)}"
    if not publish:
        print(text)
        return
    save(draw_figure(values, budgets[-1]), DOCS / "images" / "inheritance.png")
    replace_between(
        DOCS / "methods" / "index.md",
        "front",
        render_table(make_front(values, budgets[-1], compared, real, left_out)),
    )
    replace_between(DOCS / "inheritance.md", "inheritance", text)
    print(write("inheritance", {"tables": [asdict(table) for table in tables]}))


@style()
def draw_methods(
    values: GridValues, condition: Condition, real: Sequence[str], left_out: Sequence[str]
) -> Any:
    """Draw a row for every method, the best at the top: with all that it inherits, with its stem
    alone, and with the same numbers shuffled.
    """
    methods = sorted(
        (arm for arm in values.methods if (arm, condition) in values.rows),
        key=lambda arm: values.compute_level(arm, condition) or 0,
    )
    figure, panels = subplots(1, 2, (4.4, 0.6 + 0.19 * len(methods)))
    heights = range(len(methods))
    for panel, tasks in zip(panels, (real, left_out)):
        for rivals, marker_style in (
            (
                lambda arm: name_controls(arm, ["shuffled"]),
                {"marker": "x", "color": GREY, "label": "shuffled"},
            ),
            (
                lambda arm: name_controls(arm, STEMS),
                {"marker": "|", "color": COLOURS[1], "label": "stem alone"},
            ),
            (lambda arm: [arm], {"marker": "o", "color": COLOURS[0], "label": "the method"}),
        ):
            levels = [values.compute_best_level(rivals(arm), condition, tasks) for arm in methods]
            panel.plot(levels, heights, linestyle="", markersize=5, **marker_style)
        scratch = values.compute_best_level(SCRATCH, condition, tasks)
        if scratch is not None:
            panel.axvline(scratch, color=GREY, linestyle="--", linewidth=1, label="scratch")
        panel.set_yticks(list(heights), methods if panel is panels[0] else [""] * len(methods))
        panel.set_xlabel(f"accuracy on {' and '.join(tasks)}, %")
        panel.margins(y=0.02)
    draw_legend(figure, panels, 4)
    return settle(figure)


def write_methods(values: GridValues, real: Sequence[str], left_out: Sequence[str]) -> None:
    """Write the tables of all methods into the page, and the numbers."""
    tables = [make_comparison(values, condition, real, left_out) for condition in values.conditions]
    save(
        draw_methods(values, values.conditions[0], real, left_out), DOCS / "images" / "methods.png"
    )
    replace_between(
        DOCS / "inheritance.md",
        "methods",
        f"{render_markdown(tables)}\n\n{describe_augmentation(values)}",
    )
    print(write("methods", {"tables": [asdict(table) for table in tables]}))


def describe_augmentation(values: GridValues) -> str:
    """Return a sentence on how many arms chose an augmentation on the validation images."""
    arms = {arm: recipe for (arm, _), recipe in values.recipes.items()}
    chosen = sum("," in recipe for recipe in arms.values())
    count = f"{chosen} of the" if chosen else "None of the"
    uses = "use" if chosen > 1 else "uses"
    return (
        f"{count} {len(arms)} arms (methods, controls, scratch) {uses} an augmentation; each chose"
        " on the validation images."
    )
