"""Distillation losses beside the labels, and sources of the teacher."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.loader import Batch, Loader
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.training import distillation
from learngene_zoo.training.distillation import (
    Distilled,
    Features,
    LossSum,
    Teacher,
    TokenLoss,
    compute_divergence,
    convert_images,
    make_logits_loss,
    record_features,
    train_teacher,
)
from learngene_zoo.training.objectives import Classification

BRIEF = Recipe(epochs=1, images=16, batch_size=8, lr=1e-3, warmup=0.0)


def test_the_distance_is_temperature_squared_times_the_divergence() -> None:
    """Two classes: the teacher's probabilities are 3/4 and 1/4 at temperature 2, the student's 1/2."""
    teacher = torch.tensor([[2 * math.log(3.0), 0.0], [0.0, 0.0]])
    student = torch.zeros(2, 2)
    one = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert compute_divergence(student, teacher, 2.0).item() == pytest.approx(4 * one / 2)
    assert compute_divergence(teacher, teacher, 2.0).item() == pytest.approx(0.0, abs=1e-6)
    patches = torch.stack([student, student], dim=1), torch.stack([teacher, teacher], dim=1)
    assert compute_divergence(*patches, 2.0).item() == pytest.approx(4 * one / 2)


def test_the_divergence_has_a_direction() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(4, 3, generator=generator) for _ in range(2))
    forward = compute_divergence(student, teacher, 3.0)
    assert compute_divergence(teacher, student, 3.0, "student-teacher").item() == forward.item()
    assert compute_divergence(student, teacher, 3.0, "student-teacher").item() != pytest.approx(
        forward.item(), rel=1e-3
    )


def models() -> list[Any]:
    return [make_tiny_ancestry(seed, classes=3).model() for seed in (0, 1)]


def batch() -> Batch:
    return next(
        iter(
            Loader(
                make_tiny_task(), "train", make_tiny_ancestry().input_format, batch_size=8
            ).epoch(0)
        )
    )


def test_an_outsider_sees_the_images_as_it_presents_them_itself() -> None:
    """A batch converted to the teacher's format equals the same image loaded in that format."""
    teacher_format = InputFormat(image_size=16, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    given = InputFormat(image_size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    pixels_BCHW = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    normalised = {
        format: (
            (pixels_BCHW - torch.tensor(format.mean).view(3, 1, 1))
            / torch.tensor(format.std).view(3, 1, 1)
        )
        for format in (teacher_format, given)
    }
    torch.testing.assert_close(
        convert_images(normalised[given], given, teacher_format), normalised[teacher_format]
    )
    assert (
        convert_images(normalised[teacher_format], teacher_format, teacher_format)
        is normalised[teacher_format]
    )
    larger = convert_images(normalised[given], given, replace(teacher_format, image_size=32))
    pixels = larger * torch.tensor(teacher_format.std).view(3, 1, 1) + torch.tensor(
        teacher_format.mean
    ).view(3, 1, 1)
    resized = functional.interpolate(pixels_BCHW, (32, 32), mode="bicubic", antialias=True).clamp(
        0, 1
    )
    torch.testing.assert_close(pixels, resized)


@pytest.mark.parametrize("softness", ["soft", "hard"])
def test_the_loss_is_the_weighted_sum_of_labels_and_teacher(softness: Any) -> None:
    student, teacher = models()
    images = batch().inputs
    imitation = make_logits_loss(softness, 2.0)
    losses = Distilled(Classification(student), student, Teacher(teacher), imitation, (0.75, 0.5))(
        batch()
    )
    labels = functional.cross_entropy(student(images), batch().labels)
    far = compute_divergence(student(images), teacher(images), 2.0)
    if softness == "hard":
        far = functional.cross_entropy(student(images), teacher(images).argmax(dim=1))
    assert losses["cross_entropy"].item() == pytest.approx(0.75 * labels.item(), rel=1e-5)
    assert losses["distillation"].item() == pytest.approx(0.5 * far.item(), rel=1e-5)


def test_the_teacher_is_neither_trained_nor_saved_nor_copied() -> None:
    student, teacher = models()
    objective = Distilled(
        Classification(student), student, Teacher(teacher), make_logits_loss(), (0.5, 0.5)
    )
    assert len(list(objective.parameters())) == len(list(student.parameters()))
    assert deepcopy(objective).teacher is objective.teacher
    sum(objective(batch()).values()).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.grad is not None for parameter in student.parameters())
    assert not student.get_classifier()._forward_hooks


def test_features_are_read_off_a_pass_that_is_made_anyway() -> None:
    model, _ = models()
    images = batch().inputs
    with torch.no_grad(), record_features(model, (0, 2)) as features:
        logits = model(images)
        tokens = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    assert torch.equal(features.logits, logits)
    assert (set(features.blocks), set(features.attentions)) == ({0, 2}, {0, 2})
    block = model.blocks[0]
    with torch.no_grad():
        assert torch.equal(features.attentions[0], block.attn(block.norm1(tokens)))
        assert torch.equal(features.blocks[0], block(tokens))
    assert not [module for module in model.modules() if module._forward_hooks]


def test_the_tokens_of_a_stream_are_those_before_the_final_norm() -> None:
    model, _ = models()
    with torch.no_grad(), record_features(model) as features:
        normed = model.forward_features(batch().inputs)
        assert torch.equal(model.norm(features.tokens), normed)
    assert not model.norm._forward_pre_hooks


def test_patches_and_class_token_meet_those_of_a_whitened_teacher() -> None:
    """By hand: a student of two channels with given maps; one patch, and a class token of the
    teacher only.
    """
    spec = make_tiny_ancestry().spec.with_(image_size=4, patch_size=4)
    student, teacher = (
        spec.with_(width=2, heads=1, pool="avg", class_token=False),
        spec.with_(width=2, heads=1),
    )
    loss = TokenLoss(student, teacher, 0)
    assert loss.whole is not None
    with torch.no_grad():
        loss.patches.weight.copy_(torch.eye(2))
        loss.whole.weight.copy_(2 * torch.eye(2))
        for layer in (loss.patches, loss.whole):
            layer.bias.zero_()
    given, target = (
        Features(streams=[torch.tensor([[[1.0, 1.0]]])]),
        Features(streams=[torch.tensor([[[5.0, 3.0], [-7.0, 9.0]]])]),
    )
    # Whitened, the teacher's class token is (1, -1) and its patch (-1, 1). Of differences below
    # beta = 2 a quarter of the square counts, of others all but 1.
    patch, token = (2 - 1 + 0) / 2, (1 / 4 + (3 - 1)) / 2
    assert loss(given, target)["tokens"].item() == pytest.approx(patch + token, abs=1e-5)
    twice = Features(streams=[20 * target.tokens])
    assert loss(given, twice)["tokens"].item() == pytest.approx(patch + token, abs=1e-5)


def test_tokens_are_whitened_one_by_one_and_the_mean_patch_stands_for_a_class_token() -> None:
    """By hand: four patches and identity maps; only the teacher has a class token."""
    four = make_tiny_ancestry().spec.with_(image_size=8, patch_size=4)
    student, teacher = (
        four.with_(width=2, heads=1, pool="avg", class_token=False),
        four.with_(width=2, heads=1),
    )
    loss = TokenLoss(student, teacher, 0)
    assert loss.whole is not None
    with torch.no_grad():
        for layer in (loss.patches, loss.whole):
            layer.weight.copy_(torch.eye(2))
            layer.bias.zero_()
    given = Features(streams=[torch.tensor([[[1.0, 1.0], [3.0, 1.0], [1.0, 3.0], [3.0, 3.0]]])])
    target = Features(
        streams=[torch.tensor([[[5.0, 3.0], [-7.0, 9.0], [9.0, 1.0], [0.0, 100.0], [2.0, 4.0]]])]
    )
    # Whitened, the teacher's class token is (1, -1), and its patches are (-1, 1), (1, -1), (-1, 1)
    # and (-1, 1).
    patches, token = ((1 + 0) + (1 + 1) + (1 + 1) + (3 + 1)) / 8, (1 / 4 + (3 - 1)) / 2
    assert loss(given, target)["tokens"].item() == pytest.approx(patches + token, abs=1e-4)


def test_a_sum_of_losses_trains_the_maps_that_it_needs() -> None:
    student, teacher = models()
    spec = make_tiny_ancestry(classes=3).spec
    tokens = TokenLoss(spec, spec, 0)
    objective = Distilled(
        Classification(student),
        student,
        Teacher(teacher),
        LossSum([(1.0, make_logits_loss()), (8.0, tokens)]),
        (0.5, 0.25),
    )
    losses = objective(batch())
    assert set(losses) == {"cross_entropy", "distillation", "tokens"}
    with record_features(student) as features, record_features(teacher) as target:
        student(batch().inputs), teacher(batch().inputs)
    assert losses["tokens"].item() == pytest.approx(
        0.25 * 8 * tokens(features, target)["tokens"].item(), rel=1e-5
    )
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in tokens.parameters())
    assert {id(item) for item in tokens.parameters()} < {
        id(item) for item in objective.parameters()
    }


