"""Grids: which arms there are, and which cells they make. Cold.

How much a bench measures if it is not told: `--budget quick`, `standard` or `full`. Cold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from learngene_zoo import lifecycle, registry
from learngene_zoo.artifacts.records import CONTROLS
from learngene_zoo.bench.cell import Arm, Cell, label
from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.lifecycle import preset_of, references_for
from learngene_zoo.method import Member
from learngene_zoo.recipe import Recipe
from learngene_zoo.settings import Json, from_json, to_json, with_settings
from learngene_zoo.tasks import catalogue

SCRATCH = (
    Arm(name="scratch timm", method="scratch", expand={"init": "timm"}),
    Arm(name="scratch fan_in", method="scratch", expand={"init": "fan_in"}),
)

MOST_NAMED = 18  # sizes that an error lists


def targets(reference: str, only: Collection[str] = ()) -> tuple[str, ...]:
    """The tasks of a suite, or one task by its own name; `only` keeps some of them. Raises `WrongCall`."""
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
    """Every method with its controls `shuffled` and `stem`, and the two scratch arms, without which no gain can be judged.

    `settings` are those of each method's extractor. `tasks` is what extractions over several tasks see; `leave_out` hides
    from each the task that is judged. Raises `WrongCall` for a method that does not exist, or is an arm of every grid.
    """
    for name in settings or {}:
        if name not in methods:
            raise WrongCall(f"there is no method to set: {name} is none of {', '.join(methods)}")
    arms = []
    for name in dict.fromkeys(methods):
        if name == "scratch":
            raise WrongCall(f"{name} is in every grid already; name the methods to compare it with")
        method = registry.load(name)
        changed = dict((settings or {}).get(name, {}))
        extractor = with_settings(preset_of(method, preset), changed)
        many = method.tasks == "many" and method.uses_tasks(extractor)
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

    `recipe` with each number of epochs and a tenth of them as warm-up; `rates` are the learning rates of arms, by name.
    `sizes` come after `layers`: of several descendants with equal layers the grid takes the largest, and the others are
    reached by the expander's settings, as low=3, high=3. Sizes that an arm cannot build are left out, and `say` hears of it;
    scratch can build any number of layers, and no other size. Raises `WrongCall` for a grid without cells, and says why.
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
    wanted = [(depth, width) for depth in dict.fromkeys(layers) for width in dict.fromkeys(widths)]
    places = _places(arms, wanted, offline, say) + _named_places(arms, sizes, offline, say)
    return [
        Cell(
            arm=arm,
            task=task,
            layers=depth,
            width=width,
            size=size,
            seed=seed,
            recipe=scheduled(replace(recipe, lr=(rates or {}).get(arm.name, recipe.lr)), budget),
            split=split,
        )
        for seed in dict.fromkeys(seeds)
        for task in dict.fromkeys(tasks)
        for place in places
        for budget in dict.fromkeys(epochs)
        for arm, depth, width, size in place
    ]


def scheduled(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe with its own complete schedule for so many epochs: the first tenth of them warms up."""
    return replace(recipe, epochs=epochs, warmup=epochs / 10)


def _check_seen(tasks: Sequence[str], arms: Sequence[Arm]) -> None:
    """Raises `WrongCall` if leaving a task out leaves an extraction without any."""
    for arm in arms:
        for task in tasks:
            if arm.leave_out and not arm.tasks_for(task):
                raise WrongCall(
                    f"without {task} the extraction of {arm.method} sees no task; name more with --extract-task"
                )


Size = tuple[int, int | None]  # layers, width; None: the learngene's

Place = list[
    tuple[Arm, int, int | None, Mapping[str, Json]]
]  # one size: every arm that takes part, and how it names it


def _places(arms: Sequence[Arm], wanted: Sequence[Size], offline: bool, say: Callable[[str], None]) -> list[Place]:
    """The sizes that layers and width name. Scratch takes part where another arm does, or everywhere if it is alone."""
    inheriting = [arm for arm in arms if arm.method != "scratch"]
    found: dict[str, set[Size]] = {}
    missing = {}
    for arm in inheriting:
        built = family_sizes(arm, offline)
        widths = {width for _, width in built}
        found[arm.name] = {(d, w) for d, w in wanted if any((d, x) in built for x in (widths if w is None else {w}))}
        absent = [size for size in wanted if size not in found[arm.name]]
        if absent and arm.control is None:
            missing[arm.name] = f"{arm.name} builds {_ranges(built)}, not {_sizes(absent)}"
    if wanted and inheriting and not any(found.values()):
        raise WrongCall(f"a grid without cells: {'; '.join(missing.values())}")
    for text in missing.values():
        say(f"{text}; left out")
    everywhere = set().union(*found.values()) if inheriting else set(wanted)
    return [[(arm, *size, {}) for arm in arms if size in found.get(arm.name, everywhere)] for size in wanted]


