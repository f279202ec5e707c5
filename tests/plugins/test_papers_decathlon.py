"""The Visual Decathlon from its archive: COCO-style annotations, unpacked or packed images, and
errors.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from papers_data import decathlon, picture, write_annotations

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.images import decode_image
from lgzoo_papers.suite import ROWS, find_on_hub

NAME = "decathlon-daimlerpedcls"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LGZOO_DECATHLON", str(tmp_path))
    return decathlon(tmp_path, "daimlerpedcls", 2, 40, 10)


def pack(base: Path, name: str = "daimlerpedcls") -> Path:
    """Pack the images as in the data archive: NAME.tar without a folder NAME."""
    tar = base / "data" / f"{name}.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(base / "data" / name, arcname=name)
    (base / "data" / name).rename(base / "elsewhere")
    return tar


def test_its_validation_split_is_the_test_and_validation_is_cut_from_train(base: Path) -> None:
    task = open_task(NAME)
    assert (task.classes, task.class_names) == (2, ("kind 0", "kind 1"))
    assert dict(task.sizes) == {"train": 36, "validation": 4, "test": 10}
    assert "validation split is the test" in task.source
    assert any("test labels are withheld" in note for note in task.notes)
    members = {split: set(task.split(split).members.tolist()) for split in ("train", "validation")}  # type: ignore[attr-defined]
    assert not members["train"] & members["validation"]
    assert members["train"] | members["validation"] == set(range(40))
    test = task.split("test")
    assert test.labels.tolist() == [0, 1] * 5
    expected = decode_image(str(base / "data/daimlerpedcls/val/0002/000003.jpg"), "here")
    assert torch.equal(test.__getitems__([3])[0], expected)


def test_packed_pictures_are_the_same_as_unpacked_ones(base: Path) -> None:
    before = open_task(NAME).split("train")
    unpacked = before.__getitems__([0, 5, 30])
    pack(base)
    after = pickle.loads(pickle.dumps(open_task(NAME).split("train")))
    assert (after.labels == before.labels).all()
    assert all(map(torch.equal, after.__getitems__([0, 5, 30]), unpacked))


def test_the_devkit_s_folder_itself_will_do(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGZOO_DECATHLON", str(base))
    assert len(open_task(NAME).split("test")) == 10


def test_ten_classes_of_numbers(base: Path, tmp_path: Path) -> None:
    decathlon(tmp_path, "svhn", 10, 100, 20)
    task = open_task("decathlon-svhn")
    assert dict(task.sizes) == {"train": 90, "validation": 10, "test": 20}
    assert np.bincount(task.split("validation").labels).tolist() == [1] * 10


def edit(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def val(base: Path) -> Path:
    return base / "annotations" / "daimlerpedcls_val.json"


def train(base: Path) -> Path:
    return base / "annotations" / "daimlerpedcls_train.json"


def rename_class(base: Path) -> None:
    edit(val(base), lambda content: content["categories"][1].update(name="walker"))


def one_more_class(base: Path) -> None:
    edit(val(base), lambda content: content["categories"].append({"id": 7, "name": "tram"}))


def drop_label(base: Path) -> None:
    edit(train(base), lambda content: content["annotations"].pop(3))


def share_picture(base: Path) -> None:
    file = json.loads(train(base).read_text())["images"][0]["file_name"]
    edit(val(base), lambda content: content["images"][0].update(file_name=file))


def cut_tar(base: Path) -> None:
    tar = pack(base)
    tar.write_bytes(tar.read_bytes()[:30_000])


def foreign_tar(base: Path) -> None:
    pack(base).write_bytes(b"<html>404 not found</html>" * 100)


def emptied_tar(base: Path) -> None:
    with tarfile.open(pack(base), "w"):
        pass


def wrong_sum(base: Path, name: str = "SHA256SUMS", digits: int = 64) -> None:
    pack(base)
    (base / "data" / name).write_text(f"{'0' * digits}  daimlerpedcls.tar\n")


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no annotations": (
        lambda base: (base / "annotations").rename(base / "a"),
        "no annotations/; unpack http",
    ),
    "no file of them": (lambda base: val(base).unlink(), r"there is no .*_val\.json; unpack"),
    "torn json": (
        lambda base: val(base).write_text(val(base).read_text()[:500]),
        r"_val\.json cannot be read as JSON",
    ),
    "another json": (
        lambda base: val(base).write_text("[1, 2]"),
        r"_val\.json has no list of images",
    ),
    "no categories": (
        lambda base: edit(val(base), lambda c: c.pop("categories")),
        "no list of categories",
    ),
    "a list of words": (
        lambda base: edit(val(base), lambda c: c.update(images=["a"])),
        "something other than objects",
    ),
    "classes that differ": (
        rename_class,
        r"_train\.json and .*_val\.json list different classes \('kind 1', 'walker'\)",
    ),
    "a class more": (one_more_class, r"list different classes \(None, 'tram'\)"),
    "an unknown class": (
        lambda base: edit(val(base), lambda c: c["annotations"][0].update(category_id=5)),
        "has no 5",
    ),
    "no label": (drop_label, "has no label for data/daimlerpedcls/train"),
    "a picture in both": (share_picture, "is in .*_train.json and in .*_val.json"),
    "an id twice": (
        lambda base: edit(val(base), lambda c: c["images"].append(c["images"][0])),
        "lists a picture twice",
    ),
    "a way out": (
        lambda base: edit(val(base), lambda c: c["images"][0].update(file_name="data/../../x.jpg")),
        "outside the data folder",
    ),
    "no pictures": (
        lambda base: (base / "data/daimlerpedcls").rename(base / "x"),
        "neither .*daimlerpedcls nor",
    ),
    "a picture lost": (
        lambda base: (base / "data/daimlerpedcls/val/0001/000002.jpg").unlink(),
        r"no .*val/0001/000002\.jpg, which the annotations list",
    ),
    "a torn tar": (cut_tar, r"daimlerpedcls\.tar (cannot be read as a tar file|holds no)"),
    "no tar": (foreign_tar, r"daimlerpedcls\.tar cannot be read as a tar file"),
    "a tar of nothing": (emptied_tar, r"daimlerpedcls\.tar holds no daimlerpedcls/train"),
    "a wrong sha256": (
        wrong_sum,
        r"daimlerpedcls\.tar does not have the checksum that .*SHA256SUMS gives",
    ),
    "a wrong md5": (
        lambda base: wrong_sum(base, "MD5SUMS", 32),
        "does not have the checksum that .*MD5SUMS gives",
    ),
    "a torn list of sums": (
        lambda base: wrong_sum(base, digits=20),
        "SHA256SUMS line 1 is not a checksum",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(base: Path, fault: str) -> None:
    make, words = FAULTS[fault]
    make(base)
    with pytest.raises(BadData, match=words) as caught:
        open_task(NAME)
    assert "\n" not in str(caught.value)


def test_right_checksums_pass(base: Path) -> None:
    tar = pack(base)
    lines = [
        f"{hashlib.sha256(tar.read_bytes()).hexdigest()} *daimlerpedcls.tar",
        "0" * 64 + "  another.tar",
        "",
    ]
    (tar.parent / "SHA256SUMS").write_text("\n".join(lines))
    annotations = hashlib.md5(val(base).read_bytes()).hexdigest()
    (base / "MD5SUMS").write_text(f"{annotations}  annotations/daimlerpedcls_val.json\n")
    assert len(open_task(NAME).split("test")) == 10


def test_an_unreadable_picture_in_a_tar_is_named(base: Path) -> None:
    (base / "data/daimlerpedcls/val/0001/000002.jpg").write_bytes(b"no picture")
    pack(base)
    with pytest.raises(
        BadData, match=r"daimlerpedcls\.tar:daimlerpedcls/val/0001/000002\.jpg: the image cannot be"
    ):
        open_task(NAME).split("test").__getitems__([2])


def test_another_number_of_classes_is_refused(base: Path) -> None:
    for split, count in (("train", 30), ("val", 9)):
        files = [f"data/daimlerpedcls/{split}/{number}.jpg" for number in range(count)]
        for number, file in enumerate(files):
            picture(number).save(base / file)
        write_annotations(
            base, "daimlerpedcls", split, files, [number % 3 for number in range(count)], 3
        )
    with pytest.raises(BadData, match=f"has 3 classes, but {NAME} has 2"):
        open_task(NAME)


@pytest.mark.parametrize(
    ("name", "words"), [(NAME, "the Hub has no copy"), ("decathlon-ucf101", "dynamic images")]
)
def test_what_cannot_be_had_says_where_it_is(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LGZOO_DECATHLON", raising=False)
    with pytest.raises(Unavailable, match=f"{words}.*decathlon-1.0-devkit.tar.gz.*LGZOO_DECATHLON"):
        open_task(name)


def test_what_the_archive_does_not_contain_is_read_from_the_hub(base: Path) -> None:
    entry = ROWS["decathlon-svhn"].entry
    source = find_on_hub(entry)
    assert source is not None
    (base / "data" / "svhn.tar").touch()
    assert find_on_hub(entry) is None
    assert find_on_hub(ROWS["decathlon-imagenet12"].entry) is not None


def test_a_variable_that_names_no_folder_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LGZOO_DECATHLON", str(tmp_path / "gone"))
    with pytest.raises(BadData, match=r"LGZOO_DECATHLON is .*gone.* not a folder"):
        open_task(NAME)
