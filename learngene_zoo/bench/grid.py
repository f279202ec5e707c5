"""Grids: which arms there are, which cells they make, and how many by default (`--budget quick`, `standard` or `full`)."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from learngene_zoo import lifecycle, registry
from learngene_zoo.artifacts.records import CONTROLS
from learngene_zoo.bench.cell import Arm, Cell, Size, label
from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.inputs import preset_of, references_for
from learngene_zoo.method import Member
from learngene_zoo.settings import Json, Recipe, from_json, to_json, with_settings
from learngene_zoo.tasks import catalogue

SCRATCH = (
    Arm(name="scratch timm", method="scratch", expand={"init": "timm"}),
    Arm(name="scratch fan_in", method="scratch", expand={"init": "fan_in"}),
)

MOST_NAMED = 18  # sizes listed in an error


def targets(reference: str, only: Collection[str] = ()) -> tuple[str, ...]:
    """The tasks of a suite, or one task by its name; `only` selects some of them. Raises `WrongCall`."""
    known = [entry.name for entry in catalogue.entries()]
    suites = {suite.name: suite.tasks for suite in catalogue.suites()[0]}
    if reference not in suites and reference not in known and ":" not in reference:
        raise unknown("suite or task", reference, [*suites, *known])
    tasks = suites.get(reference, (reference,))
    for name in only:
        if name not in tasks:
            raise unknown(f"task of {reference}", name, tasks)
    return tuple(task for task in tasks if not only or task in only)


def standard_arms(
    methods: Sequence[str],
    *,
    preset: str | None = None,
    settings: Mapping[str, Mapping[str, Json]] | None = None,
    ancestries: Sequence[str] = (),
    tasks: Sequence[str] = (),
    leave_out: bool = False,
) -> list[Arm]:
    """Every method with its controls `shuffled` and `stem`, and the two scratch arms, without which no gain means anything.

    `settings` are those of each method's extractor. `tasks` are those of extractions over several tasks; `leave_out` hides the
    cell's own task from each. Raises `WrongCall` for an unknown method, or one that is an arm of every grid.
    """
    for name in settings or {}:
        if name not in methods:
            raise WrongCall(f"settings for {name}, but the methods of this grid are {', '.join(methods)}")
    arms = []
    for name in dict.fromkeys(methods):
        if name == "scratch":
            raise WrongCall(f"{name} is an arm of every grid; name the methods to compare it with")
        method = registry.load(name)
        changed = dict((settings or {}).get(name, {}))
        extractor = with_settings(preset_of(method, preset), changed)
        many = method.tasks == "many" and extractor.needs_tasks()
        seen = tuple(tasks) if many else ()
        if many and leave_out:
            seen = seen or tuple(references_for(method, ()))
        own = Arm(
            name=name,
            method=name,
            preset=preset or "mini",
            settings=changed,
            ancestries=tuple(ancestries),
            tasks=seen,
            leave_out=many and leave_out,
        )
        arms += [own, *(replace(own, name=f"{name} {control}", control=control) for control in CONTROLS)]
    if not arms:
        raise WrongCall("a grid needs at least one method, as --method lsamd")
    return [*arms, *(replace(arm, ancestries=tuple(ancestries)[:1]) for arm in SCRATCH)]


def cells(
    tasks: Sequence[str],
    arms: Sequence[Arm],
    *,
    layers: Sequence[int],
    epochs: Sequence[int],
    seeds: Sequence[int],
    recipe: Recipe,
    widths: Sequence[int | None] = (None,),
    sizes: Sequence[Mapping[str, Json]] = (),
    rates: Mapping[str, float] | None = None,
    split: Literal["validation", "test"] = "test",
    offline: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Cell]:
    """Every arm at every size on every task with every budget and seed, in the order: seed, task, size, budget, arm.

    `recipe` is used with each number of epochs, a tenth of them as warm-up; `rates` are the learning rates of arms, by name.
    `sizes` come after `layers`: where a method builds several descendants with equal layers, `layers` means the largest one, and
    `sizes` name the others by the expander's settings, as low=3, high=3. Sizes that an arm cannot build are skipped with a
    message to `say`; scratch can build any number of layers, and no other size. Raises `WrongCall` if no cell is left.
    """
    needed = {"task": tasks, "layers": [*layers, *sizes], "epochs": epochs, "seeds": seeds, "arm": arms}
    for name, values in needed.items():
        if not values:
            raise WrongCall(f"a grid without cells: it has no {name}")
    names = [arm.name for arm in arms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongCall(f"two arms are named {twice[0]!r}; give each a name of its own")
    _check_seen(tasks, arms)
    wanted = [Size(depth, width) for depth in dict.fromkeys(layers) for width in dict.fromkeys(widths)]
    competitors = _at_layers(arms, wanted, offline, say) + _at_settings(arms, sizes, offline, say)
    return [
        Cell(
            arm=arm,
            task=task,
            layers=size.layers,
            width=size.width,
            size=size.settings,
            seed=seed,
            recipe=scheduled(replace(recipe, lr=(rates or {}).get(arm.name, recipe.lr)), budget),
            split=split,
        )
        for seed in dict.fromkeys(seeds)
        for task in dict.fromkeys(tasks)
        for at_one_size in competitors
        for budget in dict.fromkeys(epochs)
        for arm, size in at_one_size
    ]


def scheduled(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe with a complete schedule for this number of epochs: the first tenth of them is warm-up."""
    return replace(recipe, epochs=epochs, warmup=epochs / 10)