def _named_places(
    arms: Sequence[Arm], sizes: Sequence[Mapping[str, Json]], offline: bool, say: Callable[[str], None]
) -> list[Place]:
    """The sizes that settings of the expander name; scratch has none."""
    places: list[Place] = []
    missing: dict[str, None] = {}
    for size in sizes:
        place: Place = []
        for arm in (arm for arm in arms if arm.method != "scratch"):
            try:
                place.append((arm, member_at(arm, size, offline).spec.layers, None, size))
            except WrongCall as error:
                missing |= {str(error): None} if arm.control is None else {}
        places.append(place)
    if sizes and not any(places):
        raise WrongCall(f"a grid without cells: {'; '.join(missing) or 'scratch has no such sizes'}")
    for text in missing:
        say(f"{text}; left out")
    return places


def family_sizes(arm: Arm, offline: bool = False) -> set[tuple[int, int]]:
    """Layers and width of every descendant in the grid of an arm's expander, before anything is extracted."""
    return {(member.spec.layers, member.spec.width) for member in _plan(arm, offline)}


def named(members: Iterable[Member], size: Mapping[str, Json]) -> list[Member]:
    """Those members to which settings of the expander lead that agree with `size`."""
    return [member for member in members if all(member.settings.get(name) == size[name] for name in size)]


def member_at(arm: Arm, size: Mapping[str, Json], offline: bool = False) -> Member:
    """The largest member of an arm's family that `size` names. Raises `WrongCall` if there is none."""
    members = _family(json.dumps(to_json(replace(arm, name="", control=None)), sort_keys=True), offline)
    found = named(members, size)
    if not found:
        sizes = list(dict.fromkeys(label(member.settings) for member in members if member.settings))
        shown = f"{'; '.join(sizes[:MOST_NAMED])}{'; ...' if len(sizes) > MOST_NAMED else ''}" or "layers alone"
        raise WrongCall(f"{arm.name} builds no descendant with {label(size)}; there are {shown}")
    return max(found, key=lambda member: member.cost())


@cache
def _family(arm: str, offline: bool) -> tuple[Member, ...]:
    """What an arm, told as JSON, can build."""
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
    return ", ".join(f"{depth}" if width is None else f"{depth} of width {width}" for depth, width in sizes)


RECIPE = Recipe(images=1000, batch_size=50, lr=1e-3, clip=1.0)  # of every cell, but for its epochs


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is measured; `--layers`, `--epochs`, `--seeds`, `--images` and `--task` replace each its own."""

    layers: tuple[int, ...]
    epochs: tuple[int, ...]
    seeds: int
    images: int | None  # training images of a cell; None: all there are
    tasks: tuple[str, ...] = ()  # of the suite, where it has them; (): all
    most_tasks: int | None = None


Name = Literal["quick", "standard", "full"]

BUDGETS: dict[Name, Budget] = {
    # Minutes of two cores: whether everything works, and a first look. No extraction sees these tasks by default.
    "quick": Budget(
        layers=(6,), epochs=(4,), seeds=2, images=1000, tasks=("figures", "textures", "numbers"), most_tasks=3
    ),
    # An afternoon of two cores.
    "standard": Budget(layers=(6, 9, 12), epochs=(1, 4, 16), seeds=3, images=1000),
    # For a GPU, or a cluster: the papers' depths, every budget, all images.
    "full": Budget(layers=tuple(range(5, 16)), epochs=(1, 2, 4, 8, 16), seeds=5, images=None),
}


def some_of(budget: Budget, tasks: Sequence[str]) -> tuple[str, ...]:
    """The tasks of a suite that a budget measures: its own where the suite has them, else the first so many."""
    named = tuple(task for task in tasks if task in budget.tasks)
    return named or tuple(tasks)[: budget.most_tasks]
