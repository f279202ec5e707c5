"""Settings as frozen dataclasses, and the functions that read them.

From one class follow the JSON in an artifact (`to_json`, `from_json`), the options of the command
line (`list_settings`, `with_settings`) and the fingerprint that ties a resumed run to its settings.
Fields are int, float, str, bool, Literal, Path, `X | None`, `tuple[X, ...]`, mappings of JSON, or
another frozen dataclass, such as the `Recipe` of a method that trains.
"""

import dataclasses
import hashlib
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from learngene_zoo.errors import BadFile, WrongCall, refuse_unknown

T = TypeVar("T")
Json = Any  # None, bool, int, float, str, list of Json, dict of str to Json
ALLOWED_TYPES = (
    "int, float, str, bool, Path, a Literal of strings, one of these or None, a tuple[X, ...] of "
    "these, or another frozen dataclass"
)
# Metadata of a field without an option on the command line.
NO_OPTION = {"option": False}
# Metadata of a nested dataclass with a default. Its fields become options and JSON keys of the
# outer class, without a prefix.
FLAT = {"flat": True}
# Metadata of a field that was added after the first release of a format. JSON omits it at its
# default, so that files, fingerprints and cache keys of earlier versions stay valid.
OMIT_DEFAULT = {"omit_default": True}


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The allowed range of a setting, given in its annotation.

    `Annotated[int, "passes over the data", Bounds(least=1)]`. The bounds of a tuple apply to each
    of its elements; None is always allowed.

    Attributes:
        least: smallest allowed value.
        most: largest allowed value.
        above: the value must be greater than this.
        below: the value must be less than this.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def find_outside(self) -> float | None:
        """Return a number that is not allowed; None if all are."""
        if self.least is not None:
            return self.least - 1
        if self.most is not None:
            return self.most + 1
        return self.below if self.above is None else self.above

    def __str__(self) -> str:
        limits = {
            "at least": self.least,
            "above": self.above,
            "at most": self.most,
            "below": self.below,
        }
        return " and ".join(
            f"{words} {limit if isinstance(limit, int) else f'{limit:g}'}"
            for words, limit in limits.items()
            if limit is not None
        )

    def __contains__(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def check_bounds(settings: Any) -> None:
    """Check that the value of each plain field has the type of its annotation and is in its bounds.

    Classes of settings call this in `__post_init__`. A whole number for a float becomes a float, a
    list for a tuple a tuple, a string for a path a path, and a number of NumPy one of Python.
    Raises `WrongCall` for another type and for a number that is out of bounds or not finite.
    """
    for name, bounds, plain in _list_bounds(type(settings)):  # type: ignore[arg-type]
        value = getattr(settings, name)
        if plain is not None:
            value = plain.convert(value, name)
            object.__setattr__(settings, name, value)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise WrongCall(f"{name} is {number}; it must be a finite number")
            if bounds is None or number is None:
                continue
            if not isinstance(number, int | float):
                raise WrongCall(f"{name} is {number!r}; expected a number")
            if number not in bounds:
                raise WrongCall(f"{name} is {number}; it must be {bounds}")


@dataclass(frozen=True)
class _Plain:
    """The type of a field that is neither a record nor a mapping."""

    kind: Any  # int, float, str, bool, Path or a Literal; of an element if repeated
    optional: bool
    repeated: bool

    def convert(self, value: Any, name: str) -> Any:
        """Return a value of this type. Raises `WrongCall` for a value of another one."""
        if value is None and self.optional:
            return None
        if not self.repeated:
            return self._convert_leaf(value, name)
        if not isinstance(value, list | tuple):
            raise WrongCall(f"{name} is {value!r:.40}; expected a sequence of values")
        return tuple(self._convert_leaf(item, name) for item in value)

    def _convert_leaf(self, value: Any, name: str) -> Any:
        return value if type(value) is self.kind else _convert_leaf(self.kind, value, name)


@cache
def _list_bounds(cls: Any) -> list[tuple[str, Bounds | None, _Plain | None]]:
    """Return the names of a class's settings with their bounds, and the types of plain ones."""
    hints = {field.name: _get_hints(cls)[field.name] for field in dataclasses.fields(cls)}
    return [(name, _find_bounds(hint), _find_plain(hint)) for name, hint in hints.items()]


def _find_plain(hint: Any) -> _Plain | None:
    """Return the type of a plain field; None for a field of any other type."""
    try:
        hint, _, optional = _unwrap(hint, "")
    except TypeError:
        return None
    arms = get_args(hint)
    repeated = get_origin(hint) is tuple and arms[-1] is Ellipsis
    kind = arms[0] if repeated else hint
    is_plain = get_origin(kind) is Literal or kind in (int, float, str, bool, Path)
    return _Plain(kind, optional, repeated) if is_plain else None


def _find_bounds(hint: Any) -> Bounds | None:
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note for note in notes if isinstance(note, Bounds)), None)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a settings class, with the facts that a command line option needs."""

    name: str  # unique within the class: "lr", "tuning_lr"
    path: tuple[str, ...]  # the names of the nested fields: ("tuning", "lr")
    kind: type  # int, float, str, bool or Path; the type of an element if repeated
    choices: tuple[str, ...] | None
    optional: bool  # None is allowed
    repeated: bool  # a tuple of any length
    default: Any
    help: str
    bounds: Bounds | None = None

    @property
    def option(self) -> str:
        """The name of the option on the command line, without the dashes."""
        return self.name.replace("_", "-")

    @property
    def none_is_nothing(self) -> bool:
        """Whether the word `none` means None, which it does unless it is one of the choices."""
        return self.optional and "none" not in (self.choices or ())


@cache
def _get_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _unwrap(hint: Any, where: str) -> tuple[Any, str, bool]:
    """Return the bare type, the help text of `Annotated`, and whether None is allowed.

    `where` names the field in the error for a type that no setting can have.
    """
    help_text = ""
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        help_text = next((note for note in notes if isinstance(note, str)), "")
    optional = False
    if get_origin(hint) in (Union, types.UnionType):
        arms = [arm for arm in get_args(hint) if arm is not type(None)]
        optional = len(arms) < len(get_args(hint))
        if len(arms) != 1:
            raise TypeError(_describe_allowed(hint, where))
        hint = arms[0]
    return hint, help_text, optional


def list_settings(settings: Any) -> list[Setting]:
    """Return every field of a settings instance, with nested dataclasses flattened.

    The fields of the first nested dataclass have no prefix (`training: Recipe` gives `lr`). Those
    of later ones, and names that already exist, are prefixed with the name of the outer field
    (`tuning: Recipe` gives `tuning_lr`). Fields marked `FLAT` never add a prefix. Fields marked
    `NO_OPTION` are left out. Raises `TypeError` for two settings of one name, and for a field of a
    type that no setting can have.
    """
    leaves: dict[str, Setting] = {}
    nested_before = False
    for field in (
        field for field in dataclasses.fields(settings) if field.metadata.get("option", True)
    ):
        annotation = _get_hints(type(settings))[field.name]  # type: ignore[arg-type]
        hint, help_text, optional = _unwrap(annotation, f"{type(settings).__name__}.{field.name}")
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(hint):
            flat = field.metadata == FLAT
            for inner in list_settings(value):
                prefixed = not flat and (nested_before or inner.name in leaves)
                name = f"{field.name}_{inner.name}" if prefixed else inner.name
                _check_new(leaves, name, (field.name, *inner.path))
                leaves[name] = dataclasses.replace(inner, name=name, path=(field.name, *inner.path))
            nested_before = nested_before or not flat
            continue
        kind, choices, repeated = _describe_leaf(hint, f"{type(settings).__name__}.{field.name}")
        _check_new(leaves, field.name, (field.name,))
        leaves[field.name] = Setting(
            name=field.name,
            path=(field.name,),
            kind=kind,
            choices=choices,
            optional=optional,
            repeated=repeated,
            default=value,
            help=help_text,
            bounds=_find_bounds(annotation),
        )
    return list(leaves.values())


def _check_new(leaves: Mapping[str, Setting], name: str, path: tuple[str, ...]) -> None:
    """Raise `TypeError` if another field has the name of a setting already."""
    if name in leaves:
        first, second = ".".join(leaves[name].path), ".".join(path)
        raise TypeError(f"the fields {first} and {second} are both a setting {name}; rename one")


# The types of values that may be settings.
PLAIN = (bool, int, float, str, Path, tuple, type(None))


def find_lost_settings(settings: Any) -> Iterator[str]:
    """Yield the values in the classes of a record, and of nested ones, that are not its fields.

    `settings` is a record, or its class, whose nested records are those of the defaults.

    Python ignores a value without an annotation, and every value in a subclass that is not
    decorated with `dataclass`. Constants have a name that begins with `_`, or `ClassVar`.
    """
    cls: type = settings if isinstance(settings, type) else type(settings)
    hints = _get_hints(cls)
    for kind in filter(dataclasses.is_dataclass, cls.__mro__):
        is_decorated = "__dataclass_params__" in vars(kind)
        annotated = inspect.get_annotations(kind)
        values = {name for name, value in vars(kind).items() if isinstance(value, PLAIN)}
        for name in sorted({*annotated, *values}):
            is_field = is_decorated and name in annotated
            hint = hints.get(name)
            is_constant = name.startswith("_") or ClassVar in (hint, get_origin(hint))
            if not (is_field or is_constant):
                remedy = (
                    "annotate it with its type, or with ClassVar"
                    if is_decorated
                    else "decorate the class with @dataclass(frozen=True, kw_only=True)"
                )
                yield f"{name!r} of {kind.__qualname__}; {remedy}"
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name, None)
        if dataclasses.is_dataclass(value):
            yield from find_lost_settings(value)


def _describe_leaf(hint: Any, where: str) -> tuple[type, tuple[str, ...] | None, bool]:
    repeated = get_origin(hint) is tuple
    kind = get_args(hint)[0] if repeated else hint
    if repeated and get_args(hint)[1:] != (Ellipsis,):
        raise TypeError(_describe_allowed(hint, where))
    if get_origin(kind) is Literal and all(isinstance(word, str) for word in get_args(kind)):
        return str, get_args(kind), repeated
    if kind not in (int, float, str, bool, Path):
        raise TypeError(_describe_allowed(hint, where))
    return kind, None, repeated


def _describe_allowed(hint: Any, where: str) -> str:
    name = hint.__name__ if type(hint) is type else str(hint)
    return f"{where} has the type {name}; a setting may be {ALLOWED_TYPES}"


def with_settings(settings: T, values: Mapping[str, Any]) -> T:
    """Return a copy of `settings` with the named fields replaced.

    Names are those of `list_settings`. A list becomes a tuple. Raises `WrongCall` for an unknown
    name and for a value of another type.
    """
    leaves = {setting.name: setting for setting in list_settings(settings)}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in leaves:
            raise refuse_unknown("setting", name, leaves)
        *outer, last = leaves[name].path
        branch = changes
        for field in outer:
            branch = branch.setdefault(field, {})
        branch[last] = _check_value(leaves[name], value)
    return _replace_settings(settings, changes)


def _check_value(setting: Setting, value: Any) -> Any:
    """Return a value for a setting after the checks that a value from a file gets.

    Lists become tuples, and strings may become paths.
    """
    if value is None and setting.optional:
        return None
    if setting.repeated and isinstance(value, (list, tuple)):
        element = dataclasses.replace(setting, repeated=False, optional=False)
        return tuple(_check_value(element, item) for item in value)
    if setting.repeated:
        raise WrongCall(f"{setting.name} is {value!r:.40}; expected a sequence of values")
    kind = Literal[setting.choices] if setting.choices else setting.kind
    return _convert_leaf(kind, value, setting.name)


def _convert_leaf(kind: Any, value: Any, name: str) -> Any:
    """Return a value from Python in the type of a setting. Raises `WrongCall` for another one."""
    value = convert_scalar(value)
    if isinstance(value, Path) and kind is Path:
        return value
    try:
        return _decode_leaf(kind, value, name, show=lambda value: f"{value!r:.40}")
    except BadFile as error:
        raise WrongCall(str(error)) from None


def convert_scalar(value: Any) -> Any:
    """Return a number or text of NumPy or torch as one of Python, other values as they are."""
    is_scalar = hasattr(value, "dtype") and getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value


def _replace_settings(settings: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy with all changes applied in one step.

    Values that must fit each other (a width and its number of heads) are never combined with old
    ones.
    """
    nested = {
        field.name
        for field in dataclasses.fields(settings)
        if dataclasses.is_dataclass(getattr(settings, field.name))
    }
    new = {
        name: _replace_settings(getattr(settings, name), item) if name in nested else item
        for name, item in changes.items()
    }
    return dataclasses.replace(settings, **new)