def test_tokens_of_other_patches_cannot_be_compared() -> None:
    spec = make_tiny_ancestry().spec
    with pytest.raises(WrongCall, match=r"patches and the student into .* tokens 0"):
        TokenLoss(spec, spec.with_(image_size=2 * spec.image_size), 0)


@pytest.mark.parametrize("softness", ["soft", "hard"])
def test_logits_of_other_patches_cannot_be_compared(softness: Any) -> None:
    student, teacher = (Features(answers=[torch.zeros(2, patches, 3)]) for patches in (16, 4))
    with pytest.raises(WrongCall, match="with the same classes and patches"):
        make_logits_loss(softness)(student, teacher)


# --- where the teacher comes from
# -------------------------------------------------------------------------------------


def test_an_ancestry_of_the_task_teaches_as_it_is() -> None:
    ancestry = replace(make_tiny_ancestry(classes=3), class_names=make_tiny_task().class_names)
    teacher, record = train_teacher(ancestry, make_tiny_task(), BRIEF, Run())
    assert record == {}
    assert (teacher.task, teacher.class_names) == ("tiny", make_tiny_task().class_names)
    assert all(torch.equal(teacher.state[name], ancestry.state[name]) for name in ancestry.state)


@pytest.mark.parametrize(
    "names", [(), ("x", "y", "z"), tuple(reversed(make_tiny_task().class_names))]
)
def test_one_of_other_classes_is_fine_tuned_however_many_they_are(names: tuple[str, ...]) -> None:
    ancestry = replace(make_tiny_ancestry(classes=3), class_names=names)
    assert train_teacher(ancestry, make_tiny_task(), BRIEF, Run())[1]["training_images"] == 16


