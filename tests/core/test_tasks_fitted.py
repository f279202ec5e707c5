"""Cached images in a model's input size: the same pixels, decoded once."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from learngene_zoo.families.picture_format import InputFormat, View
from learngene_zoo.tasks import transforms
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.splits import samples
from learngene_zoo.tasks.splits.cutting import ensure_validation
from learngene_zoo.tasks.splits.samples import PixelSplit
from learngene_zoo.tasks.task import Task

FORMAT = InputFormat(
    image_size=16, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2), view=View(crop_pct=0.8)
)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    draw = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(12):
            size = draw.integers(12, 40, 2)
            Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)).save(
                tmp_path / name / f"{number}.png"
            )
    return open_task(f"folder:{tmp_path}")


@pytest.fixture
def decoded_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the paths of decoded images are added."""
    paths: list[str] = []
    read = samples.decode_samples

    def watch(samples: Any) -> Any:
        listed = list(samples)
        paths.extend(sample.where for sample in listed)
        return read(listed)

    monkeypatch.setattr(samples, "decode_samples", watch)
    return paths


def read_epochs(
    task: Task, input_format: InputFormat = FORMAT, **settings: Any
) -> list[torch.Tensor]:
    loader = Loader(task, "train", input_format, batch_size=4, shuffle=True, seed=3, **settings)
    return [batch.inputs for epoch in range(2) for batch in loader.epoch(epoch)]


@pytest.mark.parametrize("augment", ["none", "light"])
def test_the_pixels_are_those_of_images_that_are_decoded_every_time(
    task: Task, augment: Any, decoded_paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = read_epochs(task, augment=augment)
    count = len(decoded_paths)
    assert count == len(set(decoded_paths)) == task.sizes["train"]
    monkeypatch.setattr(samples, "MAX_FITTED_BYTES", 0)
    plain = read_epochs(task, augment=augment)
    assert len(decoded_paths) - count == 2 * count
    assert len(kept) == len(plain)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(kept, plain))


def test_another_loader_finds_them_and_another_format_does_not(
    task: Task, decoded_paths: list[str]
) -> None:
    read_epochs(task)
    count = len(decoded_paths)
    read_epochs(task, augment="light")
    assert len(decoded_paths) == count
    other = replace(FORMAT, view=View(crop_pct=0.9))
    read_epochs(task, other)
    assert len(decoded_paths) == 2 * count
    assert list(task.split("train").fitted) == [(16, other.view, other.fill)]


def test_parts_of_a_split_share_them(task: Task, decoded_paths: list[str]) -> None:
    parts = ensure_validation(replace(task, sizes={**task.sizes, "validation": 0}))
    for split in ("train", "validation", "validation"):
        for batch in Loader(parts, split, FORMAT, batch_size=4).epoch(0):
            assert len(batch.inputs)
    assert len(decoded_paths) == len(set(decoded_paths)) == task.sizes["train"]


@pytest.mark.parametrize("settings", [{"augment": "rand"}, {"augment": "deit"}, {"workers": 1}])
def test_nothing_is_kept_where_every_epoch_fits_anew_or_workers_read(
    task: Task, settings: dict[str, Any]
) -> None:
    read_epochs(task, **settings)
    assert task.split("train").fitted == {}


@pytest.mark.parametrize("border", [0, 2])
def test_images_in_memory_are_resized_once(
    monkeypatch: pytest.MonkeyPatch, task: Task, border: int
) -> None:
    pixels = torch.from_numpy(
        np.random.default_rng(1).integers(0, 256, (24, 1, 18, 18), dtype=np.uint8)
    )
    split = PixelSplit(pixels, task.split("train").labels, border)
    in_memory = replace(task, open_split=lambda _: split, stamp=None)
    count = 0
    resize = transforms.resize_image

    def watch(*given: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        return resize(*given)

    monkeypatch.setattr(transforms, "resize_image", watch)
    kept = read_epochs(in_memory, augment="light")
    assert count == task.sizes["train"]
    assert pickle.loads(pickle.dumps(split)).fitted == {}
    monkeypatch.setattr(samples, "MAX_FITTED_BYTES", 0)
    plain = read_epochs(in_memory, augment="light")
    assert count == 3 * task.sizes["train"]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(kept, plain, strict=True))


def test_images_in_memory_of_the_right_size_are_not_kept(task: Task) -> None:
    pixels = torch.zeros(24, 3, 12, 12, dtype=torch.uint8)
    split = PixelSplit(pixels, task.split("train").labels, border=2)
    whole = replace(FORMAT, view=View())
    read_epochs(replace(task, open_split=lambda _: split, stamp=None), whole)
    assert split.fitted == {}


def test_the_limit_counts_the_images_that_are_read(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MAX_FITTED_BYTES", 8 * 3 * 16 * 16)
    read_epochs(task, images=10)
    assert task.split("train").fitted == {}
    read_epochs(task, images=8)
    assert len(task.split("train").fitted[16, FORMAT.view, FORMAT.fill]) == 8


def test_the_limit_counts_the_images_of_all_readers(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = task.split("train")
    monkeypatch.setattr(samples, "MAX_FITTED_BYTES", 12 * 3 * 16 * 16)
    for seed in range(5):
        loader = Loader(task, "train", FORMAT, batch_size=4, shuffle=True, seed=seed, images=8)
        assert len(list(loader.epoch(0))) == 2
        assert len(split.fitted[16, FORMAT.view, FORMAT.fill]) <= 12


def test_they_do_not_travel_to_other_processes(task: Task) -> None:
    read_epochs(task)
    split = task.split("train")
    assert split.fitted
    assert pickle.loads(pickle.dumps(split)).fitted == {}
