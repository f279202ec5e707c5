"""A method whose expansion breaks a law of the contract is told which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from contract_toy import TOY, Draw, Take, assert_breaks, with_changed_descendant, with_expander

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.method.sizes import Member
from learngene_zoo.runs.run import Run


def endless(self: Any, config: Any) -> Any:
    while True:
        yield Member(spec=config.spec)


CALLS: list[int] = []


def fickle(self: Any, config: Any) -> Any:
    CALLS.append(1)
    return [Member(spec=config.spec.with_(layers=1 + len(CALLS) % 2))]


def stubborn(self: Any, config: Any) -> Any:
    return [Member(spec=config.spec.with_(classes=7))]


def smaller(self: Any, learngene: Any, target: Any, run: Run) -> Any:
    return Take()(learngene, replace(target, layers=1), run)


def greedy(self: Any, learngene: Any, target: Any, run: Run) -> Any:
    learngene.state["norm.weight"].mul_(2)
    return Take()(learngene, target, run)


def seedless(self: Any, learngene: Any, target: Any, run: Run) -> Any:
    return Take()(learngene, target, replace(run, seed=0))


def in_the_middle(self: Any, learngene: Any, target: Any, run: Run) -> Any:
    descendant = Take()(learngene, target, run)
    if target.layers != 2:
        return descendant
    return descendant.with_state(
        {**descendant.state, "head.bias": torch.rand(descendant.spec.classes)}
    )


def heads_as_well(self: Any, learngene: Any, target: Any, run: Run) -> Any:
    """Ignores every size but the layers."""
    return Take()(learngene, replace(target, heads=None), run)


def careless(self: Any, learngene: Any, target: Any, run: Run) -> Any:
    """Mends a target that cannot be built."""
    spec = learngene.config.spec
    return Take()(
        learngene, replace(target, layers=min(target.layers or spec.layers, spec.layers)), run
    )


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"family": lambda self, config: []}, "plans no descendant|has an empty family"),
        ({"family": endless}, "family of more than"),
        ({"family": lambda self, config: None}, "has the family None; expected members"),
        (
            {"family": lambda self, config: [config.spec]},
            "has ViTSpec.* in its family; expected a Member",
        ),
        ({"family": fickle}, "family that changes from call to call"),
        ({"family": stubborn}, "member without the classes of its config"),
        ({"__call__": smaller}, "built a model with layers 1 instead of 2"),
        ({"__call__": greedy}, "changes the learngene that it expands: tensor norm.weight"),
        ({"__call__": seedless}, "ignores the seed of an expansion"),
        (
            {"__call__": in_the_middle},
            (
                "builds two different models with 2 layers of width 32 from one seed: tensor"
                " head.bias"
            ),
        ),
        ({"__call__": lambda self, *_: None}, "Odd returned NoneType; expected Descendant"),
        (
            {"__call__": heads_as_well, "axes": Take.axes | {"heads"}},
            "built a model with heads 2 instead of",
        ),
        (
            {"__call__": careless},
            "layers=4 raised BadPlugin: .* built a model with layers 3 instead of 4",
        ),
    ],
)
def test_a_wrong_expansion_is_caught(members: dict[str, Any], says: str) -> None:
    assert_breaks(with_expander(**members), says)


def zero_norm(made: Descendant) -> Descendant:
    return made.with_state(
        {**made.state, "norm.weight": torch.zeros_like(made.state["norm.weight"])}
    )


def drawn_anew(made: Descendant) -> Descendant:
    return made.with_state(
        {**made.state, "norm.weight": torch.rand(32, generator=torch.Generator().manual_seed(1))}
    )


def not_a_number(made: Descendant) -> Descendant:
    return made.with_state({**made.state, "norm.weight": made.state["norm.weight"] * torch.nan})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (zero_norm, "records tensor norm.weight as inherited, although it is all zeros"),
        (
            drawn_anew,
            "records tensor norm.weight as inherited, but it is the same for another learngene",
        ),
        (not_a_number, "built the tensor norm.weight with values that are not finite"),
        (
            lambda made: replace(made, inherited=made.inherited | {"stem"}),
            "records the tensor 'stem' as inherited, which its model does not have",
        ),
        (
            lambda made: replace(made, inherited=made.inherited - {"norm.weight"}),
            "takes tensor norm.weight from the learngene",
        ),
    ],
)
def test_an_inherited_tensor_that_the_record_does_not_explain_is_caught(
    change: Callable[[Descendant], Descendant], says: str
) -> None:
    assert_breaks(with_changed_descendant(change), says)


def test_whether_anything_is_inherited_is_as_declared() -> None:
    assert_breaks(
        replace(TOY, inherits=False), "declares `inherits=False`, but its descendants inherit"
    )
    assert_breaks(replace(TOY, expander=Draw()), "inherits nothing; if that is meant, declare")
