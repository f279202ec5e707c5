"""Every registered method keeps the contract, and a method that breaks a law gets an error that
names the law.
"""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import torch
from contract_toy import (
    TOY,
    TRAINS,
    Keep,
    Take,
    Train,
    assert_breaks,
    fit_descendant,
    with_expander,
    with_extractor,
)

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.errors import BadPlugin, WrongCall
from learngene_zoo.method.checks import check_learngene
from learngene_zoo.method.contract import Extractor, Method
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Member
from learngene_zoo.runs.cache import Part, compute_once
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Bounds, Recipe
from learngene_zoo.testing import check_method, make_tiny_ancestry, make_tiny_task
from learngene_zoo.testing.expansion import MAX_BUILT, sample_members
from learngene_zoo.testing.laws import HOT
from learngene_zoo.testing.method import check_import, check_settings
from learngene_zoo.training.loop import Engine

NAMES = sorted(METHODS.references())


# Of these the contract is checked with the fast tests, too.
FAST = {"first_k", "front", "mimetic", "scratch", "weight_selection"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name not in FAST else name for name in NAMES],
)
def test_the_method_keeps_the_contract(name: str) -> None:
    check_method(METHODS.load(name))


def test_there_are_methods() -> None:
    assert {"lsamd", "scratch", "pretrain_finetune", "distillation"} <= set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("method", [TOY, TRAINS], ids=["without training", "with training"])
def test_the_toy_keeps_the_contract(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS.__dict__, "load", lambda name: method)
    check_method(method)


def test_a_method_that_is_not_registered_is_told_so() -> None:
    with pytest.raises(AssertionError, match="toy is not registered"):
        check_method(TOY)


# Its record and its settings.


@dataclass(frozen=True, kw_only=True)
class Shadowing(Keep):
    layers: Annotated[int, "taken"] = 3


@dataclass(frozen=True, kw_only=True)
class Renaming(Keep):
    num_classes: Annotated[int, "taken by a synonym"] = 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tasks": "both"}, "tasks is 'both'; expected one of none, one, many"),
        ({"ancestries": (2, 1)}, "ancestries is"),
        ({"details": {"kept": 3}}, "details is"),
        ({"expander": Keep()}, "expander is"),
        ({"presets": {"mini": Keep()}}, "lacks the preset smoke"),
        ({"presets": {}}, "lacks the preset mini and smoke"),
        (
            {"presets": {"mini": Keep(), "smoke": Shadowing()}},
            "presets are of several types, Keep, Shadowing",
        ),
    ],
)
def test_a_wrong_record_cannot_be_made(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadPlugin, match=f"the record of the method 'toy' is wrong: .*{says}"):
        replace(TOY, **changes)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Shadowing(), "the setting 'layers' .*has the option --layers"),
        (Renaming(), "the setting 'num_classes' .*has the option --num-classes"),
    ],
)
def test_a_setting_that_shadows_a_common_option_is_caught(settings: Extractor, says: str) -> None:
    assert_breaks(replace(TOY, presets={"mini": settings, "smoke": settings}), says)


class Undecorated(Keep):
    extra: int = 3


@dataclass(frozen=True, kw_only=True)
class Unannotated(Keep):
    extra = 3


@dataclass(frozen=True, kw_only=True)
class Training:
    epochs = 3


@dataclass(frozen=True, kw_only=True)
class Nested(Keep):
    training: Training = Training()


@dataclass(frozen=True, kw_only=True)
class Epochs(Keep):
    epochs: int = 3


class OtherDefault(Epochs):
    epochs = 4


@dataclass(frozen=True, kw_only=True)
class Constants(Keep):
    CONSTANT: ClassVar[int] = 3
    _constant = 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Unannotated(), "'extra' of Unannotated; annotate it with its type, or with ClassVar"),
        (Undecorated(), "'extra' of Undecorated; decorate the class with @dataclass"),
        (Nested(), "'epochs' of Training; annotate it with its type"),
        (OtherDefault(), "'epochs' of OtherDefault; decorate the class with @dataclass"),
    ],
)
def test_a_value_that_is_not_a_setting_is_caught(settings: Extractor, says: str) -> None:
    with pytest.raises(BadPlugin, match=f"a value is not a setting: {says}"):
        replace(TOY, presets={"mini": settings, "smoke": settings})


