"""How much do models inherit by each method, and what does it cost?

Varied: the method; the size, which is half of the ancestry model's depth, two thirds of its width,
or both (methods that only prune inside the blocks, or only grow, have those of
`derive_other_sizes`, beside rivals that build them too); the training images and epochs. Beside
them the controls, models from scratch, and distillation of each size from as many pictures as
LSAMD's extraction sees and from ten times as many. Learngenes that the shelf has are taken from
there (one extraction; the seeds are those of the fine-tuning).

Measured: the test accuracy on two tasks of real pictures and two drawn families that are left out
of the ancestry model's training; no extraction has seen any of them. Every arm has its own learning
rate and augmentation, chosen on validation images with equal budgets (docs/bench.md). Then the
regret of `lgzoo recommend` for every task, number of images and size (recommend_regret.py).

Command: about two hours of two cores, resumable; works in build/inheritance.

    python benchmarks/inheritance.py
    python benchmarks/inheritance.py --budget methods
            every method of the zoo, at two sizes with one fine-tuning and two seeds
    python benchmarks/inheritance.py --budget smoke
            a few cells, to test the program; writes no page
    python benchmarks/inheritance.py --budget full     more tasks and seeds, for a GPU
    python benchmarks/inheritance.py --budget methods --only tleg --only sws
            the part of these methods; writes no page

Results: benchmarks/results/inheritance.json and methods.json; rows in a file for each ancestry
model, from where another checkout goes on.
Page: docs/inheritance.md, with the figure docs/images/inheritance.png.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from grids import keep_rows, place_learngene
from inheritance_page import GridValues, write_methods, write_page
from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.artifacts.shelf import BUNDLED
from learngene_zoo.bench.grid.cell import Arm, Cell, label
from learngene_zoo.bench.grid.grid import RATES, RECIPE, list_cells, list_standard_arms, set_epochs
from learngene_zoo.bench.grid.search import Augment, choose
from learngene_zoo.bench.grid.tuning import GridTuning, apply_choices, describe_choice
from learngene_zoo.bench.results.rows import RESULTS, Row, read_rows
from learngene_zoo.bench.running.executors import Workers
from learngene_zoo.bench.running.runner import run_grid
from learngene_zoo.errors import TrainingFailed, ZooError
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Json
from learngene_zoo.storage import CONFIG
from learngene_zoo.tasks.catalogue import get_version, open_task
from recommend_probes import collect_probes
from recommend_regret import make_regret_table

ROOT = Path(__file__).resolve().parent.parent
METHODS_COMPARED = ("closed_form", "first_k", "weight_selection", "lsamd", "pool", "tal")
# Methods without a learngene, arms of every grid, or methods of other ancestry models.
APART = ("distillation", "pretrain_finetune", "scratch", "snnet")
REAL, LEFT_OUT = ("digits", "fashion_mnist"), ("wings", "petals")
MORE = ("textures", "numbers")
EXTRACTION_SEED = 0  # the shelf's
# The version of the suite that drew the test images of the committed rows. With a newer suite,
# tables are written from committed rows only.
VERSION = 2
SHALLOW = "a quarter as deep"  # the size against which further layers are judged


@dataclass(frozen=True)
class OtherSize:
    """A size for methods that build none of `derive_sizes`."""

    layers: int
    arms: Mapping[str, Mapping[str, Json]]  # the settings of each method


def derive_other_sizes(ancestry: Spec) -> dict[str, OtherSize]:
    """Return a size with thinner blocks at full depth and width, and one that is half as deep
    again.
    """
    thin: dict[str, Mapping[str, Json]] = {
        "pruning": {"heads": 2, "mlp_ratio": 1.5},
        "elastic": {"keep": 0.5},
        "nested": {"mlp_ratio": 1.0},
        "scratch": {"mlp_ratio": 1.0},
    }
    grown = ("growth", "ligo", "stacked", "scratch")
    return {
        "thinner blocks": OtherSize(ancestry.layers, thin),
        "deeper": OtherSize(3 * ancestry.layers // 2, {name: {} for name in grown}),
    }


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The amount of measurements."""

    tasks: tuple[str, ...] = (*REAL, *LEFT_OUT)
    trainings: tuple[tuple[int, int], ...] = (
        (200, 12),
        (1000, 4),
    )  # images and epochs of the fine-tuning
    seeds: int = 3
    # pictures that the distillation of one size sees, and a tenth of those of its longer arm
    distilled: int = 30_000
    sizes: int = 4  # how many of `derive_sizes`, from the first
    has_other_sizes: bool = False
    methods: tuple[str, ...] = METHODS_COMPARED  # () for every one
    rates: tuple[float, ...] = tuple(RATES)
    widen: bool = True
    # Tasks on whose validation images rates and augmentation are chosen; another joins where an arm
    # does not leave chance. One of real pictures and a drawn one: at the ceiling of `digits` alone,
    # rates that differ by a third of a point there differ by ten on `petals`.
    opening: tuple[str, ...] = ("digits", "petals")
    # Rates are chosen with the first one; with a few epochs most arms are better without.
    augments: tuple[Augment, ...] = ("none", "light")