def to_json(value: Any) -> Json:
    """Convert dataclasses to objects, tuples to lists and paths to strings.

    All other values are returned as they are.
    """
    if isinstance(value, (str, int, float)):  # most values; the checks below take longer
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        content: dict[str, Json] = {}
        for field in list_stated_fields(value):
            item = to_json(getattr(value, field.name))
            content |= item if field.metadata == FLAT else {field.name: item}
        return content
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [
            to_json(item) for item in (sorted(value) if isinstance(value, frozenset) else value)
        ]
    if isinstance(value, Path):
        return value.as_posix()
    return value


def list_stated_fields(value: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass that its JSON contains.

    These are all fields, except `OMIT_DEFAULT` ones at their defaults.
    """
    return [
        field
        for field in dataclasses.fields(value)
        if not field.metadata.get("omit_default") or getattr(value, field.name) != field.default
    ]


def from_json(cls: type[T], data: Json, where: str) -> T:
    """Build a dataclass from JSON, the strict inverse of `to_json`.

    Every type is checked, unknown keys are refused, and missing keys get their defaults. A class
    with subclasses chooses one of them in its classmethod `variant`.

    Args:
        cls: the dataclass to build.
        data: the JSON object.
        where: the file, and the position in it, for error messages.

    Raises:
        BadFile: if the data do not describe an instance of the class.
    """
    if not isinstance(data, dict):
        raise BadFile(f"{where}: expected an object, got {_shorten(data)}")
    cls = _choose_variant(cls, data, where)
    hints = _get_hints(cls)  # type: ignore[arg-type]
    fields = [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    flat = {field.name: _to_full_json(field.default) for field in fields if field.metadata == FLAT}
    known_keys = (set(hints) - set(flat)).union(*flat.values())
    extra = sorted(set(data) - known_keys)
    if extra:
        raise BadFile(
            f"{where}: unknown key {extra[0]!r}; known are {', '.join(sorted(known_keys))}"
        )
    data = {name: data[name] for name in data if name in hints} | {
        record: {name: data.get(name, default) for name, default in inner.items()}
        for record, inner in flat.items()
    }
    values = {
        name: _decode(hints[name], item, where if name in flat else f"{where}: {name}")
        for name, item in data.items()
    }
    for field in fields:
        bare = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if bare and field.name not in values:
            raise BadFile(f"{where}: the key {field.name!r} is missing")
    try:
        return cls(**values)
    except WrongCall as error:
        raise BadFile(f"{where}: {error}") from error


def _to_full_json(record: Any) -> dict[str, Json]:
    """Return the JSON of a dataclass with all of its fields."""
    content: dict[str, Json] = {}
    for field in dataclasses.fields(record):
        item = getattr(record, field.name)
        content |= _to_full_json(item) if field.metadata == FLAT else {field.name: to_json(item)}
    return content


def _choose_variant(cls: type[T], data: Mapping[str, Json], where: str) -> type[T]:
    choose = getattr(cls, "variant", None)
    try:
        return choose(data) if choose else cls
    except WrongCall as error:
        raise BadFile(f"{where}: {error}") from error


def _decode(hint: Any, data: Json, where: str) -> Any:
    hint, _, optional = _unwrap(hint, where)
    origin = get_origin(hint)
    if data is None and optional:
        return None
    if hint is Any:
        return data
    if dataclasses.is_dataclass(hint):
        return from_json(hint, data, where)  # type: ignore[arg-type]
    if origin is tuple:
        if not isinstance(data, list):
            raise BadFile(f"{where}: expected a list, got {_shorten(data)}")
        arms = get_args(hint)
        if arms[-1] is not Ellipsis and len(arms) != len(data):
            raise BadFile(f"{where}: expected {len(arms)} values, got {len(data)}")
        kinds = [arms[0]] * len(data) if arms[-1] is Ellipsis else list(arms)
        return tuple(
            _decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, data))
        )
    if origin in (Mapping, dict):
        if not isinstance(data, dict):
            raise BadFile(f"{where}: expected an object, got {_shorten(data)}")
        return {
            key: _decode(get_args(hint)[1], item, f"{where}: {key}") for key, item in data.items()
        }
    return _decode_leaf(hint, data, where)


def _shorten(data: Json) -> str:
    text = json.dumps(data, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


def _decode_leaf(hint: Any, data: Json, where: str, show: Callable[[Any], str] = _shorten) -> Any:
    if get_origin(hint) is Literal:
        if data not in get_args(hint):
            raise BadFile(
                f"{where} is {show(data)}; it must be one of {', '.join(map(str, get_args(hint)))}"
            )
        return data
    if hint is Path and isinstance(data, str):
        return Path(data)
    if hint is float and type(data) is int and abs(data) < 2**64:
        data = float(data)
    if type(data) is not hint:
        raise BadFile(
            f"{where} is {show(data)}; expected a value of type {getattr(hint, '__name__', hint)}"
        )
    if hint is float and not math.isfinite(data):
        raise BadFile(f"{where} is {data}; expected a finite number")
    return data


def check_type(argument: str, value: Any, kind: type, *, optional: bool = False) -> None:
    """Raise `WrongCall` for an argument that is no `kind`, and for None unless it is optional."""
    if not (isinstance(value, kind) or (optional and value is None)):
        raise WrongCall(
            f"{argument} is of type {type(value).__name__}; expected one of the class "
            f"{kind.__name__}"
        )


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number. Raises `WrongCall` for another value, and for one below `least`."""
    number = convert_scalar(value)
    if type(number) is not int:
        raise WrongCall(f"{name} is {value!r:.40}; expected a whole number")
    if number < least:
        raise WrongCall(f"{name} is {number}; expected at least {least}")
    return number


def fingerprint(data: Json) -> str:
    """Return a hash of JSON data as 16 hexadecimal digits; equal data have equal fingerprints."""
    text = json.dumps(to_json(data), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training with AdamW over complete epochs.

    The learning rate is a function of the step alone, so that a run can be resumed at any step.
    Raises `WrongCall` for values outside their bounds, and for a batch size that `accumulate` does
    not divide.
    """

    epochs: Annotated[int, "passes over the training images", Bounds(least=0)] = 10
    images: Annotated[
        int | None, "train on at most N images, sampled with the seed", Bounds(least=1)
    ] = None
    batch_size: Annotated[int, "images per step, over all processes", Bounds(least=1)] = 128
    accumulate: Annotated[int, "split each batch into N forward passes", Bounds(least=1)] = 1
    lr: Annotated[float, "peak learning rate", Bounds(above=0, most=10)] = 5e-4
    min_lr: Annotated[float, "learning rate at the end", Bounds(least=0)] = 0.0
    schedule: Annotated[
        Literal["cosine", "poly", "constant"], "how the learning rate decays after warm-up"
    ] = "cosine"
    power: Annotated[
        float, "exponent of the poly schedule: lr (1 - t/T)^power", Bounds(least=0)
    ] = 0.9
    warmup: Annotated[float, "epochs of linear warm-up", Bounds(least=0)] = 0.0
    weight_decay: Annotated[
        float,
        "AdamW's weight decay of matrices (biases, norms and tokens have none)",
        Bounds(least=0),
    ] = 0.05
    layer_decay: Annotated[
        float,
        "each block's learning rate is that of the block after it times this; 1 is off",
        Bounds(above=0, most=1),
    ] = dataclasses.field(default=1.0, metadata=OMIT_DEFAULT)
    clip: Annotated[float | None, "clip the gradient to this norm", Bounds(above=0)] = None
    drop_path: Annotated[
        float,
        "stochastic depth, rising linearly to this rate at the last block",
        Bounds(least=0, below=1),
    ] = 0.0
    label_smoothing: Annotated[
        float, "share of the target spread over all classes", Bounds(least=0, below=1)
    ] = 0.0
    mixup: Annotated[float, "mixup's alpha; 0 is off", Bounds(least=0)] = 0.0
    cutmix: Annotated[float, "cutmix's alpha; 0 is off", Bounds(least=0)] = 0.0
    augment: Annotated[
        Literal["none", "light", "rand", "deit"],
        "none, shifts (and flips where allowed), RandAugment, or DeiT's",
    ] = "light"
    repeats: Annotated[
        int,
        "repeated augmentation: an epoch shows an N-th of the images, N times each",
        Bounds(least=1),
    ] = dataclasses.field(default=1, metadata=OMIT_DEFAULT)
    ema: Annotated[
        float | None,
        "keep an exponential moving average of the weights with this decay",
        Bounds(least=0, below=1),
    ] = None
    compile: Annotated[bool, "torch.compile the objective"] = False

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.batch_size % self.accumulate:
            raise WrongCall(
                f"accumulate is {self.accumulate}, which does not divide the batch size of"
                f" {self.batch_size}; choose a divisor"
            )


def check_setting_names(
    names: Iterable[str], records: Iterable[Any], arguments: Iterable[str] = ()
) -> None:
    """Raise `WrongCall` for a name that is a setting of no record.

    A suggestion may be one of the arguments.
    """
    known = {setting.name for record in records for setting in list_settings(record)}
    for name in names:
        if name not in known:
            raise refuse_unknown("setting", name, known.union(arguments))


def merge_synonyms(values: Mapping[str, Any], synonyms: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that are not None by their usual names.

    Raises `WrongCall` for two names of one argument.
    """
    typed: dict[str, str] = {}
    for name, value in values.items():
        if value is None:
            continue
        ours = synonyms.get(name, name)
        if ours in typed:
            raise WrongCall(
                f"{typed[ours]}={values[typed[ours]]!r:.40} and {name}={value!r:.40} have one "
                "meaning; give one of them"
            )
        typed[ours] = name
    return {ours: values[name] for ours, name in typed.items()}
