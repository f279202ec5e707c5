"""Checks of an exported file against its module, and its record of the preprocessing."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.errors import TrainingFailed
from learngene_zoo.families.picture_format import View
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle import runtimes
from learngene_zoo.lifecycle.runtime_checks import measure_difference


class Logits(nn.Module):
    """A module with two logits for each image; the largest of all is `largest`."""

    def __init__(self, largest: float) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[self.largest, 0.0]]).repeat(len(images), 1)


@pytest.mark.parametrize("largest", [0.25, 1.0, 20.0])
@pytest.mark.parametrize(("dtype", "accepted"), [("fp32", 1e-4), ("fp16", 2e-2)])
def test_a_difference_is_accepted_up_to_a_share_of_the_largest_logit(
    largest: float, dtype: str, accepted: float
) -> None:
    """The share is 1e-4 in fp32 and 2e-2 in fp16; the largest logit counts as at least 1."""
    model, images = Logits(largest), torch.zeros(5, 3, 4, 4)
    for share, is_accepted in ((0.9, True), (1.2, False)):
        far = share * accepted * max(1.0, largest)

        def runner(shown: torch.Tensor, far: float = far) -> torch.Tensor:
            return model(shown) + torch.tensor([0.0, far])

        if is_accepted:
            result = measure_difference(model, runner, images, dtype)  # type: ignore[arg-type]
            assert result == pytest.approx(far)
        else:
            with pytest.raises(
                TrainingFailed, match="logits of the file differ from those of the model by up to"
            ):
                measure_difference(model, runner, images, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "is_wrong", [lambda count: count == 1, lambda count: count == 2, lambda count: count > 2]
)
@pytest.mark.parametrize("wrong", [1.0, float("nan"), float("inf")])
def test_a_file_that_is_wrong_at_one_size_of_a_batch_is_refused(is_wrong, wrong: float) -> None:
    """The sizes are one image, two (the traced size), and more."""
    model = Logits(1.0)

    def runner(shown: torch.Tensor) -> torch.Tensor:
        return model(shown) + wrong * is_wrong(len(shown)) if is_wrong(len(shown)) else model(shown)

    with pytest.raises(TrainingFailed, match="nothing was written"):
        measure_difference(model, runner, torch.zeros(max(runtimes.BATCHES), 3, 4, 4), "fp32")


def test_logits_of_another_shape_are_refused() -> None:
    with pytest.raises(
        TrainingFailed, match=r"another shape than those of the model \(batch of 1\)"
    ):
        measure_difference(
            Logits(1.0), lambda shown: torch.zeros(1, 3), torch.zeros(5, 3, 4, 4), "fp32"
        )


def test_a_file_says_everything_that_preprocessing_needs() -> None:
    spec = ViTSpec(layers=1, width=16, heads=2, image_size=16, patch_size=8, classes=2)
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    view = View(crop_pct=0.5, interpolation="bilinear", crop_mode="squash")
    model = assemble(spec, {}, seed=0, scheme="fan_in", mean=mean, std=std, view=view)
    assert json.loads(runtimes.collect_metadata(model, "fp32")["preprocessing"]) == {
        "input_size": [3, 16, 16],
        "interpolation": "bilinear",
        "crop_pct": 0.5,
        "crop_mode": "squash",
        "mean": list(mean),
        "std": list(std),
    }