BUDGETS = {
    "standard": Budget(),
    "methods": Budget(trainings=((1000, 4),), seeds=2, sizes=2, has_other_sizes=True, methods=()),
    "full": Budget(
        tasks=(*REAL, *LEFT_OUT, *MORE), seeds=8, trainings=((200, 12), (1000, 4), (5000, 8))
    ),
    "smoke": Budget(
        tasks=("digits",),
        trainings=((50, 1),),
        seeds=1,
        distilled=128,
        sizes=3,
        methods=("closed_form", "lsamd"),
        rates=(1e-3,),
        widen=False,
    ),
}


def derive_sizes(ancestry: Spec) -> dict[str, tuple[int, int]]:
    """Return layers and width by name. The gain by further layers is measured against the last
    size.
    """
    layers, width = ancestry.layers // 2, 2 * ancestry.heads // 3 * ancestry.head_width
    return {
        "half as deep": (layers, ancestry.width),
        "narrower": (ancestry.layers, width),
        "both": (layers, width),
        SHALLOW: (ancestry.layers // 4, ancestry.width),
    }


def name_other_sizes(ancestry: Spec) -> dict[tuple[int | str, ...], str]:
    """Return the names of `derive_other_sizes` by layers, width and the settings in words."""
    return {
        (size.layers, ancestry.width, *([label(settings)] if settings else [])): name
        for name, size in derive_other_sizes(ancestry).items()
        for settings in size.arms.values()
    }


def make_arms(budget: Budget, layers: int, width: int) -> list[Arm]:
    """Return the arms at one size.

    These are every method with its controls, scratch, and distillation of this size at two costs;
    among all methods pretraining, too.
    """
    names = METHODS.references()
    methods = [name for name in budget.methods or names if name in names and name not in APART]
    grid_arms = list_standard_arms(methods)
    trained = {
        "distillation": ("distillation", 1, {}),
        "distillation x 10": ("distillation", 10, {}),
    }
    if not budget.methods:
        trained["pretrain_finetune"] = ("pretrain_finetune", 10, {"init": "fan_in"})
    for name, (method, times, more) in trained.items() if budget.distilled else ():
        settings = {
            "depths": (layers,),
            "widths": (width,),
            "images": times * budget.distilled,
            "epochs": 1,
            **more,
        }
        grid_arms.append(Arm(name=name, method=method, settings=settings))
    return grid_arms


def make_grid(budget: Budget, ancestry: Spec) -> list[Cell]:
    """Return the cells at `derive_sizes`. A method has no cell of a size that it does not build."""
    grid_cells: list[Cell] = []
    for name, (layers, width) in list(derive_sizes(ancestry).items())[: budget.sizes]:
        size_budget = budget
        if name == SHALLOW:
            # The gain by further layers is shown of methods with controls, after the longest
            # fine-tuning.
            size_budget = replace(budget, distilled=0, trainings=budget.trainings[-1:])
        grid_cells += make_cells(size_budget, make_arms(size_budget, layers, width), layers, width)
    return grid_cells


def make_other_cells(budget: Budget, ancestry: Spec) -> list[Cell]:
    """Return the cells at `derive_other_sizes`."""
    other_cells: list[Cell] = []
    for size in derive_other_sizes(ancestry).values() if budget.has_other_sizes else ():
        grid_arms = make_arms(replace(budget, distilled=0), size.layers, ancestry.width)
        for method, settings in size.arms.items():
            size_arms = [arm for arm in grid_arms if arm.method == method]
            plain = make_cells(budget, size_arms, size.layers, ancestry.width) if size_arms else []
            other_cells += [replace(cell, size=settings) for cell in plain]
    return other_cells


def make_cells(budget: Budget, grid_arms: Sequence[Arm], layers: int, width: int) -> list[Cell]:
    """Return every arm's cells at one size, on every task, with every fine-tuning and seed."""
    return [
        replace(
            cell, extraction_seed=EXTRACTION_SEED, look=False, version=min(cell.version, VERSION)
        )
        for images, epochs in budget.trainings
        for cell in list_cells(
            list_available_tasks(budget.tasks),
            grid_arms,
            layers=(layers,),
            widths=(width,),
            epochs=(epochs,),
            seeds=range(budget.seeds),
            recipe=set_epochs(replace(RECIPE, images=images), epochs),
            offline=True,
            head="random",  # the recipe of the committed results
        )
    ]


def list_available_tasks(tasks: Sequence[str]) -> list[str]:
    """Return the tasks whose data are on this machine; print the others."""
    names = []
    for name in tasks:
        try:
            open_task(name, offline=True)
        except ZooError as error:
            print(f"without {name}: {error}", file=sys.stderr)
        else:
            names.append(name)
    return names


def copy_from_shelf(grid_cells: Sequence[Cell], out: Path) -> None:
    """Copy the learngenes of the shelf to the folders of the grid's extractions."""
    for cell in grid_cells:
        card = shelf.find_cards_folder() / f"{cell.arm.method}-mini"
        if cell.arm.method not in APART and (card / "model.safetensors").is_file():
            place_learngene(cell.extraction, card, out)


def add_shelf_cost(cell: Cell, row: Row) -> Row:
    """Return a row with the cost of the shelf's learngene, from its card.

    The grid did not pay for that extraction.
    """
    card = shelf.find_cards_folder() / f"{cell.arm.method}-mini"
    card_record = (
        read_config(card).card
        if cell.arm.method not in APART and (card / CONFIG).is_file()
        else None
    )
    if card_record is None or card_record.cost is None:
        return row
    cost = card_record.cost
    return replace(
        row,
        extraction_seconds=cost.seconds,
        extraction_images=cost.images,
        stored_params=cost.params,
    )


def list_shelf_methods() -> set[str]:
    """Return the methods whose learngenes `lgzoo recommend` uses by default."""
    return {read_config(shelf.find(name)).method for name in shelf.list_learngenes()}


def measure_grid(budget: Budget, out: Path, workers: int) -> Iterator[tuple[Cell, Row]]:
    """Yield the cells of the grid with their rows, after the choice of each arm on validation
    images.
    """
    ancestry, run = read_ancestry_spec(BUNDLED), Run(threads=1)
    usual, other_cells = make_grid(budget, ancestry), make_other_cells(budget, ancestry)
    grid_cells, usual_arms = [*usual, *other_cells], {cell.arm.name for cell in usual}
    copy_from_shelf(grid_cells, out)

    def compute_rows(requested: list[Cell]) -> list[Row]:
        missing = {cell.key for cell in requested} - {
            row.key for row in read_rows(out / RESULTS) if not row.error
        }
        current = max(get_version(task) for task in budget.tasks)
        if missing and current > VERSION:
            raise TrainingFailed(
                f"{len(missing)} cells have no kept row, and version {current} of the suite has"
                f" other test images than version {VERSION}; set VERSION to {current} to measure"
                " everything again"
            )
        return run_grid(
            requested, out, run, Workers(workers), say=lambda text: print(text, file=sys.stderr)
        )

    tuning = make_tuning(
        budget, [*usual, *(cell for cell in other_cells if cell.arm.name not in usual_arms)]
    )
    choices = tuning.default_choices
    if tuning.space.size > 1:
        choices = choose(tuning.space, tuning.cell_of, compute_rows)
    for choice in choices.values():
        print(describe_choice(choice), file=sys.stderr)
    chosen = apply_choices(grid_cells, choices)
    yield from (
        (cell, add_shelf_cost(cell, row))
        for cell, row in zip(chosen, compute_rows(chosen), strict=True)
    )


def make_tuning(budget: Budget, grid_cells: Sequence[Cell]) -> GridTuning:
    """Return the tuning of the arms of these cells.

    Arms are tuned with the most images, first on the tasks that the budget names.
    """
    largest = max(cell.recipe.images or 0 for cell in grid_cells)
    tuned = [cell for cell in grid_cells if cell.recipe.images == largest]
    tuned.sort(key=lambda cell: cell.task not in budget.opening)
    opening = len({cell.task for cell in tuned} & {*budget.opening})
    return GridTuning(
        tuned, budget.rates, budget.augments, opening=opening or 1, widen=budget.widen
    )


def main() -> None:
    """Measure the missing cells, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", choices=BUDGETS, default="standard")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help="the folder of the rows")
    parser.add_argument(
        "--only",
        action="append",
        metavar="METHOD",
        help="measure the cells of this method, no more",
    )
    args = parser.parse_args()
    # The cells that two budgets share are measured once.
    shared = args.budget in ("standard", "methods")
    out = args.out or ROOT / "build" / ("inheritance" if shared else f"inheritance-{args.budget}")
    budget = BUDGETS[args.budget]
    budget = replace(budget, methods=tuple(args.only), distilled=0) if args.only else budget
    try:
        with use_archive(out / RESULTS, get_archive_path() if shared else None):
            measured_rows = list(measure_grid(budget, out, args.workers))
    except TrainingFailed as error:
        raise SystemExit(str(error)) from None
    if args.only:
        return
    failed = {row.arm: row.error for _, row in measured_rows if row.error}
    ancestry = read_ancestry_spec(BUNDLED)
    names = {size: name for name, size in derive_sizes(ancestry).items()}
    values = GridValues(measured_rows, names | name_other_sizes(ancestry))
    if args.budget == "methods":
        write_methods(values, REAL, LEFT_OUT)
    else:
        write_inheritance(values, measured_rows, names, out, publish=args.budget != "smoke")
    if failed:
        raise SystemExit("; ".join(f"{arm}: {error}" for arm, error in failed.items()))


def get_archive_path() -> Path:
    """Return the file of the rows of the current ancestry model, whose name has its checksum."""
    return (
        ROOT
        / "benchmarks"
        / "results"
        / f"inheritance-{(open_ancestry(BUNDLED).record.sha256 or '')[:8]}.jsonl"
    )


@contextmanager
def use_archive(rows: Path, archive: Path | None) -> Iterator[None]:
    """Start with the rows in `archive`, and add the measured ones to it at the end, also after an
    error.
    """
    if archive is None:
        yield
        return
    keep_rows(archive, rows)
    try:
        yield
    finally:
        keep_rows(rows, archive)


def write_inheritance(
    values: GridValues,
    measured_rows: Sequence[tuple[Cell, Row]],
    names: dict[tuple[int, int], str],
    out: Path,
    *,
    publish: bool,
) -> None:
    """Measure the regret of `lgzoo recommend`, and write the page."""
    probes = collect_probes(measured_rows, names, out, Run(threads=1))
    regret = make_regret_table(values, probes, list_shelf_methods(), REAL, LEFT_OUT)
    write_page(values, list(names.values()), REAL, LEFT_OUT, more=[regret], publish=publish)


if __name__ == "__main__":
    main()
