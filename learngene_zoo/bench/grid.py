"""Grids: which arms there are, and which cells they make. Cold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from learngene_zoo import lifecycle, registry
from learngene_zoo.bench.cell import Arm, Cell, Control
from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.inputs import preset_of, references_for
from learngene_zoo.recipe import Recipe
from learngene_zoo.settings import Json, with_settings
from learngene_zoo.tasks import catalogue
from learngene_zoo.tasks.suites import SUITES, suite

SCRATCH = (
    Arm(name="scratch timm", method="scratch", expand={"init": "timm"}),
    Arm(name="scratch fan_in", method="scratch", expand={"init": "fan_in"}),
)
CONTROLS: tuple[Control, ...] = ("shuffled", "stem")
COMES_ALONG = ("scratch", *CONTROLS)  # methods that every grid has as arms, without being asked


def targets(reference: str, only: Collection[str] = ()) -> tuple[str, ...]:
    """The tasks of a suite, or one task by its own name; `only` keeps some of them. Raises `WrongCall`."""
    known = [entry.name for entry in catalogue.names()]
    if reference not in SUITES and reference not in known and ":" not in reference:
        raise unknown("suite or task", reference, [*SUITES, *known])
    tasks = suite(reference) if reference in SUITES else (reference,)
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
        if name in COMES_ALONG:
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
    rates: Mapping[str, float] | None = None,
    split: Literal["validation", "test"] = "test",
    offline: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Cell]:
    """Every arm at every size on every task with every budget and seed, in the order: seed, task, size, budget, arm.

    `recipe` with each number of epochs and a tenth of them as warm-up; `rates` are the learning rates of arms, by name.
    Sizes that an arm cannot build are left out, and `say` hears of it; scratch can build any. Raises `WrongCall` for a
    grid without cells, and says why.
    """
    for name, values in {"task": tasks, "layers": layers, "epochs": epochs, "seeds": seeds, "arm": arms}.items():
        if not values:
            raise WrongCall(f"a grid without cells: it has no {name}")
    names = [arm.name for arm in arms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongCall(f"two arms are named {twice[0]!r}; give each a name of its own")
    _check_seen(tasks, arms)
    wanted = [(depth, width) for depth in dict.fromkeys(layers) for width in dict.fromkeys(widths)]
    sizes = _reached(arms, wanted, offline, say)
    return [
        Cell(
            arm=arm,
            task=task,
            layers=depth,
            width=width,
            seed=seed,
            recipe=scheduled(replace(recipe, lr=(rates or {}).get(arm.name, recipe.lr)), budget),
            split=split,
        )
        for seed in dict.fromkeys(seeds)
        for task in dict.fromkeys(tasks)
        for depth, width in wanted
        for budget in dict.fromkeys(epochs)
        for arm in arms
        if (depth, width) in sizes[arm.name]
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


def _reached(
    arms: Sequence[Arm], wanted: Sequence[Size], offline: bool, say: Callable[[str], None]
) -> dict[str, set[Size]]:
    """The sizes each arm takes part in. Scratch does where another arm does, or everywhere if it is alone."""
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
    if inheriting and not any(found.values()):
        raise WrongCall(f"a grid without cells: {'; '.join(missing.values())}")
    for text in missing.values():
        say(f"{text}; left out")
    everywhere = set().union(*found.values()) if inheriting else set(wanted)
    return {arm.name: found.get(arm.name, everywhere) for arm in arms}


def family_sizes(arm: Arm, offline: bool = False) -> set[tuple[int, int]]:
    """Layers and width of every descendant in the grid of an arm's expander, before anything is extracted."""
    method = registry.load(arm.method)
    members = lifecycle.plan(
        arm.method,
        extractor=with_settings(preset_of(method, arm.preset), arm.settings),
        expander=with_settings(method.expander, arm.expand),
        ancestries=arm.ancestries,
        offline=offline,
    )
    return {(member.spec.layers, member.spec.width) for member in members}


def _ranges(built: Collection[tuple[int, int]]) -> str:
    depths = sorted({depth for depth, _ in built})
    widths = sorted({width for _, width in built})
    whole = depths == list(range(depths[0], depths[-1] + 1)) and len(depths) > 2
    text = f"{depths[0]} to {depths[-1]}" if whole else ", ".join(map(str, depths))
    return f"{text} layers of width {', '.join(map(str, widths))}"


def _sizes(sizes: Sequence[Size]) -> str:
    return ", ".join(f"{depth}" if width is None else f"{depth} of width {width}" for depth, width in sizes)
