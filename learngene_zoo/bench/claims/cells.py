"""A claim's cells, and the learning rate of each of its arms.

There are two grids, one after the other. The tuning cells train every arm with every candidate rate
and a separate seed, and are evaluated on validation images. Only then are the claim's own cells
known; each reads the test split once (a descendant is not even evaluated on it before its
training). A claim that measures the extraction itself has untrained cells, which exist only for
their extraction.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.bench.claims.contrasts import SizeName
from learngene_zoo.bench.claims.file import Claim, Competitor
from learngene_zoo.bench.grid.cell import Arm, Cell, Size, label
from learngene_zoo.bench.grid.grid import find_size, set_epochs
from learngene_zoo.bench.grid.search import (
    Augment,
    Choice,
    Result,
    Space,
    Trial,
    read_result,
    search,
)
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.errors import BadFile
from learngene_zoo.method.installed import METHODS
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Json, Recipe, list_settings
from learngene_zoo.tasks.catalogue import get_version

ConfigOf = Callable[[Cell], LearngeneConfig]  # reads the config of a cell's learngene
# fields of a `Competitor` that its cells or seeds settle
CLAIM_FIELDS = (
    "draw_tasks",
    "epochs",
    "sizes",
)
_RANDOM = re.compile(r"random (\d+) of (\d+)")


def build_arm(claim: Claim, name: str, seed: int, lr: float | None = None) -> Arm:
    """Return an arm with the random choices of one seed.

    Args:
        claim: the claim.
        name: the arm's name in the claim.
        seed: the seed that draws tasks and `random` settings.
        lr: the learning rate of the extraction, used if the claim measures the extraction.
    """
    arm = claim.arms[name]
    tasks = arm.tasks
    if arm.draw_tasks is not None:
        chosen = draw_seeds(arm.draw_tasks, len(tasks), seed)
        tasks = tuple(tasks[i - 1] for i in chosen)
    settings = _read_settings(arm)
    for key, value in settings.items():
        if isinstance(value, str) and (match := _RANDOM.fullmatch(value)):
            settings[key] = draw_seeds(int(match[1]), int(match[2]), seed)
    if claim.measure == "extraction" and lr is not None:
        settings["lr"] = lr
    fields = {field: value for field, value in vars(arm).items() if field not in CLAIM_FIELDS}
    return Arm(**{**fields, "name": name, "settings": settings, "tasks": tasks})


def _read_settings(arm: Competitor) -> dict[str, Json]:
    """Return an arm's settings, with None for the word `none` where a setting can be absent.

    The command line reads `none` in the same way; TOML has no null.
    """
    if "none" not in arm.settings.values():
        return dict(arm.settings)
    extractor = METHODS.load(arm.method).preset(arm.preset)
    optional = {setting.name for setting in list_settings(extractor) if setting.none_is_nothing}
    return {
        key: None if value == "none" and key in optional else value
        for key, value in arm.settings.items()
    }


def draw_seeds(count: int, total: int, seed: int) -> list[int]:
    """Return `count` numbers from 1 to `total`, ascending, as a function of the seed."""
    order = sorted(range(1, total + 1), key=lambda i: derive_seed(seed, "random", count, total, i))
    return sorted(order[:count])


def list_tuning_cells(
    claim: Claim, rows: Iterable[Row] = (), config_of: ConfigOf | None = None
) -> list[Cell]:
    """Return the tuning cells that `rows` lack; an empty list once every rate is chosen.

    Measured rows may require more cells: a wider grid, another task, the augmentations (`search`).
    """
    trials = search(make_space(claim), _index_results(claim, rows, config_of))[1]
    return [_make_tuning_cell(claim, trial) for trial in trials]


def list_cells(claim: Claim, choices: Mapping[str, Choice] | None = None) -> list[Cell]:
    """Return the claim's own cells with the chosen rates.

    Without `choices` they have the first candidates, which suffices to count them. The first seed
    comes first, so that all cells of one learngene are neighbours if its arms share it.
    """
    if claim.compare.kind == "exact":
        return []
    choices = choices or {name: _make_first_choice(claim, name) for name in claim.arms}
    return [
        cell
        for seed in range(claim.seeds)
        for name in claim.arms
        for cell in _list_cells_of_arm(
            claim, choices[name], seed, claim.targets, list_sizes(claim, name), "test"
        )
    ]


def list_sizes(claim: Claim, name: str) -> list[Size]:
    """Return the sizes of an arm, in the claim's order.

    Raises:
        WrongCall: the arm's method cannot build a size.
    """
    if claim.layers:
        return [Size(layers=depth) for depth in claim.layers]
    arm = build_arm(claim, name, 0)
    return [find_size(arm, size) for size in _name_sizes(claim, name)]


def _name_sizes(claim: Claim, name: str) -> Sequence[Mapping[str, Json]]:
    """Return the sizes by name: the arm's, or else the claim's."""
    return claim.arms[name].sizes or claim.sizes


def name_size(claim: Claim, cell: Cell) -> SizeName:
    """Return the name under which a cell's size is paired with those of other arms.

    It is the number of layers, or the claim's size.
    """
    if not claim.sizes:
        return cell.layers
    size = cell.size or {"layers": cell.layers, **({"width": cell.width} if cell.width else {})}
    return label(claim.sizes[list(_name_sizes(claim, cell.arm.name)).index(size)])


def choose_rates(
    claim: Claim, rows: Iterable[Row], config_of: ConfigOf | None = None
) -> tuple[dict[str, Choice], list[str]]:
    """Return the choice of every arm, from the rows of the tuning cells, and the missing trials.

    A candidate whose training failed is excluded; nothing is chosen while a candidate's cell has
    not run.
    """
    space = make_space(claim)
    decisions, trials = search(space, _index_results(claim, rows, config_of))
    missing = [f"{trial.arm}: {trial.task} with lr {trial.lr:g}: not run" for trial in trials]
    choices = {
        name: _make_first_choice(claim, name) for name in claim.arms if name not in space.arms
    }
    for name, choice in decisions.items():
        if choice.means:
            choices[name] = choice
        else:
            missing.append(f"{name}: every learning rate failed ({choice.failed[0]})")
    return choices, missing


def list_tried_cells(
    claim: Claim, rows: Iterable[Row], config_of: ConfigOf | None = None
) -> list[Cell]:
    """Return the tuning cells whose results choose the rates."""
    look_up, tried = _index_results(claim, rows, config_of), dict[Trial, None]()

    def record(trial: Trial) -> Result | None:
        tried[trial] = None
        return look_up(trial)

    search(make_space(claim), record)
    return [_make_tuning_cell(claim, trial) for trial in tried]


def make_space(claim: Claim) -> Space:
    """Return the settings that are tried before the claim's own cells.

    The space is empty where there is one candidate, or where nothing is trained.
    """
    tuning = claim.tuning
    if tuning is None:
        return Space(arms=(), rates=(), augments=("none",), tasks=())
    augments: tuple[Augment, ...] = tuning.augment or (claim.recipe.augment,)
    tasks, further = tuning.tasks or claim.targets, claim.targets if claim.protocol > 1 else ()
    if claim.measure == "extraction":  # its rate is tried, on all tasks at once
        augments, tasks, further = augments[:1], tasks[:1], ()
    rates = tuple(dict.fromkeys(tuning.lr))
    arms = [
        name for name in claim.arms if claim.measure == "extraction" or claim.epochs_of(name) > 0
    ]
    return Space(
        arms=tuple(arms) if len(rates) * len(augments) > 1 else (),
        rates=rates,
        augments=augments,
        tasks=tasks,
        further=tuple(task for task in further if task not in tasks),
        widen=claim.protocol > 1,
    )


def _index_results(
    claim: Claim, rows: Iterable[Row], config_of: ConfigOf | None
) -> Callable[[Trial], Result | None]:
    """Return a function that looks up the result of a trial; None if it has not been measured."""
    rows_by_key = {row.key: row for row in rows}

    def look_up(trial: Trial) -> Result | None:
        cell = _make_tuning_cell(claim, trial)
        row = rows_by_key.get(cell.key)
        if row is None:
            return None
        if row.error is not None or claim.measure == "descendant":
            return (
                read_result(row)
                if claim.protocol > 1
                else replace(read_result(row), least=-math.inf)
            )
        values = list_values(claim, cell, row, config_of)
        return Result(value=sum(values.values()) / len(values))

    return look_up


def list_values(
    claim: Claim, cell: Cell, row: Row, config_of: ConfigOf | None
) -> dict[tuple[str, SizeName], float]:
    """Return the values of a finished cell by task and size, in per cent.

    They are the cell's own value, or all values that its extraction measured.
    """
    if row.error is not None:
        return {}
    if claim.measure == "descendant":
        return {(cell.task, name_size(claim, cell)): 100 * (row.value or 0.0)}
    assert config_of is not None, "measuring an extraction needs its config"
    metrics = config_of(cell).metrics
    if not claim.sizes:
        metric = _find_metric(claim.metric, metrics, {}, cell)
        by_task = metric if isinstance(metric, Mapping) else {cell.task: metric}
        return {
            (task, name_size(claim, cell)): 100 * float(value) for task, value in by_task.items()
        }
    sizes = zip(claim.sizes, _name_sizes(claim, cell.arm.name))
    return {
        (cell.task, label(claim_size)): 100 * float(_find_metric(claim.metric, metrics, size, cell))
        for claim_size, size in sizes
    }


def _find_metric(name: str, metrics: Json, size: Mapping[str, Json], cell: Cell) -> Json:
    """Return a metric by its path of names, joined by dots.

    In a list, the entry that agrees with `size` is taken.

    Raises:
        BadFile: the learngene's config has no such metric.
    """
    value = metrics
    for key in name.split("."):
        if isinstance(value, list):
            value = next(
                (entry for entry in value if all(entry.get(axis) == size[axis] for axis in size)),
                {},
            )
        if not isinstance(value, Mapping) or key not in value:
            where = f" at {label(size)}" if size else ""
            raise BadFile(
                f"a learngene of {cell.arm.method} has no metric {name!r}{where}; look for "
                "`metrics` in its config.json"
            )
        value = value[key]
    return value


def _make_first_choice(claim: Claim, name: str) -> Choice:
    """Return the choice of an arm without candidates, which also serves to count cells."""
    return Choice(arm=name, lr=claim.tuning.lr[0] if claim.tuning else claim.recipe.lr, means={})


def _make_tuning_cell(claim: Claim, trial: Trial) -> Cell:
    """Return the cell of a trial, evaluated on validation images."""
    assert claim.tuning is not None
    sizes = list_sizes(claim, trial.arm)
    size = Size(layers=claim.tuning.layers) if claim.tuning.layers else sizes[len(sizes) // 2]
    choice = Choice(arm=trial.arm, lr=trial.lr, augment=trial.augment, means={})
    return _list_cells_of_arm(claim, choice, claim.tuning.seed, [trial.task], [size], "validation")[
        0
    ]


def _list_cells_of_arm(
    claim: Claim,
    choice: Choice,
    seed: int,
    tasks: Sequence[str],
    sizes: Sequence[Size],
    split: Literal["validation", "test"],
) -> list[Cell]:
    """Return the cells of one arm with one seed, a cell per task and size."""
    augment: Augment = choice.augment or claim.recipe.augment
    recipe = replace(claim.recipe, lr=choice.lr, augment=augment)
    recipe = set_epochs(recipe, claim.epochs_of(choice.arm))
    if claim.measure == "extraction":  # no descendant is trained or tested: any one serves
        recipe, split, tasks, sizes = (
            replace(Recipe(), epochs=0),
            "validation",
            tasks[:1],
            sizes[:1],
        )
    arm = build_arm(
        claim, choice.arm, seed, choice.lr if choice.arm in make_space(claim).arms else None
    )
    rest: dict[str, Any] = {
        "seed": seed,
        "recipe": recipe,
        "split": split,
        "look": False,
        "code": METHODS.describe_code(arm.method),
    }
    versions = {task: claim.versions.get(task) or get_version(task) for task in tasks}
    return [
        Cell(
            arm=arm,
            task=task,
            version=versions[task],
            data={
                name: claim.data[name]
                for name in (task, *arm.tasks_for(task))
                if name in claim.data
            },
            **size._asdict(),
            **rest,
        )
        for task in tasks
        for size in sizes
    ]
