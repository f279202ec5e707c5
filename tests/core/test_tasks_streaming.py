"""Data read in order: every image once, the same pixels in every way of reading, little memory; and
made splits.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streaming_toy import CLASSES, VIEW, by_index, equal, loader, pairs, pixels, shards, write_tar
from torch import nn

from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.streams import tars
from learngene_zoo.tasks.streams.order import (
    EpochOrder,
    assign_splits,
    complete_streams,
    count_used,
    iterate_shown,
)
from learngene_zoo.tasks.task import Sample, Task
from learngene_zoo.training.evaluate import evaluate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards(tmp_path_factory.mktemp("tars"))


@pytest.fixture
def task(folder: Path) -> Task:
    return open_task(f"wds:{folder}")


def test_every_image_comes_once_with_its_label_and_pixels(task: Task) -> None:
    assert dict(task.sizes) == {"train": 100, "validation": 10, "test": 15}
    assert task.class_names == tuple("01234")
    for shuffle in (False, True):
        samples = by_index(loader(task, shuffle=shuffle, drop_last=False, augment="none").epoch(0))
        assert sorted(samples) == list(range(100))
        for index, (data, label) in samples.items():
            expected = pixels(index).transpose(2, 0, 1).astype(np.float32)
            assert label == index % CLASSES
            assert np.allclose(
                np.frombuffer(data, dtype=np.float32).reshape(3, 8, 8), expected, atol=1e-3
            )
    test = list(loader(task, "test", shuffle=False).epoch(0))
    assert [index for batch in test for index in batch.indices.tolist()] == list(range(15))


def test_the_order_is_a_permutation_by_seed_and_epoch(task: Task) -> None:
    def order(epoch: int, **changes: Any) -> list[int]:
        batches = loader(task, drop_last=False, **changes).epoch(epoch)
        return [index for batch in batches for index in batch.indices.tolist()]

    first = order(0)
    assert sorted(first) == list(range(100))
    assert first == order(0)
    assert (
        len(
            {
                tuple(shown_order)
                for shown_order in (first, order(1), order(0, seed=4), order(0, window=21))
            }
        )
        == 4
    )
    assert {index // 25 for index in first[:20]} == {
        first[0] // 25
    }  # a window reaches no further than itself


def test_an_epoch_begun_late_is_the_same_and_opens_no_earlier_shard(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = loader(task)
    full = list(data.epoch(1))
    assert len(full) == data.steps == 8
    opened: list[str] = []
    real = tars.open_file
    monkeypatch.setattr(tars, "open_file", lambda place: opened.append(place) or real(place))
    rest = list(data.epoch(1, start=6))
    assert all(equal(a, b) for a, b in zip(full[6:], rest, strict=True))
    assert len(opened) == 2


def test_workers_change_nothing(task: Task) -> None:
    alone, helped = (loader(task, workers=workers) for workers in (0, 2))
    next(helped.epoch(5))  # an epoch that is left is none in the next one's way
    for epoch, start in ((0, 0), (1, 3)):
        batches = zip(alone.epoch(epoch, start), helped.epoch(epoch, start), strict=True)
        assert all(equal(first, second) for first, second in batches)


@pytest.mark.parametrize("shuffle", [False, True])
def test_processes_share_every_global_batch(
    task: Task, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    settings = {"batch_size": 8, "shuffle": shuffle, "drop_last": False, "augment": "none"}
    alone = [by_index(iter([batch])) for batch in loader(task, "validation", **settings).epoch(0)]
    shares = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        shares.append(
            [by_index(iter([batch])) for batch in loader(task, "validation", **settings).epoch(0)]
        )
    sizes = [2, 1, 1, 1] if shuffle else [1, 1, 0, 0]  # 10 samples: a small last batch is spread
    assert [len(share[1]) for share in shares] == sizes
    for step, batch in enumerate(alone):
        assert {k: v for share in shares for k, v in share[step].items()} == batch


def test_processes_share_batches_of_any_size(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an evaluation; every process takes every world-th image of each batch."""
    settings = {"batch_size": 5, "shuffle": False, "drop_last": False, "augment": "none"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        shares.append(
            [batch.indices.tolist() for batch in loader(task, "validation", **settings).epoch(0)]
        )
    assert shares == [[[0, 2, 4], [5, 7, 9]], [[1, 3], [6, 8]]]


class Held:
    """The images of the stored validation tar with random access."""

    labels = np.arange(1000, 1010) % CLASSES

    def __len__(self) -> int:
        return 10

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        return torch.stack(
            [torch.from_numpy(pixels(1000 + index)).permute(2, 0, 1) for index in indices]
        )


@pytest.mark.parametrize("augment", ["none", "light"])
def test_in_order_it_shows_what_a_loader_of_the_same_images_does(task: Task, augment: str) -> None:
    held = replace(task, open_split=lambda split: Held(), open_stream=None)
    stream, other = (
        Loader(data, "validation", VIEW, batch_size=4, seed=3, augment=augment).epoch(2)
        for data in (task, held)
    )
    assert all(equal(one, other) for one, other in zip(stream, other, strict=True))


class Counting:
    """A stream of `total` images that counts the images that were read and not yet yielded."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts, self.alive, self.most = counts, 0, 0

    def read(self, shard: int, wanted: np.ndarray) -> Iterator[Sample | None]:
        for mine in wanted.tolist():
            self.alive += mine
            self.most = max(self.most, self.alive)
            yield Sample(b"", "") if mine else None


@pytest.mark.parametrize("counts", [(5000,), (500,) * 10, (37,) * 135 + (5,)])
def test_no_more_than_two_windows_are_held(counts: tuple[int, ...]) -> None:
    for mine in (lambda places: places >= 0, lambda places: places % 7 == 3):
        stream = Counting(counts)
        for _ in iterate_shown(stream, counts, EpochOrder(1, 100), 0, mine):
            stream.alive -= 1
        assert stream.alive == 0
        assert 10 < stream.most <= 200


def test_loading_leaves_the_global_random_state_alone(task: Task) -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()
    list(loader(task).epoch(0))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == np.random.get_state()[1].tobytes()


def test_a_limit_is_nested_and_opens_only_its_shards(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used(count: int, seed: int = 3) -> set[int]:
        return set(by_index(loader(task, images=count, seed=seed, drop_last=False).epoch(0)))

    assert len(used(30)) == 30
    assert used(30) < used(60)
    assert len({frozenset(used(25, seed)) for seed in range(8)}) > 1
    opened: list[str] = []
    real = tars.open_file
    monkeypatch.setattr(tars, "open_file", lambda place: opened.append(place) or real(place))
    used(25)
    assert len(opened) == 1
    assert loader(task, images=1000).images == 100
    assert sum(count_used((4, 0, 3), 5, seed=0)) == 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "at least 1"),
        ({"window": 0}, "at least 1"),
        ({"augment": "lite"}, "known: deit, light, none, rand"),
    ],
)
def test_impossible_settings(task: Task, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongCall, match=words):
        loader(task, **settings)


def test_a_stream_has_no_single_images(task: Task) -> None:
    with pytest.raises(WrongCall, match="is streamed, so single images cannot be read"):
        task.split("train")
    with pytest.raises(WrongCall, match="did you mean train"):
        task.stream("trian")
    with pytest.raises(WrongCall, match="is not streamed"):
        open_task("digits").stream("train")


# Splits that are not there.


def test_missing_splits_are_parts_of_the_training_images(tmp_path: Path) -> None:
    for number in range(3):
        write_tar(tmp_path / f"{number}.tar", pairs(100 * number, 100))
    task = open_task(f"wds:{tmp_path}")
    assert dict(task.sizes) == {"train": 216, "validation": 24, "test": 60}
    assert task.notes == (
        "there is no test split: one training image in 5 is used",
        "there is no validation split: one training image in 10 is used",
    )
    results = {
        split: {
            image
            for image, _ in by_index(
                loader(task, split, shuffle=False, augment="none").epoch(0)
            ).values()
        }
        for split in task.sizes
    }
    assert {split: len(images) for split, images in results.items()} == dict(task.sizes)
    assert len(set.union(*results.values())) == 300
    labels = [batch.labels for batch in loader(task, "test", shuffle=False).epoch(0)]
    assert torch.cat(labels).bincount().min() >= 6  # five classes in turn, and still each is met
    assert dict(open_task(f"wds:{tmp_path}").sizes) == dict(task.sizes)


@pytest.mark.parametrize("missing", [("test",), ("validation",), ("test", "validation")])
def test_the_parts_are_a_function_of_the_number_and_of_the_wanted_size(
    missing: tuple[str, ...],
) -> None:
    roles = assign_splits(np.arange(1000), missing)
    assert (roles[317:400] == assign_splits(np.arange(317, 400), missing)).all()
    shares = {"test": 200 if "test" in missing else 0}
    shares["validation"] = (1000 - shares["test"]) // 10 if "validation" in missing else 0
    assert np.bincount(roles, minlength=3).tolist() == [
        1000 - sum(shares.values()),
        *reversed(shares.values()),
    ]


def test_of_many_shards_whole_ones_are_taken() -> None:
    stream = Counting((4,) * 60)
    parts = complete_streams("many", {"train": stream})
    assert {split: len(part.counts) for split, part in parts.items()} == {
        "train": 44,
        "validation": 4,
        "test": 12,
    }
    assert {count for part in parts.values() for count in part.counts} == {4}
    assert len(set.union(*(set(part.shards) for part in parts.values()))) == 60  # type: ignore[attr-defined]


@pytest.mark.parametrize(("count", "whole"), [(49, False), (50, True)])
def test_whole_shards_are_taken_from_fifty_on(count: int, whole: bool) -> None:
    parts = complete_streams("many", {"train": Counting((4,) * count)})
    assert (sum(len(part.counts) for part in parts.values()) == count) is whole


def test_one_shard_is_shuffled_anew_in_every_epoch() -> None:
    order = EpochOrder(seed=3, window=50)
    orders = [order.places(epoch, 0, 100, 100).tolist() for epoch in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(100))
    assert set(orders[2][:50]) == set(range(50))


def test_the_documented_example_makes_tars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (checkout / "docs" / "streaming.md").read_text(encoding="utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    task = open_task("wds:{train-{000..003},val-{000..001},test-{000..001}}.tar")
    assert dict(task.sizes) == dict(open_task("digits").sizes) == dict(open_task("wds:.").sizes)


def test_too_few_images_for_three_splits(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", pairs(0, 6))
    with pytest.raises(BadData, match=r"too few training images \(6\) for a validation split"):
        open_task(f"wds:{tmp_path}")


class Reader(nn.Module):
    """Recognises the images of `CLASSES` classes, except every third one."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        known = {pixels(2000 + n).transpose(2, 0, 1).tobytes(): n for n in range(15)}
        numbers = [known[image.round().to(torch.uint8).numpy().tobytes()] for image in images]
        classes = [(n + (n % 3 == 0)) % CLASSES for n in numbers]
        return nn.functional.one_hot(torch.tensor(classes), CLASSES).float()


def test_a_model_is_evaluated_on_a_stream(task: Task) -> None:
    evaluation = evaluate(Reader(), task, "test", VIEW, Run(), batch_size=4)
    assert evaluation.correct == tuple(n % 3 != 0 for n in range(15))


def test_a_model_is_trained_on_a_stream(task: Task) -> None:
    from learngene_zoo.settings import Recipe
    from learngene_zoo.training.loop import train
    from learngene_zoo.training.objectives import Classification, load_training_images

    recipe = Recipe(epochs=6, batch_size=20, lr=1e-2, augment="none")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.LayerNorm(192), nn.Linear(192, CLASSES))
    steps = list(
        train(Classification(model), load_training_images(task, VIEW, recipe, Run()), recipe, Run())
    )
    assert len(steps) == 30
    assert steps[-1].loss < 0.5 * steps[0].loss


