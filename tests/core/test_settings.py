"""Frozen dataclasses as options, JSON and fingerprints."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.sizes import Target
from learngene_zoo.settings import (
    FLAT,
    Bounds,
    Recipe,
    check_bounds,
    fingerprint,
    from_json,
    list_settings,
    to_json,
    with_settings,
)


@dataclass(frozen=True, kw_only=True)
class Inner:
    lr: Annotated[float, "how fast"] = 0.1
    steps: int = 3


@dataclass(frozen=True, kw_only=True)
class Outer:
    mode: Literal["a", "b"] = "a"
    keep: Annotated[tuple[int, ...] | None, "which"] = None
    quiet: bool = False
    place: Path | None = None
    training: Inner = Inner()
    tuning: Inner = Inner(lr=0.2)


@dataclass(frozen=True)
class Record:
    name: str
    pair: tuple[int, int] = (1, 2)
    rest: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    spec: ViTSpec | None = None


def test_the_first_nested_settings_have_no_prefix_and_later_ones_have() -> None:
    assert [s.name for s in list_settings(Outer())] == [
        *("mode", "keep", "quiet", "place", "lr", "steps", "tuning_lr", "tuning_steps")
    ]


def test_a_taken_name_is_prefixed() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Clash:
        lr: float = 1.0
        inner: Inner = Inner()

    assert [s.name for s in list_settings(Clash())] == ["lr", "inner_lr", "steps"]


def test_two_settings_of_one_name_are_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Hidden:
        group: Inner = field(default=Inner(), metadata=FLAT)
        lr: float = 1.0

    @dataclass(frozen=True, kw_only=True)
    class Twice:
        first: Inner = field(default=Inner(), metadata=FLAT)
        second: Inner = field(default=Inner(), metadata=FLAT)

    with pytest.raises(TypeError, match=r"the fields group\.lr and lr are both a setting lr"):
        list_settings(Hidden())
    with pytest.raises(TypeError, match=r"the fields first\.lr and second\.lr are both a setting"):
        list_settings(Twice())


def test_a_literal_of_numbers_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Numbers:
        keep: Literal[2, 3] = 2

    with pytest.raises(TypeError, match=r"Numbers\.keep has the type .*a Literal of strings"):
        list_settings(Numbers())


def test_a_tuple_of_fixed_length_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sides:
        size: tuple[int, int] = (3, 3)

    with pytest.raises(TypeError, match=r"Sides\.size has the type .*a tuple\[X, \.\.\.\]"):
        list_settings(Sides())


def test_a_whole_number_for_a_float_is_that_float() -> None:
    changed = with_settings(Recipe(), {"warmup": 1, "clip": 2})
    assert fingerprint(changed) == fingerprint(
        with_settings(Recipe(), {"warmup": 1.0, "clip": 2.0})
    )
    assert (type(changed.warmup), type(changed.clip)) == (float, float)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    warm: Annotated[float, Bounds(above=0, below=1)] = 0.5
    parts: Annotated[tuple[int, ...], Bounds(least=1, most=3)] = ()

    def __post_init__(self) -> None:
        check_bounds(self)


def test_later_nested_settings_have_a_prefix_whatever_their_names() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Two:
        training: Inner = Inner()
        schedule: Schedule = Schedule()

    assert [s.name for s in list_settings(Two())] == [
        "lr",
        "steps",
        "schedule_warm",
        "schedule_parts",
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"warm": 0.0}, "warm is 0.0; it must be above 0 and below 1"),
        ({"warm": 1.0}, "warm is 1.0"),
        ({"warm": math.inf}, "warm is inf; it must be a finite number"),
        ({"warm": math.nan}, "warm is nan; it must be a finite number"),
        ({"parts": (1, 4)}, "parts is 4; it must be at least 1 and at most 3"),
        ({"parts": (0,)}, "parts is 0"),
    ],
)
def test_bounds(values: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongCall, match=said):
        Schedule(**values)
    assert Schedule(warm=0.99, parts=(1, 3)).parts == (1, 3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            partial(Recipe, schedule="linear"),
            "schedule is 'linear'; it must be one of cosine, poly",
        ),
        (partial(Recipe, epochs=1.5), "epochs is 1.5; expected a value of type int"),
        (partial(Recipe, epochs=None), "epochs is None; expected a value of type int"),
        (partial(Recipe, lr="0.1"), "lr is '0.1'; expected a value of type float"),
        (partial(Recipe, lr=True), "lr is True; expected a value of type float"),
        (partial(Recipe, compile="no"), "compile is 'no'; expected a value of type bool"),
        (partial(Target, layers=2.5), "layers is 2.5; expected a value of type int"),
        (partial(Target, layers=True), "layers is True; expected a value of type int"),
        (partial(Target, task=5), "task is 5; expected a value of type str"),
        (partial(Schedule, parts=2), "parts is 2; expected a sequence of values"),
        (partial(Schedule, parts=(1, 2.0)), "parts is 2.0; expected a value of type int"),
    ],
)
def test_a_constructor_refuses_a_value_of_another_type(make: Any, said: str) -> None:
    with pytest.raises(WrongCall, match=re.escape(said)):
        make()


def test_a_constructor_converts_as_a_file_does() -> None:
    recipe = Recipe(warmup=1, clip=2, lr=np.float64(0.5))
    assert [type(value) for value in (recipe.warmup, recipe.clip, recipe.lr)] == [float] * 3
    assert fingerprint(recipe) == fingerprint(Recipe(warmup=1.0, clip=2.0, lr=0.5))
    parts: Any = [1, 2]
    assert Schedule(parts=parts).parts == (1, 2)


def test_numbers_of_numpy_are_those_of_python() -> None:
    outer = with_settings(Outer(), {"lr": np.float64(1e-4), "keep": list(np.array([1, 2]))})
    assert (outer.training.lr, outer.keep) == (1e-4, (1, 2))
    target = Target(layers=np.int64(3), mlp_ratio=np.float32(2), dense=np.bool_(True))
    assert [type(value) for value in (target.layers, target.mlp_ratio, target.dense)] == [
        int,
        float,
        bool,
    ]
    with pytest.raises(WrongCall, match="epochs is -1; it must be at least 0"):
        with_settings(Recipe(), {"epochs": np.int64(-1)})
    with pytest.raises(WrongCall, match=r"epochs is 1\.5; expected"):
        with_settings(Recipe(), {"epochs": np.float64(1.5)})
    with pytest.raises(WrongCall, match="epochs is True; expected"):
        with_settings(Recipe(), {"epochs": np.bool_(True)})


def test_a_number_of_a_setting_without_bounds_is_finite_too() -> None:
    for value in (math.inf, -math.inf, math.nan):
        with pytest.raises(WrongCall, match=r"power is .*; it must be a finite number"):
            Recipe(power=value)


@dataclass(frozen=True, kw_only=True)
class Grouped:
    quiet: bool = False
    group: Inner = field(default=Inner(lr=0.5), metadata=FLAT)
    training: Inner = Inner()


def test_a_flat_record_is_a_group_in_python_alone() -> None:
    """Its options have no prefix and do not count as the first nested ones; in JSON its keys are
    among the others.
    """
    names = [s.name for s in list_settings(Grouped())]
    assert names == ["quiet", "lr", "steps", "training_lr", "training_steps"]
    changed = with_settings(Grouped(), {"steps": 5})
    assert (changed.group, changed.training) == (Inner(lr=0.5, steps=5), Inner())
    data = to_json(changed)
    assert (data["lr"], data["steps"], "group" in data) == (0.5, 5, False)
    assert from_json(Grouped, data, "here") == changed
    assert from_json(Grouped, {"steps": 7}, "here").group == Inner(
        lr=0.5, steps=7
    )  # absent: as in the field's default
    with pytest.raises(BadFile, match="unknown key 'group'; known are lr, quiet, steps, training"):
        from_json(Grouped, {"group": {}}, "here")
    with pytest.raises(BadFile, match="here: steps is true"):
        from_json(Grouped, {"steps": True}, "here")


def test_what_an_option_knows() -> None:
    known = {s.name: s for s in list_settings(Outer())}
    assert known["mode"].choices == ("a", "b")
    assert (
        known["keep"].kind,
        known["keep"].repeated,
        known["keep"].optional,
        known["keep"].help,
    ) == (
        int,
        True,
        True,
        "which",
    )
    assert (known["tuning_lr"].option, known["tuning_lr"].default, known["tuning_lr"].path) == (
        "tuning-lr",
        0.2,
        ("tuning", "lr"),
    )


def test_values_that_only_fit_together_are_set_together() -> None:
    spec = with_settings(ViTSpec(layers=1, width=32, heads=4), {"width": 30, "heads": 5})
    assert (spec.width, spec.heads) == (30, 5)


def test_what_no_option_can_give_is_in_files_alone() -> None:
    spec = ViTSpec(layers=3, width=32, heads=4, front=(Segment(layers=1, width=16, heads=2),))
    assert "front" not in [setting.name for setting in list_settings(spec)]
    with pytest.raises(WrongCall, match="front"):
        with_settings(spec, {"front": ()})
    assert with_settings(spec, {"layers": 5}).front == spec.front
    assert from_json(ViTSpec, to_json(spec), "FILE") == spec


def test_setting_leaves_by_name() -> None:
    changed = with_settings(Outer(), {"tuning_lr": 0.5, "lr": 0.4, "keep": (1, 2)})
    assert (changed.tuning.lr, changed.training.lr, changed.keep, changed.tuning.steps) == (
        0.5,
        0.4,
        (1, 2),
        3,
    )
    with pytest.raises(WrongCall, match="did you mean tuning_lr"):
        with_settings(Outer(), {"tunin_lr": 1.0})
    assert with_settings(Outer(), {"keep": [1, 2]}).keep == (1, 2), "a list, as JSON has them"
    assert with_settings(Outer(), {"lr": 1}).training.lr == 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"lr": "0.7"}, "lr is '0.7'; expected a value of type float"),
        ({"lr": None}, "lr is None; expected"),
        ({"lr": True}, "lr is True; expected"),
        ({"steps": 1.5}, "steps is 1.5; expected a value of type int"),
        ({"keep": 3}, "keep is 3; expected a sequence"),
        ({"keep": [None]}, "keep is None; expected a value of type int"),
        ({"keep": ["a"]}, "keep is 'a'; expected a value of type int"),
        ({"mode": "c"}, "mode is 'c'; it must be one of a, b"),
        ({"place": 3}, "place is 3; expected a value of type Path"),
    ],
)
def test_a_value_of_another_type_is_refused(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(WrongCall, match=re.escape(told)):
        with_settings(Outer(), wrong)


@pytest.mark.parametrize(
    "value",
    [
        Outer(),
        Outer(keep=(1, 2), place=Path("a/b"), training=Inner(lr=3.0)),
        Recipe(),
        ViTSpec(layers=2, width=8, heads=2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_json_and_back(value: Any) -> None:
    assert from_json(type(value), to_json(value), "here") == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected an object"),
        ({}, "'name' is missing"),
        ({"name": 3}, "a value of type str"),
        ({"name": "x", "nmae": 1}, "unknown key 'nmae'"),
        ({"name": "x", "pair": [1]}, "expected 2 values, got"),
        ({"name": "x", "pair": [1, 2, 3]}, "expected 2 values, got 3"),
        ({"name": "x", "pair": 3}, "expected a list"),
        ({"name": "x", "pair": [1, True]}, "a value of type int"),
        ({"name": "x", "rest": []}, "expected an object"),
        ({"name": "x", "numbers": {"a": float("inf")}}, "finite number"),
        ({"name": "x", "spec": {"layers": 2, "width": 8, "heads": 3}}, "3 heads do not divide"),
        (
            {"name": "x", "spec": {"layers": 2, "width": 8, "heads": 2, "pool": "sum"}},
            "must be one of token",
        ),
    ],
)
def test_json_that_is_refused(data: Any, message: str) -> None:
    with pytest.raises(BadFile, match=message) as error:
        from_json(Record, data, "config.json")
    assert str(error.value).startswith("config.json")
    assert "\n" not in str(error.value)


def test_an_integer_serves_as_a_float() -> None:
    assert from_json(Inner, {"lr": 1}, "here") == Inner(lr=1.0)


def test_a_fingerprint_is_of_the_data_alone() -> None:
    assert fingerprint({"a": 1, "b": (2, 3)}) == fingerprint({"b": [2, 3], "a": 1})
    assert fingerprint(Outer()) != fingerprint(Outer(quiet=True))