@dataclass(frozen=True, kw_only=True)
class Unbounded(Keep):
    """Settings whose `__post_init__` loses the check of the bounds."""

    scale: Annotated[float, "of the noise", Bounds(above=0.0, most=1.0)] = 0.5

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Bounded(Unbounded):
    def __post_init__(self) -> None:
        Keep.__post_init__(self)


def test_bounds_that_are_not_checked_are_caught() -> None:
    unbounded = replace(TOY, presets={"mini": Unbounded(), "smoke": Unbounded()})
    assert_breaks(unbounded, r"not check the bounds of scale, a setting of its extractor; call sup")
    check_settings(replace(TOY, presets={"mini": Bounded(), "smoke": Bounded()}))


@pytest.mark.slow
def test_a_module_that_imports_torch_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(METHODS.__dict__, "load", lambda name: TOY)
    for name, line in (("light_toy", "json"), ("heavy_toy", "torch")):
        (tmp_path / f"{name}.py").write_text(f"import {line}")
        reference = f"{name}:TOY"
        monkeypatch.setitem(
            METHODS.__dict__, "references", lambda reference=reference: {"toy": reference}
        )
        if line == "json":
            check_import(TOY)
            continue
        with pytest.raises(AssertionError, match="imports torch, numpy with its module heavy_toy"):
            check_import(TOY)


def test_constants_of_a_settings_class_are_allowed() -> None:
    check_settings(replace(TOY, presets={"mini": Constants(), "smoke": Constants()}))


# Its extraction.


