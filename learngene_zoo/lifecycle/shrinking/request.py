"""The request of `shrink`: its settings, the opened model and images, and an estimated time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from learngene_zoo.artifacts.records import is_own_data
from learngene_zoo.errors import (
    BadData,
    WrongCall,
    ZooError,
    check_choice,
    refuse_unknown,
)
from learngene_zoo.families.family import Cost, count_cost
from learngene_zoo.families.spec import Spec, parse_image_size
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.lifecycle.extraction import suggest_check
from learngene_zoo.lifecycle.finetuning import FinetuneConfig
from learngene_zoo.lifecycle.latency import describe_bounds, refuse_all, select_fitting
from learngene_zoo.lifecycle.rates import FINETUNE, check_text_recipe
from learngene_zoo.lifecycle.shrinking.candidates import Offers, list_offers
from learngene_zoo.method.sizes import Budget, Target, parse_sizes
from learngene_zoo.pretrained.sources import check_source
from learngene_zoo.runs.progress import print_note
from learngene_zoo.settings import (
    Bounds,
    Json,
    check_bounds,
    check_type,
    list_settings,
    to_json,
    with_settings,
)
from learngene_zoo.tasks.catalogue import find_entry, open_task
from learngene_zoo.tasks.task import check_inputs, check_kind
from learngene_zoo.text import format_count, name_option
from learngene_zoo.training.healing.settings import HEAL

if TYPE_CHECKING:
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.runs.run import Run
    from learngene_zoo.tasks.task import Task

ExportFormat = Literal["onnx", "pt2", "none"]
BYTES_PER_PARAMETER = 4  # fp32
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
MIN_TRAINING_IMAGES = 10
# The other arguments of `shrink`, which a misspelt setting may mean.
ARGUMENTS = ("budget", "config", "export", "force", "image_size", "out", "run", "task")


def count_megabytes(size: Cost) -> float:
    """Return the size of the weights of a model in fp32, in units of 10^6 bytes."""
    return BYTES_PER_PARAMETER * size.params / 1e6


@dataclass(frozen=True, kw_only=True)
class ShrinkConfig:
    """The settings of `shrink` in addition to the budget and to those of the fine-tuning."""

    max_megabytes: Annotated[
        float | None,
        "at most this many megabytes (10^6 bytes) of weights, stored as fp32",
        Bounds(above=0),
    ] = None
    max_drop: Annotated[
        float | None,
        "take the smallest model whose accuracy is at most this many points below the original's",
        Bounds(least=0, most=100),
    ] = None
    candidates: Annotated[
        int, "maximum number of descendants to build and probe", Bounds(least=1, most=100)
    ] = 8
    tries: Annotated[
        int, "number of candidates to fine-tune (without labels: to heal)", Bounds(least=1, most=20)
    ] = 2
    heal: Annotated[
        bool | None,
        "heal the tried candidates: the original teaches them on the images, without labels "
        "(default: only without --task)",
    ] = None
    heal_epochs: Annotated[int, "passes of the healing over the images", Bounds(least=1)] = (
        HEAL.epochs
    )
    probe_images: Annotated[
        int, "maximum number of training images of a probe", Bounds(least=10)
    ] = 1000

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.tries > max(self.candidates, ShrinkConfig.tries):
            raise WrongCall(
                f"{self.tries} candidates cannot be fine-tuned ({name_option('tries')}) if at most "
                f"{self.candidates} are built; raise {name_option('candidates')}"
            )

    def is_healing(self, task: object | None) -> bool:
        """Return whether the tried candidates are healed."""
        return task is None if self.heal is None else self.heal

    def tighten(self, budget: Budget) -> Budget:
        """Return a budget whose bound on parameters includes `max_megabytes`."""
        if self.max_megabytes is None:
            return budget
        params = max(1, int(1e6 * self.max_megabytes / BYTES_PER_PARAMETER))
        return replace(budget, max_params=min(params, budget.max_params or params))

    def describe_megabytes(self, size: Cost) -> str:
        """Return the megabytes of a model, if they are bounded; else ""."""
        return "" if self.max_megabytes is None else f"{count_megabytes(size):.1f} MB"


@dataclass(frozen=True, kw_only=True)
class ShrinkRequest:
    """A checked call of `shrink`, with everything opened that it reads."""

    source: str  # of the pretrained model
    ancestry: Ancestry
    image_size: int | None
    reference: str | None  # of the task
    task: Task | None  # with validation images
    images_reference: str
    images: Task  # whose training images extractions see; without labels unless it is `task`
    offers: Offers  # of all methods, without regard to the budget
    budget: Budget
    config: ShrinkConfig
    tuning: Mapping[str, Any]  # settings of the fine-tuning
    export_format: ExportFormat

    @property
    def settings(self) -> dict[str, Json]:
        """The settings of the computation, for the record of its run."""
        record = self.ancestry.record
        return {
            "model": [record.source, record.sha256],
            **({"image_size": self.image_size} if self.image_size else {}),
            "task": None if self.task is None else to_json(self.task.record),
            "images": to_json(self.images.record),
            **to_json(self.budget),
            **to_json(self.config),
            "finetune": to_json(dict(self.tuning)),
            "export": self.export_format,
        }


def split_settings(
    budget: Budget, config: ShrinkConfig, settings: Mapping[str, Any]
) -> tuple[Budget, ShrinkConfig, dict[str, Any]]:
    """Divide settings by name into the budget, the other settings, and those of the fine-tuning.

    Raises `WrongCall` for an unknown name or a wrong value, and if there is no bound.
    """
    check_type("config", config, ShrinkConfig)
    check_type("budget", budget, Budget)
    names = {
        setting.name for part in (FINETUNE, FinetuneConfig()) for setting in list_settings(part)
    }
    tuning = {name: value for name, value in settings.items() if name in names}
    rest = {name: value for name, value in settings.items() if name not in names}
    known = {
        *(setting.name for part in (budget, config) for setting in list_settings(part)),
        *names,
    }
    for name in rest:
        if name not in known:
            raise refuse_unknown("setting", name, known.union(ARGUMENTS))
    _, budget, config = parse_sizes(Target(), budget, config, rest)
    _check_bounds_given(config.tighten(budget), config)
    recipe_names = {setting.name for setting in list_settings(FINETUNE)}
    plain = {name: value for name, value in tuning.items() if value != "auto"}
    with_settings(FINETUNE, {name: plain[name] for name in plain if name in recipe_names})
    with_settings(
        FinetuneConfig(), {name: plain[name] for name in plain if name not in recipe_names}
    )
    return budget, config, tuning


def takes_texts(source: str, run: Run) -> bool:
    """Return whether a pretrained model takes texts. Its weights are not read.

    Raises as `open_ancestry` does.
    """
    from learngene_zoo.pretrained.ancestry import read_ancestry_spec

    check_source(source)
    return isinstance(read_ancestry_spec(source, offline=run.offline), TextSpec)


def choose_export(export: str) -> ExportFormat:
    """Return the format of the exported file; "auto" is ONNX if its packages are installed.

    Raises `WrongCall` for an unknown format.
    """
    formats = get_args(ExportFormat)
    check_choice("format", export, ("auto", *formats))
    if export in formats:
        chosen: ExportFormat = export  # type: ignore[assignment]
        return chosen
    return "none" if _list_missing_packages() else "onnx"


def print_note_on_export(export: str) -> None:
    """Print a note if the format "auto" writes no file, with the reason."""
    if export == "auto" and (missing := _list_missing_packages()):
        print_note(
            f"no ONNX file is written, because {missing[0]} is not installed: pip install "
            "'learngene-zoo[onnx]'",
            "onnx",
        )


def _list_missing_packages() -> list[str]:
    return [name for name in ONNX_PACKAGES if find_spec(name) is None]


def open_request(
    source: str,
    task: str | None,
    images: str | None,
    budget: Budget,
    config: ShrinkConfig,
    tuning: Mapping[str, Any],
    image_size: int | None,
    export_format: ExportFormat,
    run: Run,
) -> ShrinkRequest:
    """Open the model and the images, and check that a descendant fits the budget.

    Args:
        source: the pretrained model.
        task: the task of the descendants. None: they have no head.
        images: images or texts without labels that extractions see, as for `open_images`. None:
            the task's.
        budget: bounds of the descendants.
        config: the other settings.
        tuning: settings of the fine-tuning, by name.
        image_size: in pixels. None: the model's default.
        export_format: of the exported file.
        run: how to compute.

    Raises:
        WrongCall: if there is no task and no images, if nothing fits the budget or the model
            itself does, for a task with a class per pixel, and for texts with an image
            model or the reverse.
        BadData: for a task with too few images or one class, and for too few images.
    """
    from learngene_zoo.pretrained.ancestry import read_ancestry_spec

    image_size, bounds = parse_image_size(image_size), config.tighten(budget)
    is_text = takes_texts(source, run)
    _check_data_given(config, task, images, tuning, "text" if is_text else "image")
    if is_text:
        named = {setting.name: tuning.get(setting.name) for setting in list_settings(FINETUNE)}
        given = {name: value for name, value in named.items() if value not in (None, "auto")}
        check_text_recipe(with_settings(FINETUNE, {"augment": "none", **given}))
    for entry in map(find_entry, filter(None, (task, images))):
        if entry is not None:
            check_kind(entry, is_text)
    _check_sizes(read_ancestry_spec(source, offline=run.offline), task, image_size, budget, config)
    from learngene_zoo.pretrained.ancestry import open_ancestry
    from learngene_zoo.tasks.unlabelled.opening import open_images

    data = None if task is None else _open_labelled(task, is_text, run)
    pictures = data if images is None else open_images(images, offline=run.offline)
    assert pictures is not None, "checked above"
    check_kind(pictures, is_text)
    ancestry = open_ancestry(source, image_size=image_size, offline=run.offline)
    check_inputs(pictures, ancestry.input_format)
    offers = list_offers(
        ancestry.spec, data.classes if data else 0, has_labels=pictures.is_labelled
    )
    _check_not_affordable(ancestry.spec, data.classes if data else 0, bounds, config)
    _check_affordable(offers, budget, config)
    reference = images if images is not None else task
    assert reference is not None, "checked above"
    return ShrinkRequest(
        source=source,
        ancestry=ancestry,
        image_size=image_size,
        reference=task,
        task=data,
        images_reference=reference,
        images=pictures,
        offers=offers,
        budget=bounds,
        config=config,
        tuning=tuning,
        export_format=export_format,
    )


def check_images(request: ShrinkRequest, run: Run) -> None:
    """Check that the images can be read, as a training does before its first step.

    It takes at most about half a minute. Texts, streams and images in memory are not checked.

    Raises `BadData` that names the images which cannot be read.
    """
    from learngene_zoo.tasks.check import check_before_training
    from learngene_zoo.tasks.splits.samples import DecodedSplit

    for task in [request.images, *([request.task] if request.task else [])]:
        if task.is_text or task.open_stream is not None:
            continue
        if not isinstance(task.split("train"), DecodedSplit):
            continue
        is_named = task is request.task or request.images_reference == request.reference
        with suggest_check({request.reference: task} if request.reference and is_named else {}):
            check_before_training(task, range(task.sizes["train"]), run.workers)


def _check_bounds_given(budget: Budget, config: ShrinkConfig) -> None:
    if not budget and config.max_drop is None:
        names = ("max_params", "max_flops", "max_latency", "max_megabytes", "max_drop")
        *bounds, last = map(name_option, names)
        raise WrongCall(f"no bound is given; give at least one of {', '.join(bounds)} and {last}")


def _check_data_given(
    config: ShrinkConfig,
    task: str | None,
    images: str | None,
    tuning: Mapping[str, Any],
    noun: str,
) -> None:
    """Check that there is a task, or data without labels and no setting that needs labels.

    `noun` names a sample of the model. Raises `WrongCall`.
    """
    if task is None and images is None:
        form = "csv:PATH" if noun == "text" else "folder:PATH"
        raise WrongCall(
            f"no {noun}s are given; give {name_option('task', form)}, or "
            f"{name_option('images', form)} for {noun}s without labels"
        )
    if task is None and config.max_drop is not None:
        raise WrongCall(
            f"{name_option('max_drop')} compares accuracies, which need labels; give "
            f"{name_option('task')}, or another bound"
        )
    if task is None and tuning:
        name = next(iter(tuning))
        healing = f", give {name_option('heal_epochs')} for those of the healing"
        raise WrongCall(
            f"{name_option(name)} is a setting of the fine-tuning, which needs labels; give "
            f"{name_option('task')}{healing if name == 'epochs' else ''}, or leave it out"
        )


def _open_labelled(reference: str, is_text: bool, run: Run) -> Task:
    """Open a task that descendants can be fine-tuned on; it has validation images.

    Its samples are texts if `is_text`, else images.
    """
    from learngene_zoo.tasks.splits.cutting import ensure_validation

    try:
        data = open_task(reference, offline=run.offline)
    except BadData as error:
        if not is_own_data(reference) or not _can_open_without_labels(reference, run):
            raise
        hint = name_option("images", reference)
        raise BadData(f"{error}; or shrink without labels: {hint} instead") from error
    check_kind(data, is_text)
    if data.dense:
        raise WrongCall(
            f"{data.name} has a class for every pixel; shrink needs one class for every image"
        )
    if data.classes < 2:
        raise BadData(f"{data.name} has one class; a classifier needs at least two")
    if data.sizes["train"] < MIN_TRAINING_IMAGES:
        raise BadData(
            f"{data.name} has {data.sizes['train']} training {data.sample_noun}s; expected at "
            f"least {MIN_TRAINING_IMAGES}: add some"
        )
    return ensure_validation(data)


def _can_open_without_labels(reference: str, run: Run) -> bool:
    from learngene_zoo.tasks.unlabelled.opening import open_images

    try:
        open_images(reference, offline=run.offline)
    except ZooError:
        return False
    return True


def _check_sizes(
    spec: Spec, task: str | None, image_size: int | None, budget: Budget, config: ShrinkConfig
) -> None:
    """Check the budget as far as the shape of the model allows, before torch is imported.

    The classes of the user's own data are not known yet, so descendants without a head are compared
    with the budget.

    Raises `WrongCall` if no descendant fits the budget, or if the model itself does.
    """
    spec = spec.with_(image_size=image_size)
    entry = None if task is None else find_entry(task)
    classes = entry.classes if entry else 0
    smallest = "the smallest" if entry or task is None else "even without a head the smallest"
    if entry or task is None:
        _check_not_affordable(spec, classes, config.tighten(budget), config)
    _check_affordable(list_offers(spec, classes), budget, config, smallest)


def _check_affordable(
    offers: Offers, budget: Budget, config: ShrinkConfig, smallest: str = "the smallest"
) -> None:
    """Raise `WrongCall`, which names the smallest descendant, if none is within the budget.

    Latency is not measured. `smallest` are the words for that descendant.
    """
    members = [member for members in offers.values() for member in members]
    if not select_fitting(members, config.tighten(budget)):
        megabytes = config.max_megabytes
        bounds = [] if megabytes is None else [f"{megabytes:g} MB of fp32 weights"]
        raise refuse_all(
            members,
            [*describe_bounds(budget), *bounds],
            describe=config.describe_megabytes,
            smallest=smallest,
        )


def _check_not_affordable(spec: Spec, classes: int, budget: Budget, config: ShrinkConfig) -> None:
    """Raise `WrongCall` if the model itself is within the budget. Latency is not measured."""
    size = count_cost(spec.with_(classes=classes, dense=False))
    if config.max_drop is not None or budget.max_latency is not None:
        return
    bounds = ((budget.max_params, size.params), (budget.max_flops, size.flops))
    if all(bound is None or value <= bound for bound, value in bounds):
        sizes = [
            f"{format_count(size.params)} parameters",
            *filter(None, [config.describe_megabytes(size)]),
            f"{format_count(size.flops)} FLOPs",
        ]
        raise WrongCall(
            f"the model itself is within the budget ({', '.join(sizes)}); choose a smaller budget, "
            "or use the model as it is"
        )
