"""`expand`: build a descendant of a learngene."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.own_data import LocalOrigin, find_origin, open_for_artifact, remember
from learngene_zoo.artifacts.records import (
    CONTROLS,
    Control,
    LearngeneConfig,
    TargetTask,
    find_package_of_method,
    is_own_data,
    list_versions,
)
from learngene_zoo.atomic import check_apart, claim, digest_of
from learngene_zoo.errors import WrongCall, check_choice
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.method.checks import (
    check_axes,
    check_built,
    check_descendant,
    check_returned,
    describe_forgotten_tensors,
    list_members,
)
from learngene_zoo.method.contract import Expander
from learngene_zoo.method.installed import METHODS, find_method, report_failure
from learngene_zoo.method.sizes import Budget, Target, parse_sizes
from learngene_zoo.runs.progress import say
from learngene_zoo.runs.run import Run, is_first, parse_run
from learngene_zoo.settings import check_type, to_json, with_settings
from learngene_zoo.tasks.catalogue import find_entry, locate_own_data, open_task
from learngene_zoo.tasks.task import Entry, check_kind

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant

# Of `expand`, for the error about an unknown one.
ARGUMENTS = ("target", "budget", "expander", "control", "out", "run", "force")


def expand(
    learngene: str | Path | Learngene,
    *,
    target: Target | None = None,
    budget: Budget | None = None,
    expander: Expander | None = None,
    control: Control | None = None,
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
    **sizes: Any,
) -> Descendant:
    """Build one descendant of a learngene: by size, or the largest that fits a budget.

    Args:
        learngene: a learngene or a reference to one.
        target: sizes and task. The task, and so the head, is the learngene's unless another is
            named.
        budget: bounds, if the size is to be chosen.
        expander: the settings; default: the method's.
        control: replaces inherited tensors: "shuffled" permutes the entries of each; "stem" keeps
            only patch embedding, tokens, positions and final norm, "stem_fan_in" too, with blocks
            of standard deviation 1/sqrt(fan in).
        out: folder to write the descendant to.
        run: how to compute.
        force: replace existing content of `out`.
        sizes: sizes, budgets and the expander's settings by name (`layers=7`,
            `max_params=20_000_000`, and timm's words `depth`, `embed_dim`, `num_heads`,
            `num_classes`, `img_size`), as numbers or as on the command line ("20M").

    Raises:
        WrongCall: for a size that this learngene cannot be expanded to.
        BadPlugin: if the expander builds another size than the target's, or tensors that are not
            those of a model of this size.
        MethodFailed: for any other error in the code of the method.
    """
    run = parse_run(run)
    check_type("expander", expander, Expander, optional=True)
    if control is not None:
        check_choice("control", control, CONTROLS)
    if out is not None:
        claim(Path(out), force or run.resume)
    source, config = shelf.find_with_config(learngene, run.offline)
    folder = source if isinstance(source, Path) else source.folder
    default = expander or find_method(config, folder or "it").expander
    target, budget, configured = parse_sizes(
        target or Target(), budget or Budget(), default, sizes, ARGUMENTS
    )
    # Refuses impossible sizes before torch is imported, which opening the tensors does.
    _check_sizes(config, configured, target)
    if out is not None:
        check_apart(out, folder)
    named = target.task
    target, class_names = _adapt_to_task(target, configured, config, run)
    if budget:
        configured, target = _choose_size(config, configured, target, budget, run)
    check_axes(configured, config.spec, target)
    from learngene_zoo.artifacts.descendant import apply_control, load_descendant

    gene = shelf.open_learngene(source, offline=run.offline)
    task, typed = target.task, [named, *to_json(configured).values()]
    is_unnamed = task is not None and is_own_data(task) and task not in typed
    with open_for_artifact(gene, [str(task)] if is_unnamed else ()):
        descendant = _build(gene, configured, target, run)
        origins = {
            **_find_origins(task, named if out is not None else None, run),
            **_find_origins_of_ancestries(gene.config, run),
        }
    control = control or gene.config.control
    if control is not None:
        descendant = apply_control(descendant, control, run.seed)
    provenance = {**_record_provenance(gene, configured, control, run), **descendant.provenance}
    mean, std = gene.config.normalisation
    descendant = replace(
        descendant,
        task=task,
        class_names=class_names or descendant.class_names,
        mean=mean,
        std=std,
        view=gene.config.view,
        provenance=provenance,
        files={**gene.files, **descendant.files},
    )
    return remember(_write_descendant(descendant, out, run, force), origins, load_descendant, out)


def _check_sizes(config: LearngeneConfig, expander: Expander, target: Target) -> None:
    """Raise `WrongCall` for sizes that a learngene cannot be expanded to."""
    config.spec.with_(image_size=target.image_size)  # raises if patches do not tile it
    check_axes(expander, config.spec, target)
    with report_failure(config.method):
        expander.check_target(config, target)


def _choose_size(
    config: LearngeneConfig, expander: Expander, target: Target, budget: Budget, run: Run
) -> tuple[Expander, Target]:
    """Return the settings and the target of the largest descendant that fits a budget."""
    from learngene_zoo.lifecycle.latency import choose, measure_latency

    member = choose(
        list_members(config, expander, target),
        budget,
        lambda member: measure_latency(member.spec, run).seconds,
    )
    chosen = replace(member.target, task=target.task)
    return with_settings(expander, member.settings), chosen


def _build(gene: Learngene, expander: Expander, target: Target, run: Run) -> Descendant:
    """Run the expander and check what it returns; a note names tensors that it forgot."""
    from learngene_zoo.artifacts.descendant import Descendant

    method = gene.config.method
    run = replace(run, code=METHODS.describe_code(method))
    with report_failure(method):
        descendant = check_returned(expander, Descendant, expander(gene, target, run))
        check_built(expander, gene.config.spec, target, descendant.spec)
        check_descendant(method, descendant)
    if note := describe_forgotten_tensors(method, descendant, gene.state):
        say(run, f"note: {note}")
    return descendant


def _adapt_to_task(
    target: Target, expander: Expander, config: LearngeneConfig, run: Run
) -> tuple[Target, tuple[str, ...]]:
    """Return the target with the classes of its task, per pixel or per image; and their names.

    If no task is named it is that of the learngene, whose classes are recorded, unless `target`
    names others. The names are known if the task is the learngene's or the user's own data.
    """
    adopted = adopt_purpose(target, expander, config)
    if adopted is not target and config.purpose is not None:
        return adopted, config.purpose.class_names
    if target.task is None or not (target.classes is None or target.dense is None):
        return target, ()
    entry = find_entry(target.task) or open_task(target.task, offline=run.offline)
    check_kind(entry, isinstance(config.spec, TextSpec))
    if target.classes not in (None, entry.classes):
        raise WrongCall(
            f"{target.task} has {entry.classes} classes, but classes is {target.classes}; leave it "
            "out, or leave out the task"
        )
    dense = entry.kind == "segmentation" if target.dense is None else target.dense
    chosen = replace(
        target, classes=entry.classes if target.classes is None else target.classes, dense=dense
    )
    names = () if isinstance(entry, Entry) or entry.classes != chosen.classes else entry.class_names
    return chosen, names


def adopt_purpose(target: Target, expander: Expander, config: LearngeneConfig) -> Target:
    """Return the target with the task that the learngene's descendants are for and its classes.

    A target that names another task or other classes is returned as it is.
    """
    purpose = config.purpose
    if purpose is None or "classes" not in expander.axes or not _agree(target, purpose):
        return target
    return replace(target, task=purpose.task, classes=purpose.classes, dense=purpose.dense)


def _find_origins(task: str | None, named: str | None, run: Run) -> dict[str, LocalOrigin]:
    """Return the location of the data that a descendant names as its task.

    It comes from the user's reference, or from the origins stored for the learngene.
    """
    if task is None or not is_own_data(task):
        return {}
    if task == named:
        return locate_own_data({task: open_task(task, offline=run.offline)})
    origin = find_origin(task)
    return {task: origin} if origin else {}


def _find_origins_of_ancestries(config: LearngeneConfig, run: Run) -> dict[str, LocalOrigin]:
    """Return the locations of the ancestry models that are known: named now, or stored."""
    stored = {record.source: find_origin(record.source) for record in config.ancestries}
    origins = {source: origin for source, origin in stored.items() if origin is not None}
    if run.ancestry is not None and len(config.ancestries) == 1:
        from learngene_zoo.pretrained.ancestry import find_origins_of_models

        (record,) = config.ancestries
        for origin in find_origins_of_models([replace(record, source=run.ancestry)]).values():
            origins[record.source] = origin
    return origins


def _agree(target: Target, purpose: TargetTask) -> bool:
    """Return whether a target leaves its task to the learngene and has no other classes than it."""
    same = target.classes in (None, purpose.classes) and target.dense in (None, purpose.dense)
    return target.task is None and same


def _record_provenance(
    gene: Learngene, expander: Expander, control: Control | None, run: Run
) -> dict[str, Any]:
    package = find_package_of_method(gene.config.versions)
    return {
        "method": gene.config.method,
        **({"method_package": package} if package else {}),
        **({"method_title": gene.config.method_title} if gene.config.method_title else {}),
        "learngene": shelf.make_reference(gene.folder) if gene.folder else "in memory",
        "settings": to_json(expander),
        **({"control": control} if control else {}),
        "ancestries": to_json(gene.config.ancestries),
        "seed": run.seed,
        "versions": list_versions(),
    }


def _write_descendant(
    descendant: Descendant, out: str | Path | None, run: Run, force: bool
) -> Descendant:
    """Write a descendant to `out`, if it is given, in the first process; return the descendant.

    With `run.resume`, an equal one that exists is left as it is.
    """
    if out is not None and is_first():
        folder = Path(out)
        if not (run.resume and folder.is_dir() and _is_at(descendant, folder)):
            descendant.save(folder, force)
    return descendant


def _is_at(descendant: Descendant, folder: Path) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        return digest_of(descendant.save(Path(scratch) / "made")) == digest_of(folder)