def _check_seen(tasks: Sequence[str], arms: Sequence[Arm]) -> None:
    """Raises `WrongCall` if an extraction has no task left once the cell's own is left out."""
    for arm in arms:
        for task in tasks:
            if arm.leave_out and not arm.tasks_for(task):
                raise WrongCall(
                    f"without {task}, the extraction of {arm.method} has no task; name more with --extract-task"
                )


Competitors = list[tuple[Arm, Size]]  # at one size: every arm that takes part, and how it names that size


def _at_layers(
    arms: Sequence[Arm], wanted: Sequence[Size], offline: bool, say: Callable[[str], None]
) -> list[Competitors]:
    """The sizes given by layers and width. Scratch takes part where another arm does, or everywhere if it is alone."""
    inheriting = [arm for arm in arms if arm.method != "scratch"]
    found: dict[str, list[Size]] = {}
    missing = {}
    for arm in inheriting:
        built = family_sizes(arm, offline)
        widths = {width for _, width in built}
        found[arm.name] = [
            size
            for size in wanted
            if any((size.layers, width) in built for width in (widths if size.width is None else {size.width}))
        ]
        absent = [size for size in wanted if size not in found[arm.name]]
        if absent and arm.control is None:
            missing[arm.name] = f"{arm.name} builds {_ranges(built)}, not {_sizes(absent)}"
    if wanted and inheriting and not any(found.values()):
        raise WrongCall(f"a grid without cells: {'; '.join(missing.values())}")
    for text in missing.values():
        say(f"{text}; skipped")
    anywhere = [size for sizes in found.values() for size in sizes] if inheriting else wanted
    return [[(arm, size) for arm in arms if size in found.get(arm.name, anywhere)] for size in wanted]


def _at_settings(
    arms: Sequence[Arm], sizes: Sequence[Mapping[str, Json]], offline: bool, say: Callable[[str], None]
) -> list[Competitors]:
    """The sizes given by the expander's settings; scratch has none."""
    found: list[Competitors] = []
    missing: dict[str, None] = {}
    for size in sizes:
        own: Competitors = []
        for arm in (arm for arm in arms if arm.method != "scratch"):
            try:
                own.append((arm, Size(member_at(arm, size, offline).spec.layers, None, size)))
            except WrongCall as error:
                missing |= {str(error): None} if arm.control is None else {}
        found.append(own)
    if sizes and not any(found):
        raise WrongCall(f"a grid without cells: {'; '.join(missing) or 'scratch has no sizes by settings'}")
    for text in missing:
        say(f"{text}; skipped")
    return found


