"""How much do models inherit by each method, and what does it cost?

Varied: the method; the size, which is half of the ancestry model's depth, two thirds of its width,
or both (methods that only prune inside the blocks, or only grow, have other sizes, beside rivals
that build them too: `other_sizes`); the training images and epochs. Beside them the controls,
models from scratch, and distillation of each size from as many pictures as LSAMD's extraction sees
and from ten times as many. Learngenes that the shelf has are taken from there (one extraction; the
seeds are those of the fine-tuning).

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
from inheritance_page import Measured, write_methods, write_page
from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.bench.grid.cell import Arm, Cell, label
from learngene_zoo.bench.grid.grid import RATES, RECIPE, cells, set_epochs, standard_arms
from learngene_zoo.bench.grid.search import Augment, choose
from learngene_zoo.bench.grid.tuning import GridTuning, describe_choice, with_choices
from learngene_zoo.bench.results.rows import RESULTS, Row, read_rows
from learngene_zoo.bench.running.executors import Workers
from learngene_zoo.bench.running.runner import run_grid
from learngene_zoo.errors import TrainingFailed, ZooError
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.contract import BUNDLED, METHODS
from learngene_zoo.pretrained.ancestry import ancestry_spec, open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Json
from learngene_zoo.storage import CONFIG
from learngene_zoo.tasks.catalogue import open_task, version_of
from recommend_probes import probes_of
from recommend_regret import regret_table

ROOT = Path(__file__).resolve().parent.parent
METHODS_COMPARED = ("closed_form", "first_k", "weight_selection", "lsamd", "pool", "tal")
# They keep no learngene, are arms of every grid, or come from other ancestry models than the rest.
APART = ("distillation", "pretrain_finetune", "scratch", "snnet")
REAL, LEFT_OUT = ("digits", "fashion_mnist"), ("wings", "petals")
MORE = ("textures", "numbers")
EXTRACTION_SEED = 0  # the shelf's
# Of the suite that drew the test images of the kept rows. Where the suite has moved on, tables are
# written from kept rows only.
VERSION = 2
SHALLOW = "a quarter as deep"  # the size against which further layers are judged


@dataclass(frozen=True)
class OtherSize:
    """A size for methods that build none of `sizes_of`: how many layers, and by which settings each
    arm builds it.
    """

    layers: int
    arms: Mapping[str, Mapping[str, Json]]  # by method


def other_sizes(ancestry: Spec) -> dict[str, OtherSize]:
    """About half the numbers in the blocks, at full depth and width; and half as deep again."""
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
    """What is measured."""

    tasks: tuple[str, ...] = (*REAL, *LEFT_OUT)
    trainings: tuple[tuple[int, int], ...] = (
        (200, 12),
        (1000, 4),
    )  # images and epochs of the fine-tuning
    seeds: int = 3
    # pictures that the distillation of one size sees, and a tenth of those of its longer arm
    distilled: int = 30_000
    sizes: int = 4  # how many of `sizes_of`, from the first
    others: bool = False  # whether `other_sizes` are measured, too
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
    "methods": Budget(trainings=((1000, 4),), seeds=2, sizes=2, others=True, methods=()),
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


def sizes_of(ancestry: Spec) -> dict[str, tuple[int, int]]:
    """Layers and width by name. The last one is there to tell what further layers are worth."""
    layers, width = ancestry.layers // 2, 2 * ancestry.heads // 3 * ancestry.head_width
    return {
        "half as deep": (layers, ancestry.width),
        "narrower": (ancestry.layers, width),
        "both": (layers, width),
        SHALLOW: (ancestry.layers // 4, ancestry.width),
    }


def names_of_others(ancestry: Spec) -> dict[tuple[int | str, ...], str]:
    """The names of `other_sizes`, by layers, width, and the settings in words."""
    return {
        (size.layers, ancestry.width, *([label(settings)] if settings else [])): name
        for name, size in other_sizes(ancestry).items()
        for settings in size.arms.values()
    }


def arms(budget: Budget, layers: int, width: int) -> list[Arm]:
    """Every method with its controls, scratch, and distillation of this one size at two costs;
    among all methods pretraining, too.
    """
    names = METHODS.references()
    methods = [name for name in budget.methods or names if name in names and name not in APART]
    found = standard_arms(methods)
    trained = {
        "distillation": ("distillation", 1, {}),
        "distillation x 10": ("distillation", 10, {}),
    }
    if not budget.methods:
        trained["pretrain_finetune"] = ("pretrain_finetune", 10, {"init": "fan_in"})
    for name, (method, times, more) in trained.items() if budget.distilled else ():
        own = {
            "depths": (layers,),
            "widths": (width,),
            "images": times * budget.distilled,
            "epochs": 1,
            **more,
        }
        found.append(Arm(name=name, method=method, settings=own))
    return found


def grid(budget: Budget, ancestry: Spec) -> list[Cell]:
    """Every cell; what a method does not build, it has no cell for."""
    found: list[Cell] = []
    for name, (layers, width) in list(sizes_of(ancestry).items())[: budget.sizes]:
        own = budget
        if (
            name == SHALLOW
            # what further layers are worth is told of methods with controls, after the longest
            # fine-tuning
        ):
            own = replace(budget, distilled=0, trainings=budget.trainings[-1:])
        found += at_size(own, arms(own, layers, width), layers, width)
    return found


def others(budget: Budget, ancestry: Spec) -> list[Cell]:
    """The cells at `other_sizes`."""
    found: list[Cell] = []
    for size in other_sizes(ancestry).values() if budget.others else ():
        competitors = arms(replace(budget, distilled=0), size.layers, ancestry.width)
        for method, settings in size.arms.items():
            own = [arm for arm in competitors if arm.method == method]
            plain = at_size(budget, own, size.layers, ancestry.width) if own else []
            found += [replace(cell, size=settings) for cell in plain]
    return found


def at_size(budget: Budget, competitors: Sequence[Arm], layers: int, width: int) -> list[Cell]:
    """Every arm's cells at one size, on every task, with every fine-tuning and seed."""
    return [
        replace(
            cell, extraction_seed=EXTRACTION_SEED, look=False, version=min(cell.version, VERSION)
        )
        for images, epochs in budget.trainings
        for cell in cells(
            available(budget.tasks),
            competitors,
            layers=(layers,),
            widths=(width,),
            epochs=(epochs,),
            seeds=range(budget.seeds),
            recipe=set_epochs(replace(RECIPE, images=images), epochs),
            offline=True,
            head="random",  # the recipe of the committed results
        )
    ]


