"""Fine-tuning with a teacher: DeiT's distillation of any model, such as a descendant."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.errors import Refused, WrongCall
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.finetuning import FinetuneConfig, _make_distillation
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import to_json
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training import loop
from learngene_zoo.training.automatic import LEARNING_RATES
from learngene_zoo.training.distillation import open_teacher
from learngene_zoo.training.objectives import Classification

SPEC = ViTSpec(layers=1, width=16, heads=2, image_size=16, patch_size=8, classes=3)
TASK = make_tiny_task()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Save a classifier of the task with confident predictions."""
    folder = tmp_path_factory.mktemp("taught") / "teacher"
    model = assemble(
        SPEC.with_(layers=2),
        {},
        seed=7,
        scheme="fan_in",
        task=TASK.name,
        class_names=TASK.class_names,
    )
    sure = {
        name: 4 * value if name.startswith("head") else value for name, value in model.state.items()
    }
    model.with_state(sure).save(folder)
    return str(folder)


def student() -> Descendant:
    """Return a model as an expansion returns it, with a head for the task."""
    return assemble(SPEC, {}, seed=1, scheme="fan_in", task=TASK.name, class_names=TASK.class_names)


@pytest.mark.parametrize(("answers", "share"), [("soft", 0.1), ("hard", 0.5)])
def test_the_loss_is_deits(teacher: str, answers: Any, share: float) -> None:
    tuning = FinetuneConfig(teacher=teacher, answers=answers, share=share)
    named = open_teacher(teacher, TASK, Run())
    distillation = _make_distillation(tuning, named, student(), Run())
    assert distillation is not None
    assert distillation.identity["source"] == teacher
    model = student().model().eval()
    images, labels = (
        torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 0, 1]),
    )
    losses = distillation(Classification(model), model)(
        Batch(inputs=images, labels=labels, indices=torch.arange(5))
    )
    with torch.no_grad():
        from learngene_zoo.artifacts.descendant import load_descendant

        own, taught = model(images), load_descendant(teacher).model().eval()(images)
    assert losses["cross_entropy"].item() == pytest.approx(
        (1 - share) * functional.cross_entropy(own, labels).item(), rel=1e-5
    )
    p, q = (functional.softmax(logits / 3, dim=1) for logits in (taught, own))
    soft = 9 * (p * (p / q).log()).sum(dim=1).mean()
    hard = functional.cross_entropy(own, taught.argmax(dim=1))
    assert losses["distillation"].item() == pytest.approx(
        share * (soft if answers == "soft" else hard).item(), rel=1e-4
    )


def test_a_model_learns_from_its_teacher_and_says_so(
    teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda *_, **__: TASK)
    settings: dict[str, Any] = {
        "task": "tiny",
        "epochs": 1,
        "batch_size": 16,
        "ema": 0.5,
        "keep": "last",
    }
    alone, taught = (
        lifecycle.finetune(student(), **settings, **extra)
        for extra in ({}, {"teacher": teacher, "share": 0.9})
    )
    assert "teacher" not in alone.provenance
    assert taught.provenance["teacher"]["share"] == 0.9
    assert taught.provenance["teacher"]["temperature"] == 3.0
    assert taught.state.keys() == alone.state.keys()
    assert not torch.equal(taught.state["head.weight"], alone.state["head.weight"])


def test_trials_of_rates_have_the_loss_of_the_training(
    teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda *_, **__: TASK)
    trained: list[str] = []

    def train(objective: torch.nn.Module, *inputs: Any, **named: Any) -> Any:
        trained.append(type(objective).__name__)
        return loop.train(objective, *inputs, **named)

    monkeypatch.setattr("learngene_zoo.training.fit.train", train)
    settings: dict[str, Any] = {"task": "tiny", "epochs": 1, "batch_size": 16, "lr": "auto"}
    lifecycle.finetune(student(), **settings, teacher=teacher)
    assert len(trained) >= len(LEARNING_RATES)
    assert set(trained) == {"Distilled"}


def test_a_training_does_not_go_on_under_another_teacher(
    teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda *_, **__: TASK)
    folder = tmp_path / "teacher"
    shutil.copytree(teacher, folder)
    call: dict[str, Any] = {"task": "tiny", "epochs": 1, "batch_size": 16, "teacher": str(folder)}
    call["out"] = tmp_path / "out"
    first = lifecycle.finetune(student(), **call)
    again = lifecycle.finetune(student(), **call, run=Run(resume=True))
    assert again.provenance["metrics"] == first.provenance["metrics"]
    shutil.rmtree(folder)
    shape = SPEC.with_(layers=2)
    other = assemble(shape, {}, seed=8, task=TASK.name, class_names=TASK.class_names)
    other.save(folder)
    with pytest.raises(Refused, match="teacher"):
        lifecycle.finetune(student(), **call, run=Run(resume=True))


def test_a_wrong_teacher_is_refused_before_features_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda *_, **__: TASK)

    def fail(*inputs: Any) -> Any:
        raise AssertionError("the head was fitted")

    monkeypatch.setattr("learngene_zoo.training.heads.initialise_head", fail)
    features = SPEC.with_(classes=0)
    pretrained = assemble(features, initialise(features, 0), seed=1)  # all weights inherited
    other = assemble(SPEC.with_(classes=5), {}, seed=2)
    other.save(tmp_path / "teacher")
    with pytest.raises(WrongCall, match="does not fit the task"):
        lifecycle.finetune(pretrained, task="tiny", epochs=1, teacher=str(tmp_path / "teacher"))
    with pytest.raises(AssertionError, match="the head was fitted"):
        lifecycle.finetune(pretrained, task="tiny", epochs=1)


def test_what_is_about_a_teacher_needs_one() -> None:
    for changes in ({"share": 0.5}, {"temperature": 1.0}, {"answers": "hard"}):
        with pytest.raises(WrongCall, match="share, temperature and answers need a teacher"):
            replace(FinetuneConfig(), **changes)
    assert to_json(FinetuneConfig()) == {
        "keep": "best",
        "patience": None,
    }, "what is without a teacher is recorded as before"
