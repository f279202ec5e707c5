"""A claim's cells, and the learning rate of each of its arms.

There are two grids, one after the other. The tuning cells train every arm with every candidate rate and a separate seed, and are
evaluated on validation images. Only then are the claim's own cells known; each reads the test split once (a descendant is not
even evaluated on it before its training). A claim that measures the extraction itself has untrained cells, which are there only
for their extraction.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.bench.cell import Arm, Cell, Size, label
from learngene_zoo.bench.claim_file import Claim, Competitor
from learngene_zoo.bench.contrasts import SizeName
from learngene_zoo.bench.grid import best, scheduled, size_at
from learngene_zoo.bench.results import Row
from learngene_zoo.errors import BadFile
from learngene_zoo.method import METHODS
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Json, Recipe, settings_of

ConfigOf = Callable[[Cell], LearngeneConfig]  # reads the config of a cell's learngene
OF_THE_CLAIM = ("draw_tasks", "epochs", "sizes")  # fields of a `Competitor` that its cells or seeds settle
_RANDOM = re.compile(r"random (\d+) of (\d+)")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Why an arm has its learning rate."""

    arm: str
    lr: float
    means: Mapping[str, float]  # by candidate: the mean on validation images of the tuning tasks, in per cent
    failed: tuple[str, ...] = ()  # candidates that could not be trained
    edge: bool = False  # the smallest or largest of three or more was chosen: rates beyond might be better


def arm_of(claim: Claim, name: str, seed: int, lr: float | None = None) -> Arm:
    """An arm with the random choices of one seed. `lr` is that of the extraction, if the extraction is measured."""
    arm = claim.arms[name]
    tasks = arm.tasks
    if arm.draw_tasks is not None:
        chosen = drawn(arm.draw_tasks, len(tasks), seed)
        tasks = tuple(tasks[i - 1] for i in chosen)
    settings = _settings(arm)
    for key, value in settings.items():
        if isinstance(value, str) and (found := _RANDOM.fullmatch(value)):
            settings[key] = drawn(int(found[1]), int(found[2]), seed)
    if claim.measure == "extraction" and lr is not None:
        settings["lr"] = lr
    own = {field: value for field, value in vars(arm).items() if field not in OF_THE_CLAIM}
    return Arm(**{**own, "name": name, "settings": settings, "tasks": tasks})


def _settings(arm: Competitor) -> dict[str, Json]:
    """An arm's settings; `none` is None for a setting that can be absent, as on the command line, since TOML has no null."""
    if "none" not in arm.settings.values():
        return dict(arm.settings)
    extractor = METHODS.load(arm.method).preset(arm.preset)
    optional = {setting.name for setting in settings_of(extractor) if setting.none_is_nothing}
    return {key: None if value == "none" and key in optional else value for key, value in arm.settings.items()}


def drawn(count: int, total: int, seed: int) -> list[int]:
    """`count` numbers from 1 to `total`, ascending, as a function of the seed."""
    order = sorted(range(1, total + 1), key=lambda i: derive_seed(seed, "random", count, total, i))
    return sorted(order[:count])


def tuning_cells(claim: Claim) -> list[Cell]:
    """The cells whose validation images choose the learning rates; none if there is nothing to choose."""
    tried = [(name, rate) for name in claim.arms for rate in _candidates(claim, name)]
    return [cell for name, rate in tried for cell in _tuning(claim, name, rate)]


def cells_of(claim: Claim, rates: Mapping[str, float] | None = None) -> list[Cell]:
    """The claim's own cells with the chosen rates; without `rates`, with the first candidates (to count them)."""
    if claim.compare.kind == "exact":
        return []
    rates = rates or dict.fromkeys(claim.arms, _first_rate(claim))
    return [
        cell
        for name in claim.arms
        for seed in range(claim.seeds)
        for cell in _cells(claim, name, seed, rates[name], claim.targets, sizes_of(claim, name), "test")
    ]


def sizes_of(claim: Claim, name: str) -> list[Size]:
    """The sizes of an arm, in the claim's order. Raises `WrongCall` for a size that its method cannot build."""
    if claim.layers:
        return [Size(layers=depth) for depth in claim.layers]
    arm = arm_of(claim, name, 0)
    return [size_at(arm, size) for size in _sizes(claim, name)]


def _sizes(claim: Claim, name: str) -> Sequence[Mapping[str, Json]]:
    return claim.arms[name].sizes or claim.sizes


def place_of(claim: Claim, cell: Cell) -> SizeName:
    """The name under which a cell's size is paired with those of other arms: its layers, or the claim's size."""
    if not claim.sizes:
        return cell.layers
    wanted = cell.size or {"layers": cell.layers, **({"width": cell.width} if cell.width else {})}
    return label(claim.sizes[list(_sizes(claim, cell.arm.name)).index(wanted)])


