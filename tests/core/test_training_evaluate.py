"""Evaluation: an accuracy that can be counted by hand; the model is not changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from learngene_zoo.errors import BadData, TrainingFailed, WrongCall
from learngene_zoo.intervals import compute_interval
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.loop import train
from learngene_zoo.training.objectives import Classification

CLASSES = 5


class Shades:
    """Image i is uniformly grey with brightness 10 * (i % classes); every third label is off by
    one.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def labels(self) -> np.ndarray:
        index = np.arange(self.size)
        return (index + (index % 3 == 0)) % CLASSES

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices):
        shades = 10 * (torch.as_tensor(list(indices)) % CLASSES)
        return shades.to(torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8).clone()


SIZES = {"train": 40, "validation": 0, "test": 31}
TASK = Task(
    name="shades",
    title="shades of grey",
    classes=CLASSES,
    class_names=tuple("abcde"),
    image_size=8,
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    sizes=SIZES,
    open_split=lambda name: Shades(SIZES[name]),
)


class Reader(nn.Module):
    """Reads the class from the first pixel; in training mode it would answer at random."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.9)
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        shade_B = (images_BCHW[:, 0, 0, 0] * 25.5).round().long()
        return self.weight * self.drop(nn.functional.one_hot(shade_B, CLASSES).float())


@pytest.mark.parametrize("batch_size", [1, 7, 31, 256])
def test_counts_what_is_right_in_the_order_of_the_split(batch_size):
    evaluation = evaluate(Reader(), TASK, "test", TASK.input_format, Run(), batch_size=batch_size)
    assert evaluation.correct == tuple(i % 3 != 0 for i in range(31))
    assert (evaluation.images, evaluation.value) == (31, 20 / 31)
    assert (evaluation.task, evaluation.split, evaluation.metric) == ("shades", "test", "accuracy")
    assert evaluation.interval == compute_interval(20, 31)


def test_a_part_of_the_split():
    assert evaluate(Reader(), TASK, "test", TASK.input_format, Run(), images=10).images == 10


def test_leaves_modes_gradients_and_randomness_alone():
    model = Reader().train()
    model.drop.eval()
    model.weight.grad = torch.tensor(3.0)
    before = torch.get_rng_state()
    evaluate(model, TASK, "test", TASK.input_format, Run())
    assert (model.training, model.drop.training) == (True, False)
    assert model.weight.grad == 3.0
    assert torch.equal(torch.get_rng_state(), before)


def test_bf16():
    assert (
        evaluate(Reader(), TASK, "test", TASK.input_format, Run(precision="bf16")).value == 20 / 31
    )


class Seen(Reader):
    """Records the dtype of its products."""

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        self.kind = (images_BCHW.flatten(1) @ images_BCHW.flatten(1).T).dtype
        return super().forward(images_BCHW)


@pytest.mark.parametrize(("precision", "kind"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_products_are_in_the_runs_precision(precision, kind):
    model = Seen()
    evaluate(model, TASK, "test", TASK.input_format, Run(precision=precision))
    assert model.kind == kind


class Broken(Reader):
    """Returns NaN for the darkest images."""

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        dark_B1 = (images_BCHW[:, 0, 0, 0] == 0)[:, None]
        return super().forward(images_BCHW).masked_fill(dark_B1, float("nan"))


def test_a_few_outputs_that_are_not_finite():
    with pytest.raises(TrainingFailed, match="not finite for 7 of 31 images of shades"):
        evaluate(Broken(), TASK, "test", TASK.input_format, Run())


def test_outputs_that_are_not_finite():
    model = Reader()
    model.weight.data.fill_(float("nan"))
    with pytest.raises(TrainingFailed, match="not finite for 31 of 31 images of shades"):
        evaluate(model.train(), TASK, "test", TASK.input_format, Run())
    assert model.training


def test_no_images_and_no_such_split():
    with pytest.raises((BadData, WrongCall), match="validation"):
        evaluate(Reader(), TASK, "validation", TASK.input_format, Run())
    with pytest.raises(WrongCall, match="testt"):
        evaluate(Reader(), TASK, "testt", TASK.input_format, Run())


def tiny_vit() -> nn.Module:
    import timm

    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=8,
        patch_size=4,
        embed_dim=16,
        num_heads=2,
        depth=2,
        num_classes=CLASSES,
    )


def test_a_vit_learns_from_the_real_loader_and_resumes_exactly(tmp_path):
    task = replace(TASK, sizes=SIZES)
    recipe = Recipe(
        epochs=3,
        batch_size=10,
        lr=3e-3,
        drop_path=0.3,
        mixup=0.2,
        label_smoothing=0.1,
        ema=0.9,
        accumulate=2,
    )

    def objective() -> nn.Module:
        return Classification(tiny_vit(), recipe.label_smoothing)

    def loader() -> Loader:
        return Loader(
            task, "train", task.input_format, batch_size=10, seed=4, shuffle=True, augment="light"
        )

    full, parts = objective(), objective()
    list(train(full, loader(), recipe, Run()))
    run = Run(folder=tmp_path, resume=True)
    for step in train(objective(), loader(), recipe, run, seconds_between_checkpoints=0):
        if step.step == 7:
            break
    rest = list(train(parts, loader(), recipe, run, seconds_between_checkpoints=0))
    assert [step.step for step in rest] == list(range(7, 13))
    for (name, ours), theirs in zip(parts.state_dict().items(), full.state_dict().values()):
        assert torch.equal(ours, theirs), name


def test_evaluating_in_the_body_changes_nothing():
    def fitted(watch: bool) -> nn.Module:
        model = tiny_vit()
        loader = Loader(TASK, "train", TASK.input_format, batch_size=10, seed=4, shuffle=True)
        for step in train(Classification(model), loader, Recipe(epochs=2, drop_path=0.2), Run()):
            if watch and step.end_of_epoch:
                evaluate(model, TASK, "test", TASK.input_format, Run())
        return model

    for first, second in zip(fitted(True).parameters(), fitted(False).parameters()):
        assert torch.equal(first, second)
