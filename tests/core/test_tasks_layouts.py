"""Layouts of folders: which are splits, which are classes, and errors that show the option to type."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.splits.roles import find_roles

Counts = dict[str, int]  # pictures by folder


def build(top: Path, counts: Counts) -> Path:
    for number, (folder, count) in enumerate(counts.items()):
        (top / folder).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            (top / folder / f"{number}_{index}.png").write_bytes(picture(100 * number + index))
    return top


def picture(number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (3, 4, 3), dtype=np.uint8)).save(
        stream, "png"
    )
    return stream.getvalue()


def both(*splits: str, classes: str = "cat dog", count: int = 10) -> Counts:
    return {f"{split}/{name}": count for split in splits for name in classes.split()}


# The folders, the classes, and the number of images in train, validation and test.
READ: dict[str, tuple[Counts, str, tuple[int, int, int]]] = {
    "classes": (both("."), "cat dog", (14, 2, 4)),
    "three splits": (both("train", "val", "test"), "cat dog", (20, 20, 20)),
    "capitals": (both("Training", "Testing"), "cat dog", (18, 2, 20)),
    "sets": (both("training_set", "test_set"), "cat dog", (18, 2, 20)),
    "data": (both("Train_data", "Valid_data", "Test_data"), "cat dog", (20, 20, 20)),
    "camel case": (both("trainImages", "valImages"), "cat dog", (16, 20, 4)),
    "years": (both("train2017", "val2017"), "cat dog", (16, 20, 4)),
    "spaces": (both("My Training Data", "my dev data"), "cat dog", (16, 20, 4)),
    "Hive": (both("split=train", "split=test"), "cat dog", (18, 2, 20)),
    "dots": (both("cats.v1.train", "cats.v1.valid"), "cat dog", (16, 20, 4)),
    "Kaggle, doubled": (both("seg_train/seg_train", "seg_test/seg_test"), "cat dog", (18, 2, 20)),
    "Kaggle, with pictures to predict": (
        {**both("seg_train/seg_train", "seg_test/seg_test"), "seg_pred/seg_pred": 5},
        "cat dog",
        (18, 2, 20),
    ),
    "only train": (both("train"), "cat dog", (14, 2, 4)),
    "train and eval": (both("train", "eval"), "cat dog", (18, 2, 20)),
    "a wrapper": (both("flowers"), "cat dog", (14, 2, 4)),
    "two wrappers": (both("dataset/dataset"), "cat dog", (14, 2, 4)),
    "splits in a wrapper": (both("archive/train", "archive/test"), "cat dog", (18, 2, 20)),
    "a wrapper called test": (both("test_data/train", "test_data/val"), "cat dog", (16, 20, 4)),
    "one class in batches": ({"cat/batch1": 5, "cat/batch2": 5, "dog": 10}, "cat dog", (14, 2, 4)),
    "classes in batches of other names": (
        {"cat/a": 5, "cat/b": 5, "dog/c": 10},
        "cat dog",
        (14, 2, 4),
    ),
    "locomotives": ({"train": 10, "car": 10, "bus": 10}, "bus car train", (22, 2, 6)),
    "locomotives in splits": (both("train", "test", classes="train car"), "car train", (18, 2, 20)),
    "locomotives in batches": ({"train": 5, "train/more": 5, "car": 10}, "car train", (14, 2, 4)),
    "toys": (
        {"toy train": 10, "test tube": 10, "beaker": 10},
        "beaker test tube toy train",
        (22, 2, 6),
    ),
    "a toy in batches": (
        {"toy train/a": 5, "toy train/b": 5, "car": 10},
        "car toy train",
        (14, 2, 4),
    ),
    "words inside words": (both("restrain", "latest", classes="."), "latest restrain", (14, 2, 4)),
    "more such words": (
        both("contest", "devices", "evaluation_of_trains", classes="."),
        "contest devices evaluation_of_trains",
        (22, 2, 6),
    ),
    "a test split lacks a class": ({**both("train"), "test/cat": 4}, "cat dog", (18, 2, 4)),
    "an empty class outside train": (
        {**both("train"), "test/cat": 4, "test/dog": 0},
        "cat dog",
        (18, 2, 4),
    ),
    "a test split of empty classes": (
        {**both("train"), "test/cat": 0, "test/dog": 0},
        "cat dog",
        (14, 2, 4),
    ),
    "what systems leave": (
        {**both("."), "__MACOSX/cat": 3, ".cache/dog": 3, "@eaDir": 1},
        "cat dog",
        (14, 2, 4),
    ),
    "notes beside splits": ({**both("train", "test"), "annotations": 0}, "cat dog", (18, 2, 20)),
    "nested classes in splits": (
        both("train", "test", classes="cat/a dog"),
        "cat dog",
        (18, 2, 20),
    ),
    "a test split of one class in a batch": (
        {**both("train"), "test/cat/batch1": 4},
        "cat dog",
        (18, 2, 4),
    ),
    "wrappers in splits": (both("train/images", "test/images"), "cat dog", (18, 2, 20)),
    "loose pictures": ({**both("."), ".": 3}, "cat dog", (14, 2, 4)),
    "accents": (both("train", "test", classes="café thé"), "café thé", (18, 2, 20)),
}


@pytest.mark.parametrize("name", READ)
def test_layouts_that_are_read(tmp_path: Path, name: str) -> None:
    counts, classes, sizes = READ[name]
    task = open_task(f"folder:{build(tmp_path / 'data', counts)}")
    assert " ".join(task.class_names) == classes
    assert tuple(task.sizes[split] for split in ("train", "validation", "test")) == sizes
    for split in task.sizes:
        source = task.split(split)
        for row, label in zip(source.members, source.labels):  # type: ignore[attr-defined]
            assert f"/{task.class_names[label]}/" in source.rows[row].where  # type: ignore[attr-defined]


# The folders, the words of the error, and what the line in it gives: the classes and the sizes;
# None where it has no line.
REFUSED: dict[str, tuple[Counts, str, tuple[str, tuple[int, int, int]] | None]] = {
    "folds": (
        both("fold1", "fold2"),
        "hold the same subfolders \\(cat, dog\\)",
        ("cat dog", (18, 2, 20)),
    ),
    "three folds": (
        both("fold1", "fold2", "fold3"),
        "fold1, fold2, fold3 hold",
        ("cat dog", (36, 4, 20)),
    ),
    "years": (both("2021", "2022"), "not clear that they are classes", ("cat dog", (18, 2, 20))),
    "left and right": (
        {**both("left", "right"), "right/bird": 2, "left/bird": 2},
        "hold the same",
        ("bird cat dog", (20, 2, 22)),
    ),
    "years of other classes": (
        {**both("2021"), "2022/cat": 10, "2022/emu": 9},
        "hold the same subfolders",
        None,
    ),
    "years in splits": (
        both("train/2021", "train/2022", "test/2021", "test/2022"),
        "2021, 2022 hold the same",
        ("2021 2022", (36, 4, 40)),
    ),
    "images and masks": (
        both("cat", "dog", classes="images masks"),
        "subfolders \\(images, masks\\)",
        ("images masks", (18, 2, 20)),
    ),
    "pictures and thumbnails": (
        {"cat": 10, "dog": 10, **both("cat", "dog", classes="thumbs", count=5)},
        "hold the same subfolders \\(thumbs\\)",
        None,
    ),
    "validation and test": (
        both("val", "test"),
        "has no training folder, only test/, val/",
        ("cat dog", (18, 2, 20)),
    ),
    "only a test split": (
        both("test"),
        "has no training folder, only test/",
        ("cat dog", (14, 2, 4)),
    ),
    "two training folders": (both("train_a", "train_b", "test"), "both named as train", None),
    "a name of two splits": (
        both("train_val", "test"),
        "the name contains train and validation",
        ("cat dog", (14, 2, 4)),
    ),
    "an extra folder": (both("train", "extra"), "'extra' beside train/", ("cat dog", (14, 2, 4))),
    "another with the classes": (
        both("train", "test", "extra"),
        "'extra' beside train/",
        ("cat dog", (18, 2, 20)),
    ),
    "a test folder without classes": (
        {**both("train"), "test": 5},
        "test contains images \\(.*png\\) but no class",
        ("cat dog", (14, 2, 4)),
    ),
    "splits without classes": (
        {"train": 5, "test": 5},
        "test, train contain images but no class folders",
        None,
    ),
    "splits without classes, and more": (
        {"train": 5, "test": 5, "sample": 2},
        "test, train contain images",
        None,
    ),
    "only train without classes": ({"train": 5}, "contains? images .*but no class folders", None),
    "a class or a split": (
        {"train/steam": 5, "train/diesel": 5, "car": 5},
        "'car' beside train/|contains images",
        None,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layouts_that_are_refused_with_the_line_to_type(tmp_path: Path, name: str) -> None:
    counts, words, then = REFUSED[name]
    top = build(tmp_path / "my data", counts)
    with pytest.raises(BadData, match=words) as caught:
        open_task(f"folder:{top}")
    assert "\n" not in str(caught.value)
    if then is None:
        return
    line = re.search(r'task=("[^"]*")', str(caught.value))
    assert line is not None
    task = open_task(json.loads(line[1]))
    classes, sizes = then
    assert " ".join(task.class_names) == classes
    assert tuple(task.sizes[split] for split in ("train", "validation", "test")) == sizes


def test_whole_words_name_a_split() -> None:
    for word in (
        "restrain",
        "latest",
        "contest",
        "devices",
        "evaluation_of_trains",
        "detrain",
        "intraining",
        "valley",
    ):
        assert find_roles(word) == [], word
    for word in (
        "imagenet-train",
        "Train_data",
        "split=train",
        "my_training_data",
        "TRAIN",
        "x.train.y",
        "train-00000-of-00010",
    ):
        assert find_roles(word) == ["train"], word
    assert find_roles("train-val") == ["train", "validation"]
    assert (find_roles("HoldOut"), find_roles("MRITest"), find_roles("test1")) == (
        [],
        ["test"],
        ["test"],
    )


def test_the_folder_itself_is_named_as_training_split(tmp_path: Path) -> None:
    top = build(tmp_path, both("fold1", "fold2"))
    task = open_task(f"folder:{top}:train=.")
    assert (task.name, task.class_names) == (f"folder:{top}:train=.", ("fold1", "fold2"))
    task = open_task(f"folder:{top}:train=fold1,val=fold2")
    assert dict(task.sizes) == {"train": 16, "validation": 20, "test": 4}
    for roles, words in {
        "train=fold9": "no folder .*fold9",
        "test=fold1": "no training folder",
        "train=fold1,train=fold2": "each once",
        "train=fold1,best=fold2": "got best=",
    }.items():
        with pytest.raises((BadData, WrongCall), match=words):
            open_task(f"folder:{top}:{roles}")


def test_a_path_that_exists_takes_precedence_over_options(tmp_path: Path) -> None:
    names = ("a+b", "a", "b", "c,d", "e=f", "x:train=y")
    top = build(tmp_path / "my=pics,1+2", {k: 10 for name in names for k in both(name)})
    sizes = {
        "train=a+b,test=b": (18, 20),
        "train=a+a+b,test=c,d": (36, 20),
        "train=c,d,test=e=f": (18, 20),
        "train=e=f+c,d+b,val=a": (48, 12),
    }
    for roles, (train, test) in sizes.items():
        task = open_task(f"folder:{top}:{roles}")
        assert (task.sizes["train"], task.sizes["test"]) == (train, test), roles
    for reference in (f"{top}/x:train=y", f"{top}/x:train=y:train=."):
        assert open_task(f"folder:{reference}").class_names == ("cat", "dog")
    for roles in ("train=", "train=a++b", "train=a,test="):
        with pytest.raises(WrongCall, match=r"= names no folder; write t.*=FOLDER"):
            open_task(f"folder:{top}:{roles}")


@pytest.mark.parametrize("split", ["test", "train"])
def test_names_that_differ_in_their_unicode_form_are_one_class(tmp_path: Path, split: str) -> None:
    composed, taken_apart = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    top = build(
        tmp_path,
        {**both("train"), f"train/{composed}": 10, f"{split}/{taken_apart}": 10, "test/cat": 1},
    )
    task = open_task(f"folder:{top}")
    assert task.class_names == (composed, "cat", "dog") or task.class_names == (
        "cat",
        "café",
        "dog",
    )
    labels = np.concatenate([task.split(name).labels for name in task.sizes])
    assert np.bincount(labels)[task.class_names.index(composed)] == 20


def test_links_to_class_folders_and_below_them(tmp_path: Path) -> None:
    pool = build(tmp_path / "pool", {"cats": 4, "dogs": 10})
    top = build(tmp_path / "data", {"cat": 6})
    (top / "cat" / "more").symlink_to(pool / "cats", target_is_directory=True)
    (top / "cat" / "back").symlink_to("..", target_is_directory=True)
    (top / "dog").symlink_to(pool / "dogs", target_is_directory=True)
    task = open_task(f"folder:{top}")
    assert (task.class_names, sum(task.sizes.values())) == (("cat", "dog"), 20)
    (top / "emu").symlink_to(tmp_path / "gone", target_is_directory=True)
    with pytest.raises(
        BadData, match=r"link .*/emu is broken \(it leads to .*/gone\); correct or remove it"
    ):
        open_task(f"folder:{top}")
