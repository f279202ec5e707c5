"""DeiT's augmentation equals timm's, with a seed for each image; repeated augmentation shows an
image several times in a row.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from streaming_toy import loader, shards
from timm.data import create_transform
from timm.models import create_model

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.picture_format import InputFormat, View
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.deit import _posterize, apply_deit_augmentation, derive_seeds
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.loop import train
from learngene_zoo.training.objectives import Classification, load_training_images

FORMAT = InputFormat(
    image_size=48, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), view=View(crop_pct=0.9)
)


def seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def photographs(count: int) -> list[torch.Tensor]:
    return [
        torch.from_numpy(np.random.default_rng(n).integers(0, 256, (3, 50 + n, 64), np.uint8))
        for n in range(count)
    ]


@pytest.mark.parametrize("flip", [False, True])
def test_it_is_timm_s_transform(flip: bool) -> None:
    images = photographs(8)
    seeds = derive_seeds("deit", 1, 2, range(8))
    arguments: Any = {
        "mean": FORMAT.mean,
        "interpolation": "bicubic",
        "hflip": 0.5 * flip,
        "color_jitter": 0.3,
    }
    theirs = create_transform(
        48, True, auto_augment="rand-m9-mstd0.5-inc1", use_prefetcher=True, **arguments
    )
    ours = apply_deit_augmentation(images, FORMAT, seeds, flip)
    for image, seed, augmented in zip(images, seeds, ours, strict=True):
        seed_generators(seed)
        assert torch.equal(augmented, theirs(Image.fromarray(image.permute(1, 2, 0).numpy())))


def test_posterising_to_no_bits_is_black() -> None:
    """timm sometimes draws 0 bits, which newer versions of PIL refuse."""
    image = Image.fromarray(photographs(1)[0].permute(1, 2, 0).numpy())
    assert np.asarray(_posterize(image, 0)).max() == 0
    assert np.array_equal(
        np.asarray(_posterize(image, 3, fillcolor=(1, 2, 3))), np.asarray(image) & 0xE0
    )


@pytest.fixture
def digits() -> Task:
    return open_task("digits")


def test_a_quarter_of_the_images_is_erased_after_the_normalisation(digits: Task) -> None:
    data = Loader(
        digits, "train", digits.input_format, batch_size=300, images=300, augment="deit", seed=5
    )
    images = next(data.epoch(0)).inputs
    outside = (images.abs() > 1).flatten(1).any(dim=1)  # beyond what a pixel can be: noise
    assert 0.17 < outside.float().mean() < 0.33
    assert images.dtype == torch.float32


def test_a_small_image_is_shifted_by_up_to_four_pixels(digits: Task) -> None:
    full = InputFormat(image_size=32, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    white = [torch.full((3, 32, 32), 255, dtype=torch.uint8)] * 200
    augmented = apply_deit_augmentation(white, full, derive_seeds("deit", 0, 0, range(200)), False)
    assert augmented.shape == (200, 3, 32, 32)
    borders = [int((image[0, 16] == 0).sum()) for image in augmented]
    assert max(borders[n] for n in range(200) if augmented[n].max() == 255) <= 32
    assert sum(border <= 4 for border in borders) > 60


def test_it_refuses_masks() -> None:
    scenes = open_task("scenes")
    with pytest.raises(WrongCall, match="deit does not transform the masks"):
        Loader(scenes, "train", scenes.input_format, batch_size=4, augment="deit")


def rows(batches: Any) -> list[tuple[int, bytes]]:
    return [
        (int(i), image.numpy().tobytes())
        for batch in batches
        for i, image in zip(batch.indices, batch.inputs)
    ]


@pytest.mark.parametrize("augment", ["light", "rand", "deit"])
def test_an_image_is_repeated_with_draws_of_its_own(digits: Task, augment: Any) -> None:
    settings: Any = {"batch_size": 10, "images": 30, "seed": 3, "shuffle": True, "augment": augment}
    plain = rows(Loader(digits, "train", digits.input_format, **settings).epoch(4))
    three = Loader(digits, "train", digits.input_format, repeats=3, **settings)
    result = rows(three.epoch(4))
    assert three.steps == 3
    assert [index for index, _ in result] == [index for index, _ in plain[:10] for _ in range(3)]
    assert (
        result[::3] == plain[:10]
    )  # the first of the copies is the one that there would be without
    assert sum(result[n][1] != result[n + 1][1] for n in range(0, 30, 3)) >= 8
    assert [len(batch.inputs) for batch in three.epoch(4, start=2)] == [10]
    assert rows(three.epoch(4, start=1)) == result[10:]


def test_processes_share_the_copies(digits: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = {
        "batch_size": 8,
        "images": 24,
        "seed": 3,
        "shuffle": True,
        "augment": "light",
        "repeats": 3,
    }
    alone = rows(Loader(digits, "train", digits.input_format, **settings).epoch(0))
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        shares.append(rows(Loader(digits, "train", digits.input_format, **settings).epoch(0)))
    assert [row for pair in zip(*shares) for row in pair] == alone


def test_a_stream_repeats_as_a_folder_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = open_task(f"wds:{shards(tmp_path)}")
    plain = rows(loader(task).epoch(1))
    three = rows(loader(task, repeats=3).epoch(1))
    assert three[::3] == plain[:32]
    assert [index for index, _ in three] == [index for index, _ in plain[:32] for _ in range(3)]
    assert rows(loader(task, repeats=3).epoch(1, start=5)) == three[60:]
    monkeypatch.setenv("WORLD_SIZE", "4")
    shares = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        shares.append(rows(loader(task, repeats=3).epoch(1)))
    assert [row for four in zip(*shares) for row in four] == three


@pytest.mark.slow
def test_a_training_with_all_of_it_resumes_exactly(digits: Task, tmp_path: Path) -> None:
    recipe = Recipe(
        epochs=2,
        images=40,
        batch_size=12,
        lr=3e-3,
        mixup=0.8,
        cutmix=1.0,
        augment="deit",
        repeats=3,
        ema=0.99996,
    )

    def objective() -> Classification:
        torch.manual_seed(0)
        sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 8, "num_heads": 2, "depth": 2}
        return Classification(create_model("vit_tiny_patch16_224", num_classes=10, **sizes))

    def batches(workers: int) -> Any:
        return load_training_images(digits, digits.input_format, recipe, Run(workers=workers))

    full, begun, rest = objective(), objective(), objective()
    assert (
        len(list(train(full, batches(0), recipe, Run()))) == 8
    )  # 40 images in batches of at most 12
    run = Run(folder=tmp_path, resume=True)
    for step in train(begun, batches(1), recipe, run, seconds_between_checkpoints=0):
        if step.step == 6:
            break
    list(train(rest, batches(0), recipe, run, seconds_between_checkpoints=0))
    for (name, ours), theirs in zip(rest.state_dict().items(), full.state_dict().values()):
        assert torch.equal(ours, theirs), name
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [line.split('"images": ')[1].split(",")[0] for line in lines] == [
        "10",
        "10",
        "10",
        "10",
    ] * 2