def rates_of(
    claim: Claim, rows: Iterable[Row], config_of: ConfigOf | None = None
) -> tuple[dict[str, Choice], list[str]]:
    """The chosen learning rate of every arm, from the rows of the tuning cells; and for the others, what is missing.

    A candidate whose training failed is excluded; as long as a cell of a candidate has not run, nothing is chosen.
    """
    done = {row.key: row for row in rows}
    choices: dict[str, Choice] = {}
    missing: list[str] = []
    for name in claim.arms:
        tried = {rate: _tuning(claim, name, rate) for rate in _candidates(claim, name)}
        absent = [(rate, cell) for rate, cells in tried.items() for cell in cells if cell.key not in done]
        means, failed = _tuned(claim, {} if absent else tried, done, config_of)
        missing += [f"{name}: {cell.task} with lr {rate:g}: not run" for rate, cell in absent]
        if failed and not means:
            missing.append(f"{name}: every learning rate failed ({failed[0]})")
        lr = best(means) if means else _first_rate(claim)
        shown = {f"{rate:g}": mean for rate, mean in means.items()}
        edge = len(tried) > 2 and lr in (min(tried), max(tried))
        if means or not tried:
            choices[name] = Choice(arm=name, lr=lr, means=shown, failed=tuple(failed), edge=edge)
    return choices, missing


def _tuned(
    claim: Claim, tried: Mapping[float, Sequence[Cell]], done: Mapping[str, Row], config_of: ConfigOf | None
) -> tuple[dict[float, float], list[str]]:
    """By candidate the mean of its cells, and why the others failed."""
    means, failed = {}, []
    for rate, cells in tried.items():
        errors = [error for cell in cells if (error := done[cell.key].error)]
        if errors:
            failed.append(f"{rate:g}: {errors[0]}")
            continue
        values = [measured(claim, cell, done[cell.key], config_of) for cell in cells]
        means[rate] = sum(sum(parts.values()) / len(parts) for parts in values) / len(values)
    return means, failed


def measured(claim: Claim, cell: Cell, row: Row, config_of: ConfigOf | None) -> dict[tuple[str, SizeName], float]:
    """The values of a finished cell by task and size, in per cent: its own, or all that its extraction measured."""
    if row.error is not None:
        return {}
    if claim.measure == "descendant":
        return {(cell.task, place_of(claim, cell)): 100 * (row.value or 0.0)}
    assert config_of is not None, "measuring an extraction needs its config"
    metrics = config_of(cell).metrics
    if not claim.sizes:
        found = _metric(claim.metric, metrics, {}, cell)
        by_task = found if isinstance(found, Mapping) else {cell.task: found}
        return {(task, place_of(claim, cell)): 100 * float(value) for task, value in by_task.items()}
    sizes = zip(claim.sizes, _sizes(claim, cell.arm.name))
    return {(cell.task, label(place)): 100 * float(_metric(claim.metric, metrics, size, cell)) for place, size in sizes}


def _metric(name: str, metrics: Json, size: Mapping[str, Json], cell: Cell) -> Json:
    """A metric by its path of names with dots between them; in a list, the entry that agrees with `size` is taken."""
    found = metrics
    for key in name.split("."):
        if isinstance(found, list):
            found = next((one for one in found if all(one.get(each) == size[each] for each in size)), {})
        if not isinstance(found, Mapping) or key not in found:
            at = f" at {label(size)}" if size else ""
            raise BadFile(
                f"a learngene of {cell.arm.method} has no metric {name!r}{at}; look for `metrics` in its config.json"
            )
        found = found[key]
    return found


def _candidates(claim: Claim, name: str) -> tuple[float, ...]:
    """The rates among which this arm chooses; none if there is only one, or nothing is trained."""
    tuning = claim.tuning
    trained = claim.measure == "extraction" or claim.epochs_of(name) > 0
    return tuning.lr if tuning and len(tuning.lr) > 1 and trained else ()


def _first_rate(claim: Claim) -> float:
    return claim.tuning.lr[0] if claim.tuning else claim.recipe.lr


def _tuning(claim: Claim, name: str, lr: float) -> list[Cell]:
    assert claim.tuning is not None
    tasks, sizes = claim.tuning.tasks or claim.targets, sizes_of(claim, name)
    size = Size(layers=claim.tuning.layers) if claim.tuning.layers else sizes[len(sizes) // 2]
    return _cells(claim, name, claim.tuning.seed, lr, tasks, [size], "validation")


def _cells(
    claim: Claim,
    name: str,
    seed: int,
    lr: float,
    tasks: Sequence[str],
    sizes: Sequence[Size],
    split: Literal["validation", "test"],
) -> list[Cell]:
    recipe = scheduled(replace(claim.recipe, lr=lr), claim.epochs_of(name))
    if claim.measure == "extraction":  # no descendant is trained or tested: any one serves
        recipe, split, tasks, sizes = replace(Recipe(), epochs=0), "validation", tasks[:1], sizes[:1]
    arm = arm_of(claim, name, seed, lr if _candidates(claim, name) else None)
    rest: dict[str, Any] = {"seed": seed, "recipe": recipe, "split": split, "look": False}
    return [Cell(arm=arm, task=task, **size._asdict(), **rest) for task in tasks for size in sizes]
