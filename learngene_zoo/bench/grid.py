"""Grids: which arms there are, which cells they make, and how many by default (`--budget quick`, `standard` or `full`)."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.records import CONTROLS
from learngene_zoo.bench.cell import Arm, Cell, HeadStart, Size, is_plain, label
from learngene_zoo.bench.search import Augment
from learngene_zoo.errors import WrongCall, ZooError, unknown
from learngene_zoo.method import METHODS, Member, Target
from learngene_zoo.settings import Json, Recipe, from_json, to_json
from learngene_zoo.tasks import catalogue
from learngene_zoo.tasks.stamps import stamp_tasks

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
    """Every method with its controls `shuffled`, `stem` and `stem_fan_in`, and the two scratch arms, without which no gain means anything.

    `settings` are those of each method's extractor. `tasks` are those of extractions over several tasks, a single one also
    that of extractions over one; `leave_out` hides the cell's own task from each of the former. Raises `WrongCall` for an unknown method, or one that is an arm of every grid.
    """
    for name in settings or {}:
        if name not in methods:
            raise WrongCall(f"settings for {name}, but the methods of this grid are {', '.join(methods)}")
    arms = []
    for name in dict.fromkeys(methods):
        if name == "scratch":
            raise WrongCall(f"{name} is an arm of every grid; name the methods to compare it with")
        changed = dict((settings or {}).get(name, {}))
        own = Arm(name=name, method=name, preset=preset or "mini", settings=changed, ancestries=tuple(ancestries))
        method = METHODS.load(name)
        if own.extractor.needs_tasks() and method.tasks == "many":
            seen = tuple(tasks) or tuple(method.references(()) if leave_out else ())
            own = replace(own, tasks=seen, leave_out=leave_out)
        elif own.extractor.needs_tasks() and len(tasks) == 1:
            own = replace(own, tasks=tuple(tasks))
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
    head: HeadStart = "random",
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
    named_widths = [{} if width is None else {"width": width} for width in dict.fromkeys(widths)]
    plain = [{"layers": depth, **width} for depth in dict.fromkeys(layers) for width in named_widths]
    # Apart: of either kind some size must be built, else what was asked for is a mistake.
    competitors = [*_competitors(arms, plain, offline, say), *_competitors(arms, sizes, offline, say)]
    stamps = _stamp_own_data([*tasks, *(task for arm in arms for task in arm.tasks)], offline)
    return [
        Cell(
            arm=arm,
            task=task,
            seed=seed,
            recipe=scheduled(replace(recipe, lr=(rates or {}).get(arm.name, recipe.lr)), budget),
            split=split,
            head=head,
            version=catalogue.version_of(task),
            data={name: stamps[name] for name in (task, *arm.tasks_for(task)) if name in stamps},
            **size._asdict(),
        )
        for seed in dict.fromkeys(seeds)
        for task in dict.fromkeys(tasks)
        for at_one_size in competitors
        for budget in dict.fromkeys(epochs)
        for arm, size in at_one_size
    ]


def _stamp_own_data(references: Sequence[str], offline: bool) -> dict[str, str]:
    """Return the stamps of those tasks that are the user's own data: cells of changed data are computed again.

    Data that cannot be opened has none: its cells fail, and say why.
    """
    stamps: dict[str, str] = {}
    for name in dict.fromkeys(references):
        if catalogue.is_own_data(name):
            with suppress(ZooError):
                stamps |= stamp_tasks([catalogue.open_task(name, offline=offline)])
    return stamps


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


def _competitors(
    arms: Sequence[Arm], wanted: Iterable[Mapping[str, Json]], offline: bool, say: Callable[[str], None]
) -> list[list[tuple[Arm, Size]]]:
    """At each size every arm that builds it, and how its cells name it. Raises `WrongCall` if no arm builds any.

    Scratch builds any layers: it takes part where another arm does, or everywhere if it is alone.
    """
    inheriting = [arm for arm in arms if arm.method != "scratch"]
    found: list[list[tuple[Arm, Size]]] = []
    missing: dict[str, list[str]] = {}  # sizes, by what an arm builds instead
    for size in wanted:
        able = [arm.name for arm in inheriting if named(family(arm, offline), size)]
        if is_plain(size) and (able or not inheriting):
            able += [arm.name for arm in arms if arm.method == "scratch"]
        found.append([(arm, size_at(arm, size, offline)) for arm in arms if arm.name in able])
        for arm in inheriting:
            if arm.name not in able and arm.control is None:
                words = str(Size(**size)) if is_plain(size) else label(size)
                missing.setdefault(f"{arm.name} builds {_built(arm, size, offline)}", []).append(words)
    texts = [f"{built}, not {' or '.join(dict.fromkeys(sizes))}" for built, sizes in missing.items()]
    if found and not any(found):
        raise WrongCall(f"a grid without cells: {'; '.join(texts) or 'scratch has no sizes by settings'}")
    for text in texts:
        say(f"{text}; skipped")
    return found


def size_at(arm: Arm, wanted: Mapping[str, Json], offline: bool = False) -> Size:
    """How an arm's cells name a size: by layers and width as given, or by settings of its expander.

    Of several descendants with these settings the largest is meant. Raises `WrongCall` if there is none.
    """
    if is_plain(wanted):
        return Size(**wanted)
    members = named(family(arm, offline), wanted)
    if not members:
        raise WrongCall(f"{arm.name} builds {_built(arm, wanted, offline)}, not {label(wanted)}")
    return Size(members[-1].spec.layers, None, wanted)


def named(members: Iterable[Member], size: Mapping[str, Json]) -> list[Member]:
    """The members of this size: its layers and width, and the expander's settings."""

    def value(member: Member, name: str) -> Json:
        return member.settings.get(name, getattr(member.spec, name, None))

    return [member for member in members if all(value(member, name) == size[name] for name in size)]