def change_ancestry(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
    ancestries[0].state["cls_token"].add_(1)
    return Keep()(ancestries, tasks, run)


def need_labels(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
    if tasks[0].classes < 2:
        raise ValueError("a single class")
    return Train()(ancestries, tasks, run)


def test_an_extraction_that_needs_labels_and_denies_it_is_caught() -> None:
    method = replace(with_extractor(Train, __call__=need_labels), uses_labels=False)
    assert_breaks(method, "takes images without labels.*: raised ValueError: a single class")


def return_random_tensor(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
    return replace(Keep()(ancestries, tasks, run), state={"x": torch.rand(3)})


def return_nan(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
    return replace(Keep()(ancestries, tasks, run), state={"x": torch.tensor([0.0, torch.nan])})


def return_arrays(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
    learngene = Keep()(ancestries, tasks, run)
    return replace(learngene, state={"norm.weight": learngene.state["norm.weight"].numpy()})


def return_list(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
    learngene = Keep()(ancestries, tasks, run)
    return replace(learngene, state=list(learngene.state))


def outline_two_layers(self: Any, ancestries: Any) -> Any:
    return Keep().outline([ancestries[0].with_(layers=2)])


def import_timm(self: Any, ancestries: Any) -> Any:
    import timm  # noqa: F401

    return Keep().outline(ancestries)


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"__call__": change_ancestry}, "changed its ancestry model: tensor cls_token"),
        (
            {"__call__": return_random_tensor},
            "extracts two different learngenes with the same seed: tensor x",
        ),
        ({"__call__": return_nan}, "returned the tensor x with values that are not finite"),
        (
            {"__call__": return_arrays},
            "'the extractor returns a learngene of finite tensors by name': layers=3, .*: the method "
            "'toy' returned the tensor norm.weight of type numpy.ndarray; expected a torch.Tensor",
        ),
        ({"__call__": return_list}, "learngene of finite tensors by name': .*AttributeError"),
        ({"__call__": lambda self, *_: None}, "Odd returned NoneType; expected Learngene"),
        ({"__call__": lambda self, *_: {"x": 3}}, "Odd returned dict; expected Learngene"),
        ({"outline": import_timm}, "needs more than plain numbers for its outline"),
        ({"outline": lambda self, ancestries: None}, "outlines None; expected a LearngeneConfig"),
    ],
)
def test_a_wrong_extraction_is_caught(members: dict[str, Any], says: str) -> None:
    assert_breaks(with_extractor(**members), says)


def test_an_outline_that_is_not_what_is_written_is_caught() -> None:
    def extract(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
        return Keep()(ancestries, tasks, run)

    assert_breaks(
        with_extractor(outline=outline_two_layers, __call__=extract),
        "outlines ViTSpec.*but writes ViTSpec",
    )


def test_details_that_their_type_cannot_read_are_caught() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Details:
        kept: int

    assert_breaks(
        replace(TOY, details=Details), "writes details that it cannot read: .*'kept' is missing"
    )
    undeclared = with_extractor(
        outline=lambda self, ancestries: replace(Keep().outline(ancestries), details={"kept": 3})
    )
    assert_breaks(undeclared, "writes details; declare their type")


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (float("nan"), r"returned the details field losses\[1\] of nan; expected a finite number"),
        (torch.ones(()), "losses.1. of type torch.Tensor; expected numbers or texts"),
    ],
)
def test_details_that_cannot_be_written_are_named(loss: object, says: str) -> None:
    config = replace(Keep().outline([make_tiny_ancestry().spec]), details={"losses": [1.0, loss]})
    with pytest.raises(BadPlugin, match=says):
        check_learngene("toy", Learngene(config=config, state={}))


STEPS: list[int] = []


def count_steps(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
    """Extract, and store the number of training steps of this process in the learngene."""
    STEPS.clear()
    learngene = Train()(ancestries, tasks, run)
    return replace(learngene, state={**learngene.state, "steps": torch.tensor(float(len(STEPS)))})


def test_a_training_that_a_kill_changes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Engine._step
    monkeypatch.setattr(
        Engine, "_step", lambda self, *arguments: (STEPS.append(1), step(self, *arguments))[1]
    )
    assert_breaks(
        with_extractor(Train, __call__=count_steps),
        "extracts another learngene when it is killed and resumed: tensor steps",
    )


def compute_ones(settings: None, run: Run) -> Any:
    return {"x": torch.ones(1)}, {}


def test_a_part_without_training_that_a_kill_changes_is_caught() -> None:
    def extract(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
        compute_once(run.part("first"), "toy.first", compute_ones)
        compute_once(run.part("ones"), "toy.ones", compute_ones)
        learngene = Keep()(ancestries, tasks, run)
        number = torch.full((1,), float(run.resume))
        return replace(learngene, state={**learngene.state, "resumed": number})

    assert_breaks(
        with_extractor(__call__=extract),
        "extracts another learngene when it is killed and resumed: tensor resumed",
    )


@dataclass(frozen=True, kw_only=True)
class Hiding(Recipe):
    """Settings whose identity lacks the learning rate."""

    @property
    def identity(self) -> Any:
        return [self.epochs, self.batch_size]


def test_a_setting_that_a_parts_key_does_not_show_is_caught() -> None:
    def extract(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
        start = assemble(ancestries[0].spec.with_(classes=tasks[0].classes), {}, seed=run.seed)
        part = compute_once(
            run, "toy.train", fit_descendant, Hiding(epochs=1, batch_size=16), [start, tasks[0]]
        )
        return replace(Keep()(ancestries, tasks, run), state=part.state)

    assert_breaks(
        with_extractor(Train, __call__=extract),
        "setting images that does not change the key of its part toy.train",
    )


def compute_zeros(settings: dict[str, Any], run: Run) -> Any:
    return {"x": torch.zeros(1)}, {}


def test_settings_of_a_part_that_are_not_a_frozen_record_are_caught() -> None:
    def extract(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
        part: Part = compute_once(run, "toy.loose", compute_zeros, {"lr": 1})
        return replace(Keep()(ancestries, tasks, run), state=part.state)

    assert_breaks(
        with_extractor(__call__=extract),
        "passes {'lr': 1} to its part toy.loose; expected a frozen dataclass",
    )


def refuse_without_class_token(self: Any, ancestries: Any) -> Any:
    if not ancestries[0].class_token:
        raise WrongCall("this method needs a class token")
    return Keep().outline(ancestries)


def test_every_shape_of_ancestry_model_is_tried_and_an_outline_may_refuse_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specs: list[Any] = []

    def record_spec(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
        ancestries[0].state["cls_token"]
        specs.append(ancestries[0].spec)
        return Keep()(ancestries, tasks, run)

    method = with_extractor(__call__=record_spec, outline=refuse_without_class_token)
    monkeypatch.setitem(METHODS.__dict__, "load", lambda name: method)
    check_method(method)
    assert {(spec.registers, spec.layer_scale) for spec in specs} == {(0, None), (2, 0.1)}
    accepting = with_extractor(__call__=record_spec)
    monkeypatch.setitem(METHODS.__dict__, "load", lambda name: accepting)
    with pytest.raises(AssertionError, match=r"that its outline accepts': .*KeyError: 'cls_token'"):
        check_method(accepting)


# Errors raised by a method are reported with the law that it breaks.


def make_raising_part(
    error: BaseException, when: Callable[..., bool] = lambda *_: True
) -> Callable[..., Any]:
    """Return a part of a method that raises an error if `when` holds for its arguments.

    Otherwise it does the same as the toy's part.
    """

    def part(self: Any, *arguments: Any) -> Any:
        if when(*arguments):
            raise error
        return (Take() if len(arguments) == 3 and hasattr(arguments[1], "layers") else Keep())(
            *arguments
        )

    return part


MEMBERS = "the expander builds every member of its family"
RAISED = [
    (
        with_expander(
            __call__=make_raising_part(
                WrongCall("no"), lambda gene, target, run: target.layers == 1
            )
        ),
        (
            f"toy breaks the law '{MEMBERS}': layers=1, width=32, heads=2, image_size=16 raised"
            " WrongCall: no$"
        ),
    ),
    (
        with_expander(__call__=make_raising_part(ZeroDivisionError("by 0"))),
        f"'{MEMBERS}': layers=1.* raised ZeroDivisionError: by 0$",
    ),
    (
        with_expander(__call__=make_raising_part(AssertionError("odd"))),
        f"'{MEMBERS}': .* raised AssertionError: odd$",
    ),
    (
        with_expander(__call__=make_raising_part(SystemExit(3))),
        f"'{MEMBERS}': .* raised SystemExit: 3$",
    ),
    (
        with_expander(family=make_raising_part(ValueError("bad"))),
        "'the outline .*|'the family is known.*raised ValueError: bad$",
    ),
    (
        with_expander(
            __call__=make_raising_part(
                IndexError("far"), lambda gene, target, run: (target.layers or 0) > 3
            )
        ),
        "'a size that cannot be built is refused with WrongCall': layers=4 raised IndexError: far$",
    ),
    (
        with_extractor(__call__=make_raising_part(RuntimeError("shape"))),
        (
            "'the extractor condenses every ancestry model that its outline accepts': .*raised"
            " RuntimeError: shape$"
        ),
    ),
    (with_extractor(outline=make_raising_part(TypeError("kind"))), "raised TypeError: kind$"),
    (
        with_extractor(needs_tasks=make_raising_part(TypeError("none"))),
        "'the extractor says whether it needs tasks': raised TypeError",
    ),
]


@pytest.mark.parametrize(("method", "says"), RAISED, ids=[says[:60] for _, says in RAISED])
def test_an_error_of_a_method_is_told_with_the_promise_that_it_breaks(
    method: Method, says: str
) -> None:
    assert_breaks(method, says)


def test_an_ancestry_model_that_is_refused_only_after_its_outline_is_caught() -> None:
    def refuse_late(self: Any, ancestries: Any, tasks: Any, run: Run) -> Any:
        refuse_without_class_token(self, [ancestries[0].spec])
        return Keep()(ancestries, tasks, run)

    assert_breaks(
        with_extractor(__call__=refuse_late),
        "that its outline accepts': .* raised WrongCall: this method needs a class token",
    )


def test_of_a_large_family_an_even_sample_is_built() -> None:
    members = [
        Member(spec=make_tiny_ancestry().spec.with_(layers=layers)) for layers in range(1, 101)
    ]
    chosen = sample_members(members)
    assert len(chosen) == MAX_BUILT
    assert chosen[0] == members[0]
    assert chosen[-1] == members[-1]
    assert sample_members(members[:5]) == members[:5]


def test_what_a_plan_must_not_need_exists() -> None:
    assert all(importlib.util.find_spec(name) for name in HOT)


def test_tiny_tasks_differ_by_name_and_can_be_sent_to_workers() -> None:
    first, second = make_tiny_task("a"), make_tiny_task("b")
    split = pickle.loads(pickle.dumps(first)).split("train")
    assert torch.equal(split.images, first.split("train").images)
    assert not torch.equal(split.images, second.split("train").images)
    assert split.__getitems__([3, 1]).shape == (2, 3, 16, 16)
    assert len(split) == len(split.labels) == first.sizes["train"]
