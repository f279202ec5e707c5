"""Segmentation: masks that are transformed with their images, losses and metrics counted by hand,
and the verbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from training_toy import Pixels, check_split, draw_masks

from learngene_zoo import lifecycle, torch_hub
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.checks import list_members
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.loader import Batch, Loader, StepShare
from learngene_zoo.tasks.task import IGNORED, Samples, Task
from learngene_zoo.tasks.transforms import fit_masks
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.fit import fit
from learngene_zoo.training.objectives import (
    CLASS_LOSS,
    Accuracy,
    MeanIoU,
    Segmentation,
    choose_metric,
    load_training_images,
    make_objective,
)
from learngene_zoo.training.tuning import tune

SPEC = ViTSpec(layers=1, width=24, heads=2, classes=3, image_size=16, patch_size=4, dense=True)
COUNT = 36


class Blobs:
    """Images with a disc of class 1 or 2 on class 0, lighter for higher classes, with an ignored
    rim.

    The images' sizes may differ.
    """

    labels = np.zeros(COUNT, dtype=np.int64)

    def __init__(self, shapes: Sequence[tuple[int, int]] = ((16, 16),)) -> None:
        self.shapes = shapes

    def __len__(self) -> int:
        return COUNT

    def __getitems__(self, indices: Sequence[int]) -> Samples:
        masks = [self._mask(index) for index in indices]
        images = [
            torch.where(mask == IGNORED, 60, mask * 100).to(torch.uint8).expand(3, -1, -1)
            for mask in masks
        ]
        if len(self.shapes) == 1 and masks:
            return Samples(torch.stack(images), masks=torch.stack(masks))
        return Samples(images, masks=masks)

    def _mask(self, index: int) -> torch.Tensor:
        height, width = self.shapes[index % len(self.shapes)]
        draws = np.random.default_rng(index).uniform(0.25, 0.75, 2)
        down, across = (
            torch.arange(height)[:, None] / height - draws[0],
            torch.arange(width) / width - draws[1],
        )
        far = (down.square() + across.square()).sqrt()
        mask = torch.where(far < 0.25, 1 + index % 2, 0)
        return torch.where((far - 0.25).abs() < 0.03, IGNORED, mask).to(torch.uint8)


def task(split: Any = None, **changes: Any) -> Task:
    full = Task(
        name="blobs",
        title="Blobs",
        kind="segmentation",
        classes=3,
        class_names=("none", "dim", "bright"),
        image_size=16,
        flip=True,
        sizes={"train": COUNT, "validation": COUNT, "test": COUNT},
        open_split=lambda name: split or Blobs(),
    )
    return replace(full, **changes)


def loader(given: Task, **changes: Any) -> Loader:
    settings: dict[str, Any] = {"batch_size": 12, "seed": 3, "shuffle": True, "augment": "light"}
    return Loader(given, "train", given.input_format, **{**settings, **changes})


def start(**changes: Any) -> Descendant:
    torch.set_num_threads(1)
    return assemble(SPEC.with_(**changes), {}, seed=0, scheme="fan_in")


def shades(batch: Batch) -> torch.Tensor:
    """Return the first channel before normalisation."""
    return (batch.inputs[:, 0] * 127.5 + 127.5).round()


def follows(batch: Batch) -> float:
    """Return the share of counted pixels whose shade matches their class."""
    counted = batch.labels != IGNORED
    return ((shades(batch) - 100 * batch.labels).abs()[counted] < 50).float().mean().item()


# --- masks through the loader
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", ["none", "light"])
@pytest.mark.parametrize(
    "shapes", [((16, 16),), ((24, 16), (40, 64), (16, 16))], ids=["equal", "other"]
)
def test_masks_follow_their_images(augment: str, shapes: Any) -> None:
    for batch in loader(task(Blobs(shapes)), augment=augment).epoch(1):
        assert (batch.labels.dtype, tuple(batch.labels.shape)) == (torch.int64, (12, 16, 16))
        assert set(batch.labels.unique().tolist()) <= {0, 1, 2, IGNORED}
        assert follows(batch) > (0.99 if len(shapes) == 1 else 0.96)


def test_a_shift_moves_both_and_changes_from_epoch_to_epoch() -> None:
    data = task()
    first, second = (
        torch.cat([b.labels for b in loader(data, shuffle=False).epoch(e)]) for e in (0, 1)
    )
    assert (first != second).flatten(1).any(dim=1).float().mean() > 0.9
    still = torch.cat([b.labels for b in loader(data, shuffle=False, augment="none").epoch(0)])
    assert (first != still).flatten(1).any(dim=1).float().mean() > 0.8


def test_crops_and_turns_move_both_and_colours_leave_the_mask() -> None:
    agreed = []
    for epoch in range(4):
        for batch in loader(task(Blobs(((24, 24), (20, 32)))), augment="rand").epoch(epoch):
            assert set(batch.labels.unique().tolist()) <= {0, 1, 2, IGNORED}
            # Colours have changed: what stays is that the disc and what is behind it differ.
            for shade, mask in zip(shades(batch), batch.labels):
                inside, outside = shade[(mask == 1) | (mask == 2)], shade[mask == 0]
                if len(inside) > 8 and len(outside) > 8:
                    middle = (inside.median() + outside.median()) / 2
                    lighter = inside.median() > outside.median()
                    right = torch.cat([(inside > middle) == lighter, (outside > middle) != lighter])
                    agreed.append(right.float().mean().item())
    assert len(agreed) > 80
    assert np.mean(agreed) > 0.95


@pytest.mark.parametrize("augment", ["light", "rand"])
def test_pixels_depend_on_neither_batch_size_nor_workers(augment: str) -> None:
    def everything(**changes: Any) -> dict[int, tuple[bytes, bytes]]:
        batches = loader(task(), augment=augment, **changes).epoch(2)
        full = (zip(batch.indices, batch.inputs, batch.labels) for batch in batches)
        return {
            int(i): (x.numpy().tobytes(), y.numpy().tobytes()) for part in full for i, x, y in part
        }

    before = torch.random.get_rng_state()
    alone = everything()
    assert torch.equal(before, torch.random.get_rng_state())
    assert alone == everything(batch_size=9, workers=1)
    assert len(alone) == COUNT


def test_a_mask_is_resized_by_taking_what_lies_nearest() -> None:
    mask = torch.tensor(
        [[0, 0, 2, 2], [0, 0, 2, 2], [1, 1, 255, 255], [1, 1, 255, 255]], dtype=torch.uint8
    )
    assert fit_masks(mask[None], 2).tolist() == [[[0, 2], [1, 255]]]
    assert fit_masks(mask[None], 8)[0, ::2, ::2].tolist() == mask.tolist()
    assert fit_masks([mask[:2], mask[:, :2]], 2).tolist() == [[[0, 2], [0, 2]], [[0, 0], [1, 1]]]


def test_a_process_without_an_image_of_a_batch_gets_an_empty_one() -> None:
    batch = loader(task(Blobs(((24, 16), (16, 24)))))._dataset.batch(StepShare(0, [], [], []))
    assert (tuple(batch.inputs.shape), tuple(batch.labels.shape)) == ((0, 3, 16, 16), (0, 16, 16))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s._replace(masks=None), "have no masks"),
        (
            lambda s: s._replace(masks=s.masks + 3),
            r"the mask of image \d+ of blobs holds \d+; expected 0 to 2",
        ),
        (
            lambda s: s._replace(masks=s.masks[:, :8]),
            r"image \d+ of blobs has 16 x 16 pixels and its mask 8 x 16",
        ),
        (
            lambda s: Samples(list(s.images), masks=list(s.masks + 3)),
            "or 255 for ignored pixels",
        ),
    ],
    ids=["none", "values", "shape", "list"],
)
def test_masks_that_do_not_fit_are_bad_data(spoil: Any, message: str) -> None:
    class Spoilt(Blobs):
        def __getitems__(self, indices: Sequence[int]) -> Samples:
            samples: Samples = spoil(super().__getitems__(indices))
            return samples

    with pytest.raises(BadData, match=message):
        next(loader(task(Spoilt())).epoch(0))


@pytest.mark.parametrize("mixing", [{"mixup": 0.2}, {"cutmix": 1.0}])
def test_masks_are_not_mixed(mixing: dict[str, float]) -> None:
    with pytest.raises(WrongCall, match="cannot mix the masks of blobs"):
        load_training_images(task(), task().input_format, Recipe(**mixing), Run())


# --- the loss
# --------------------------------------------------------------------------------------------------


def test_the_loss_is_the_mean_over_the_pixels_that_count() -> None:
    logits = torch.randn(2, 3, 4, 4)
    labels = torch.randint(3, (2, 4, 4))
    labels[0, :2] = IGNORED
    loss = Segmentation(nn.Identity(), label_smoothing=0.1)(
        SimpleNamespace(inputs=logits, labels=labels)
    )[CLASS_LOSS]
    pixels, told = logits.permute(0, 2, 3, 1).reshape(-1, 3), labels.flatten()
    counted = told != IGNORED
    torch.testing.assert_close(
        loss, functional.cross_entropy(pixels[counted], told[counted], label_smoothing=0.1)
    )


def test_a_batch_in_which_nothing_counts_costs_nothing() -> None:
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    given = SimpleNamespace(inputs=logits, labels=torch.full((2, 4, 4), IGNORED))
    loss = Segmentation(nn.Identity())(given)[CLASS_LOSS]
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_the_objective_follows_the_task() -> None:
    model = start().model()
    assert isinstance(make_objective(task(), model, Recipe(), 0), Segmentation)


# --- the metric
# --------------------------------------------------------------------------------------------------


def test_mean_intersection_over_union_by_hand() -> None:
    meant = torch.tensor([[[0, 0], [1, IGNORED]], [[0, 1], [1, 1]]])
    given = torch.tensor([[[0, 1], [1, 2]], [[0, 0], [1, 1]]])
    metric = MeanIoU(4)
    rows = metric.rows(functional.one_hot(given, 4).permute(0, 3, 1, 2).float(), meant)
    assert rows.tolist() == [[1, 1, 0, 0, 2, 2, 0, 0], [1, 2, 0, 0, 2, 3, 0, 0]]
    # Class 0: 2 of 4, class 1: 3 of 5; classes 2 and 3 are nowhere, as the pixel that was given 2
    # does not count.
    assert metric.value(rows.sum(dim=0).numpy(), 2) == pytest.approx((2 / 4 + 3 / 5) / 2)


def test_a_class_that_is_only_given_counts_as_wrong() -> None:
    rows = MeanIoU(2).rows(
        torch.tensor([[[[0.0, 1.0]], [[1.0, 0.0]]]]), torch.zeros(1, 1, 2, dtype=torch.long)
    )
    assert MeanIoU(2).value(rows.sum(dim=0).numpy(), 1) == pytest.approx((1 / 2 + 0) / 2)


def test_its_interval_is_as_wide_as_images_differ_and_always_the_same() -> None:
    metric = MeanIoU(2)
    same = np.tile([3, 5, 4, 8], (30, 1))
    assert metric.interval(same) == pytest.approx((metric.value(same.sum(axis=0), 30),) * 2)
    draws = np.random.default_rng(0).integers(0, 9, (200, 2))
    other = np.concatenate([draws, np.full((200, 2), 8)], axis=1)
    low, high = metric.interval(other)
    assert low < metric.value(other.sum(axis=0), 200) < high
    assert high - low == pytest.approx(
        2 * 1.96 * (draws.mean(axis=1) / 8).std() / 200**0.5, rel=0.15
    )
    assert metric.interval(other) == (low, high)


def test_the_metric_follows_the_task() -> None:
    assert isinstance(choose_metric(task()), MeanIoU)
    assert isinstance(choose_metric(task(kind="classification")), Accuracy)
    assert (MeanIoU(150).batch_size(512), MeanIoU(6).batch_size(32)) == (1, 256)


class Reader(nn.Module):
    """Predicts each pixel's class from its shade, but takes bright pixels of every second row for
    dim ones.
    """

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        classes = ((images_BCHW[:, 0] * 127.5 + 127.5) / 100).round().long()
        rows = torch.arange(classes.shape[1])[:, None] % 2 == 0
        classes = torch.where((classes == 2) & rows, 1, classes)
        return functional.one_hot(classes, 3).permute(0, 3, 1, 2).float()


@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_an_evaluation_counts_every_pixel_once(batch_size: int | None) -> None:
    data = task()
    masks = Blobs().__getitems__(range(COUNT)).masks
    assert isinstance(masks, torch.Tensor)
    even = (torch.arange(16) % 2 == 0)[:, None].expand(COUNT, -1, -1)
    dim, bright, lost = ((m).sum().item() for m in (masks == 1, masks == 2, (masks == 2) & even))
    evaluation = evaluate(Reader(), data, "test", data.input_format, Run(), batch_size=batch_size)
    assert (evaluation.metric, evaluation.images, evaluation.correct) == ("mIoU", COUNT, ())
    assert evaluation.value == pytest.approx(
        (1 + dim / (dim + lost) + (bright - lost) / bright) / 3
    )
    assert evaluation.interval[0] < evaluation.value < evaluation.interval[1]


# --- training and the verbs
# -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dense_model_learns() -> None:
    trained = fit(
        start(),
        task(),
        Recipe(epochs=12, batch_size=6, lr=5e-3, augment="light"),
        Run(),
        guard=True,
    )
    metrics = trained.provenance["metrics"]
    assert metrics["validation_mIoU"] > 0.6
    assert trained.spec.dense
    assert (trained.task, trained.class_names) == ("blobs", ("none", "dim", "bright"))


def test_the_epochs_of_a_fine_tuning_have_the_mean_iou() -> None:
    trained = tune(start(), task(), Recipe(epochs=1, batch_size=12, augment="light"), Run())
    metrics: Any = trained.provenance["metrics"]
    assert "validation_accuracy" not in metrics
    assert metrics["validation_mIoU"] in [row["validation_mIoU"] for row in metrics["history"]]
    assert "validation mIoU" in trained.files["report.html"]
    assert trained.files["report.html"].count("<svg") == 1  # one epoch has no curve of the loss


def test_pieces_of_a_batch_have_its_gradient() -> None:
    for label_smoothing in (0.0, 0.2):
        check_split(Segmentation(Pixels(), label_smoothing), draw_masks(), CLASS_LOSS)


def test_pieces_of_a_batch_and_operations_of_all_kinds_are_trained_on() -> None:
    recipe = Recipe(
        epochs=1, batch_size=12, accumulate=3, augment="rand", label_smoothing=0.1, ema=0.9
    )
    trained = fit(start(), task(), recipe, Run(workers=1))
    assert 0 <= trained.provenance["metrics"]["validation_mIoU"] <= 1


@pytest.mark.parametrize("changes", [{"dense": False}, {"classes": 4}])
def test_a_model_with_another_head_is_not_trained(changes: dict[str, Any]) -> None:
    with pytest.raises(WrongCall, match="needs a head for 3 classes per pixel"):
        fit(start(**changes), task(), Recipe(epochs=1), Run())


@pytest.mark.slow
def test_a_segmentation_task_makes_a_dense_descendant_and_a_class_task_a_plain_one(
    tmp_path: Path,
) -> None:
    lifecycle.extract("scratch", out=tmp_path / "learngene")
    dense = lifecycle.expand(
        tmp_path / "learngene", layers=1, task="scenes", out=tmp_path / "dense"
    )
    assert (dense.spec.dense, dense.spec.classes) == (True, 6)
    assert dense.model()(torch.zeros(1, 3, 32, 32)).shape == (1, 6, 32, 32)
    assert not lifecycle.expand(tmp_path / "learngene", layers=1, task="digits").spec.dense
    recipe = Recipe(epochs=1, images=32, batch_size=16)
    tuned = lifecycle.finetune(tmp_path / "dense", recipe=recipe, out=tmp_path / "tuned")
    assert (tuned.task, tuned.spec.dense) == ("scenes", True)
    assert lifecycle.finetune(tmp_path / "tuned", task="digits", recipe=recipe).spec.dense is False
    judged = lifecycle.evaluate(tmp_path / "tuned", split="validation")
    assert (judged.metric, judged.images) == ("mIoU", 300)
    with pytest.raises(WrongCall, match="one class per pixel and digits has one per image"):
        lifecycle.evaluate(tmp_path / "tuned", task="digits")


def test_torch_hub_gives_the_head_that_a_task_needs() -> None:
    learngene = lifecycle.extract("scratch")
    images = torch.zeros(1, 3, 32, 32)
    assert torch_hub.build(learngene, "scenes", layers=1)(images).shape == (1, 6, 32, 32)
    assert torch_hub.build(learngene, "digits", layers=1)(images).shape == (1, 10)


def test_a_budget_chooses_among_dense_descendants() -> None:
    learngene = lifecycle.extract("scratch")
    sizes = list_members(
        learngene.config, METHODS.load("scratch").expander, Target(classes=6, dense=True)
    )
    assert all(member.spec.dense for member in sizes)
    price = sorted(member.cost().flops for member in sizes)[2]
    chosen = lifecycle.expand(learngene, task="scenes", max_flops=price)
    assert (chosen.spec.layers, chosen.spec.dense, chosen.cost().flops) == (3, True, price)
