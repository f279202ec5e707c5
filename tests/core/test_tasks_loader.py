"""Laws of the loader: a pixel is a function of (seed, epoch, index), independent of other requests
and of the process.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Batch, Loader, StepShare
from learngene_zoo.tasks.task import Task


@pytest.fixture(scope="module")
def digits() -> Task:
    return replace(open_task("digits"), flip=True)


def loader(task: Task, **changes: Any) -> Loader:
    settings: dict[str, Any] = {"batch_size": 64, "seed": 3, "shuffle": True, "augment": "light"}
    return Loader(task, "train", task.input_format, **{**settings, **changes})


def by_index(batches: Iterator[Batch]) -> dict[int, tuple[bytes, int]]:
    results = {}
    for batch in batches:
        for image, label, index in zip(batch.inputs, batch.labels, batch.indices):
            results[int(index)] = image.numpy().tobytes(), int(label)
    return results


@pytest.mark.parametrize("augment", ["none", "light", "rand", "deit"])
def test_pixels_depend_on_neither_batch_size_nor_order(digits: Task, augment: str) -> None:
    full = by_index(loader(digits, augment=augment, images=40, batch_size=40).epoch(2))
    pieces = by_index(
        loader(digits, augment=augment, images=40, batch_size=7, shuffle=False).epoch(2)
    )
    assert full == pieces
    assert len(full) == 40


@pytest.mark.parametrize("augment", ["light", "rand", "deit"])
def test_augmentation_changes_with_epoch_and_seed(digits: Task, augment: str) -> None:
    settings = {"augment": augment, "shuffle": False, "images": 250}
    first = by_index(loader(digits, **settings).epoch(0))
    assert first == by_index(loader(digits, **settings).epoch(0))
    for other in (
        by_index(loader(digits, **settings).epoch(1)),
        by_index(loader(digits, **settings, seed=4).epoch(0)),
    ):
        shared = first.keys() & other.keys()
        assert len(shared) > 30
        assert sum(first[index] != other[index] for index in shared) > 0.9 * len(shared)


@pytest.mark.parametrize("augment", ["light", "rand", "deit"])
def test_workers_make_the_same_pixels(digits: Task, augment: str) -> None:
    alone = loader(digits, augment=augment, images=72, batch_size=24)
    helped = loader(digits, augment=augment, images=72, batch_size=24, workers=2)
    for epoch, start in ((0, 0), (1, 1), (2, 0)):
        for first, second in zip(
            alone.epoch(epoch, start), helped.epoch(epoch, start), strict=True
        ):
            assert all(torch.equal(a, b) for a, b in zip(first[:3], second[:3]))


def test_an_epoch_left_early_does_not_disturb_the_next(digits: Task) -> None:
    helped = loader(digits, workers=1)
    next(helped.epoch(0))
    assert by_index(helped.epoch(1)) == by_index(loader(digits).epoch(1))


def test_resuming_continues_and_skips_without_loading(
    digits: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = loader(digits)
    full = list(data.epoch(1))
    calls: list[int] = []
    real = type(data._dataset.split).__getitems__

    def counting(self: Any, indices: Any) -> Any:
        calls.extend(indices)
        return real(self, indices)

    monkeypatch.setattr(type(data._dataset.split), "__getitems__", counting)
    rest = list(data.epoch(1, start=10))
    assert len(calls) == (data.steps - 10) * 64
    for first, second in zip(full[10:], rest, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first[:3], second[:3]))


def test_processes_share_every_global_batch(digits: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [by_index(iter([batch])) for batch in loader(digits).epoch(0)]
    shares = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        shares.append([by_index(iter([batch])) for batch in loader(digits).epoch(0)])
    for step, batch in enumerate(alone):
        parts = [share[step] for share in shares]
        assert {len(part) for part in parts} == {16}
        assert {index: value for part in parts for index, value in part.items()} == batch


def test_steps_and_dropping(digits: Task) -> None:
    assert loader(digits).steps == 15  # 1000 // 64
    assert loader(digits, drop_last=False).steps == loader(digits, shuffle=False).steps == 16
    assert loader(digits, images=20).steps == 1
    # Fewer than eight full batches: what is left over would be more than a ninth of the images.
    assert [
        loader(digits, images=images).steps for images in (8 * 64 + 63, 8 * 64, 8 * 64 - 1, 65, 64)
    ] == [
        8,
        8,
        8,
        2,
        1,
    ]
    for settings in ({}, {"drop_last": False}, {"shuffle": False}, {"images": 20}, {"images": 100}):
        data = loader(digits, **settings)
        assert len(list(data.epoch(0))) == data.steps


def test_a_last_batch_has_an_image_for_every_process_or_is_dropped(
    digits: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    for images, sizes in ((131, [16, 16]), (134, [11, 11, 11]), (168, [16, 16, 10])):
        monkeypatch.setenv("RANK", "3")
        assert [len(batch.inputs) for batch in loader(digits, images=images).epoch(0)] == sizes[
            : 2 + (images > 131)
        ]
        steps = set()
        for rank in range(4):
            monkeypatch.setenv("RANK", str(rank))
            steps.add(len(list(loader(digits, images=images).epoch(0))))
        assert len(steps) == 1


@pytest.mark.parametrize(
    ("images", "sizes"),
    [
        (65, [32, 33]),
        (64 + 31, [47, 48]),
        (64 + 32, [64, 32]),  # half a batch
        (130, [43, 43, 44]),
        (64, [64]),
        (3, [3]),
    ],
)
def test_a_small_last_batch_is_spread_over_the_others(
    digits: Task, images: int, sizes: list[int]
) -> None:
    data = loader(digits, images=images)
    batches = list(data.epoch(0))
    assert [len(batch.inputs) for batch in batches] == sizes
    assert len({int(index) for batch in batches for index in batch.indices}) == images
    assert by_index(data.epoch(0, start=1)) == by_index(iter(batches[1:]))


def test_a_small_last_batch_stays_small_in_order(digits: Task) -> None:
    data = loader(digits, images=65, shuffle=False)
    assert [len(batch.inputs) for batch in data.epoch(0)] == [64, 1]


def test_a_limit_is_balanced_nested_and_seeded(digits: Task) -> None:
    def used(count: int, seed: int = 3) -> set[int]:
        return set(by_index(loader(digits, images=count, seed=seed, drop_last=False).epoch(0)))

    labels = digits.split("train").labels
    assert set(np.bincount(labels[sorted(used(50))])) == {5}
    assert used(50) < used(73)
    assert used(50) != used(50, seed=4)
    assert len(used(73)) == 73


def test_shuffling_is_a_permutation_that_changes_with_the_epoch(digits: Task) -> None:
    data = loader(digits, drop_last=False, augment="none")
    orders = [
        torch.cat([batch.indices for batch in data.epoch(epoch)]).tolist() for epoch in (0, 1)
    ]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(1000))


@pytest.mark.parametrize(
    ("workers", "augment"), [(0, "rand"), (0, "light"), (1, "light"), (0, "deit")]
)
def test_loading_leaves_the_global_random_state_alone(
    digits: Task, workers: int, augment: str
) -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()
    list(loader(digits, images=64, workers=workers, augment=augment).epoch(0))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == np.random.get_state()[1].tobytes()


def test_normalisation_size_and_channels_follow_the_view(digits: Task) -> None:
    raw = digits.split("test").__getitems__(range(4)).double() / 255
    input_format = replace(digits.input_format, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    batch = next(Loader(digits, "test", input_format, batch_size=4).epoch(0))
    for channel in range(3):
        expected = (raw[:, channel] - input_format.mean[channel]) / input_format.std[channel]
        assert torch.allclose(batch.inputs[:, channel].double(), expected, atol=1e-5)
    grey = replace(digits.input_format, image_size=48, channels=1, mean=(0.0,), std=(1.0,))
    images = next(Loader(digits, "test", grey, batch_size=4).epoch(0)).inputs
    assert images.shape == (4, 1, 48, 48)
    assert images.min() >= 0
    assert images.max() <= 1.0001


def test_no_flips_where_the_task_forbids_them(digits: Task) -> None:
    raw = digits.split("train").__getitems__(range(200))
    input_format = replace(digits.input_format, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    mirrored = {}
    for flip in (False, True):
        task = replace(digits, flip=flip)
        augmented = (
            next(Loader(task, "train", input_format, batch_size=200, augment="light").epoch(0))
            .inputs.round()
            .byte()
        )
        mirrored[flip] = sum(_is_shift(got, item.flip(-1)) for got, item in zip(augmented, raw))
    assert mirrored[False] == 0
    assert 60 < mirrored[True] < 140


def _is_shift(got: torch.Tensor, image: torch.Tensor) -> bool:
    """Return whether the middle of `got` is a part of `image`, shifted by at most four pixels."""
    return any(
        torch.equal(got[:, 4:28, 4:28], image[:, y : y + 24, x : x + 24])
        for y in range(9)
        for x in range(9)
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "at least 1"),
        ({"images": 0}, "at least 1"),
        ({"augment": "lite"}, "known: deit, light, none, rand"),
    ],
)
def test_impossible_settings(digits: Task, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongCall, match=words):
        loader(digits, **settings)


def test_a_worker_that_meets_bad_data_says_so(digits: Task) -> None:
    task = replace(digits, open_split=lambda name: Broken())
    for workers in (0, 1):
        with pytest.raises(BadData, match="picture 0 is torn"):
            list(Loader(task, "test", task.input_format, batch_size=2, workers=workers).epoch(0))


class Broken:
    labels = np.array([0, 1])

    def __len__(self) -> int:
        return 2

    def __getitems__(self, indices: Any) -> Any:
        raise BadData(f"picture {indices[0]} is torn")


def test_what_workers_get_can_be_pickled_whatever_opens_the_task(digits: Task) -> None:
    opened = replace(digits, open_split=lambda name: digits.split(name))
    dataset = pickle.loads(pickle.dumps(loader(opened)._dataset))
    share = StepShare(0, [3, 1], [3, 1], [0, 0])
    assert torch.equal(dataset[share].inputs, loader(digits)._dataset[share].inputs)
