"""Layouts of streams: splits in names and records, classes with few images, labels and images of
other kinds.
"""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from streaming_toy import by_index, encode, loader, pairs, write_tar

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import Task, stamp_task


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGZOO_CACHE", str(tmp_path_factory.mktemp("cache")))


def sizes_of(task: Task) -> tuple[int, ...]:
    return tuple(task.sizes[split] for split in ("train", "validation", "test"))


NAMES: dict[str, tuple[str, str, str]] = {
    "folders": ("imagenet-train/0.tar", "imagenet-val/0.tar", "imagenet-test/0.tar"),
    "Hive": ("split=train/0.tar", "split=validation/0.tar", "split=test/0.tar"),
    "file names": ("my_training_data-0.tar", "my_dev_data-0.tar", "my_eval_data-0.tar"),
    "capitals": ("Train/0.tar", "Val/0.tar", "TEST/0.tar"),
    "outer folders": ("train/eu/0.tar", "valid/eu/0.tar", "holdout/eu/0.tar"),
    "camel case": ("cocoTrain2017-0.tar", "cocoVal2017-0.tar", "cocoTest2017-0.tar"),
}


@pytest.mark.parametrize("kind", NAMES)
def test_splits_are_whole_words_of_names(tmp_path: Path, kind: str) -> None:
    for index, (name, count) in enumerate(zip(NAMES[kind], (20, 10, 10), strict=True)):
        write_tar(tmp_path / "data" / name, pairs(100 * index, count))
    assert sizes_of(open_task(f"wds:{tmp_path / 'data'}")) == (20, 10, 10)


def test_words_inside_words_are_none(tmp_path: Path) -> None:
    for index, name in enumerate(("latest", "contest", "devices", "restrain")):
        write_tar(tmp_path / "data" / f"{name}-0.tar", pairs(100 * index, 20))
    assert sum(sizes_of(open_task(f"wds:{tmp_path / 'data'}"))) == 80
    write_tar(tmp_path / "data" / "train_test-0.tar", pairs(500, 20))
    with pytest.raises(BadData, match=r"'train_test-0\.tar' contains train and test"):
        open_task(f"wds:{tmp_path / 'data'}")


def test_classes_stand_above_the_folders_of_the_splits(tmp_path: Path) -> None:
    for index, name in enumerate(("imagenet-train", "imagenet-val")):
        write_tar(tmp_path / "data" / name / "0.tar", pairs(100 * index, 30))
    (tmp_path / "data" / "classes.txt").write_text("e\nd\nc\nb\na\n")
    assert open_task(f"wds:{tmp_path / 'data'}").class_names == ("e", "d", "c", "b", "a")


def records(numbers: range, word: Any, key: str = "split") -> list[tuple[str, bytes]]:
    results = []
    for number in numbers:
        record = {"label": number % 3, key: word(number)}
        results += [
            (f"{number:03d}.png", encode(number)),
            (f"{number:03d}.json", json.dumps(record).encode()),
        ]
    return results


@pytest.mark.parametrize("beside", [False, True])
def test_records_divide_the_images(tmp_path: Path, beside: bool) -> None:
    def word(number: int) -> str:
        return "val" if number % 5 == 4 else "Test" if number % 5 == 3 else "train"

    for place in range(2):
        write_tar(tmp_path / f"{place}.tar", records(range(30 * place, 30 * place + 30), word))
    if beside:
        (tmp_path / "classes.txt").write_text("a\nb\nc\n")
        (tmp_path / "sizes.json").write_text(json.dumps({"0.tar": 30, "1.tar": 30}))
    task = open_task(f"wds:{tmp_path}")
    assert sizes_of(task) == (36, 12, 12)
    seen = by_index(loader(task, "test", augment="none", shuffle=False, drop_last=False).epoch(0))
    numbers = [number for number in range(60) if number % 5 == 3]
    assert [label for _, label in (seen[index] for index in sorted(seen))] == [
        number % 3 for number in numbers
    ]
    write_tar(tmp_path / "1.tar", records(range(30, 60), lambda number: "extra"))
    (tmp_path / "sizes.json").unlink(missing_ok=True)
    with pytest.raises(
        BadData, match="an image has the split 'extra'; expected train, validation or test"
    ):
        open_task(f"wds:{tmp_path}")


