"""The verbs: plan, train, extract, expand, finetune, evaluate, plot. The command line, torch.hub and tests call these.

Each takes names, paths or objects, does one thing, and returns the object it made; with `out` it also writes it.
Cold at its top: `plan` needs no torch.

What an extraction works on: its preset, ancestry models and tasks, where the call does not name them. Cold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from learngene_zoo import registry
from learngene_zoo.artifacts import learngene as learngenes
from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig, versions
from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.families.cost import Convention
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method import (
    Budget,
    Expander,
    Extractor,
    Member,
    Method,
    Target,
    check_axes,
    check_built,
    choose,
    named_sizes,
    narrowed,
)
from learngene_zoo.recipe import Recipe
from learngene_zoo.runs.folder import begin, finish
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import to_json, with_settings
from learngene_zoo.tasks.catalogue import DEFAULT_TARGET, DEFAULT_TASKS, SOURCE_TASK, open_task

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.training.evaluate import Evaluation


# The source task has as many images as are wanted, and attributes, which no augmentation leaves true.
TRAIN = Recipe(epochs=10, lr=1e-3, warmup=0.5, clip=1.0, augment="none")

FINETUNE = Recipe(epochs=20, batch_size=64, lr=1e-3, warmup=1.0)


def plan(
    name: str | Path,
    *,
    extractor: Extractor | None = None,
    expander: Expander | None = None,
    ancestries: Sequence[str] = (),
    target: Target | None = None,
    convention: Convention = "exact",
    offline: bool = False,
) -> list[Member]:
    """Every descendant that a method would build from these ancestries, or that an existing learngene builds.

    Sorted by cost, smallest first. `target` narrows the list (layers, width, heads) or sets classes and image size.
    """
    from learngene_zoo.artifacts.ancestry import ancestry_spec

    if str(name) in registry.references():
        method = registry.load(str(name))
        extractor = extractor or method.extractor
        specs = [ancestry_spec(source, offline=offline) for source in sources_for(method, ancestries)]
        config = extractor.outline(specs)
    else:
        config = learngenes.read_config(shelf.find(name))
        method = registry.load(config.method)
    members = family(config, expander or method.expander, target or Target())
    return sorted(members, key=lambda member: member.cost(convention))


def family(config: LearngeneConfig, expander: Expander, target: Target) -> list[Member]:
    """The members of an expander's grid that have the shape `target` names, with its classes and image size.

    Where a member needs a setting that the expander has been told already, it must be the same one.
    """
    check_axes(expander, config.spec, target)
    spec = config.spec.with_(classes=target.classes, image_size=target.image_size, dense=target.dense)
    return narrowed(expander.family(replace(config, spec=spec)), target, expander)


def extract(
    name: str,
    *,
    ancestries: Sequence[str] = (),
    tasks: Sequence[str] = (),
    extractor: Extractor | None = None,
    preset: str | None = None,
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
) -> Learngene:
    """Condense ancestry models into a learngene by the method `name`.

    `extractor` holds the settings; without it the preset's are used ("mini" if none is named). The result is written to
    `out` with everything that is needed to repeat it.
    """
    from learngene_zoo.artifacts.ancestry import open_ancestry

    run = run or Run()
    method = registry.load(name)
    extractor = extractor or preset_of(method, preset)
    sources, references = sources_for(method, ancestries), references_for(method, tasks)
    opened = [open_ancestry(source, offline=run.offline) for source in sources]
    extractor.outline([ancestry.spec for ancestry in opened])  # refuses what cannot be before anything is written
    needed = references if extractor.needs_tasks() and method.uses_tasks(extractor) else []
    data = [open_task(reference, offline=run.offline) for reference in needed]
    check_distinct(data)
    settings = {
        "method": name,
        "settings": to_json(extractor),
        "ancestries": [[ancestry.record.source, ancestry.record.sha256] for ancestry in opened],
        "tasks": [to_json(task.record) for task in data],
    }
    run = begin(_place(out), "extract", settings, run, force)
    made = extractor(opened, data, run)
    learngene = made.with_config(
        settings=to_json(extractor),
        ancestries=tuple(ancestry.record for ancestry in opened)
        or made.config.ancestries,  # a control's are those of what it controls for
        tasks=tuple(task.record for task in data) or made.config.tasks,
        seed=run.seed,
        versions=versions(),
    )
    return _kept(learngene, out, run, force)


def expand(
    learngene: str | Path | Learngene,
    *,
    target: Target | None = None,
    budget: Budget | None = None,
    expander: Expander | None = None,
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
    **sizes: Any,
) -> Descendant:
    """Build one descendant of a learngene: by size, or the largest that a budget allows.

    Sizes, budgets and the expander's settings may also be given by name (`layers=7`, `max_params=20_000_000`, and timm's
    words `depth`, `embed_dim`, `num_heads`, `num_classes`).
    """
    run = run or Run()
    gene = learngene if isinstance(learngene, Learngene) else learngenes.load(shelf.find(learngene))
    expander = expander or registry.load(gene.config.method).expander
    target, budget, rest = named_sizes(target or Target(), budget or Budget(), sizes)
    expander = with_settings(expander, rest)
    if out is not None:
        from learngene_zoo.storage import claim

        claim(Path(out), force)
    if target.task is not None and (target.classes is None or target.dense is None):
        data = open_task(target.task, offline=run.offline)
        classes = data.classes if target.classes is None else target.classes
        target = replace(target, classes=classes, dense=data.dense if target.dense is None else target.dense)
    if budget:
        member = _affordable(gene.config, expander, target, budget, run)
        expander = with_settings(expander, member.settings)
        target = replace(member.target, task=target.task)
    check_axes(expander, gene.config.spec, target)
    descendant = expander(gene, target, run)
    check_built(expander, gene.config.spec, target, descendant.spec)
    descendant = replace(
        descendant,
        task=target.task,
        provenance={
            "method": gene.config.method,
            "learngene": shelf.reference(gene.folder) if gene.folder else "in memory",
            "settings": to_json(expander),
            "ancestries": to_json(gene.config.ancestries),
            "seed": run.seed,
            "versions": versions(),
            **descendant.provenance,
        },
    )
    return _kept(descendant, out, run, force)


def train(
    task: str = SOURCE_TASK,
    *,
    spec: ViTSpec,
    recipe: Recipe = TRAIN,
    init: Literal["timm", "fan_in"] = "timm",
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
) -> Descendant:
    """Train a model from scratch: an ancestry model, or a scratch model of any size.

    `spec.classes` is taken from the task. Raises `TrainingFailed` if the loss is still near chance after a tenth of the
    budget.
    """
    from learngene_zoo.artifacts.descendant import assemble
    from learngene_zoo.training.fit import fit

    run = run or Run()
    data = open_task(task, offline=run.offline)
    spec = spec.with_(classes=data.classes, dense=data.dense)
    settings = {"task": to_json(data.record), "spec": to_json(spec), "recipe": to_json(recipe), "init": init}
    run = begin(_place(out), "train", settings, run, force)
    start = assemble(
        spec,
        {},
        seed=derive_seed(run.seed, "init"),
        scheme=init,
        mean=data.mean,
        std=data.std,
        provenance={"method": "train", "init": init, "versions": versions()},
    )
    return _kept(fit(start, data, recipe, run, guard=True), out, run, force)


def finetune(
    model: str | Path | Descendant,
    *,
    task: str | None = None,
    recipe: Recipe = FINETUNE,
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
) -> Descendant:
    """Train a model on a task (default: the one it was built for, else `digits`), with a fresh head if it needs one."""
    from learngene_zoo.artifacts.descendant import fingerprint_of, open_descendant
    from learngene_zoo.training.fit import fit

    run = run or Run()
    start = open_descendant(model)
    data = open_task(task or start.task or DEFAULT_TARGET, offline=run.offline)
    settings = {"model": fingerprint_of(start), "task": to_json(data.record), "recipe": to_json(recipe)}
    run = begin(_place(out), "finetune", settings, run, force)
    start = start.for_task(data.name, data.class_names, seed=derive_seed(run.seed, "head"), dense=data.dense)
    return _kept(fit(start, data, recipe, run), out, run, force)


def evaluate(
    model: str | Path | Descendant,
    *,
    task: str | None = None,
    split: Literal["train", "validation", "test"] = "test",
    run: Run | None = None,
) -> Evaluation:
    """The accuracy, or mIoU, of a model on one split of a task (default: the task it was trained for)."""
    from learngene_zoo.artifacts.descendant import open_descendant
    from learngene_zoo.training.evaluate import evaluate as measure

    run = run or Run()
    descendant = open_descendant(model)
    data = open_task(task or descendant.task or DEFAULT_TARGET, offline=run.offline)
    if descendant.spec.dense != data.dense:
        each = {True: "pixel", False: "image"}
        raise WrongCall(
            f"the model gives one class per {each[descendant.spec.dense]} and {data.name} asks for one per "
            f"{each[data.dense]}; train it first: lgzoo finetune --task {data.name}"
        )
    if descendant.spec.classes != data.classes:
        raise WrongCall(
            f"the model has {descendant.spec.classes} classes and {data.name} has {data.classes}; "
            f"train it first: lgzoo finetune --task {data.name}"
        )
    return measure(descendant.model(), data, split, descendant.input_format, run)


def plot(
    learngene: str | Path | Learngene, path: str | Path, *, expander: Expander | None = None, force: bool = False
) -> Path:
    """Draw a learngene as its method draws it, as PNG or SVG by the suffix of `path`.

    Where the picture shows one descendant among all, it is the one that the expander's settings name.
    """
    from learngene_zoo import plotting
    from learngene_zoo.storage import new_file

    path = Path(path)
    plotting.check_suffix(path)
    gene = learngene if isinstance(learngene, Learngene) else learngenes.load(shelf.find(learngene))
    method = registry.load(gene.config.method)
    if method.plot is None:
        raise WrongCall(f"the method {method.name} draws no picture of its learngenes")
    draw: Any = registry.resolve(method.plot)
    with new_file(path, force) as draft, plotting.style():
        plotting.save(draw(gene, expander or method.expander), draft)
    return path


def _affordable(config: LearngeneConfig, expander: Expander, target: Target, budget: Budget, run: Run) -> Member:
    from learngene_zoo.latency import latency

    return choose(family(config, expander, target), budget, lambda member: latency(member.spec, run))


def _place(out: str | Path | None) -> Path | None:
    return None if out is None else Path(out)


def _kept(made: Any, out: str | Path | None, run: Run, force: bool) -> Any:
    """What was made, written to `out` by the first process if a place was given; the run is then finished."""
    from learngene_zoo.runs.distributed import is_first

    if out is not None and is_first():
        made.save(Path(out), force)
        finish(run)
    return made


DEFAULT_ANCESTRY = "bundled"  # see ancestry.py


def preset_of(method: Method, preset: str | None) -> Extractor:
    """The extractor with the settings of a preset; "mini" if none is named. Raises `WrongCall`."""
    if preset is not None and preset not in method.presets:
        raise unknown(f"preset of {method.name}", preset, method.presets)
    return method.presets[preset] if preset else method.extractor


def sources_for(method: Method, ancestries: Sequence[str]) -> list[str]:
    """The ancestry models of an extraction: those named, else the bundled one. Raises `WrongCall` for a wrong number."""
    least, most = method.ancestries
    sources = list(ancestries) or [DEFAULT_ANCESTRY] * least
    if len(sources) < least or (most is not None and len(sources) > most):
        wanted = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
        raise WrongCall(f"{method.name} takes {wanted} ancestries (--ancestry), not {len(sources)}")
    return sources


def references_for(method: Method, tasks: Sequence[str]) -> list[str]:
    """The tasks of an extraction: those named, else the method's defaults. Raises `WrongCall` for a wrong number."""
    defaults = {"none": (), "one": (SOURCE_TASK,), "many": DEFAULT_TASKS}
    references = list(tasks) or list(defaults[method.tasks])
    if method.tasks == "none" and references:
        raise WrongCall(f"{method.name} trains on no task; leave --task out")
    if method.tasks == "one" and len(references) != 1:
        raise WrongCall(f"{method.name} trains on one task, not {len(references)}")
    return references


def check_distinct(tasks: Sequence[Task]) -> None:
    """Raises `WrongCall` if two tasks have one name: their parts of the run would be mixed up."""
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongCall(f"the task {twice[0]} is named twice; name each once")