def test_one_of_another_task_is_fine_tuned_whole_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ancestry, run = make_tiny_ancestry(), Run(folder=tmp_path / "run", resume=True)
    before = {name: tensor.clone() for name, tensor in ancestry.state.items()}
    recipe = replace(BRIEF, lr=1e-5)
    teacher, record = train_teacher(ancestry, make_tiny_task(), recipe, run)
    assert record["training_images"] == 16
    assert record["kept_epoch"] == 1
    assert "test_accuracy" not in record
    assert teacher.spec == ancestry.spec.with_(classes=3)
    assert not torch.equal(
        teacher.state["blocks.0.mlp.fc1.weight"], before["blocks.0.mlp.fc1.weight"]
    )
    assert all(torch.equal(ancestry.state[name], before[name]) for name in before)
    monkeypatch.setattr(
        distillation, "tune", lambda *args, **settings: pytest.fail("it is trained already")
    )
    again, metrics = train_teacher(ancestry, make_tiny_task(), recipe, run)
    assert metrics == record
    assert all(torch.equal(again.state[name], teacher.state[name]) for name in teacher.state)


def test_runs_that_share_parts_train_one_teacher_for_each_recipe(tmp_path: Path) -> None:
    trained: list[Run] = []

    def counted(*args: Any, **settings: Any) -> object:
        trained.append(args[-1])
        return original(*args, **settings)

    original = distillation.tune
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distillation, "tune", counted)
        first, second = (Run(folder=tmp_path / name, shared=tmp_path / "shared") for name in "ab")
        teachers = [
            train_teacher(make_tiny_ancestry(), make_tiny_task(), BRIEF, run)[0]
            for run in (first, second)
        ]
        assert len(trained) == 1
        assert torch.equal(teachers[0].state["head.weight"], teachers[1].state["head.weight"])
        train_teacher(make_tiny_ancestry(seed=1), make_tiny_task(), BRIEF, second)
        train_teacher(make_tiny_ancestry(), make_tiny_task(), replace(BRIEF, lr=1e-2), second)
        train_teacher(make_tiny_ancestry(), make_tiny_task(), BRIEF, replace(second, seed=1))
    assert len(trained) == 4


def test_it_starts_from_a_ridge_regression_and_is_never_worse_than_that() -> None:
    """At a rate that destroys the weights, the model before training is kept."""
    (start, _), (kept, record) = (
        train_teacher(
            make_tiny_ancestry(), make_tiny_task(), replace(BRIEF, epochs=epochs, lr=lr), Run()
        )
        for epochs, lr in ((0, 1e-3), (2, 10.0))
    )
    assert start.state["head.weight"].std() > 0.05  # timm's random heads have 0.01
    assert record["kept_epoch"] == 0
    names = [name for name in start.state if not name.startswith("head.")]
    assert all(torch.equal(kept.state[name], start.state[name]) for name in names)
    # The head of a model that was not trained has the calibrated scale for either rate.
    torch.testing.assert_close(kept.state["head.weight"], start.state["head.weight"])


def test_without_epochs_it_is_the_ancestry_with_the_head_that_fits() -> None:
    """As for weights whose classes have no names: the head is kept if its number of classes fits."""
    teacher, _ = train_teacher(
        make_tiny_ancestry(classes=3), make_tiny_task(), replace(BRIEF, epochs=0), Run()
    )
    assert all(
        torch.equal(teacher.state[name], tensor)
        for name, tensor in make_tiny_ancestry(classes=3).state.items()
    )