def family_sizes(arm: Arm, offline: bool = False) -> set[tuple[int, int]]:
    """Layers and width of every descendant that an arm can build, known before anything is extracted."""
    return {(member.spec.layers, member.spec.width) for member in _plan(arm, offline)}


def named(members: Iterable[Member], size: Mapping[str, Json]) -> list[Member]:
    """The members whose settings of the expander agree with `size`."""
    return [member for member in members if all(member.settings.get(name) == size[name] for name in size)]


def member_at(arm: Arm, size: Mapping[str, Json], offline: bool = False) -> Member:
    """The largest member of an arm's family with this size. Raises `WrongCall` if there is none."""
    members = _family(json.dumps(to_json(replace(arm, name="", control=None)), sort_keys=True), offline)
    found = named(members, size)
    if not found:
        sizes = list(dict.fromkeys(label(member.settings) for member in members if member.settings))
        shown = f"{'; '.join(sizes[:MOST_NAMED])}{'; ...' if len(sizes) > MOST_NAMED else ''}" or "layers alone"
        raise WrongCall(f"{arm.name} builds no descendant with {label(size)}; it has {shown}")
    return max(found, key=lambda member: member.cost())


@cache
def _family(arm: str, offline: bool) -> tuple[Member, ...]:
    """The family of an arm, given as JSON."""
    return tuple(_plan(from_json(Arm, json.loads(arm), "arm"), offline))


def _plan(arm: Arm, offline: bool) -> list[Member]:
    method = registry.load(arm.method)
    return lifecycle.plan(
        arm.method,
        extractor=with_settings(preset_of(method, arm.preset), arm.settings),
        expander=with_settings(method.expander, arm.expand),
        ancestries=arm.ancestries,
        offline=offline,
    )


def _ranges(built: Collection[tuple[int, int]]) -> str:
    depths = sorted({depth for depth, _ in built})
    widths = sorted({width for _, width in built})
    whole = depths == list(range(depths[0], depths[-1] + 1)) and len(depths) > 2
    text = f"{depths[0]} to {depths[-1]}" if whole else ", ".join(map(str, depths))
    return f"{text} layers of width {', '.join(map(str, widths))}"


def _sizes(sizes: Sequence[Size]) -> str:
    return ", ".join(f"{one.layers}" + (f" of width {one.width}" if one.width else "") for one in sizes)


RECIPE = Recipe(images=1000, batch_size=50, lr=1e-3, clip=1.0)  # of every cell, except for its epochs


@dataclass(frozen=True, kw_only=True)
class GridBudget:
    """What is measured by default; `--layers`, `--epochs`, `--seeds`, `--images` and `--task` override one field each."""

    layers: tuple[int, ...]
    epochs: tuple[int, ...]
    seeds: int
    images: int | None  # training images of a cell; None: all
    tasks: tuple[str, ...] = ()  # those of the suite that are measured, if it has them; (): all
    most_tasks: int | None = None


BudgetName = Literal["quick", "standard", "full"]

BUDGETS: dict[BudgetName, GridBudget] = {
    # Minutes on two cores: to see that everything works, and a first result. No extraction sees these tasks by default.
    "quick": GridBudget(
        layers=(6,), epochs=(4,), seeds=2, images=1000, tasks=("figures", "textures", "numbers"), most_tasks=3
    ),
    # An afternoon on two cores.
    "standard": GridBudget(layers=(6, 9, 12), epochs=(1, 4, 16), seeds=3, images=1000),
    # For a GPU or a cluster: the papers' depths, every budget, all images.
    "full": GridBudget(layers=tuple(range(5, 16)), epochs=(1, 2, 4, 8, 16), seeds=5, images=None),
}


def some_of(budget: GridBudget, tasks: Sequence[str]) -> tuple[str, ...]:
    """The tasks of a suite that a budget measures: those it names, or else the first `most_tasks`."""
    named = tuple(task for task in tasks if task in budget.tasks)
    return named or tuple(tasks)[: budget.most_tasks]
