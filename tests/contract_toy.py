"""A toy method that keeps the contract, and functions that replace one of its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.families.tensors import remove_head, take_blocks
from learngene_zoo.method.contract import Method
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Member
from learngene_zoo.runs.cache import compute_once
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.testing import check_method
from learngene_zoo.training.fit import fit

SCRATCH = METHODS.load("scratch")
Shape, Draw = type(SCRATCH.extractor), type(SCRATCH.expander)


@dataclass(frozen=True, kw_only=True)
class Keep(Shape):  # type: ignore[misc, valid-type]
    """Keep every block."""

    def outline(self, ancestries: Any) -> Any:
        return replace(super().outline(ancestries), method="toy")

    def __call__(self, ancestries: Any, tasks: Any, run: Run) -> Any:
        return Learngene(
            config=self.outline([ancestries[0].spec]),
            state=remove_head(ancestries[0].state, ancestries[0].spec),
        )


BRIEF = Recipe(epochs=2, batch_size=16, augment="none")


@dataclass(frozen=True, kw_only=True)
class Train(Keep):
    """Train the kept blocks on a task."""

    training: Recipe = BRIEF

    def __call__(self, ancestries: Any, tasks: Any, run: Run) -> Any:
        learngene = super().__call__(ancestries, tasks, run)
        spec = ancestries[0].spec.with_(classes=tasks[0].classes)
        start = assemble(spec, learngene.state, seed=run.seed)
        part = compute_once(
            run.part("blocks"), "toy.blocks", fit_descendant, self.training, [start, tasks[0]]
        )
        return replace(learngene, state=remove_head(part.state, spec))


def fit_descendant(recipe: Recipe, start: Descendant, task: Any, run: Run) -> Any:
    return fit(start, task, recipe, run).state, {}


@dataclass(frozen=True, kw_only=True)
class Take(Draw):  # type: ignore[misc, valid-type]
    """Take the first blocks, and draw a head."""

    axes = frozenset({"layers", "classes"})

    def family(self, config: Any) -> Any:
        return [
            Member(spec=config.spec.with_(layers=layers))
            for layers in range(1, config.spec.layers + 1)
        ]

    def __call__(self, learngene: Any, target: Any, run: Run) -> Any:
        spec = target.apply(learngene.config.spec)
        if spec.layers > learngene.config.spec.layers:
            return Draw()(learngene, replace(target, layers=10**9), run)  # a `WrongCall`
        return assemble(
            spec,
            take_blocks(learngene.state, learngene.config.spec, range(spec.layers)),
            seed=run.seed,
        )


TOY = replace(
    SCRATCH,
    name="toy",
    inherits=True,
    families=("vit", "eva"),
    expander=Take(),
    presets={"mini": Keep(), "smoke": Keep()},
)
TRAINS = replace(TOY, tasks="one", presets={"mini": Train(), "smoke": Train()})


def with_extractor(kind: type = Keep, **members: Any) -> Method:
    """Return the toy method with these attributes of its extractor replaced."""
    extractor = type("Odd", (kind,), {"__module__": __name__, **members})()
    return replace(
        TRAINS if kind is Train else TOY, presets={"mini": extractor, "smoke": extractor}
    )


def with_expander(**members: Any) -> Method:
    """Return the toy method with these attributes of its expander replaced."""
    return replace(TOY, expander=type("Odd", (Take,), {"__module__": __name__, **members})())


def with_changed_descendant(change: Callable[[Descendant], Any]) -> Method:
    """Return the toy method with `change` applied to its descendants."""
    return with_expander(
        __call__=lambda self, learngene, target, run: change(Take()(learngene, target, run))
    )


def assert_breaks(method: Method, says: str) -> None:
    """Assert that `check_method` of a method, registered for the call, fails with this message."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(METHODS.__dict__, "load", lambda name: method)
        with pytest.raises(AssertionError, match=says):
            check_method(method)
