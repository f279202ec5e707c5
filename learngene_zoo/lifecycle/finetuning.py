"""Fine-tune a model on a task: the settings beside the recipe, and the function."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from learngene_zoo.artifacts.own_data import remember
from learngene_zoo.artifacts.records import parse_task
from learngene_zoo.errors import WrongCall, refuse_unknown
from learngene_zoo.lifecycle.opening import (
    find_origins,
    make_run,
    open_resized,
    open_task_for,
)
from learngene_zoo.lifecycle.rates import (
    FINETUNE,
    adapt_to_steps,
    check_text_recipe,
    choose_fit,
    choose_rates,
    describe_batches,
    describe_rates,
    is_pretrained,
)
from learngene_zoo.lifecycle.training_warnings import warn_of_training
from learngene_zoo.method.contract import Finetuning
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.timm_model import load_model
from learngene_zoo.runs.folder import check_start, produce
from learngene_zoo.runs.run import Run, parse_run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import (
    OMIT_DEFAULT,
    Bounds,
    Recipe,
    check_bounds,
    check_setting_names,
    check_type,
    list_settings,
    to_json,
    with_settings,
)
from learngene_zoo.tasks.task import stamp_tasks
from learngene_zoo.text import name_option

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.training.distillation import Distillation

    NamedTeacher = tuple[Descendant | TimmModel, dict[str, Any]]

MAX_MEASURED_TEXTS = 500  # whose tokens are counted for a note
PASSES_PER_STEP = 3  # a training step of an image takes about as long as this many forward passes
AUTO, AUTO_SETTINGS = "auto", ("batch_size", "lr")


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """The settings of `finetune` in addition to the recipe."""

    keep: Annotated[
        Literal["best", "last"],
        "weights to keep: of the epoch with the best validation result (the last epoch within a "
        "standard error of it and not below the start), or of the last epoch",
    ] = "best"
    head: Annotated[
        Literal["ridge", "random"],
        "initial weights of a new head: a ridge regression of the model's features onto the "
        "classes, or random",
    ] = field(default="ridge", metadata=OMIT_DEFAULT)
    fit: Annotated[
        Literal["crop", "pad", "stretch"] | None,
        "for images that are not square: crop the ends, pad with the mean colour, or stretch "
        "(none: stretch if a model that crops gets a new head, else as the model is configured)",
    ] = field(default=None, metadata=OMIT_DEFAULT)
    patience: Annotated[
        int | None, "stop after N epochs without a better validation result", Bounds(least=1)
    ] = None
    validation_images: Annotated[
        int | None,
        "validate after every epoch on at most N images, a sample in proportion to the classes "
        "(none: all)",
        Bounds(least=1),
    ] = field(default=None, metadata=OMIT_DEFAULT)
    teacher: Annotated[
        str | None,
        "also distil from this classifier of the task: timm:NAME, hf-hub:ORG/REPO or a folder",
    ] = field(default=None, metadata=OMIT_DEFAULT)
    # DeiT's soft distillation (Touvron et al., 2021, equation 2); its hard distillation (equation
    # 3) has a share of 0.5.
    share: Annotated[
        float,
        "weight of the distillation loss; the loss of the labels has 1 minus this weight",
        Bounds(least=0, most=1),
    ] = field(default=0.1, metadata=OMIT_DEFAULT)
    temperature: Annotated[
        float,
        "temperature of distillation: divides the logits of student and teacher",
        Bounds(above=0),
    ] = field(default=3.0, metadata=OMIT_DEFAULT)
    answers: Annotated[
        Literal["soft", "hard"],
        "target of distillation: the teacher's distribution, or its most probable class",
    ] = field(default="soft", metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.teacher is None and (self.share, self.temperature, self.answers) != (
            0.1,
            3.0,
            "soft",
        ):
            raise WrongCall(
                "share, temperature and answers need a teacher; give a teacher, or leave them out"
            )


def finetune(
    model: str | Path | Descendant | TimmModel,
    task: str | None = None,
    *,
    recipe: Recipe | None = None,
    tuning: FinetuneConfig = FinetuneConfig(),
    preset: str | None = None,
    image_size: int | None = None,
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
    **settings: Any,
) -> Descendant | TimmModel:
    """Train a model on a task, with a new head if it needs one.

    A new head starts from a ridge regression of the model's features (`training.heads`), unless
    `head` is "random" or the model's weights are random. Every epoch is validated, and the weights
    of the best epoch are kept; their results on the test images are in the provenance and in
    `report.html`. With a `teacher` in `tuning` the loss is (1 - share) L_task + share L_teacher,
    see `make_logits_loss`.

    Args:
        model: a model or a reference to one.
        task: default: the task for which the model was built. A model from the bundled ancestry
            that was built without a task is trained on `digits`.
        recipe: the whole training, with the defaults of `Recipe`, which are not those of
            `finetune`. None: `FINETUNE`, with a batch size, a learning rate, a layer decay and a
            warm-up that depend on the width of the model, on whether its weights are pretrained,
            and on the number of training images (`lgzoo finetune --help`); name single values in
            `settings`.
        tuning: the other settings.
        preset: replaces the recipe: "paper" is the recipe of the paper of the method that built the
            model, with the paper's learning rate for the task, if there is one.
        image_size: of the model from now on, in pixels; its position embedding is resampled. None:
            as it is.
        out: folder to write the model to.
        run: how to compute.
        force: replace existing content of `out`.
        settings: fields of `recipe` and `tuning` by name (`epochs=5, patience=3`); `batch_size` and
            `lr` may be "auto": then several values are tried first.

    Raises:
        WrongCall: if no task is given and the model was built without a task, for data that only
            the caller may choose (`folder:mine`), and for an image size that the model does not
            take.
    """
    run, task = parse_run(run, make_run), parse_task(task)
    check_type("tuning", tuning, FinetuneConfig)
    check_type("recipe", recipe, Recipe, optional=True)
    check_start(out, run, force)
    from learngene_zoo.runs.progress import check_tracker
    from learngene_zoo.tasks.catalogue import say_notes

    check_tracker(run.tracker, run.folder if out is None else Path(out))
    start = open_resized(model, image_size, run.offline)
    named = _find_preset(start, preset, recipe)
    # Unknown settings are refused before any data is opened.
    _, _, automatic = _set_named(named.recipe, tuning, settings)
    data = open_task_for(start, task, "finetune", run)
    has_rate = "lr" in settings or _has_rate(named, data, recipe, preset)
    defaults = _choose_defaults(start, data, named, recipe, preset, has_rate=has_rate)
    is_default = recipe is None and preset is None
    chosen = {*settings, *(["lr"] if has_rate else []), *([] if is_default else ["batch_size"])}
    recipe, tuning, _ = _set_named(defaults, tuning, settings)
    if is_default and is_pretrained(start):
        recipe = _adapt_recipe(recipe, data, chosen)
    if data.is_text:
        check_text_recipe(recipe)
        if tuning.fit:
            raise WrongCall(f"fit is {tuning.fit!r}, but {data.name} has texts; leave it out")

    teacher = _open_teacher(tuning, data, run)

    def make(run: Run) -> Descendant | TimmModel:
        say_notes([data], run)
        if data.is_text:
            _print_note_on_truncation(start, data)
        return _train(start, data, recipe, tuning, automatic, run, teacher=teacher, named=chosen)

    plan = {
        "model": start.identity,
        "task": to_json(data.record),
        "recipe": {**to_json(recipe), **automatic},
        "tuning": to_json(tuning),
        **({"teacher": teacher[1]} if teacher else {}),
    }
    origins = find_origins(data, task, start)
    stamps = partial(stamp_tasks, [data])
    result = produce(
        make, load_model, out=out, verb="finetune", settings=plan, run=run, force=force, data=stamps
    )
    warn_of_training(result, keep=tuning.keep)
    return remember(result, origins, load_model, out)


def _train(
    start: Descendant | TimmModel,
    task: Task,
    recipe: Recipe,
    tuning: FinetuneConfig,
    automatic: Mapping[str, str],
    run: Run,
    *,
    teacher: NamedTeacher | None,
    named: Collection[str],
) -> Descendant | TimmModel:
    """Train a model on a task; its provenance names the teacher and the values that were tried.

    Args:
        start: the model, without a head for the task.
        task: the task.
        recipe: the training.
        tuning: the other settings.
        automatic: the settings of the recipe that are "auto".
        run: how to compute.
        teacher: the teacher with its record.
        named: the settings that the caller chose.
    """
    from learngene_zoo.runs.progress import say
    from learngene_zoo.tasks.splits.cutting import ensure_validation, limit_validation
    from learngene_zoo.training.automatic import resolve_auto
    from learngene_zoo.training.fit import drop_training_records
    from learngene_zoo.training.heads import rescale_head
    from learngene_zoo.training.objectives import load_training_images
    from learngene_zoo.training.tuning import tune

    model = start.for_task(
        task.name, task.class_names, seed=derive_seed(run.seed, "head"), dense=task.dense
    ).with_fit(tuning.fit or choose_fit(start, task))
    model = replace(model, provenance=drop_training_records(model.provenance))
    # Before the head is fitted, so that a wrong teacher is refused at once
    distillation = _make_distillation(tuning, teacher, model, run)
    # Likewise images that cannot be read, also of the other splits
    load_training_images(ensure_validation(task), model.input_format, recipe, run)
    is_fitted = _needs_head(start, task, tuning)
    if is_fitted:
        model = _fit_head(model, task, recipe, run)
    adapt = rescale_head if is_fitted else None
    validated = limit_validation(ensure_validation(task), tuning.validation_images)
    resolved, tried = resolve_auto(model, validated, recipe, run, automatic, adapt, distillation)
    model = adapt(model, resolved.lr) if adapt else model
    for line in _describe_training(start, task, validated, resolved, named):
        say(run, line)
    result = tune(
        model,
        task,
        resolved,
        run,
        keep=tuning.keep,
        patience=tuning.patience,
        validation_images=tuning.validation_images,
        distillation=distillation,
    )
    records = {"teacher": distillation and distillation.identity, "found": tried}
    kept = {name: record for name, record in records.items() if record}
    return replace(result, provenance={**result.provenance, **kept})


def _adapt_recipe(recipe: Recipe, task: Task, named: Collection[str]) -> Recipe:
    """Return the recipe adapted to the number of steps, but for the settings that are `named`."""
    from learngene_zoo.tasks.splits.cutting import ensure_validation

    adapted = adapt_to_steps(
        recipe,
        ensure_validation(task).sizes["train"],
        is_text=task.is_text,
        has_batch_size="batch_size" in named,
    )
    values = {
        name: getattr(recipe if name in named else adapted, name)
        for name in ("batch_size", "lr", "warmup")
    }
    return replace(recipe, **values)


def _choose_defaults(
    model: Descendant | TimmModel,
    task: Task,
    named: Finetuning,
    recipe: Recipe | None,
    preset: str | None,
    *,
    has_rate: bool,
) -> Recipe:
    """Return the recipe of `named` with the defaults that depend on the model and the task.

    Args:
        model: the model.
        task: the task.
        named: the recipe, or the preset that replaces it.
        recipe: the recipe, if one is given.
        preset: the name of the preset, if one is given.
        has_rate: whether a learning rate is given, by itself or in the recipe or the preset.
    """
    rate, decay = choose_rates(model)
    if has_rate:
        rate = named.task_lr.get(task.name, named.recipe.lr)
    if recipe is not None or preset is not None:
        decay = named.recipe.layer_decay
    if not task.is_text:
        return replace(named.recipe, lr=rate, layer_decay=decay)
    decay = 1.0 if recipe is None else decay
    return replace(named.recipe, lr=rate, layer_decay=decay, augment="none")


def _needs_head(model: Descendant | TimmModel, task: Task, tuning: FinetuneConfig) -> bool:
    """Return whether a model gets a head that is fitted to the task's images: a new head of
    pretrained weights that is not to be random.
    """
    from learngene_zoo.training.heads import has_trained_head

    is_random = tuning.head == "random" or not is_pretrained(model)
    return not (is_random or has_trained_head(model, task))


def _fit_head(
    model: Descendant | TimmModel, task: Task, recipe: Recipe, run: Run
) -> Descendant | TimmModel:
    """Return the model with the head of a ridge regression, which is printed and recorded."""
    from learngene_zoo.runs.progress import say
    from learngene_zoo.tasks.splits.cutting import ensure_validation
    from learngene_zoo.training.heads import describe_head, initialise_head

    fitted, record = initialise_head(model, ensure_validation(task), recipe, run)
    say(run, describe_head(record))
    return replace(fitted, provenance={**fitted.provenance, "head": record})


def _describe_training(
    start: Descendant | TimmModel,
    task: Task,
    validated: Task,
    recipe: Recipe,
    named: Collection[str],
) -> list[str]:
    """Return lines about the images or texts, the batches and the default rates of a training.

    Args:
        start: the model.
        task: the task.
        validated: the task with the validation images that are used.
        recipe: the training.
        named: the settings that the caller chose.
    """
    from learngene_zoo.tasks.splits.cutting import ensure_validation

    sizes, noun = ensure_validation(task).sizes, task.sample_noun
    train, validation, test = (sizes[split] for split in ("train", "validation", "test"))
    samples = (
        f"{task.name} has {train:,} training, {validation:,} validation and {test:,} test {noun}s"
    )
    if recipe.images and recipe.images < train:
        samples += f"; {recipe.images:,} of the training {noun}s are used"
    if not recipe.epochs:
        return [samples]
    used = min(recipe.images or train, train)
    num_validated = validated.sizes["validation"]
    if num_validated < validation:
        samples += f"; the epoch is chosen on {num_validated:,} of the validation {noun}s"
    elif validation > PASSES_PER_STEP * used:
        samples += (
            "; validation takes longer than training, and less with "
            f"{name_option('validation_images')}, which chooses the epoch on a sample"
        )
    batches = describe_batches(recipe, train, noun, is_default="batch_size" not in named)
    rates = describe_rates(
        start, recipe, train, has_rate="lr" in named, has_decay="layer_decay" in named
    )
    return [samples, batches, *([rates] if rates else [])]


def _print_note_on_truncation(model: Descendant | TimmModel, task: Task) -> None:
    """Print how many of the first training texts are longer than the model takes, if any is."""
    from learngene_zoo.runs.progress import print_note
    from learngene_zoo.tasks.texts.encoding import describe_truncation

    split: Any = task.split("train")
    form: Any = model.input_format
    texts = split.__getitems__(range(min(MAX_MEASURED_TEXTS, len(split))))
    if note := describe_truncation(texts, form):
        print_note(note, "truncation")


def _find_preset(
    model: Descendant | TimmModel, preset: str | None, recipe: Recipe | None
) -> Finetuning:
    """Return a preset of the method that built the model, else the recipe.

    Raises `WrongCall` if there is no such preset.
    """
    if preset is None:
        return Finetuning(recipe=recipe or FINETUNE)
    if recipe is not None:
        raise WrongCall(
            f"expected a recipe or a preset, got both (preset {preset!r}); leave out one of them"
        )
    name = str(model.provenance.get("method", ""))
    METHODS.check_unused(name)
    presets = METHODS.load(name).finetuning if name in METHODS.references() else {}
    if not presets:
        method_names = ", ".join(
            method.name for method in METHODS.load_all()[0] if method.finetuning
        )
        subject = (
            f"descendants of {name} have"
            if name
            else "this model was not built by a method, so it has"
        )
        raise WrongCall(
            f"{subject} no presets for fine-tuning; leave out the preset {preset!r} "
            f"(methods that have any: {method_names})"
        )
    if preset not in presets:
        raise refuse_unknown(f"preset for fine-tuning descendants of {name}", preset, presets)
    return presets[preset]


def _has_rate(named: Finetuning, task: Task, recipe: Recipe | None, preset: str | None) -> bool:
    """Return whether a recipe or a preset has a learning rate for a task.

    A preset with the rates of certain tasks has none for others.
    """
    is_general = preset is not None and not named.task_lr
    return recipe is not None or is_general or task.name in named.task_lr


def _open_teacher(tuning: FinetuneConfig, data: Task, run: Run) -> NamedTeacher | None:
    """Return the teacher with its record, if there is one."""
    if tuning.teacher is None:
        return None
    from learngene_zoo.training.distillation import open_teacher

    return open_teacher(tuning.teacher, data, run)


def _make_distillation(
    tuning: FinetuneConfig,
    teacher: NamedTeacher | None,
    start: Descendant | TimmModel,
    run: Run,
) -> Distillation | None:
    """Return the loss that a teacher adds to an objective; None without a teacher."""
    from learngene_zoo.training.distillation import Distillation, guide, make_logits_loss

    if teacher is None:
        return None
    model, record = teacher
    how = {"share": tuning.share, "temperature": tuning.temperature, "answers": tuning.answers}
    return Distillation(
        teacher=guide(model, start.input_format, run),
        imitation=make_logits_loss(tuning.answers, tuning.temperature),
        weights=(1 - tuning.share, tuning.share),
        identity={**record, **how},
    )


def _set_named(
    recipe: Recipe, tuning: FinetuneConfig, settings: Mapping[str, Any]
) -> tuple[Recipe, FinetuneConfig, dict[str, str]]:
    """Return recipe and tuning with the named settings, and those of the recipe that are "auto".

    Raises `WrongCall` for an unknown name or a wrong value.
    """
    check_setting_names(settings, (recipe, tuning), ["run"])
    automatic = {name: AUTO for name in AUTO_SETTINGS if settings.get(name) == AUTO}
    tuning_names = {setting.name for setting in list_settings(tuning)}
    tuning_settings = {name: value for name, value in settings.items() if name in tuning_names}
    recipe_settings = {
        name: value
        for name, value in settings.items()
        if name not in tuning_names and name not in automatic
    }
    return with_settings(recipe, recipe_settings), with_settings(tuning, tuning_settings), automatic
