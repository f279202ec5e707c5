"""`heal`: recovery of a descendant without labels, taught by its ancestry model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.own_data import (
    LocalOrigin,
    open_for_artifact,
    remember,
)
from learngene_zoo.artifacts.records import (
    SOURCES,
    TASKS,
    AncestryRecord,
    is_own_data,
    parse_reference,
    parse_task,
    read_provenance,
)
from learngene_zoo.errors import WrongCall
from learngene_zoo.lifecycle.healing_rounds.building import (
    BLOCK_RECORDS,
    build_in_rounds,
    remove_work,
)
from learngene_zoo.lifecycle.healing_rounds.sizes import RoundPlan, check_unchanged, plan_rounds
from learngene_zoo.lifecycle.opening import make_run, recall_origins
from learngene_zoo.lifecycle.rates import check_text_recipe, choose_fit, choose_heal_rate
from learngene_zoo.lifecycle.training_warnings import ignore_training_warnings, warn_of_training
from learngene_zoo.pretrained.sources import check_source
from learngene_zoo.pretrained.timm_model import open_model
from learngene_zoo.runs.folder import check_start, locate_run, produce
from learngene_zoo.runs.progress import print_note
from learngene_zoo.runs.run import Run, parse_run
from learngene_zoo.settings import (
    Json,
    Recipe,
    check_setting_names,
    check_type,
    list_settings,
    to_json,
    with_settings,
)
from learngene_zoo.tasks.catalogue import locate_own_data, open_task
from learngene_zoo.tasks.task import check_inputs, stamp_tasks
from learngene_zoo.text import name_option
from learngene_zoo.training.healing.settings import HEAL, HEALING, WITHOUT_MEANING, HealConfig

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.tasks.task import Task


def heal(
    model: str | Path | Descendant,
    images: str,
    *,
    teacher: str | None = None,
    task: str | None = None,
    recipe: Recipe | None = None,
    healing: HealConfig = HEALING,
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
    **settings: Any,
) -> Descendant:
    """Recover a descendant without labels: its frozen ancestry model teaches it on images.

    The descendant's tokens, by linear maps, learn to predict those of the ancestry model: the class
    token, the patches and the streams of matched blocks (`training.healing.objective`). Its head is
    not trained. After every epoch the losses on held-out images are measured, and with a `task` the
    accuracies of probes of the features on its validation images; the best epoch is kept, and the
    model before the training competes. With `rounds`, the descendant is built again through
    intermediate sizes, which are healed as well (`lifecycle.healing_rounds`).

    Args:
        model: a descendant or a reference to one.
        images: images without labels: a folder of any depth (`folder:PATH`), a table, tars, or a
            task, of which the training images are used.
        teacher: source of another ancestry model with the same patches; rounds build from it. None:
            the one that the descendant records.
        task: a task whose validation images choose the epoch. None: the held-out losses do.
        recipe: the training. None: the defaults of `lgzoo heal --help`.
        healing: the other settings.
        out: folder to write the model to.
        run: how to compute. None: `Run()`, with progress in a notebook.
        force: replace existing content of `out`.
        settings: fields of `recipe` and `healing` by name (`epochs=3, maps="fixed"`).

    Returns:
        The descendant, whose provenance has a record `healed`.

    Raises:
        WrongCall: for a model without a single recorded ancestry model (and without `teacher`), a
            stitched model or one with a class per pixel, for a teacher with other patches, and for
            `rounds` as `check_unchanged` and `plan_rounds` do.
        BadFile: for a recorded ancestry model that is not the same any more.
        BadData: for fewer than 20 images.
    """
    run, task = parse_run(run, make_run), parse_task(task)
    images = parse_reference("images", images, TASKS)
    check_type("healing", healing, HealConfig)
    check_type("recipe", recipe, Recipe, optional=True)
    check_start(out, run, force)
    from learngene_zoo.artifacts.descendant import load_descendant
    from learngene_zoo.runs.progress import check_tracker

    check_tracker(run.tracker, run.folder if out is None else Path(out))
    resolved, healing = configure(recipe or HEAL, healing, settings)
    if teacher is not None:
        teacher = parse_reference("teacher", teacher, SOURCES)
        check_source(teacher)
    start = check_healable(open_model(model, offline=run.offline))
    if healing.rounds > 1:
        check_unchanged(start)
    typed = settings if recipe is None else None
    recovery = _open_inputs(start, images, task, teacher, resolved, healing, typed, run)
    own = [start.task] if start.task is not None and is_own_data(start.task) else []
    origins = {
        **locate_own_data(recovery.tasks_by_reference),
        **recall_origins(start, own),
        **recovery.teacher.origins,
    }
    result = produce(
        recovery.recover,
        load_descendant,
        out=out,
        verb="heal",
        settings=recovery.describe(),
        run=run,
        force=force,
        data=partial(stamp_tasks, recovery.tasks_by_reference.values()),
    )
    if out is not None:
        remove_work(locate_run(out))
    record: Any = result.provenance["healed"]
    warn_of_training(result, record["metrics"], keep=record["settings"]["keep"])
    return remember(result, origins, load_descendant, out)


@dataclass(frozen=True, kw_only=True)
class HealingTeacher:
    """The model that teaches a descendant.

    Attributes:
        ancestry: the model.
        recorded: those records of the descendant's ancestry models that are of this one.
        blocks: records of the descendant about the teacher's blocks; none for another teacher than
            the recorded one.
        origins: the location of the recorded one, if it is known, by its source.
    """

    ancestry: Ancestry
    recorded: Sequence[AncestryRecord]
    blocks: Mapping[str, Json]
    origins: Mapping[str, LocalOrigin]


@dataclass(frozen=True, kw_only=True)
class PreparedHealing:
    """A recovery whose inputs are open and checked.

    Attributes:
        start: the descendant.
        teacher: its teacher.
        images: the reference to the images.
        data: the images.
        task: the reference to the task of the probes, if there is one.
        probed: that task.
        recipe: the training.
        healing: the other settings.
        plan: the intermediate sizes. None: one round.
    """

    start: Descendant
    teacher: HealingTeacher
    images: str
    data: Task
    task: str | None
    probed: Task | None
    recipe: Recipe
    healing: HealConfig
    plan: RoundPlan | None

    @property
    def tasks_by_reference(self) -> dict[str, Task]:
        """The images, and the task if there is one, by reference."""
        named = {} if self.task is None or self.probed is None else {self.task: self.probed}
        return {self.images: self.data, **named}

    def describe(self) -> dict[str, Json]:
        """Return what identifies the result; an interrupted recovery continues if it is equal."""
        return {
            "model": self.start.identity,
            "images": to_json(self.data.record),
            "teacher": self.teacher.ancestry.identity,
            "recipe": to_json(self.recipe),
            "healing": to_json(self.healing),
            **({"task": to_json(self.probed.record)} if self.probed is not None else {}),
        }

    def recover(self, run: Run) -> Descendant:
        """Train the descendant, in rounds if there is a plan, and return it with its record."""
        from learngene_zoo.tasks.catalogue import say_notes
        from learngene_zoo.training.healing.recovery import recover

        say_notes([self.data], run)
        built, blocks, rounds = self._build(run)
        fit = choose_fit(built, self.probed) if self.probed is not None else None
        healed = recover(
            built,
            self.teacher.ancestry,
            self.data,
            self.recipe,
            self.healing,
            run,
            records=blocks,
            task=self.probed,
            task_format=built.with_fit(fit).input_format,
        )
        return _complete_record(healed, self.teacher, rounds)

    def _build(self, run: Run) -> tuple[Descendant, Mapping[str, Json], list[Json]]:
        """Return the model of the last round before its training, its records of blocks, and the
        records of the rounds.
        """
        if self.plan is None:
            return self.start, self.teacher.blocks, []
        call = partial(
            heal,
            images=self.images,
            task=self.task,
            recipe=self.recipe,
            healing=replace(self.healing, rounds=1),
        )
        with ignore_training_warnings():
            built, rounds = build_in_rounds(
                self.start, self.plan, self.teacher.ancestry, self.images, call, run
            )
        return built, {name: built.provenance.get(name) for name in BLOCK_RECORDS}, rounds


def _open_inputs(
    start: Descendant,
    images: str,
    task: str | None,
    teacher: str | None,
    recipe: Recipe,
    healing: HealConfig,
    typed: Mapping[str, Any] | None,
    run: Run,
) -> PreparedHealing:
    """Open the images, the task and the teacher, and check that they fit the descendant.

    Args:
        start: the descendant.
        images: reference to the images.
        task: reference to the task of the probes, if there is one.
        teacher: source of the teacher. None: the recorded ancestry model.
        recipe: the training.
        healing: the other settings.
        typed: the named settings; defaults of the model and the data replace all others. None: the
            recipe stays as it is.
        run: how to compute.
    """
    recorded = _read_ancestries(start, teacher)
    data, probed = _open_data(start, images, task, run)
    if typed is not None:
        recipe = _choose_defaults(recipe, start, data, typed)
    if data.is_text:
        _check_text_settings(recipe, healing, data)
    opened = _open_teacher(start, recorded, teacher, run)
    larger = opened.ancestry.spec
    return PreparedHealing(
        start=start,
        teacher=opened,
        images=images,
        data=data,
        task=task,
        probed=probed,
        recipe=recipe,
        healing=healing,
        plan=plan_rounds(start, larger, healing.rounds) if healing.rounds > 1 else None,
    )


def _check_text_settings(recipe: Recipe, healing: HealConfig, data: Task) -> None:
    """Raise `WrongCall` for settings that have no meaning for texts."""
    check_text_recipe(recipe)
    for name in ("fit", "max_patches"):
        if value := getattr(healing, name):
            raise WrongCall(f"{name} is {value!r}, but {data.name} has texts; leave it out")


def _open_data(
    start: Descendant, images: str, task: str | None, run: Run
) -> tuple[Task, Task | None]:
    """Open the images without labels, and the task of the probes if there is one.

    Raises `WrongCall` for inputs that the descendant cannot read, and for a task with a class for
    every pixel.
    """
    from learngene_zoo.tasks.splits.cutting import ensure_validation
    from learngene_zoo.tasks.unlabelled.opening import open_images

    data = open_images(images, offline=run.offline)
    check_inputs(data, start.input_format)
    if task is None:
        return data, None
    probed = ensure_validation(open_task(task, offline=run.offline))
    check_inputs(probed, start.input_format)
    if probed.dense:
        raise WrongCall(
            f"{probed.name} has a class for every pixel; the probes need one for every image"
        )
    return data, probed


def _complete_record(
    healed: Descendant, teacher: HealingTeacher, rounds: Sequence[Json]
) -> Descendant:
    """Return the model with its teacher, and the rounds if there are any, in the record.

    A teacher among the recorded ancestry models is named as there, and not by its location.
    """
    named = (teacher.recorded or [teacher.ancestry.record])[0]
    names = ("source", "revision", "sha256", "licence")
    record: Any = healed.provenance["healed"]
    record = {**record, "teacher": {name: getattr(named, name) for name in names}}
    if rounds:
        record["rounds"] = [*rounds[:-1], {**rounds[-1], "metrics": record["metrics"]}]
    return replace(healed, provenance={**healed.provenance, "healed": record})


def configure(
    recipe: Recipe, healing: HealConfig, settings: Mapping[str, Any]
) -> tuple[Recipe, HealConfig]:
    """Return the recipe and the other settings with the named ones.

    Raises `WrongCall` for a setting that does not exist, and for one that needs labels.
    """
    check_setting_names(settings, (recipe, healing), ["run"])
    names = {setting.name for setting in list_settings(healing)}
    healing = with_settings(healing, {key: settings[key] for key in settings if key in names})
    recipe = with_settings(recipe, {key: settings[key] for key in settings if key not in names})
    for name in WITHOUT_MEANING[1:]:
        if getattr(recipe, name):
            raise WrongCall(f"{name} is {getattr(recipe, name)}; it needs labels, so leave it out")
    return replace(recipe, images=healing.max_images or recipe.images), healing


def _choose_defaults(
    recipe: Recipe, start: Descendant, data: Task, settings: Mapping[str, Any]
) -> Recipe:
    """Return the recipe with the defaults that depend on model and data, unless they are named."""
    defaults: dict[str, Any] = {"lr": choose_heal_rate(start)}
    if data.is_text:
        defaults["augment"] = "none"
    return replace(
        recipe, **{name: value for name, value in defaults.items() if name not in settings}
    )


def check_healable(model: Descendant | TimmModel) -> Descendant:
    """Return the model if it can be healed.

    Raises `WrongCall` for a model of timm's, one with a class per pixel, and a stitched one.
    """
    from learngene_zoo.artifacts.descendant import Descendant

    if not isinstance(model, Descendant):
        raise WrongCall(
            "this is a model of timm's, not a descendant, and records no ancestry model; heal a "
            "model that `lgzoo expand` built"
        )
    where = str(model.folder or "the model")
    if model.dense:
        raise WrongCall(
            f"{where} has a class for every pixel, which cannot be healed; expand it without a "
            "task of segmentation, heal it, and fine-tune it on the task"
        )
    if model.spec.stitched:
        raise WrongCall(
            f"{where} is stitched from several widths; only models of one width can be healed"
        )
    if "trained_on" in model.provenance:
        print_note(
            f"{where} was trained on a task; healing changes its features and not its head, so "
            "fine-tune it again afterwards",
            "heal a trained model",
        )
    return model


def _read_ancestries(start: Descendant, named: str | None) -> tuple[AncestryRecord, ...]:
    """Return the records of the ancestry models; a single one unless the teacher is `named`.

    Raises `WrongCall` otherwise.
    """
    where = str(start.folder or "the model")
    recorded = read_provenance(dict(start.provenance), where).ancestries
    teacher = name_option("teacher", "SOURCE")
    if named is None and not recorded:
        raise WrongCall(f"{where} records no ancestry model; name one: add {teacher}")
    if named is None and len(recorded) > 1:
        sources = ", ".join(record.source for record in recorded)
        raise WrongCall(
            f"{where} records {len(recorded)} ancestry models ({sources}); name one: add {teacher}"
        )
    return recorded


def _open_teacher(
    start: Descendant, recorded: Sequence[AncestryRecord], named: str | None, run: Run
) -> HealingTeacher:
    """Open the teacher at the image size of the descendant.

    Raises `WrongCall` for one with other patches.
    """
    from learngene_zoo.pretrained.ancestry import (
        find_origins_of_models,
        open_ancestry,
        reopen_ancestry,
    )
    from learngene_zoo.training.healing.objective import check_comparable

    size = start.spec.image_size
    if named is not None:
        ancestry = open_ancestry(named, image_size=size, offline=run.offline)
    else:
        record = replace(recorded[0], spec=recorded[0].spec.with_(image_size=size))
        with open_for_artifact(start):
            ancestry = reopen_ancestry(record, None, offline=run.offline, option="teacher")
    check_comparable(start.spec, ancestry.spec)
    same = [record for record in recorded if record.sha256 == ancestry.record.sha256]
    names = BLOCK_RECORDS if len(recorded) == 1 and same else ()
    located = find_origins_of_models([ancestry.record]).values()
    return HealingTeacher(
        ancestry=ancestry,
        recorded=same,
        blocks={name: start.provenance.get(name) for name in names},
        origins={record.source: origin for record in same for origin in located},
    )
