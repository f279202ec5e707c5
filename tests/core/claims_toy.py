"""A claim of two arms on four tasks, variants of it, and rows with given results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from learngene_zoo.artifacts.records import AncestryRecord, LearngeneConfig
from learngene_zoo.bench.claims.cells import choose_rates, list_cells, list_tuning_cells
from learngene_zoo.bench.claims.file import Claim
from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.bench.grid.search import Choice
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.families.vit.spec import ViTSpec

TASKS = ("digits", "fashion_mnist", "cifar10", "cifar100")
FILE = """
name = "toy"
paper = "A paper"
where = "Table 1"
says = "ours is better than theirs"
estimand = "the difference"
expected = "holds"
protocol = 2
smallest = 1.0
targets = ["digits", "fashion_mnist", "cifar10", "cifar100"]
layers = [6]
seeds = 3

[compare]
kind = "over"
arms = ["ours", "timm", "fan_in"]

[recipe]
epochs = 4
images = 1000

[tuning]
lr = [1e-3, 2e-3]
augment = ["light"]
tasks = ["digits"]

[power]
sees = 9.0
tasks = 1.0
seeds = 1.0
rest = 1.0
source = "a guess"

[arms.ours]
method = "lsamd"
settings = { keep = [1, 2, 3] }

[arms.timm]
method = "scratch"

[arms.fan_in]
method = "scratch"
expand = { init = "fan_in" }

[full]
seeds = 5
recipe = { epochs = 16 }
"""


def write_claim(folder: Path, text: str = FILE, **changes: str) -> Path:
    """Write the claim file with some lines replaced.

    `seeds="seeds = 2"` replaces the first line that starts with `seeds`.
    """
    lines = text.splitlines()
    for name, line in changes.items():
        lines[next(i for i, old in enumerate(lines) if old.startswith(name))] = line
    path = folder / "toy.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def row(cell: Cell, value: float, error: str | None = None, correct: str | None = None) -> Row:
    """Return the row of a finished cell."""
    return Row(
        key=cell.key,
        arm=cell.arm.name,
        method=cell.arm.method,
        control=cell.arm.control,
        task=cell.task,
        layers=cell.layers,
        width=96,
        seed=cell.seed,
        epochs=cell.recipe.epochs,
        lr=cell.recipe.lr,
        images=1000,
        split=cell.split,
        error=error,
        value=None if error else value,
        correct=correct or cell.key,
        evaluated=4 * len(correct or cell.key),
        seconds=2.0,
        extraction_seconds=1.0,
        machine="a machine",
    )


def ran(
    claim: Claim, value: Callable[[Cell], float], tuned: Callable[[Cell], float] | None = None
) -> list[Row]:
    """Return rows of both grids; tuning prefers the rate 2e-3 unless `tuned` differs."""
    tuning = [
        row(cell, (tuned or (lambda cell: cell.recipe.lr))(cell))
        for cell in list_tuning_cells(claim)
    ]
    choices, missing = choose_rates(claim, tuning)
    assert not missing
    return [*tuning, *(row(cell, value(cell)) for cell in list_cells(claim, choices))]


def at(claim: Claim, lr: float) -> dict[str, Choice]:
    """Return every arm with this learning rate."""
    return {name: Choice(arm=name, lr=lr, means={}) for name in claim.arms}


def jitter(cell: Cell) -> float:
    """Return a small number that differs by task and seed.

    Its mean over four tasks and three seeds is zero.
    """
    return 0.001 * (TASKS.index(cell.task) - 1.5 + 2 * (cell.seed - 1))


def gains(gain: float, of: str = "ours", noise: float = 1.0) -> Callable[[Cell], float]:
    """Return values in which `of` is better than every other arm by this much, up to the jitter."""
    return lambda cell: 0.5 + (gain + noise * jitter(cell) if cell.arm.name == of else 0.0)


def with_two_sizes(toy: Claim) -> Claim:
    """Return a claim of two pools at two sizes given as expander settings.

    The second arm has other sizes than the claim.
    """
    ours = replace(toy.arms["ours"], method="pool", settings={"blocks": 6})
    theirs = replace(
        ours, settings={"blocks": 9}, sizes=({"low": 9, "high": 0}, {"low": 6, "high": 3})
    )
    sizes = ({"low": 6, "high": 0}, {"low": 3, "high": 3})
    compare = replace(toy.compare, arms=("ours", "theirs"))
    return replace(
        toy, arms={"ours": ours, "theirs": theirs}, layers=(), sizes=sizes, compare=compare
    )


def extraction(toy: Claim) -> Claim:
    """Return a claim that compares the extractions of two arms."""
    claim_of_one = replace(toy.arms["ours"], settings={}, tasks=TASKS)
    arms = {"batch": claim_of_one, "image": replace(claim_of_one, settings={"routing": "image"})}
    compare = replace(toy.compare, arms=("batch", "image"))
    return replace(toy, arms=arms, compare=compare, measure="extraction", seen=True)


def config(accuracy: float, kept: Sequence[int]) -> LearngeneConfig:
    """Return the config that an extraction would have written."""
    spec = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8)
    return LearngeneConfig(
        method="lsamd",
        spec=spec,
        ancestries=(AncestryRecord(source="bundled", spec=spec),),
        metrics={"validation_accuracy": dict.fromkeys(TASKS, accuracy)},
        details={"kept": list(kept)},
    )
