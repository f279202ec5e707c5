"""What the teacher gives away, and keeping it: the same numbers, asked for once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learngene_zoo.errors import TrainingFailed, Unavailable
from learngene_zoo.tasks.batches import open_loader
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.testing import tiny_ancestry, tiny_task
from lgzoo_pool import kept
from lgzoo_pool.features import Ancestor, Features, features_of, parts_of
from lgzoo_pool.kept import Kept, KeptTeacher, Store, bytes_of, check_room, shapes

LEVELS = (0, 2)
ROWS = 48  # training images of the tiny task


class Counting(Ancestor):
    """A teacher that counts the images it is asked about."""

    def __init__(self, positions: Sequence[int] = LEVELS, **options: Any) -> None:
        super().__init__(tiny_ancestry(classes=3).model(), positions, **options)
        self.images = 0

    def __call__(self, batch: Batch) -> Features:
        self.images += len(batch.images)
        return super().__call__(batch)


def epoch(number: int = 0) -> list[Batch]:
    loader = open_loader(tiny_task(), "train", tiny_ancestry().input_format, batch_size=16, shuffle=True)
    return list(loader.epoch(number))


def keeping(place: Path, kind: Kept = "fp32", teacher: Counting | None = None, name: str = "one") -> KeptTeacher:
    return KeptTeacher(teacher or Counting(), Store(place, ROWS, kind, {"teacher": name}))


def equal(one: Features, other: Features, **tolerance: float) -> bool:
    ours, theirs = parts_of(one), parts_of(other)
    assert set(ours) == set(theirs)
    return all(torch.allclose(ours[name], theirs[name], **{"rtol": 0, "atol": 0, **tolerance}) for name in ours)


def test_features_have_names_and_are_found_again() -> None:
    features = Counting()(epoch()[0])
    parts = parts_of(features)
    assert set(parts) == {"block.0", "block.2", "attention.0", "attention.2", "logits"}
    assert equal(features_of(parts), features)
    assert not any(tensor.requires_grad for tensor in parts.values())


def test_a_teacher_whose_logits_nobody_wants_stops_at_the_last_level() -> None:
    teacher, ran = Counting((0, 1), logits=False), []
    for i, block in enumerate(teacher.model.blocks):
        block.register_forward_hook(lambda module, inputs, output, i=i: ran.append(i))
    short = teacher(epoch()[0])
    assert ran == [0, 1]
    whole = Counting((0, 1))(epoch()[0])
    assert not short.answers
    assert all(torch.equal(short.blocks[i], whole.blocks[i]) for i in (0, 1))
    assert all(torch.equal(short.attentions[i], whole.attentions[i]) for i in (0, 1))


def test_nothing_to_say_costs_nothing() -> None:
    teacher = Counting((), logits=False)
    teacher.model.patch_embed.register_forward_hook(lambda *_: pytest.fail("ran"))
    assert parts_of(teacher(epoch()[0])) == {}


def test_in_the_second_epoch_nobody_is_asked_and_nothing_differs(tmp_path: Path) -> None:
    teacher, plain = Counting(), Counting()
    keeper = keeping(tmp_path, teacher=teacher)
    for batch in epoch():
        assert equal(keeper(batch), plain(batch))
    assert teacher.images == ROWS
    for batch in epoch(1):
        assert equal(keeper(batch), plain(batch), atol=1e-5)
    assert teacher.images == ROWS


def test_what_is_kept_is_found_by_the_next_part_and_after_a_restart(tmp_path: Path) -> None:
    """The wide model wants fewer levels than the narrow one."""
    for batch in epoch():
        keeping(tmp_path)(batch)
    teacher = Counting((2,))
    keeper = keeping(tmp_path, teacher=teacher)
    assert set(parts_of(keeper(epoch()[0]))) == {"block.2", "attention.2", "logits"}
    assert teacher.images == 0


def test_half_precision_is_the_same_from_the_first_time_on(tmp_path: Path) -> None:
    keeper, plain, batch = keeping(tmp_path, "fp16"), Counting(), epoch()[0]
    first, again = keeper(batch), keeper(batch)
    assert equal(first, again)
    assert not equal(first, plain(batch))
    assert equal(first, plain(batch), rtol=1e-3, atol=1e-3)
    assert bytes_of(shapes(plain), "fp16") * 2 == bytes_of(shapes(plain), "fp32")


def test_numbers_too_large_for_half_precision_are_told(tmp_path: Path) -> None:
    store = Store(tmp_path, 2, "fp16", {})
    store.prepare({"logits": (1,)})
    with pytest.raises(TrainingFailed, match="--kept fp32"):
        store.put(np.array([0]), {"logits": torch.tensor([[1e6]])})


def test_an_image_that_is_not_kept_is_asked_about_with_its_batch(tmp_path: Path) -> None:
    teacher, (first, second, _) = Counting(), epoch()
    keeper = keeping(tmp_path, teacher=teacher)
    keeper(first)
    mixed = Batch(*(None if a is None else torch.cat([a[:4], b[:4]]) for a, b in zip(first, second)))
    assert equal(keeper(mixed), Counting()(mixed))
    assert teacher.images == 16 + 8


@pytest.mark.parametrize("name", ["block.0.npy", "block.0.sums.npy"])
def test_rows_that_were_not_written_whole_are_asked_for_anew(tmp_path: Path, name: str) -> None:
    teacher, batch = Counting(), epoch()[0]
    keeper = keeping(tmp_path, teacher=teacher)
    wanted = keeper(batch)
    np.load(tmp_path / name, mmap_mode="r+")[int(batch.indices[3])] = 0
    assert equal(keeper(batch), wanted)
    assert teacher.images == 32


@pytest.mark.parametrize("left", [b"", b"no array"])
def test_files_that_are_no_arrays_are_made_anew(tmp_path: Path, left: bytes) -> None:
    batch = epoch()[0]
    wanted = keeping(tmp_path)(batch)
    (tmp_path / "block.0.npy").write_bytes(left)
    assert equal(keeping(tmp_path)(batch), wanted)


def test_another_teachers_answers_are_not_taken(tmp_path: Path) -> None:
    batch = epoch()[0]
    keeping(tmp_path)(batch)
    teacher = Counting()
    keeping(tmp_path, teacher=teacher, name="two")(batch)
    assert teacher.images == 16
    teacher = Counting()
    keeping(tmp_path, "fp16", teacher=teacher, name="two")(batch)
    assert teacher.images == 16


def test_a_disk_without_room_is_noticed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10**9}))
    check_room(tmp_path, 1000, 10**6)
    with pytest.raises(Unavailable, match=r"take 1\.1 GB, and 1\.0 GB are free"):
        check_room(tmp_path, 1100, 10**6)
