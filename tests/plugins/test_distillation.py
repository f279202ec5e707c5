"""Distillation's own laws; what every method must keep is in test_contract.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from learngene_zoo import registry
from learngene_zoo.ancestry import Ancestry
from learngene_zoo.errors import WrongCall
from learngene_zoo.learngene import Learngene
from learngene_zoo.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.tasks.batches import open_loader
from learngene_zoo.testing import tiny_ancestry, tiny_task
from learngene_zoo.training.objectives import Classification
from lgzoo_baselines.teaching import Guided, divergence

METHOD = registry.load("distillation")


def made(ancestry: Ancestry | None = None, method: str = "distillation", **settings: Any) -> Learngene:
    extractor = with_settings(registry.load(method).presets["smoke"], {"depths": (1,), **settings})
    return extractor([ancestry or tiny_ancestry()], [tiny_task()], Run())


def knowing() -> Ancestry:
    """An ancestry model whose head is the tiny task's."""
    return replace(tiny_ancestry(classes=3), class_names=tiny_task().class_names)


def test_the_distance_is_temperature_squared_times_the_divergence() -> None:
    """Two classes: the teacher says 3/4 and 1/4 at temperature 2, the student one half each."""
    teacher = torch.tensor([[2 * math.log(3.0), 0.0], [0.0, 0.0]])
    student = torch.zeros(2, 2)
    one = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert divergence(student, teacher, 2.0).item() == pytest.approx(4 * one / 2)
    assert divergence(teacher, teacher, 2.0).item() == pytest.approx(0.0, abs=1e-6)
    patches = torch.stack([student, student], dim=1), torch.stack([teacher, teacher], dim=1)
    assert divergence(*patches, 2.0).item() == pytest.approx(4 * one / 2)


def test_the_loss_is_the_labels_share_and_the_teachers() -> None:
    student, teacher = (tiny_ancestry(seed, classes=3).model() for seed in (0, 1))
    batch = next(iter(open_loader(tiny_task(), "train", tiny_ancestry().view, batch_size=8).epoch(0)))
    losses = Guided(Classification(student), student, teacher, 0.25, 2.0)(batch)
    told = torch.nn.functional.cross_entropy(student(batch.images), batch.labels)
    far = divergence(student(batch.images), teacher(batch.images), 2.0)
    assert losses["cross_entropy"].item() == pytest.approx(0.75 * told.item(), rel=1e-5)
    assert losses["distillation"].item() == pytest.approx(0.25 * far.item(), rel=1e-5)


def test_the_teacher_is_neither_trained_nor_saved() -> None:
    student, teacher = (tiny_ancestry(seed, classes=3).model() for seed in (0, 1))
    objective = Guided(Classification(student), student, teacher, 0.5, 2.0)
    assert len(list(objective.parameters())) == len(list(student.parameters()))
    batch = next(iter(open_loader(tiny_task(), "train", tiny_ancestry().view, batch_size=8).epoch(0)))
    sum(objective(batch).values()).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.grad is not None for parameter in student.parameters())
    assert not student.get_classifier()._forward_hooks


def test_without_the_teachers_share_it_is_pretraining() -> None:
    ours, theirs = made(knowing(), share=0.0), made(method="pretrain_finetune")
    assert set(ours.state) == set(theirs.state)
    for name in theirs.state:
        assert torch.equal(ours.state[name], theirs.state[name]), name


def test_a_teacher_with_the_tasks_head_is_not_trained_and_changes_the_student() -> None:
    ours = made(knowing())
    assert set(ours.config.metrics) == {"layers-1"}
    theirs = made(method="pretrain_finetune")
    assert not torch.equal(
        ours.state["layers-1/blocks.0.attn.qkv.weight"], theirs.state["layers-1/blocks.0.attn.qkv.weight"]
    )


def test_a_teacher_of_another_task_is_fine_tuned_first() -> None:
    ours = made()
    assert set(ours.config.metrics) == {"teacher", "layers-1"}
    assert ours.config.metrics["teacher"]["training_images"] == 32
    other = made(teaching_epochs=0)
    assert not torch.equal(ours.state["layers-1/norm.weight"], other.state["layers-1/norm.weight"])


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"share": 1.5}, "share is 1.5"), ({"temperature": 0.0}, "temperature is 0.0"), ({"depths": ()}, "depths is")],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        with_settings(METHOD.extractor, settings)
