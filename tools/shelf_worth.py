"""Evaluate a learngene on the shelf: descendants of three sizes, fine-tuned briefly, beside their
controls and models from scratch.

    python tools/shelf.py worth     for every learngene on the shelf; resumable

The sizes are the smallest, the middle and the largest of those that cost no more than the ancestry
model. The tasks are two of real images and two drawn ones; the card names those that the extraction
has seen. Every arm has the same images in the same order, the same head and the same learning rate,
which is not tuned for any, and no augmentation: with it every arm is worse after so short a
training, and scratch and stem by most.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.records import CONTROLS, CardResults
from learngene_zoo.artifacts.shelf import BUNDLED
from learngene_zoo.bench.grid.cell import MORE_AXES, Arm, Cell, Extraction
from learngene_zoo.bench.grid.grid import RECIPE, SCRATCH, set_epochs
from learngene_zoo.families.family import count_cost
from learngene_zoo.method.sizes import Member
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.tasks.catalogue import get_version

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from grids import find_source, place_learngene, run_cells, summarise_gains

TASKS = ("digits", "fashion_mnist", "textures", "numbers")
IMAGES, EPOCHS, SEED = 500, 4, 0
TRAINING = set_epochs(replace(RECIPE, images=IMAGES), EPOCHS)


def measure_worth(arm: Arm, card: Path, out: Path) -> CardResults:
    """Return the results of the learngene on a card.

    The results of all cards are in one folder, so that they share the scratch arm.
    """
    place_learngene(Extraction(arm=replace(arm, name=""), seed=SEED), card, out)
    members = lifecycle.plan(card)
    sizes = choose_sizes(members)
    size_of_member = {id(member): name_size(member, members) for member in sizes}
    grid = [
        make_cells(arm, member, size_of_member[id(member)], task)
        for member in sizes
        for task in TASKS
    ]
    rows = {row.key: row for row in run_cells([cell for cells in grid for cell in cells], out)}
    results = [
        summarise_gains(member, size_of_member[id(member)], [rows[cell.key] for cell in cells])
        for member, cells in zip([member for member in sizes for _ in TASKS], grid, strict=True)
    ]
    return CardResults(
        command=f"python tools/shelf.py {arm.method}",
        split="test",
        how=describe_measurement(),
        rows=tuple(sorted(results, key=lambda row: TASKS.index(row.task))),
        datasets={task: find_source(task) for task in TASKS},
    )


def choose_sizes(members: Sequence[Member]) -> list[Member]:
    """Return the smallest, the middle and the largest member that cost no more than the ancestry
    model.

    There are fewer if fewer members fit.
    """
    max_params = count_cost(read_ancestry_spec(BUNDLED)).params
    fitting = [member for member in members if member.cost().params <= max_params]
    return [fitting[index] for index in sorted({0, (len(fitting) - 1) // 2, len(fitting) - 1})]


def name_size(member: Member, members: Sequence[Member]) -> dict[str, object]:
    """Return the expander's settings, and the axes in which the size differs from others of its
    layers and width.
    """
    similar_specs = [
        other.spec
        for other in members
        if (other.spec.layers, other.spec.width, other.settings)
        == (member.spec.layers, member.spec.width, member.settings)
    ]
    differing = [
        axis for axis in MORE_AXES if len({getattr(spec, axis) for spec in similar_specs}) > 1
    ]
    return {**member.settings, **{axis: getattr(member.spec, axis) for axis in differing}}


def make_cells(arm: Arm, member: Member, size: dict[str, object], task: str) -> list[Cell]:
    """Return the trainings of a row: a descendant, its controls, and the plain models of as many
    layers.
    """
    arms = [
        arm,
        *(replace(arm, name=f"{arm.name} {control}", control=control) for control in CONTROLS),
    ]
    spec = member.spec
    width = max(part.width for part in spec.sizes)
    cells = [
        make_cell(item, task, spec.layers, None if member.settings else width, size)
        for item in arms
    ]
    return [*cells, *(make_cell(item, task, spec.layers, width, {}) for item in SCRATCH)]


def make_cell(arm: Arm, task: str, layers: int, width: int | None, size: dict[str, object]) -> Cell:
    """Return a training. Every arm of a task has the same seed."""
    return Cell(
        arm=arm,
        task=task,
        layers=layers,
        width=width,
        size=size,
        seed=SEED,
        recipe=TRAINING,
        head="ridge",
        look=False,
        version=get_version(task),
    )


def describe_measurement() -> str:
    """Return the description of the measurement."""
    return (
        f"Each model after {EPOCHS} epochs of at most {IMAGES:,} training images without"
        f" augmentation, learning rate {RECIPE.lr:g}, which was tuned for no arm, one seed;"
        " every head starts from a ridge regression."
        " Shuffled: the same inherited tensors, each with its numbers in another order. Stem:"
        " nothing but patch embedding, tokens, positions and final norm inherited, in two"
        " initialisations of the blocks. Scratch: plain models of as many layers, as wide as the"
        " descendant's widest part, with timm's initialisation and with standard deviation"
        " 1/sqrt(fan in). Gains are in points, over the shuffled model, over the better of the two"
        " stems and over the better of the two from scratch, with 95 % intervals over the test"
        " images."
    )