def test_records_that_contradict_the_names_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", records(range(30), lambda number: "train"))
    write_tar(
        tmp_path / "test.tar",
        records(range(30, 60), lambda number: "test" if number > 30 else "train"),
    )
    with pytest.raises(
        BadData, match="an image of test has the split 'train'; correct it or the file's name"
    ):
        open_task(f"wds:{tmp_path}")
    write_tar(tmp_path / "test.tar", records(range(30, 60), lambda number: "test"))
    assert open_task(f"wds:{tmp_path}").sizes["test"] == 30


def make_labelled(labels: list[Any], kind: str = "cls") -> list[tuple[str, bytes]]:
    files = []
    for number, label in enumerate(labels):
        content = json.dumps({"label": label}) if kind == "json" else str(label)
        files += [
            (f"{number:04d}.png", encode(number)),
            (f"{number:04d}.{kind}", content.encode()),
        ]
    return files


@pytest.mark.slow
def test_a_class_that_made_splits_would_empty_stops_with_its_name(tmp_path: Path) -> None:
    messages, sizes = [], (0, 0, 0)
    for index in range(40):
        labels = ["a", "b"] * 20
        labels[index] = "rare"
        write_tar(tmp_path / f"{index}" / "x.tar", make_labelled(labels))
        try:
            task = open_task(f"wds:{tmp_path / str(index)}")
        except BadData as error:
            messages.append(str(error))
        else:
            sizes = sizes_of(task)
            assert task.notes[-1].startswith(
                "one class has no test images: rare; the result on test"
            )
    assert len(messages) == sizes[1] + sizes[2] == 11, (
        "as often as the only image of the class is taken"
    )
    assert all(
        "class 'rare' has no training image once a test and a validation split are made" in item
        for item in messages
    )


def test_labels_and_names_of_several_forms_are_one(tmp_path: Path) -> None:
    composed, taken_apart = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    write_tar(tmp_path / "a.tar", make_labelled([composed, taken_apart, "b"] * 20))
    assert open_task(f"wds:{tmp_path / 'a.tar'}").class_names == ("b", composed)
    write_tar(tmp_path / "b.tar", make_labelled([1.0, [2], 3] * 20, "json"))
    assert open_task(f"wds:{tmp_path / 'b.tar'}").class_names == ("1", "2", "3")
    write_tar(tmp_path / "c.tar", make_labelled([True, False] * 20, "json"))
    assert open_task(f"wds:{tmp_path / 'c.tar'}").class_names == ("False", "True")
    for odd in (0.5, [1, 2], None):
        write_tar(tmp_path / "d.tar", make_labelled([odd, 1] * 20, "json"))
        with pytest.raises(BadData, match=r"0000\.json holds no label"):
            open_task(f"wds:{tmp_path / 'd.tar'}")


def test_pictures_of_other_kinds_are_read(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(stream, "TIFF")
    files = [
        f
        for n in range(40)
        for f in ((f"{n:03d}.tiff", stream.getvalue()), (f"{n:03d}.cls", str(n % 2).encode()))
    ]
    write_tar(tmp_path / "x.tar", files)
    batch = next(loader(open_task(f"wds:{tmp_path}"), augment="none").epoch(0))
    assert batch.inputs.max() == 0


def test_the_stamp_of_tars(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", pairs(0, 60))
    write_tar(tmp_path / "copy" / "x.tar", pairs(0, 60))
    before = stamp_task(open_task(f"wds:{path}"))
    assert stamp_task(open_task(f"wds:{tmp_path / 'copy' / 'x.tar'}")) == before
    write_tar(path, pairs(1, 60))
    assert stamp_task(open_task(f"wds:{path}")) != before
