"""The grid and the table of `lgzoo demo`: an end-to-end comparison with the bundled models.

One extraction by closed_form; descendants of several depths; each fine-tuned briefly on `digits`,
real images that neither the ancestry model nor the extraction has seen. Each is compared with its
scratch twins (two initialisations) and its controls: the same tensors shuffled, and its stem alone
(two initialisations of the blocks).
"""

from collections.abc import Sequence
from dataclasses import replace

from learngene_zoo.artifacts.shelf import BUNDLED
from learngene_zoo.bench.claims.contrasts import compute_gains_over_images
from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.bench.grid.grid import list_cells, list_members, list_standard_arms
from learngene_zoo.bench.report.text_table import TextTable, format_percent, render_table
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Json, Recipe
from learngene_zoo.tasks.catalogue import DEFAULT_TARGET
from learngene_zoo.text import format_count

METHOD = "closed_form"
RECIPE = Recipe(epochs=8, images=300, batch_size=50, lr=1e-3, warmup=0.8, augment="none")
SHOWN = ("descendant", "shuffled", "stem", "stem_fan_in", "scratch timm", "scratch fan_in")
# of several the stronger
RIVALS = {
    "scratch": SHOWN[4:],
    "stem": SHOWN[2:4],
    "shuffled": SHOWN[1:2],
}
GAINS = {
    "over_scratch": "the stronger scratch",
    "over_stem": "the stronger stem",
    "over_shuffled": "shuffled",
}


def demo_grid(seed: int = 0, *, full: bool = False, offline: bool = False) -> list[Cell]:
    """Return the cells of the demo: all arms at three depths with two seeds each.

    The depths start at a quarter of the ancestry model's; with `full` there are five depths and
    three seeds. Every cell uses the learngene of the one extraction with `seed`.
    """
    arms = [arm for arm in list_standard_arms([METHOD]) if name_arm(arm.name, arm.control) in SHOWN]
    deepest = read_ancestry_spec(BUNDLED, offline=offline).layers
    depths = {member.spec.layers for member in list_members(arms[0], offline)}
    possible = sorted(layers for layers in depths if deepest <= 4 * layers < 4 * deepest)
    grid = list_cells(
        [DEFAULT_TARGET],
        arms,
        layers=spread_evenly(possible, 5 if full else 3),
        epochs=[RECIPE.epochs],
        seeds=range(3 if full else 2),
        recipe=RECIPE,
        offline=offline,
    )
    tuning = {cell.seed: derive_seed(seed, "tuning", cell.seed) for cell in grid}
    return [
        replace(cell, extraction_seed=seed, training_seed=tuning[cell.seed], look=False)
        for cell in grid
    ]


def name_arm(name: str, control: str | None) -> str:
    """Return the name of an arm in the table.

    A control has its own name, scratch that of its initialisation; arms that inherit are
    `descendant`.
    """
    return control or (name if name.startswith("scratch ") else SHOWN[0])


def spread_evenly(values: Sequence[int], count: int) -> list[int]:
    """Return at most `count` (2 or more) of the values, from the first to the last."""
    if len(values) <= count:
        return list(values)
    return [values[round(number * (len(values) - 1) / (count - 1))] for number in range(count)]


def demo_rows(rows: Sequence[Row]) -> list[dict[str, Json]]:
    """Return the lines of the demo's table, one per depth.

    Each has the size, the accuracies, and the gains with their intervals over images.
    """
    return [
        _summarise_rows([row for row in rows if row.layers == layers])
        for layers in dict.fromkeys(row.layers for row in rows)
    ]


def _summarise_rows(rows: Sequence[Row]) -> dict[str, Json]:
    renamed = [replace(row, arm=name_arm(row.arm, row.control)) for row in rows]
    numbers = compute_gains_over_images(renamed, SHOWN[0], RIVALS)
    sizes = {"layers": rows[0].layers, "params": rows[0].params, "flops": rows[0].flops}
    return {**sizes, **{key.replace(" ", "_"): value for key, value in numbers.items()}}


def sentence(line: dict[str, Json]) -> str:
    """Return a line of the table as a sentence."""
    parts = []
    for name, rival in GAINS.items():
        note = (
            ""
            if line[f"{name}_low"] > 0
            else "; within its interval"
            if line[f"{name}_high"] > 0
            else "; worse"
        )
        value, interval = _format_points(line, name)
        parts.append(f"{value} points over {rival} {interval}{note}")
    return f"{line['layers']} layers: " + ", ".join(parts)


def render_markdown(lines: Sequence[dict[str, Json]]) -> str:
    """Return the table of docs/demo.md: test accuracies in per cent, gains in points.

    The gains have 95 % intervals.
    """
    heads = (
        "layers",
        "params",
        "FLOPs",
        *SHOWN,
        *(f"gain over {rival}" for rival in GAINS.values()),
    )
    rows = []
    for line in lines:
        sizes = (str(line["layers"]), format_count(line["params"]), format_count(line["flops"]))
        accuracies = (format_percent(line[name.replace(" ", "_")]) for name in SHOWN)
        rows.append(
            (*sizes, *accuracies, *(" ".join(_format_points(line, name)) for name in GAINS))
        )
    return render_table(TextTable("", heads, tuple(rows), texts=0))


def _format_points(line: dict[str, Json], name: str) -> tuple[str, str]:
    value, low, high = (100 * line[f"{name}{end}"] for end in ("", "_low", "_high"))
    return f"{value:+.1f}", f"[{low:+.1f}, {high:+.1f}]"
