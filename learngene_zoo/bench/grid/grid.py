"""Grids: their arms, cells and default budgets (`--budget quick`, `standard` or `full`)."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.records import CONTROLS, is_own_data
from learngene_zoo.artifacts.shelf import is_ours
from learngene_zoo.bench.grid.cell import Arm, Cell, HeadStart, Size, is_plain, label
from learngene_zoo.bench.grid.search import Augment
from learngene_zoo.bench.results import condition
from learngene_zoo.errors import WrongCall, ZooError, refuse_unknown
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Member, Target
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.settings import Json, Recipe, from_json, to_json
from learngene_zoo.tasks import catalogue
from learngene_zoo.tasks.task import Entry, Task, name_kind, stamp_tasks

SCRATCH = (
    Arm(name="scratch timm", method="scratch", expand={"init": "timm"}),
    Arm(name="scratch fan_in", method="scratch", expand={"init": "fan_in"}),
)

MAX_NAMED = 18  # sizes listed in an error


def list_targets(*references: str, only: Collection[str] = ()) -> tuple[str, ...]:
    """Return the tasks of suites, and tasks by their names; `only` selects among them.

    They are in the order of the catalogue, the user's own data last.

    Raises:
        WrongCall: a suite or a task is unknown.
    """
    suites = catalogue.load_suites()[0]
    names = [entry.name for entry in catalogue.list_entries()]
    known = [*(suite.name for suite in suites), *names]
    for reference in references:
        if not is_own_data(reference) and reference not in known:
            raise refuse_unknown("suite or task", reference, known)
    tasks = catalogue.expand_suites(references)
    for name in only:
        if name not in tasks:
            raise _find_no_task(name, references, tasks, names)
    order = [
        task
        for suite in suites
        for task in (*suite.tasks, *(entry.name for entry in suite.entries))
    ]
    return tuple(sorted(dict.fromkeys(only or tasks), key=[*order, *tasks].index))


def _find_no_task(
    name: str, references: Sequence[str], tasks: Sequence[str], names: Sequence[str]
) -> WrongCall:
    """Return the error for a task that the suites do not run, with a remedy if it exists."""
    suites = " and ".join(references)
    if is_own_data(name) or name in names:
        return WrongCall(
            f"no task of {suites} named {name!r}; to combine tasks of any suites, leave out "
            f"{suites} and give each with --task"
        )
    return refuse_unknown(f"task of {suites}", name, tasks)


def list_standard_arms(
    methods: Sequence[str],
    *,
    preset: str | None = None,
    settings: Mapping[str, Mapping[str, Json]] | None = None,
    ancestries: Sequence[str] = (),
    tasks: Sequence[str] = (),
    leave_out: bool = False,
    image_size: int | None = None,
) -> list[Arm]:
    """Return every method with its controls, and the two scratch arms.

    The controls are `shuffled`, `stem` and `stem_fan_in`. Gains are measured against controls and
    scratch.

    Args:
        methods: names of methods.
        preset: the preset of every extractor; None for `mini`.
        settings: the settings of each method's extractor, by method.
        ancestries: the ancestry models; () for the bundled one.
        tasks: the tasks of extractions over several tasks; a single one is also that of extractions
            over one task. Methods without a task ignore them.
        leave_out: whether the cell's own task is hidden from extractions over several tasks.
        image_size: of the ancestry models and of descendants. None: their own.

    Raises:
        WrongCall: a method is unknown, or is an arm of every grid.
    """
    for name in settings or {}:
        if name not in methods:
            raise WrongCall(
                f"settings for {name}, but the methods of this grid are {', '.join(methods)}; add "
                f"--method {name}, or leave its settings out"
            )
    arms = []
    for name in dict.fromkeys(methods):
        if name == "scratch":
            raise WrongCall(f"{name} is an arm of every grid; name the methods to compare it with")
        changed = dict((settings or {}).get(name, {}))
        base = Arm(
            name=name,
            method=name,
            preset=preset or "mini",
            settings=changed,
            ancestries=tuple(ancestries),
            image_size=image_size,
        )
        method = METHODS.load(name)
        if base.extractor.needs_tasks() and method.tasks == "many":
            extraction_tasks = tuple(tasks) or tuple(method.references(()) if leave_out else ())
            base = replace(base, tasks=extraction_tasks, leave_out=leave_out)
        elif base.extractor.needs_tasks() and method.tasks == "one" and len(tasks) == 1:
            base = replace(base, tasks=tuple(tasks))
        arms += [
            base,
            *(replace(base, name=f"{name} {control}", control=control) for control in CONTROLS),
        ]
    if not arms:
        raise WrongCall("a grid needs at least one method, as --method lsamd")
    size: dict[str, Any] = {"ancestries": tuple(ancestries)[:1], "image_size": image_size}
    return [*arms, *(replace(arm, **size) for arm in SCRATCH)]


def list_cells(
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
    head: HeadStart = "ridge",
    offline: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Cell]:
    """Return every arm at every size on every task with every budget and seed.

    The order is seed, task, size, budget, arm. Scratch can build any number of layers, and no other
    size.

    Args:
        tasks: names of tasks.
        arms: arms with different names.
        layers: depths; where a method builds several descendants with equal layers, the largest is
            meant.
        epochs: budgets; a tenth of the epochs is warm-up.
        seeds: seeds.
        recipe: the recipe, used with each number of epochs.
        widths: widths of the plain sizes; None for the learngene's.
        sizes: further sizes by the expander's settings, as low=3, high=3; they come after `layers`.
        rates: learning rates of arms, by name.
        split: the split on which the cells are evaluated.
        head: the start of heads that are not inherited.
        offline: whether nothing may be downloaded.
        say: receives a message for each size that an arm cannot build, which is skipped.

    Raises:
        WrongCall: no cell is left, or two arms have one name.
    """
    _check_not_empty(tasks, arms, [*layers, *sizes], epochs, seeds)
    _check_seen(tasks, arms)
    data = open_own_data([*tasks, *(task for arm in arms for task in arm.tasks)], offline)
    _check_kinds(tasks, data, arms, offline)
    named_widths = [{} if width is None else {"width": width} for width in dict.fromkeys(widths)]
    plain = [
        {"layers": depth, **width} for depth in dict.fromkeys(layers) for width in named_widths
    ]
    # Separate calls: a size of either kind must be built, else the request is a mistake.
    competitors = [
        *_list_competitors(arms, plain, offline, say),
        *_list_competitors(arms, sizes, offline, say),
    ]
    stamps = stamp_own_data(data)
    codes = {arm.method: METHODS.describe_code(arm.method) for arm in arms}
    return [
        Cell(
            arm=arm,
            task=task,
            seed=seed,
            recipe=set_epochs(_adapt_recipe(recipe, arm, rates or {}), budget),
            split=split,
            head=head,
            version=catalogue.get_version(task),
            data={name: stamps[name] for name in (task, *arm.tasks_for(task)) if name in stamps},
            code=codes[arm.method],
            **size._asdict(),
        )
        for seed in dict.fromkeys(seeds)
        for task in dict.fromkeys(tasks)
        for at_one_size in competitors
        for budget in dict.fromkeys(epochs)
        for arm, size in at_one_size
    ]


def _check_not_empty(
    tasks: Sequence[str],
    arms: Sequence[Arm],
    sizes: Sequence[object],
    epochs: Sequence[int],
    seeds: Sequence[int],
) -> None:
    """Raise `WrongCall` for a grid without cells, and for two arms of one name."""
    needed = {"task": tasks, "layers": sizes, "epochs": epochs, "seeds": seeds, "arm": arms}
    for name, values in needed.items():
        if not values:
            raise WrongCall(f"a grid without cells: it has no {name}")
    names = [arm.name for arm in arms]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise WrongCall(f"two arms are named {duplicates[0]!r}; give each a name of its own")


def _adapt_recipe(recipe: Recipe, arm: Arm, rates: Mapping[str, float]) -> Recipe:
    """Return the recipe of an arm: with its learning rate, and a layer decay if it is pretrained.

    Args:
        recipe: the recipe of the grid.
        arm: the arm.
        rates: learning rates of arms, by name.
    """
    decay = 1.0 if arm.method == condition.SCRATCH else recipe.layer_decay
    return replace(recipe, lr=rates.get(arm.name, recipe.lr), layer_decay=decay)


def open_own_data(references: Iterable[str], offline: bool) -> list[Task]:
    """Return those tasks that are the user's own data.

    Data that cannot be opened is left out: its cells fail with the reason.
    """
    opened = []
    for name in dict.fromkeys(references):
        if is_own_data(name):
            with suppress(ZooError):
                opened.append(catalogue.open_task(name, offline=offline))
    return opened


def stamp_own_data(data: Iterable[Task]) -> dict[str, str]:
    """Return the stamps of data that can be read. Cells of changed data are computed again."""
    stamps: dict[str, str] = {}
    for task in data:
        with suppress(ZooError):
            stamps |= stamp_tasks([task])
    return stamps


def _check_kinds(
    tasks: Collection[str], data: Iterable[Task], arms: Iterable[Arm], offline: bool
) -> None:
    """Check that the ancestry models take the samples of all tasks.

    Args:
        tasks: names of tasks.
        data: the opened tasks that are the user's own data.
        arms: the arms, for their ancestry models.
        offline: whether nothing may be downloaded.

    Raises:
        WrongCall: some tasks have texts and some have images, or all have the kind that an ancestry
            model does not take.
    """
    entries = [entry for entry in map(catalogue.find_entry, tasks) if entry is not None]
    samples: list[Task | Entry] = [*entries, *(task for task in data if task.name in tasks)]
    texts = [task.name for task in samples if task.kind == "text"]
    images = [task.name for task in samples if task.kind != "text"]
    if texts and images:
        raise WrongCall(
            f"text tasks: {', '.join(texts)}; image tasks: {', '.join(images)}; an "
            "ancestry model takes only one of the two, so leave out either"
        )
    for arm in arms:
        _check_ancestry_kinds(arm, texts, images, offline)


def _check_ancestry_kinds(
    arm: Arm, texts: Sequence[str], images: Sequence[str], offline: bool
) -> None:
    """Check that an arm's ancestry models take the samples of its extraction and of its cells.

    Args:
        arm: the arm.
        texts: names of the cells' text tasks.
        images: names of the cells' image tasks.
        offline: whether nothing may be downloaded.

    Raises:
        WrongCall: a task has the kind that an ancestry model does not take.
    """
    method = METHODS.load(arm.method)
    sources = method.sources(arm.ancestries)
    # Only bundled ancestry models have default tasks.
    needs_tasks = method.tasks != "none" and arm.extractor.needs_tasks()
    is_known = needs_tasks and (arm.tasks or all(map(is_ours, sources)))
    names = method.references(arm.tasks, sources, "extract_task") if is_known else []
    entries = [entry for entry in map(catalogue.find_entry, names) if entry is not None]
    for source in sources:
        takes_texts = isinstance(read_ancestry_spec(source, offline=offline), TextSpec)
        taken = "texts" if takes_texts else "images"
        given, other = name_kind(takes_texts), name_kind(not takes_texts)
        model = f"and the ancestry model {source} takes {taken}"
        for name in images if takes_texts else texts:
            raise WrongCall(
                f"{name} is {other} task, {model}; give {given} task, or name {other} model with "
                "--ancestry"
            )
        for entry in entries:
            if (entry.kind == "text") != takes_texts:
                raise WrongCall(
                    f"{arm.method} extracts from {entry.name}, {other} task, {model}; name {given} "
                    "task with --extract-task"
                )


def set_epochs(recipe: Recipe, epochs: int) -> Recipe:
    """Return the recipe with a complete schedule for this number of epochs; a tenth is warm-up."""
    return replace(recipe, epochs=epochs, warmup=epochs / 10)


def _check_seen(tasks: Sequence[str], arms: Sequence[Arm]) -> None:
    """Check that every extraction keeps a task once the cell's own is left out.

    Raises:
        WrongCall: an extraction has no task left.
    """
    for arm in arms:
        for task in tasks:
            if arm.leave_out and not arm.tasks_for(task):
                raise WrongCall(
                    f"without {task}, the extraction of {arm.method} has no task; name more with "
                    "--extract-task"
                )


def _list_competitors(
    arms: Sequence[Arm],
    sizes: Iterable[Mapping[str, Json]],
    offline: bool,
    say: Callable[[str], None],
) -> list[list[tuple[Arm, Size]]]:
    """Return for each size the arms that build it, and how their cells name it.

    Scratch builds any layers: it takes part where another arm does, or everywhere if it is alone.

    Raises:
        WrongCall: no arm builds any size.
    """
    inheriting = [arm for arm in arms if arm.method != "scratch"]
    competitors: list[list[tuple[Arm, Size]]] = []
    missing: dict[str, list[str]] = {}  # sizes, by what an arm builds instead
    for size in sizes:
        names = [arm.name for arm in inheriting if select_members(list_members(arm, offline), size)]
        if is_plain(size) and (names or not inheriting):
            names += [arm.name for arm in arms if arm.method == "scratch"]
        competitors.append(
            [(arm, find_size(arm, size, offline)) for arm in arms if arm.name in names]
        )
        for arm in inheriting:
            if arm.name not in names and arm.control is None:
                words = str(Size(**size)) if is_plain(size) else label(size)
                missing.setdefault(
                    f"{arm.name} builds {_describe_sizes(arm, size, offline)}", []
                ).append(words)
    texts = [
        f"{offer}, not {' or '.join(dict.fromkeys(sizes))}" for offer, sizes in missing.items()
    ]
    if competitors and not any(competitors):
        raise WrongCall(
            "no method of the bench builds these sizes: "
            f"{'; '.join(texts) or 'scratch has no sizes by settings'}"
        )
    for text in texts:
        say(f"{text}; skipped")
    return competitors


def find_size(arm: Arm, size: Mapping[str, Json], offline: bool = False) -> Size:
    """Return how an arm's cells name a size: by layers and width, or by the expander's settings.

    Of several descendants with these settings the largest is meant.

    Raises:
        WrongCall: there is no such descendant.
    """
    if is_plain(size):
        return Size(**size)
    members = select_members(list_members(arm, offline), size)
    if not members:
        raise WrongCall(
            f"{arm.name} builds {_describe_sizes(arm, size, offline)}, not {label(size)}"
        )
    return Size(members[-1].spec.layers, None, size)


def select_members(members: Iterable[Member], size: Mapping[str, Json]) -> list[Member]:
    """Return the members of this size: with its layers, width, and expander's settings."""

    def value(member: Member, name: str) -> Json:
        return member.settings.get(name, getattr(member.spec, name, None))

    return [member for member in members if all(value(member, name) == size[name] for name in size)]