def available(tasks: Sequence[str]) -> list[str]:
    """The tasks whose data are here; says what is left out."""
    found = []
    for name in tasks:
        try:
            open_task(name, offline=True)
        except ZooError as error:
            print(f"without {name}: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found


def from_shelf(wanted: Sequence[Cell], out: Path) -> None:
    """Put the learngenes of the shelf where the grid looks for its extractions."""
    for cell in wanted:
        card = shelf.cards_folder() / f"{cell.arm.method}-mini"
        if cell.arm.method not in APART and (card / "model.safetensors").is_file():
            place_learngene(cell.extraction, card, out)


def charged(cell: Cell, row: Row) -> Row:
    """A row with what the learngene of the shelf cost, by its card.

    The grid has not paid for it.
    """
    card = shelf.cards_folder() / f"{cell.arm.method}-mini"
    about = (
        read_config(card).card
        if cell.arm.method not in APART and (card / CONFIG).is_file()
        else None
    )
    if about is None or about.cost is None:
        return row
    cost = about.cost
    return replace(
        row,
        extraction_seconds=cost.seconds,
        extraction_images=cost.images,
        stored_params=cost.params,
    )


def methods_on_shelf() -> set[str]:
    """Whose learngenes `lgzoo recommend` asks unless it is given others."""
    return {read_config(shelf.find(name)).method for name in shelf.learngenes()}


def measured(budget: Budget, out: Path, workers: int) -> Iterator[tuple[Cell, Row]]:
    """The rows of the grid: first each arm's choice on validation images, then everything else."""
    ancestry, run = ancestry_spec(BUNDLED), Run(threads=1)
    usual, apart = grid(budget, ancestry), others(budget, ancestry)
    wanted, placed = [*usual, *apart], {cell.arm.name for cell in usual}
    from_shelf(wanted, out)

    def rows_of(some: list[Cell]) -> list[Row]:
        missing = {cell.key for cell in some} - {
            row.key for row in read_rows(out / RESULTS) if not row.error
        }
        current = max(version_of(task) for task in budget.tasks)
        if missing and current != VERSION:
            raise TrainingFailed(
                f"{len(missing)} cells have no kept row, and version {current} of the suite has"
                f" other test images than version {VERSION}; set VERSION to {current} to measure"
                " everything again"
            )
        return run_grid(
            some, out, run, Workers(workers), say=lambda text: print(text, file=sys.stderr)
        )

    tuning = tuning_of(budget, [*usual, *(cell for cell in apart if cell.arm.name not in placed)])
    choices = tuning.default_choices
    if tuning.space.size > 1:
        choices = choose(tuning.space, tuning.cell_of, rows_of)
    for choice in choices.values():
        print(describe_choice(choice), file=sys.stderr)
    chosen = with_choices(wanted, choices)
    yield from (
        (cell, charged(cell, row)) for cell, row in zip(chosen, rows_of(chosen), strict=True)
    )


def tuning_of(budget: Budget, wanted: Sequence[Cell]) -> GridTuning:
    """How the arms of these cells are tuned: with the most images, first on the tasks that the
    budget names.
    """
    largest = max(cell.recipe.images or 0 for cell in wanted)
    tuned = [cell for cell in wanted if cell.recipe.images == largest]
    tuned.sort(key=lambda cell: cell.task not in budget.opening)
    opening = len({cell.task for cell in tuned} & {*budget.opening})
    return GridTuning(
        tuned, budget.rates, budget.augments, opening=opening or 1, widen=budget.widen
    )


def main() -> None:
    """Measure what is missing, and write the page."""
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
    given = parser.parse_args()
    # What two budgets have in common is measured once.
    shared = given.budget in ("standard", "methods")
    out = given.out or ROOT / "build" / ("inheritance" if shared else f"inheritance-{given.budget}")
    budget = BUDGETS[given.budget]
    budget = replace(budget, methods=tuple(given.only), distilled=0) if given.only else budget
    try:
        with kept(out / RESULTS, rows_of_ancestry() if shared else None):
            found = list(measured(budget, out, given.workers))
    except TrainingFailed as error:
        raise SystemExit(str(error)) from None
    if given.only:
        return
    failed = {row.arm: row.error for _, row in found if row.error}
    ancestry = ancestry_spec(BUNDLED)
    names = {size: name for name, size in sizes_of(ancestry).items()}
    values = Measured(found, names | names_of_others(ancestry))
    if given.budget == "methods":
        write_methods(values, REAL, LEFT_OUT)
    else:
        finish(values, found, names, out, publish=given.budget != "smoke")
    if failed:
        raise SystemExit("; ".join(f"{arm}: {error}" for arm, error in failed.items()))


def rows_of_ancestry() -> Path:
    """Where the rows are kept that come from today's ancestry model: its checksum is part of the
    name.
    """
    return (
        ROOT
        / "benchmarks"
        / "results"
        / f"inheritance-{(open_ancestry(BUNDLED).record.sha256 or '')[:8]}.jsonl"
    )


@contextmanager
def kept(rows: Path, place: Path | None) -> Iterator[None]:
    """Begin with the rows that are kept in `place`, and keep there whatever has been measured, even
    if it was stopped.
    """
    if place is None:
        yield
        return
    keep_rows(place, rows)
    try:
        yield
    finally:
        keep_rows(rows, place)


def finish(
    values: Measured,
    found: Sequence[tuple[Cell, Row]],
    names: dict[tuple[int, int], str],
    out: Path,
    *,
    publish: bool,
) -> None:
    """Measure the regret of `lgzoo recommend`, and write the page."""
    probes = probes_of(found, names, out, Run(threads=1))
    regret = regret_table(values, probes, methods_on_shelf(), REAL, LEFT_OUT)
    write_page(values, list(names.values()), REAL, LEFT_OUT, more=[regret], publish=publish)


if __name__ == "__main__":
    main()
