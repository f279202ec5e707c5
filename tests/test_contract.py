"""Every registered method keeps the contract; a method that breaks one of its laws is told which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch

from learngene_zoo import registry
from learngene_zoo.method import Member, Method
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import (
    check_extraction,
    check_family,
    check_members,
    check_method,
    check_outline,
    check_settings,
    tiny_ancestry,
    tiny_task,
)

METHODS = sorted(registry.references())


@pytest.mark.parametrize("name", METHODS)
def test_the_method_keeps_the_contract(name: str) -> None:
    check_method(registry.load(name))


def test_there_are_methods() -> None:
    assert {"lsamd", "scratch", "pretrain_finetune", "distillation"} <= set(METHODS)


SCRATCH = registry.load("scratch")


def scratch_with(**expander: Any) -> Method:
    """Scratch with another expander, whose methods are given."""
    kind = type("Odd", (type(SCRATCH.expander),), expander)
    return replace(SCRATCH, expander=kind())


@dataclass(frozen=True, kw_only=True)
class Shadowing(type(SCRATCH.extractor)):  # type: ignore[misc]
    layers: Annotated[int, "taken"] = 3


def test_a_setting_that_shadows_an_option_is_refused() -> None:
    with pytest.raises(AssertionError, match="shadows the common option layers"):
        check_settings(replace(SCRATCH, presets={"mini": Shadowing(), "smoke": Shadowing()}))


def test_a_lacking_preset_is_named() -> None:
    with pytest.raises(AssertionError, match="lacks the preset smoke"):
        check_settings(replace(SCRATCH, presets={"mini": SCRATCH.extractor}))


def test_presets_of_two_types_are_refused() -> None:
    with pytest.raises(AssertionError, match="several types"):
        check_settings(replace(SCRATCH, presets={"mini": SCRATCH.extractor, "smoke": Shadowing()}))


@dataclass(frozen=True, kw_only=True)
class Meddling(type(SCRATCH.extractor)):  # type: ignore[misc]
    """Changes its ancestry model."""

    def __call__(self, ancestries: Any, tasks: Any, run: Run) -> Any:
        ancestries[0].state["cls_token"].add_(1)
        return super().__call__(ancestries, tasks, run)


@dataclass(frozen=True, kw_only=True)
class Moody(type(SCRATCH.extractor)):  # type: ignore[misc]
    """Draws from nowhere."""

    def __call__(self, ancestries: Any, tasks: Any, run: Run) -> Any:
        return replace(super().__call__(ancestries, tasks, run), state={"x": torch.rand(3)})


@dataclass(frozen=True, kw_only=True)
class Boasting(type(SCRATCH.extractor)):  # type: ignore[misc]
    """Outlines what it does not write."""

    def outline(self, ancestries: Any) -> Any:
        return replace(super().outline(ancestries), spec=ancestries[0].with_(layers=9))


@dataclass(frozen=True, kw_only=True)
class Warm(type(SCRATCH.extractor)):  # type: ignore[misc]
    """Needs torch to plan."""

    def outline(self, ancestries: Any) -> Any:
        import torch  # noqa: F401

        return super().outline(ancestries)


def test_an_extraction_that_changes_its_ancestry_is_caught() -> None:
    with pytest.raises(AssertionError, match="changed its ancestry model: tensor cls_token"):
        check_extraction(Meddling(), [tiny_ancestry()], [])


def test_an_extraction_that_ignores_its_seed_is_caught() -> None:
    with pytest.raises(AssertionError, match="with one seed differ: tensor x"):
        check_extraction(Moody(), [tiny_ancestry()], [])


def test_an_outline_that_is_not_what_is_written_is_caught() -> None:
    ancestry = tiny_ancestry()
    written = SCRATCH.extractor([ancestry], [], Run()).config
    with pytest.raises(AssertionError, match="outlines ViTSpec"):
        check_outline(SCRATCH, Boasting(), [ancestry], written)


def test_an_outline_that_needs_torch_is_caught() -> None:
    ancestry = tiny_ancestry()
    written = SCRATCH.extractor([ancestry], [], Run()).config
    with pytest.raises(AssertionError, match="more than plain numbers for its outline"):
        check_outline(SCRATCH, Warm(), [ancestry], written)


def test_families_that_are_empty_endless_or_fickle_are_caught() -> None:
    config = SCRATCH.extractor.outline([tiny_ancestry().spec])
    calls: list[int] = []

    def endless(self: Any, config: Any) -> Any:
        while True:
            yield Member(spec=config.spec)

    def fickle(self: Any, config: Any) -> Any:
        calls.append(1)
        return [Member(spec=config.spec.with_(layers=len(calls)))]

    wrong = {"empty": lambda self, config: [], "more than": endless, "from call to call": fickle}
    for says, family in wrong.items():
        with pytest.raises(AssertionError, match=says):
            check_family(scratch_with(family=family), config)


def test_a_member_that_is_built_otherwise_than_promised_is_caught(tmp_path: Path) -> None:
    learngene = SCRATCH.extractor([tiny_ancestry()], [], Run())

    def smaller(self: Any, learngene: Any, target: Any, run: Run) -> Any:
        return type(SCRATCH.expander)()(learngene, replace(target, layers=1), run)

    method = scratch_with(__call__=smaller)
    with pytest.raises(AssertionError, match="built a model with layers 1 instead of 2"):
        check_members(method, learngene, [Member(spec=learngene.config.spec.with_(layers=2, classes=5))], tmp_path)


def test_tiny_tasks_differ_by_name_and_can_be_sent_to_workers() -> None:
    import pickle

    first, second = tiny_task("a"), tiny_task("b")
    split = pickle.loads(pickle.dumps(first)).split("train")
    assert torch.equal(split.images, first.split("train").images)
    assert not torch.equal(split.images, second.split("train").images)
    assert split.__getitems__([3, 1]).shape == (2, 3, 16, 16)
    assert len(split) == len(split.labels) == first.sizes["train"]