def list_members(arm: Arm, offline: bool = False) -> tuple[Member, ...]:
    """Return every descendant that an arm can build, the smallest first.

    They are known before anything is extracted.
    """
    return _list_members(
        json.dumps(to_json(replace(arm, name="", control=None)), sort_keys=True), offline
    )


@cache
def _list_members(arm_as_json: str, offline: bool) -> tuple[Member, ...]:
    arm = from_json(Arm, json.loads(arm_as_json), "arm")
    members = lifecycle.plan(
        arm.method,
        preset=arm.preset,
        expander=arm.expander,
        ancestries=arm.ancestries,
        target=Target(image_size=arm.image_size),
        offline=offline,
        **dict(arm.settings),
    )
    return tuple(members)


def _describe_sizes(arm: Arm, size: Mapping[str, Json], offline: bool) -> str:
    """Return the sizes that an arm builds, in the words of the requested size."""
    if not is_plain(size):
        sizes = list(
            dict.fromkeys(
                label(member.settings) for member in list_members(arm, offline) if member.settings
            )
        )
        listed = [*sizes[:MAX_NAMED], "..."] if len(sizes) > MAX_NAMED else sizes
        return "; ".join(listed) or "layers alone"
    specs = [member.spec for member in list_members(arm, offline)]
    depths, widths = sorted({spec.layers for spec in specs}), sorted({spec.width for spec in specs})
    is_range = depths == list(range(depths[0], depths[-1] + 1)) and len(depths) > 2
    text = f"{depths[0]} to {depths[-1]}" if is_range else ", ".join(map(str, depths))
    return f"{text} layers of width {', '.join(map(str, widths))}"


