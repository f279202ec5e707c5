"""Losses of attributes: by number, missing values ignored, learnt, and incompatible augmentations
refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.nn import functional
from training_toy import check_split

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.errors import BadData, TrainingFailed, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.loader import Batch, Loader
from learngene_zoo.tasks.task import Attribute, Samples, Task
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.fit import check_progress, fit
from learngene_zoo.training.loop import Step, train
from learngene_zoo.training.objectives import (
    CLASS_LOSS,
    ClassAndAttributes,
    Classification,
    compute_attribute_loss,
    load_training_images,
    make_objective,
)

NAN = math.nan
SPEC = ViTSpec(layers=1, width=24, heads=2, classes=4, image_size=8, patch_size=4)
RECIPE = Recipe(epochs=16, batch_size=32, lr=5e-3, augment="none")
STRIPES, LIGHT = Attribute("stripes", classes=3), Attribute("light")


class Cloths:
    """Images whose class is a colour (red, green, blue, white); stripes and lightness are
    attributes.
    """

    labels = np.arange(192) % 4

    def __len__(self) -> int:
        return 192

    def __getitems__(self, indices: Sequence[int]) -> Samples:
        index = torch.as_tensor(list(indices))
        stripes, light = index // 4 % 3, (index // 12 % 8).float() / 4 - 1
        colours = torch.cat([torch.eye(3), torch.ones(1, 3)])[index % 4]
        dark = torch.zeros(3, 8, 8)
        dark[1, ::2], dark[2, :, ::2] = 1, 1
        images = (
            colours[:, :, None, None]
            * (150 + 100 * light[:, None, None, None])
            * (1 - dark[stripes])[:, None]
        )
        stripes_known = torch.where(
            index % 5 == 0, NAN, stripes.float()
        )  # not known of every cloth
        return Samples(
            images.to(torch.uint8), attributes=torch.stack([stripes_known, light], dim=1)
        )


TASK = Task(
    name="cloths",
    title="Cloths",
    classes=4,
    class_names=tuple("abcd"),
    image_size=8,
    attributes=(STRIPES, LIGHT),
    sizes={"train": 192, "validation": 192, "test": 192},
    open_split=lambda name: Cloths(),
)


def model(seed: int = 0) -> VisionTransformer:
    torch.set_num_threads(1)
    return assemble(SPEC, {}, seed=seed, scheme="fan_in").model()


def batch(attributes: torch.Tensor | None) -> Any:
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return SimpleNamespace(inputs=images, labels=torch.tensor([1, 3]), attributes=attributes)


# --- the losses
# --------------------------------------------------------------------------------------------------


def test_a_category_and_a_number_by_hand() -> None:
    answers = torch.tensor([[0.0, 0.0], [math.log(3), 0.0], [5.0, 1.0]])
    assert compute_attribute_loss(answers, torch.tensor([1.0, 0.0, NAN])).item() == pytest.approx(
        (math.log(2) + math.log(4 / 3)) / 2
    )
    assert (
        compute_attribute_loss(
            torch.tensor([[1.0], [7.0], [-2.0]]), torch.tensor([0.0, NAN, -4.0])
        ).item()
        == 2.5
    )


@pytest.mark.parametrize("outputs", [1, 3])
def test_an_attribute_that_no_image_has_costs_nothing_and_moves_nothing(outputs: int) -> None:
    answers = torch.randn(4, outputs, requires_grad=True)
    loss = compute_attribute_loss(answers, torch.full((4,), NAN))
    loss.backward()
    assert loss.item() == 0.0
    assert answers.grad is not None
    assert torch.equal(answers.grad, torch.zeros(4, outputs))


def test_a_missing_value_sends_no_gradient_to_its_image() -> None:
    answers = torch.randn(3, 2, requires_grad=True)
    compute_attribute_loss(answers, torch.tensor([0.0, NAN, 1.0])).backward()
    assert answers.grad is not None
    assert answers.grad[1].abs().sum() == 0
    assert answers.grad[0].abs().sum() > 0


def test_class_and_attributes_come_from_one_pass_and_are_summed() -> None:
    vit = model()
    objective = ClassAndAttributes(vit, TASK.attributes, label_smoothing=0.1, weight=0.5, seed=3)
    given = batch(torch.tensor([[2.0, 0.5], [NAN, -1.0]]))
    losses = objective(given)
    assert list(losses) == [CLASS_LOSS, "attributes/stripes", "attributes/light"]
    plain = Classification(vit, 0.1)(given)[CLASS_LOSS]
    torch.testing.assert_close(losses[CLASS_LOSS], plain)
    pooled = vit.forward_head(vit.forward_features(given.inputs), pre_logits=True)
    answers = functional.linear(pooled, objective.reader.weight, objective.reader.bias)
    torch.testing.assert_close(
        losses["attributes/stripes"],
        0.5 * functional.cross_entropy(answers[:1, :3], torch.tensor([2])),
    )
    torch.testing.assert_close(
        losses["attributes/light"],
        0.5 * (answers[:, 3] - torch.tensor([0.5, -1.0])).square().mean(),
    )


def test_what_reads_the_attributes_is_a_function_of_the_seed() -> None:
    first, same, other = (
        ClassAndAttributes(model(), TASK.attributes, seed=seed).reader for seed in (1, 1, 2)
    )
    assert torch.equal(first.weight, same.weight)
    assert not torch.equal(first.weight, other.weight)
    assert first.weight.std().item() == pytest.approx(24**-0.5, rel=0.3)
    assert first.bias.abs().max() == 0


def test_the_objective_follows_the_task() -> None:
    assert isinstance(make_objective(TASK, model(), RECIPE, 0), ClassAndAttributes)
    assert isinstance(
        make_objective(replace(TASK, attributes=()), model(), RECIPE, 0), Classification
    )
    with pytest.raises(ValueError, match="no attributes"):
        make_objective(TASK, model(), RECIPE, 0)(batch(None))


# --- training
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_attributes_are_learnt_and_only_the_class_is_judged() -> None:
    vit = model()
    objective = make_objective(TASK, vit, RECIPE, 0)
    steps = list(
        train(
            objective, load_training_images(TASK, TASK.input_format, RECIPE, Run()), RECIPE, Run()
        )
    )
    assert steps[0].losses["attributes/stripes"] > 0.8
    assert steps[-1].losses["attributes/stripes"] < 0.3
    assert steps[-1].losses["attributes/light"] < 0.5 * steps[0].losses["attributes/light"]
    judged = evaluate(vit, TASK, "test", TASK.input_format, Run())
    assert (judged.metric, judged.images) == ("accuracy", 192)
    assert judged.value > 0.5  # a guess is right in a quarter


def test_what_is_kept_of_a_training_is_the_model_alone() -> None:
    start = assemble(SPEC, {}, seed=0, scheme="fan_in")
    trained = fit(start, TASK, replace(RECIPE, epochs=1), Run())
    assert list(trained.state) == list(start.state)
    assert trained.provenance["metrics"]["validation_images"] == 192


def test_pieces_of_a_batch_and_workers_carry_the_attributes() -> None:
    recipe = replace(RECIPE, epochs=1, accumulate=4)
    run = Run(workers=1)
    steps = list(
        train(
            make_objective(TASK, model(), recipe, 0),
            load_training_images(TASK, TASK.input_format, recipe, run),
            recipe,
            run,
        )
    )
    assert len(steps) == 6
    assert all(
        set(step.losses) == {CLASS_LOSS, "attributes/stripes", "attributes/light"} for step in steps
    )


def test_pieces_of_a_batch_have_its_gradient() -> None:
    table = torch.tensor([[0, 1], [NAN, 2], [NAN, NAN], [1, NAN], [NAN, NAN], [2, -1.0]])
    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    given = Batch(images, torch.arange(6) % 4, torch.arange(6), table)
    names = (CLASS_LOSS, "attributes/stripes", "attributes/light")
    check_split(ClassAndAttributes(model(), TASK.attributes, weight=0.5), given, *names)


def test_the_guard_looks_at_the_class_whatever_else_is_summed() -> None:
    def steps(class_loss: float, other: float) -> Any:
        for number in range(1, 101):
            losses = {CLASS_LOSS: class_loss, "attributes/light": other}
            yield Step(epoch=0, step=number, steps=100, losses=losses, lr=0.1, end_of_epoch=False)

    with pytest.raises(TrainingFailed, match="guessing among 10"):
        list(check_progress(steps(math.log(10), 3.0), 10))
    assert len(list(check_progress(steps(math.log(10) - 0.5, 0.5), 10))) == 100


# --- what is refused
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", ["light", "rand"])
def test_images_are_not_moved_away_from_what_is_said_of_them(augment: str) -> None:
    with pytest.raises(
        WrongCall, match=f"the augmentation {augment} would change; use augment=.none."
    ):
        load_training_images(TASK, TASK.input_format, replace(RECIPE, augment=augment), Run())


@pytest.mark.parametrize("mixing", [{"mixup": 0.2}, {"cutmix": 1.0}])
def test_images_with_attributes_are_not_mixed(mixing: dict[str, float]) -> None:
    with pytest.raises(WrongCall, match="cannot mix the attributes of cloths"):
        load_training_images(TASK, TASK.input_format, replace(RECIPE, **mixing), Run())


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (None, "got none"),
        (torch.zeros(4, 3), "of shape \\(4, 3\\)"),
        (
            torch.tensor([[0.0, 0.0]] * 3 + [[3.0, 0.0]]),
            "image 3 of cloths has stripes 3.0; expected one of 0 to 2",
        ),
        (torch.tensor([[-1.0, 0.0]] * 4), "has stripes -1.0"),
        (torch.tensor([[0.5, 0.0]] * 4), "has stripes 0.5"),
        (
            torch.tensor([[0.0, math.inf]] * 4),
            "image 0 of cloths has light inf; expected a finite number",
        ),
    ],
)
def test_attributes_that_do_not_fit_the_task_are_bad_data(
    attributes: torch.Tensor | None, message: str
) -> None:
    class Wrong(Cloths):
        labels = np.arange(4)

        def __len__(self) -> int:
            return 4

        def __getitems__(self, indices: Sequence[int]) -> Samples:
            return Samples(super().__getitems__(indices).images, attributes=attributes)

    wrong = replace(TASK, open_split=lambda name: Wrong())
    with pytest.raises(BadData, match=message):
        next(Loader(wrong, "train", wrong.input_format, batch_size=4).epoch(0))


def test_a_recipe_that_shows_nothing_may_name_any_augmentation() -> None:
    images = load_training_images(
        TASK, TASK.input_format, replace(RECIPE, epochs=0, augment="light"), Run()
    )
    assert images.images == len(TASK.split("train"))
