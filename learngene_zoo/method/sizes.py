"""The sizes of descendants: targets, members of an expander's grid, and budgets."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from learngene_zoo.artifacts.records import parse_task
from learngene_zoo.errors import WrongCall, refuse_unknown
from learngene_zoo.families.family import Convention, Cost, count_cost
from learngene_zoo.families.spec import (
    LIMITS,
    TIMM_NAMES,
    Spec,
)
from learngene_zoo.settings import (
    Bounds,
    Json,
    check_bounds,
    check_type,
    convert_scalar,
    list_settings,
    merge_synonyms,
    with_settings,
)
from learngene_zoo.text import name_option, parse_count, parse_seconds

if TYPE_CHECKING:
    pass
E = TypeVar("E")  # an expander


@dataclass(frozen=True, kw_only=True)
class Target:
    """Sizes and task of a model to build. None: as in the learngene.

    Each number is an axis of size, with its name in a spec (`AXES`). Raises `WrongCall` for an
    impossible number.
    """

    layers: Annotated[
        int | None, "number of transformer blocks", Bounds(least=1, most=LIMITS["layers"])
    ] = None
    width: Annotated[
        int | None,
        "embedding dimension (width of the tokens)",
        Bounds(least=1, most=LIMITS["width"]),
    ] = None
    heads: Annotated[
        int | None,
        "attention heads per block; must divide the width",
        Bounds(least=1, most=LIMITS["heads"]),
    ] = None
    mlp_ratio: Annotated[
        float | None, "ratio of MLP hidden dimension to width", Bounds(above=0)
    ] = None
    classes: Annotated[int | None, "number of classes of the head; 0: no head", Bounds(least=0)] = (
        None
    )
    image_size: Annotated[
        int | None, "image height and width in pixels", Bounds(least=1, most=LIMITS["image_size"])
    ] = None
    task: Annotated[
        str | None, "task of the model; sets the number of classes (lgzoo list tasks)"
    ] = None
    dense: Annotated[bool | None, "one class per pixel instead of one per image"] = None

    def __post_init__(self) -> None:
        check_bounds(self)

    def apply(self, spec: Spec) -> Spec:
        """Return `spec` with this target's sizes. Raises `WrongCall` for an impossible shape."""
        return spec.with_(**self.axes(), dense=self.dense)

    def whole_heads(self, spec: Spec) -> Target:
        """Return the target with both width and heads, if it names one of them.

        Heads stay as wide as in `spec`. Raises `WrongCall` for a width that is not a multiple of
        the width of a head.
        """
        unit = spec.head_width
        if self.width is not None and self.heads is None:
            if self.width % unit:
                near = max(round(self.width / unit), 1) * unit
                raise WrongCall(
                    f"width is {self.width}, which is not a multiple of the head width of {unit}; "
                    f"choose {near}, or give {name_option('heads')} as well"
                )
            return replace(self, heads=self.width // unit)
        return (
            replace(self, width=self.heads * unit)
            if self.heads is not None and self.width is None
            else self
        )

    def axes(self) -> dict[str, Any]:
        """Return the named axes of size, with their values."""
        values = {name: getattr(self, name) for name in AXES}
        return {name: value for name, value in values.items() if value is not None}


# The axes of size, in the order of options and rows.
AXES = tuple(setting.name for setting in list_settings(Target()) if setting.kind in (int, float))


@dataclass(frozen=True, kw_only=True)
class Member:
    """One descendant of an expander: its shape, and the settings that build it."""

    spec: Spec
    settings: Mapping[str, Json] = field(default_factory=dict)

    def cost(self, convention: Convention = "exact") -> Cost:
        """Return parameters and FLOPs of this member."""
        return count_cost(self.spec, convention)

    @property
    def target(self) -> Target:
        """Return the target that names this member's shape.

        If settings choose among several members of one shape, it needs `settings` as well.
        """
        return Target(**{name: getattr(self.spec, name) for name in AXES}, dense=self.spec.dense)


# timm's words, accepted wherever sizes are given from Python or torch.hub.
SYNONYMS = {timm: ours for ours, timm in TIMM_NAMES.items() if ours in AXES}


def parse_sizes(
    target: Target,
    budget: Budget,
    expander: E,
    sizes: Mapping[str, Any],
    arguments: Iterable[str] = (),
) -> tuple[Target, Budget, E]:
    """Return target, budget and expander with sizes and settings given by name.

    The names are ours or timm's, the values numbers or text. Raises `WrongCall` for an unknown
    name, with the nearest known one, for two names of one size, and for a value that is not a
    number. A suggestion may be one of the arguments.
    """
    check_type("target", target, Target)
    check_type("budget", budget, Budget)
    rest = merge_synonyms(sizes, SYNONYMS)
    if "task" in rest:
        rest["task"] = parse_task(rest["task"])
    rest = {
        name: _parse_number(name, value) if name in AXES else value for name, value in rest.items()
    }
    named, bounds = (
        {f.name: rest.pop(f.name) for f in fields(kind) if f.name in rest}
        for kind in (Target, Budget)
    )
    settings = [setting.name for setting in list_settings(expander)]
    for name in rest:
        if name not in settings:
            raise refuse_unknown("size or setting", name, SIZES.union(settings, arguments))
    return replace(target, **named), replace(budget, **bounds), with_settings(expander, rest)


def parse_budget(budget: Budget, bounds: Mapping[str, Any]) -> Budget:
    """Return a budget with bounds by name, as numbers or text.

    Raises `WrongCall` for an unknown name, with the nearest known one, and for a value that is not
    a number.
    """
    check_type("budget", budget, Budget)
    names = [f.name for f in fields(Budget)]
    for name in bounds:
        if name not in names:
            raise refuse_unknown("bound", name, names)
    given = {name: value for name, value in bounds.items() if value is not None}
    return replace(budget, **given)


def _parse_number(name: str, value: Any) -> Any:
    """Return a size, also from text as on the command line: "7", "20M", "15ms".

    Raises `WrongCall`.
    """
    value, kind = convert_scalar(value), _KINDS[name]
    if isinstance(value, str):
        if name in _BOUNDS:
            return parse_count(value) if kind is int else parse_seconds(value)
        value = float(value) if _DECIMAL.fullmatch(value) else value
    if isinstance(value, bool) or not isinstance(value, Real) or (kind is int and value % 1 != 0):
        expected = "a whole number" if kind is int else "a number"
        if name in _BOUNDS:
            expected += f", or a text such as {'5M' if kind is int else '15ms'!r}"
        raise WrongCall(f"{name} is {value!r:.40}; expected {expected}")
    return kind(value)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Upper bounds: parameters of the built model, FLOPs of one image, seconds for a batch of one.

    They are numbers, or text as on the command line ("20M", "15ms"). None: no bound. Raises
    `WrongCall` for a bound that is not a finite number above 0.
    """

    max_params: int | None = None
    max_flops: int | None = None
    max_latency: float | None = None

    def __post_init__(self) -> None:
        for name in _BOUNDS:
            if (value := getattr(self, name)) is None:
                continue
            bound = _parse_number(name, value)
            if not 0 < bound < math.inf:
                raise WrongCall(f"{name} is {value!r:.40}; expected a finite number above 0")
            object.__setattr__(self, name, bound)

    def __bool__(self) -> bool:
        return any(
            bound is not None for bound in (self.max_params, self.max_flops, self.max_latency)
        )


# Every name that `parse_sizes` takes besides the settings of an expander.
SIZES = frozenset([*SYNONYMS, *(f.name for kind in (Target, Budget) for f in fields(kind))])

_DECIMAL = re.compile(r"[+-]?\d+(\.\d+)?")


_BOUNDS = {"max_params": int, "max_flops": int, "max_latency": float}


# Types of the numbers in calls by name.
_KINDS = {**{s.name: s.kind for s in list_settings(Target()) if s.kind in (int, float)}, **_BOUNDS}