# How every arm is tuned unless the user says otherwise: 4 trainings an arm on the first task, and
# more where the grid must widen. Rates are chosen with the first augmentation. It is none, because
# shifts and flips slow every short training down: those from scratch most of all, whose rivals
# would look better than they are.
RATES = (3e-4, 1e-3, 3e-3)
AUGMENTS: tuple[Augment, ...] = ("none", "light")
# of every cell, except for its epochs
RECIPE = Recipe(images=1000, batch_size=50, lr=1e-3, clip=1.0, augment=AUGMENTS[0])


@dataclass(frozen=True, kw_only=True)
class GridBudget:
    """Sizes, budgets and tasks that are measured by default.

    `--layers`, `--epochs`, `--seeds`, `--images` and `--task` override one field each.
    """

    layers: tuple[int, ...]
    epochs: tuple[int, ...]
    seeds: int
    images: int | None  # training images of a cell; None: all
    tasks: tuple[str, ...] = ()  # those of the suite that are measured, if it has them; (): all
    most_tasks: int | None = None


BudgetName = Literal["quick", "standard", "full"]

BUDGETS: dict[BudgetName, GridBudget] = {
    # Minutes on two cores: to see that everything works, and a first result. No extraction sees
    # these tasks by default.
    "quick": GridBudget(
        layers=(6,),
        epochs=(3,),
        seeds=3,
        images=800,
        tasks=("figures", "textures", "numbers"),
        most_tasks=3,
    ),
    # An afternoon on two cores.
    "standard": GridBudget(layers=(6, 9, 12), epochs=(1, 4, 16), seeds=3, images=1000),
    # For a GPU or a cluster: the papers' depths, every budget, all images.
    "full": GridBudget(layers=tuple(range(5, 16)), epochs=(1, 2, 4, 8, 16), seeds=5, images=None),
}


def select_tasks_of_budget(budget: GridBudget, tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks of a suite that a budget measures.

    They are those that the budget names, or else the first `most_tasks`.
    """
    selected = tuple(task for task in tasks if task in budget.tasks)
    return selected or tuple(tasks)[: budget.most_tasks]


def choose_tasks(
    budget: GridBudget, references: Sequence[str], only: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the tasks that `lgzoo bench SUITE... --task TASK` measures.

    Args:
        budget: selects among the tasks of each suite if `only` is empty.
        references: suites and tasks; () for `only`, or for the default suite.
        only: names of tasks.

    Raises:
        WrongCall: a suite or a task is unknown.
    """
    if references and only:
        return list_targets(*references, only=only)
    chosen = references or only or (catalogue.DEFAULT_SUITE,)
    return list_targets(
        *(task for name in chosen for task in select_tasks_of_budget(budget, list_targets(name)))
    )