def family(arm: Arm, offline: bool = False) -> tuple[Member, ...]:
    """Every descendant that an arm can build, known before anything is extracted; the smallest first."""
    return _family(json.dumps(to_json(replace(arm, name="", control=None)), sort_keys=True), offline)


@cache
def _family(arm_as_json: str, offline: bool) -> tuple[Member, ...]:
    arm = from_json(Arm, json.loads(arm_as_json), "arm")
    planned = partial(lifecycle.plan, extractor=arm.extractor, expander=arm.expander, ancestries=arm.ancestries)
    return tuple(planned(arm.method, target=Target(image_size=arm.image_size), offline=offline))


def _built(arm: Arm, size: Mapping[str, Json], offline: bool) -> str:
    """What an arm builds, in the words in which a size is wanted."""
    if not is_plain(size):
        sizes = list(dict.fromkeys(label(member.settings) for member in family(arm, offline) if member.settings))
        shown = [*sizes[:MOST_NAMED], "..."] if len(sizes) > MOST_NAMED else sizes
        return "; ".join(shown) or "layers alone"
    specs = [member.spec for member in family(arm, offline)]
    depths, widths = sorted({spec.layers for spec in specs}), sorted({spec.width for spec in specs})
    whole = depths == list(range(depths[0], depths[-1] + 1)) and len(depths) > 2
    text = f"{depths[0]} to {depths[-1]}" if whole else ", ".join(map(str, depths))
    return f"{text} layers of width {', '.join(map(str, widths))}"


# How every arm is tuned unless the user says otherwise: 4 trainings an arm on the first task, and more where the grid must widen.
# Rates are chosen with the first augmentation. It is none, because shifts and flips slow every short training down: those from
# scratch most of all, whose rivals would look better than they are.
RATES = (3e-4, 1e-3, 3e-3)
AUGMENTS: tuple[Augment, ...] = ("none", "light")
RECIPE = Recipe(
    images=1000, batch_size=50, lr=1e-3, clip=1.0, augment=AUGMENTS[0]
)  # of every cell, except for its epochs


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
        layers=(6,), epochs=(3,), seeds=3, images=800, tasks=("figures", "textures", "numbers"), most_tasks=3
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
