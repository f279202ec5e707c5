"""Laws of distillation; laws of every method are in test_contract.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import save_for_hf

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.picture_format import USUAL_VIEW, View
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task

METHOD = METHODS.load("distillation")


def extract(
    ancestry: Ancestry | None = None, method: str = "distillation", **settings: Any
) -> Learngene:
    extractor = with_settings(METHODS.load(method).presets["smoke"], {"depths": (1,), **settings})
    return extractor([ancestry or make_tiny_ancestry()], [make_tiny_task()], Run())


def ancestry_of_task(view: View = USUAL_VIEW) -> Ancestry:
    """Return an ancestry model whose head is the tiny task's."""
    plain = make_tiny_ancestry(classes=3)
    record = replace(plain.record, view=view)
    return replace(plain, record=record, class_names=make_tiny_task().class_names)


def test_without_the_teachers_share_it_is_pretraining() -> None:
    for view in (USUAL_VIEW, View(crop_pct=0.5)):
        ancestry = ancestry_of_task(view)
        ours, theirs = extract(ancestry, share=0.0), extract(ancestry, "pretrain_finetune")
        assert set(ours.state) == set(theirs.state)
        for name in theirs.state:
            assert torch.equal(ours.state[name], theirs.state[name]), name


def test_a_teacher_with_the_tasks_head_is_not_trained_and_changes_the_student() -> None:
    ours = extract(ancestry_of_task())
    assert set(ours.config.metrics) == {"layers-1"}
    theirs = extract(method="pretrain_finetune")
    assert not torch.equal(
        ours.state["layers-1/blocks.0.attn.qkv.weight"],
        theirs.state["layers-1/blocks.0.attn.qkv.weight"],
    )


def test_a_teacher_of_another_task_is_fine_tuned_first() -> None:
    ours = extract(teaching_lr=3e-4)
    assert set(ours.config.metrics) == {"teacher", "layers-1"}
    teacher = ours.config.metrics["teacher"]
    assert (teacher["training_images"], teacher["kept_epoch"]) == (32, 1)
    untuned = extract(teaching_epochs=0)
    assert not torch.equal(
        ours.state["layers-1/norm.weight"], untuned.state["layers-1/norm.weight"]
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"share": 1.5}, "share is 1.5"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"depths": ()}, "depths is"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        with_settings(METHOD.extractor, settings)


@pytest.fixture(scope="module")
def convolutional(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a classifier of the tiny task that is not a ViT, with another image format."""
    cfg = {"input_size": (3, 48, 48), "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25)}
    folder = tmp_path_factory.mktemp("teacher") / "regnet"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = timm.create_model("regnety_002", num_classes=3, pretrained_cfg_overlay=cfg)
    save_for_hf(model, folder, safe_serialization=True)
    return folder


def test_any_classifier_can_be_the_teacher(convolutional: Path) -> None:
    ours = extract(teacher=str(convolutional))
    record = ours.config.metrics["teacher"]
    assert (record["source"], set(ours.config.metrics)) == (
        str(convolutional),
        {"teacher", "layers-1"},
    )
    assert not torch.equal(
        ours.state["layers-1/norm.weight"], extract(share=0.0).state["layers-1/norm.weight"]
    )
    assert ours.config.spec.width == make_tiny_ancestry().spec.width


def test_with_tokens_a_student_learns_from_the_teachers_tokens_too(convolutional: Path) -> None:
    plain, ours = extract(share=1.0), extract(share=1.0, tokens=4.0)
    assert not torch.equal(ours.state["layers-1/norm.weight"], plain.state["layers-1/norm.weight"])
    assert set(ours.state) == set(plain.state)  # the maps between the tokens are not kept
    with pytest.raises(WrongCall, match=r"tokens is 4, .*use tokens=0"):
        extract(teacher=str(convolutional), tokens=4.0)


def test_a_teacher_of_other_classes_is_refused_with_the_way_out(tmp_path: Path) -> None:
    tiny_descendant = assemble(make_tiny_ancestry().spec.with_(classes=5), {}, seed=0)
    tiny_descendant.save(tmp_path / "five")
    with pytest.raises(
        WrongCall, match=r"has 5 classes and .* has 3; .*lgzoo finetune .*five --task .* -o teacher"
    ):
        extract(teacher=str(tmp_path / "five"))