JUDGE = """
import json, sys
import torch
from learngene_zoo.runs.run import Run
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.runs.run import join, rank
from learngene_zoo.runs.run import gather_values
import test_tasks_streaming as ours, streaming_toy as toy
task = open_task("wds:" + sys.argv[1])
done = evaluate(ours.Reader(), task, "test", toy.VIEW, Run(), batch_size=4)
seen = [sorted(toy.by_index(iter([batch]))) for batch in toy.loader(task).epoch(1)]
shares = gather_values(seen)
print("step", json.dumps([done.correct, [sorted(a + b) for a, b in zip(*shares)], [len(a) for a in shares[0]]]))
"""


@pytest.mark.slow
def test_two_processes_read_as_one(
    tmp_path: Path, folder: Path, torchrun: Callable[..., str]
) -> None:
    task = open_task(f"wds:{folder}")
    expected = [sorted(by_index(iter([batch]))) for batch in loader(task).epoch(1)]
    program = tmp_path / "judge.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}){JUDGE}")
    lines = torchrun([str(program), str(folder)], lambda out: "step" in out).splitlines()
    told = json.dumps([[n % 3 != 0 for n in range(15)], expected, [6] * 8])
    assert [line for line in lines if line.startswith("step")] == [f"step {told}"] * 2
