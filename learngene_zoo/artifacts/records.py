"""Records in artifacts: ancestry models, tasks, and all of a learngene but its tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.picture_format import (
    MIN_STD,
    USUAL_VIEW,
    View,
)
from learngene_zoo.families.spec import LIMITS, Spec
from learngene_zoo.settings import (
    FLAT,
    OMIT_DEFAULT,
    Bounds,
    Json,
    check_bounds,
    from_json,
    to_json,
)
from learngene_zoo.text import MAX_PATH_LENGTH, check_name, is_text, quote_path
from learngene_zoo.version import __version__

FORMAT = 1
HUB_ID = r"[\w-][\w.-]*/[\w-][\w.-]*"  # of a repository on the Hub
Control = Literal["shuffled", "stem", "stem_fan_in"]  # see `descendant.apply_control`
CONTROLS: tuple[Control, ...] = get_args(Control)


@dataclass(frozen=True, kw_only=True)
class AncestryRecord:
    """The exact origin of an ancestry model."""

    source: str  # as it was given: "timm:deit_base_patch16_224.fb_in1k"
    spec: Spec
    revision: str | None = None  # 40 hexadecimal digits on the Hub; None for a local file
    sha256: str | None = None  # of its weights file
    licence: str = "unknown"
    # The normalisation it was trained with, per channel.
    mean: Annotated[tuple[float, ...], Bounds(least=-1e6, most=1e6)] = (0.5, 0.5, 0.5)
    std: Annotated[tuple[float, ...], Bounds(least=MIN_STD, most=1e6)] = (0.5, 0.5, 0.5)
    # Of a text model, the sha256 of `tokenizer.json`.
    tokenizer: str | None = field(default=None, metadata=OMIT_DEFAULT)
    # Parts of the model that are not in `spec`.
    left_out: tuple[str, ...] = field(default=(), metadata=OMIT_DEFAULT)
    view: View = field(default=USUAL_VIEW, metadata=FLAT)  # how its images were resized and cropped

    def __post_init__(self) -> None:
        check_bounds(self)
        check_name(self.source, "source of an ancestry model", MAX_PATH_LENGTH)
        for name, digits in (("revision", 40), ("sha256", 64), ("tokenizer", 64)):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
                raise WrongCall(f"{name} is {value!r:.80}; expected {digits} hexadecimal digits")
        if not len(self.mean) == len(self.std) == self.spec.channels:
            raise WrongCall(
                f"mean and std have {len(self.mean)} and {len(self.std)} values for "
                f"{self.spec.channels} channels"
            )


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """The exact data of an extraction."""

    name: str
    source: str
    kind: str = "classification"
    classes: Annotated[int, Bounds(least=0, most=LIMITS["classes"])] = 0
    images: Annotated[int, "training images", Bounds(least=0, most=10**12)] = 0
    revision: str | None = None
    licence: str = "unknown"

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("name", "source"):
            check_name(getattr(self, name), f"{name} of a task", MAX_PATH_LENGTH)


@dataclass(frozen=True, kw_only=True)
class TargetTask:
    """The task of a learngene's descendants: the facts that their head needs, without the data."""

    task: str  # as the user named it: "folder:photos"
    classes: Annotated[int, Bounds(least=1, most=LIMITS["classes"])]
    class_names: tuple[str, ...] = ()
    dense: bool = False  # one class per pixel instead of one per image

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.class_names and len(self.class_names) != self.classes:
            raise WrongCall(f"{len(self.class_names)} class names for {self.classes} classes")
        check_name(self.task, "task", MAX_PATH_LENGTH)
        for text in self.class_names:
            check_name(text, "class")
        for text in (self.task, *self.class_names):
            if not is_text(text):
                raise WrongCall(f"{text!r:.80} is not text in UTF-8")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Results of descendants of one size on one task, beside all of their controls."""

    task: str
    layers: Annotated[int, Bounds(least=1, most=LIMITS["layers"])]
    width: Annotated[int, Bounds(least=1, most=LIMITS["width"])]
    # The expander's settings, where these do not name it.
    size: Mapping[str, Any] = field(default_factory=dict)
    params: Annotated[int, Bounds(least=0, most=10**18)]
    flops: Annotated[int, Bounds(least=0, most=10**18)]
    images: Annotated[int, "that were classified", Bounds(least=0, most=10**12)]
    accuracy: Mapping[str, float]  # by arm; that of the descendants first
    # Over a rival, with a 95 % interval.
    gains: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_bounds(self)
        check_name(self.task, "task", MAX_PATH_LENGTH)
        for arm in (*self.accuracy, *self.gains):
            check_name(arm, "arm")
        for arm, value in self.accuracy.items():
            if not 0 <= value <= 1:
                raise WrongCall(
                    f"the accuracy of {arm!r:.40} on {self.task!r:.40} is {value!r:.40}; "
                    "expected 0 to 1"
                )


@dataclass(frozen=True, kw_only=True)
class CardResults:
    """Results of descendants of several sizes after a short training, by one command."""

    command: str
    split: str
    how: str  # the training and the comparison, in a sentence
    rows: tuple[Measured, ...]
    # Where the images of a task come from.
    datasets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CardCost:
    """Cost of an extraction, and the parameters that are kept to build any size."""

    seconds: float  # of one core
    images: Annotated[int, "shown to a model, every pass counted", Bounds(least=0, most=10**15)]
    params: Annotated[
        int, "numbers that are kept, an ancestry model's among them", Bounds(least=0, most=10**18)
    ]

    def __post_init__(self) -> None:
        check_bounds(self)
        if not 0 <= self.seconds < math.inf:
            raise WrongCall(
                f"an extraction took {self.seconds!r:.40} seconds; expected a finite number from 0"
            )


@dataclass(frozen=True, kw_only=True)
class CardRecord:
    """Facts on the card of an artifact beside its provenance.

    The maker of the shelf writes them.
    """

    command: str = ""  # that makes it
    paper: str = ""  # to cite
    worth: CardResults | None = None
    cost: CardCost | None = field(default=None, metadata=OMIT_DEFAULT)


@dataclass(frozen=True, kw_only=True)
class LearngeneConfig:
    """Everything about a learngene but its tensors.

    An extractor sets `spec`, the default shape of descendants (mostly the ancestry's), `metrics`
    and `details`, the record of the method (`with_details`). The verb `extract` sets the rest: the
    name of the method, `settings`, which rebuild the extractor, and `purpose`, the task of the
    descendants: the first that the user named. `control` is the default control of descendants.
    """

    method: str = ""
    # Of a method that is not of this project.
    method_title: str = field(default="", compare=False, metadata=OMIT_DEFAULT)
    spec: Spec
    format: int = FORMAT
    settings: Mapping[str, Any] = field(default_factory=dict)
    ancestries: tuple[AncestryRecord, ...] = ()
    tasks: tuple[TaskRecord, ...] = ()
    seed: int = 0
    device: str = ""  # that it was extracted on: "cpu", "cuda"
    versions: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    control: Control | None = None
    purpose: TargetTask | None = None
    card: CardRecord | None = field(default=None, compare=False)
    # The names in its file, written when it is saved; none where an earlier version wrote it.
    tensors: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        check_name(self.method, "method")

    def with_details(self, details: Any) -> LearngeneConfig:
        """Return a copy with the method's record, a frozen dataclass.

        `parse_details` reads it back.
        """
        defaults = {item.name: item.default for item in fields(details)}
        written = {
            name: value
            for name, value in to_json(details).items()
            if value is not None or defaults[name] is not None
        }
        return replace(self, details=written)

    @property
    def licence(self) -> str:
        """Return the licence of the ancestry models; "unknown" if any of theirs is."""
        return join_licences(record.licence for record in self.ancestries)

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation per channel of descendants' images."""
        if self.ancestries:
            return self.ancestries[0].mean, self.ancestries[0].std
        return (0.5,) * self.spec.channels, (0.5,) * self.spec.channels

    @property
    def view(self) -> View:
        """Return how descendants' images are resized and cropped."""
        return self.ancestries[0].view if self.ancestries else USUAL_VIEW


def check_not_converted(data: Mapping[str, Json], where: str | Path) -> None:
    """Raise `BadFile` for the config of a model that `convert` wrote for another package."""
    ours = data.get("learngene")
    if isinstance(ours, dict) and "layout" in ours:
        raise BadFile(
            f"{where} is of a model that was written for another package, as "
            f"{ours['layout']!s:.40}; use the folder that it was converted from, or convert it "
            "back: lgzoo convert FOLDER --format timm"
        )


def is_model_config(data: Mapping[str, Json]) -> bool:
    """Return whether a config.json is that of a model, by timm or by transformers."""
    return "architecture" in data or "model_type" in data


def is_of_transformers(config: Mapping[str, Json]) -> bool:
    """Return whether transformers wrote a config.json of timm's.

    It keeps our key but not its content.
    """
    return config.get("model_type") == "timm_wrapper"


def check_not_transformers(data: Mapping[str, Json], where: str | Path) -> None:
    """Raise `BadFile` for a config in transformers' layout.

    It belongs to an ancestry model, not to an artifact of ours.
    """
    check_not_converted(data, where)
    if "model_type" in data and not data.keys() & {"format", "architecture", "learngene"}:
        path = Path(where)
        folder = quote_path(path.parent) if path.is_file() else "FOLDER"
        raise BadFile(
            f"{where} is of a pretrained model in transformers' layout; its features are evaluated "
            f"by lgzoo evaluate {folder} --task TASK --probe ridge, and learngenes are extracted "
            f"from it by lgzoo extract closed_form --ancestry {folder} (docs/ancestries.md)"
        )


def check_format(data: Mapping[str, Json], where: str) -> None:
    """Raise `BadFile` for the config of a format that this version does not read."""
    stated_format = data.get("format")
    check_not_transformers(data, where)
    if stated_format != FORMAT:
        advice = "upgrade learngene-zoo, or create it again"
        raise BadFile(
            f"{where}: format is {stated_format!r}; this version reads format {FORMAT}; {advice}"
        )


def join_licences(licences: Iterable[str]) -> str:
    """Return the licence of a work that combines several.

    "unknown" if that of any is, or if there is none.
    """
    names = set(licences)
    return "unknown" if not names or "unknown" in names else " AND ".join(sorted(names))


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The keys of a model's config.json that describe how it was built and trained.

    A method may add further records.
    """

    method: str = "unknown"
    # The package of a method that is not of this project, with its version at the extraction.
    method_package: Mapping[str, str] = field(default_factory=dict)
    method_title: str = ""  # of such a method
    control: Control | None = None
    learngene: str = ""
    task: str | None = None
    licence: str = "unknown"  # of a model that was trained, not inherited
    settings: Mapping[str, Any] = field(default_factory=dict)
    ancestries: tuple[AncestryRecord, ...] = ()
    seed: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    training_seed: int = 0
    device: str = ""  # that it was trained on
    trained_on: TaskRecord | None = None
    pairs: bool | None = None  # of a text model: whether it was trained on pairs of texts
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.method, "method")
        check_name(self.task or "", "task", MAX_PATH_LENGTH)

    @property
    def inherited_licence(self) -> str:
        """The licence of the ancestry models; of a model without any its licence."""
        if not self.ancestries:
            return self.licence
        return join_licences(record.licence for record in self.ancestries)


def read_provenance(data: Mapping[str, Json], where: str) -> Provenance:
    """Return the checked part of a model's record.

    Raises `BadFile` for a value of another type, and for an impossible metric.
    """
    provenance = from_json(
        Provenance,
        {key: data[key] for key in data if key in Provenance.__dataclass_fields__},
        where,
    )
    check_metrics(provenance.metrics, f"{where}: metrics")
    return provenance


def check_metrics(metrics: Mapping[str, Any], where: str) -> None:
    """Check that metrics are possible.

    Raises `BadFile` unless every accuracy and mIoU lies between 0 and 1, and every number of images
    or epochs is at least 0. Names decide which is which, at any depth: `validation_accuracy`,
    `training_images`.
    """
    for name, value in metrics.items():
        if name.endswith(("accuracy", "mIoU")):
            for number in _list_leaves(value):
                if not (isinstance(number, (int, float)) and 0 <= number <= 1):
                    raise BadFile(
                        f"{where}: {name} is {number!r:.40}; expected a number from 0 to 1"
                    )
        elif name.endswith(("images", "epochs", "steps")):
            for number in _list_leaves(value):
                if type(number) is not int or not 0 <= number <= 10**15:
                    raise BadFile(
                        f"{where}: {name} is {number!r:.40}; expected a whole number from 0 on"
                    )
        else:
            for inner in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(inner, Mapping):
                    check_metrics(inner, f"{where}: {name}")


def _list_leaves(value: Any) -> list[Any]:
    """Return the values in nested lists and objects."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _list_leaves(item)]
    return [] if value is None else [value]


OWN_PACKAGES = ("learngene_zoo", "torch", "timm", "safetensors", "accelerate", "datasets")


@cache
def list_versions() -> Mapping[str, str]:
    """Return the installed versions of this package and of those that its numerics depend on."""
    installed = {"learngene_zoo": __version__}
    for package in OWN_PACKAGES[1:]:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def find_package_of_method(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the package of a learngene's method with its version; {} for one of this project.

    `versions` are those that the learngene records.
    """
    return {name: number for name, number in versions.items() if name not in OWN_PACKAGES}


# The schemes of data that lie at a path; only `wds` also takes addresses.
LOCAL_SCHEMES = ("folder", "parquet", "csv", "jsonl", "wds")


def is_own_data(reference: str) -> bool:
    """Return whether a reference is the address of the user's data instead of a task's name."""
    return ":" in reference


def find_dataset(source: str) -> str | None:
    """Return the Hub's name of the data set of a task's images, if it is on the Hub."""
    match = re.fullmatch(rf"(?:hf:)?({HUB_ID})(?:[:@].*)?", source)
    return match[1] if match else None


# Checks of arguments that name a task, a model or a learngene; the constants are for messages.

TASKS = 'a name such as "digits", or data such as "folder:PATH"'
LEARNGENES = (
    'a folder, a name of the shelf such as "lsamd", organisation/name@revision, a Learngene'
)
MODELS = (
    'a folder, "timm:NAME", organisation/name@revision, or a model that this package returned (a '
    "module of timm is saved as a folder by timm.models.save_for_hf)"
)
SOURCES = '"timm:NAME", "hf-hub:ORG/REPO@REV", a folder or a .safetensors file'


def parse_reference(argument: str, value: Any, expected: str) -> str:
    """Return a reference as a string; it may be a path.

    Args:
        argument: name of the argument, for the error.
        value: the reference.
        expected: the accepted values, for the error.

    Raises:
        WrongCall: for a value that is neither a string nor a path.
    """
    if isinstance(value, (str, Path)):
        return str(value)
    raise WrongCall(f"{argument} is of type {type(value).__name__}; expected {expected}")


def parse_task(value: Any, argument: str = "task") -> str | None:
    """Return the reference of a task; None if none is given. Raises as `parse_reference`."""
    return None if value is None else parse_reference(argument, value, TASKS)


def parse_references(argument: str, value: Any, expected: str) -> list[str]:
    """Return one or several references as a list. Raises as `parse_reference`."""
    if isinstance(value, (list, tuple)):
        return [parse_reference(argument, item, expected) for item in value]
    return [parse_reference(argument, value, expected)]


def check_model(argument: str, value: Any) -> None:
    """Raise `WrongCall` for a value that is neither a reference nor a model of this package."""
    if not hasattr(value, "input_format"):
        parse_reference(argument, value, MODELS)
