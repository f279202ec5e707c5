"""mIoU at the original resolution: windows cover an image, and the counts can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_segmentation import COUNT, SPEC, Blobs, task
from torch import nn

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.errors import BadData, TrainingFailed, WrongCall
from learngene_zoo.families.picture_format import InputFormat, View
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import Samples
from learngene_zoo.training import original
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.original import (
    average_windows,
    evaluate_originals,
    predict_classes,
    starts,
)

VIEW = InputFormat(image_size=16, mean=(0.0,) * 3, std=(1 / 255,) * 3)
SIZES = ((24, 16), (16, 40), (50, 37), (16, 16))


class Lightness(nn.Module):
    """Predicts the class of every pixel of `Blobs` except at borders; lighter is higher.

    The score is not linear in the lightness.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        light = images[:, :1] / 100
        return -(light - torch.arange(3.0)[:, None, None]).abs()


def test_windows_cover_a_length_evenly() -> None:
    assert starts(16, 16) == [0]
    assert starts(17, 16) == [0, 1]
    assert starts(40, 16) == [0, 12, 24]
    for length in range(16, 80):
        covered = {index for first in starts(length, 16) for index in range(first, first + 16)}
        assert covered == set(range(length))


def test_a_strip_whose_logits_would_not_fit_into_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = task(Blobs(((16, 16), (16, 40))))
    monkeypatch.setattr(original, "MAX_RESIZED_LOGITS", 16 * 40 * 3)
    evaluate_originals(Lightness(), data, "test", VIEW, Run(), images=2)
    monkeypatch.setattr(original, "MAX_RESIZED_LOGITS", 16 * 40 * 3 - 1)
    with pytest.raises(BadData, match=r"image 1 of .* is 40 x 16 pixels, too large for 3 classes"):
        evaluate_originals(Lightness(), data, "test", VIEW, Run(), images=2)


def test_pictures_of_the_model_s_size_count_as_they_do_resized() -> None:
    model = assemble(SPEC, {}, seed=0).model()
    resized = evaluate(model, task(), "test", VIEW, Run())
    full = evaluate_originals(model, task(), "test", VIEW, Run())
    assert full == replace(resized, resolution="original")
    assert (resized.metric, resized.resolution, full.images) == ("mIoU", "resized", COUNT)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_model_that_knows_every_pixel_is_nearly_right_at_any_size(workers: int) -> None:
    data = task(Blobs(SIZES))
    result = evaluate_originals(Lightness(), data, "test", VIEW, Run(workers=workers))
    assert result.value > 0.85
    ignored = evaluate_originals(
        Lightness(), data, "test", replace(VIEW, view=View(crop_mode="squash")), Run()
    )
    assert ignored.value > 0.8


class Wide:
    """One image whose left and right ends, outside the centre crop, are of class 1."""

    labels = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return 1

    def __getitems__(self, indices: Sequence[int]) -> Samples:
        mask = torch.zeros(16, 64, dtype=torch.uint8)
        mask[:, :16] = mask[:, -16:] = 1
        return Samples([(mask * 100).expand(3, -1, -1)], masks=[mask])


def test_what_a_crop_leaves_out_counts() -> None:
    class Nothing(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(
                len(images), 3, *images.shape[-2:]
            )

    data = task(Wide())
    assert (
        evaluate(Nothing(), data, "test", VIEW, Run()).value == 1.0
    )  # the centre shows class 0 alone
    assert evaluate_originals(Nothing(), data, "test", VIEW, Run()).value == pytest.approx(
        (0.5 + 0) / 2
    )
    assert evaluate_originals(Lightness(), data, "test", VIEW, Run()).value == 1.0


def test_logits_are_averaged_where_windows_overlap() -> None:
    image = torch.zeros(3, 16, 24, dtype=torch.uint8)
    seen = iter((1.0, 3.0))

    def model(images: torch.Tensor) -> torch.Tensor:
        return torch.full((1, 2, 16, 16), next(seen))

    logits, finite = average_windows(model, image, VIEW, torch.device("cpu"))
    assert logits[0, 0].tolist() == [1.0] * 8 + [2.0] * 8 + [3.0] * 8
    assert finite


def test_classes_are_enlarged_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 5, 6, generator=torch.Generator().manual_seed(0))
    full = predict_classes(logits, torch.Size((31, 44)))
    large = nn.functional.interpolate(
        logits[None], size=(31, 44), mode="bilinear", align_corners=False
    )[0]
    assert torch.equal(full, large.argmax(dim=0))
    monkeypatch.setattr(original, "MAX_LOGITS", 2 * 31 * 44)
    assert torch.equal(predict_classes(logits, torch.Size((31, 44))), full)


def test_processes_share_the_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(original, "join", lambda device: None)
    rows = []
    monkeypatch.setattr(original, "gather_values", lambda marks: rows.append(marks) or [marks])
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        evaluate_originals(Lightness(), task(Blobs(SIZES)), "test", VIEW, Run(), images=7)
    assert [[index for _, index, _, _ in marks] for marks in rows] == [[0, 2, 4, 6], [1, 3, 5]]


def test_the_verb_says_what_it_counts(tmp_path: Path) -> None:
    scenes = open_task("scenes")
    spec = SPEC.with_(classes=scenes.classes, image_size=32, patch_size=16, width=8)
    model = assemble(spec, {}, seed=0, task="scenes", class_names=scenes.class_names)
    small = replace(scenes, open_split=lambda name: _First(scenes.split(name)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, offline: small)
        resized, original = (
            lifecycle.evaluate(model, resolution=name) for name in ("resized", "original")
        )
    assert (resized.resolution, original.resolution, original.images) == ("resized", "original", 6)
    assert original.value == resized.value  # scenes are drawn in the model's size


class _First:
    labels = np.zeros(6, dtype=np.int64)

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return 6

    def __getitems__(self, indices: Sequence[int]) -> Samples:
        return self.inner.__getitems__(indices)  # type: ignore[attr-defined, no-any-return]


def test_faults() -> None:
    with pytest.raises(
        WrongCall, match="digits has one class per image, and the original resolution needs"
    ):
        evaluate_originals(Lightness(), open_task("digits"), "test", VIEW, Run())

    class Torn(Wide):
        def __getitems__(self, indices: Sequence[int]) -> Samples:
            raise BadData("it is torn")

    with pytest.raises(BadData, match="it is torn"):
        evaluate_originals(Lightness(), task(Torn()), "test", VIEW, Run())

    class Broken(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.full((1, 3, 16, 16), float("nan"))

    with pytest.raises(TrainingFailed, match="not finite for 1 of 1 images"):
        evaluate_originals(Broken(), task(Wide()), "test", VIEW, Run())
