"""Reading of all images: broken ones are reported before a training, duplicates and small classes
are listed, and good ones remembered.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from PIL import Image
from streaming_toy import encode, shards

from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks import check
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.check import check_before_training
from learngene_zoo.tasks.findings import check_task
from learngene_zoo.training.objectives import load_training_images

VIEW = InputFormat(image_size=16, mean=(0.5,) * 3, std=(0.5,) * 3)


def draw(path: Path, number: int, size: tuple[int, int] = (12, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Write 12 training images of each of two classes, 2 validation and 2 test images of each."""
    top = tmp_path / "photographs"
    for split, count in (("train", 12), ("val", 2), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            for number in range(count):
                draw(
                    top / split / name / f"{number}.png",
                    1000 * len(split) + 100 * label + number,
                    (12 + number, 10),
                )
    return top


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def doctor(*words: str | Path, code: int = 0) -> list[dict[str, str]]:
    result = CliRunner().invoke(
        main, ["doctor", "--check-images", "--workers", "0", "--json", *map(str, words)]
    )
    assert result.exit_code == code, result.output
    data: list[dict[str, str]] = json.loads(result.stdout)
    return data


def test_a_sound_folder_has_nothing_to_say(photographs: Path) -> None:
    assert [(row["what"], row["status"]) for row in doctor("--task", f"folder:{photographs}")] == [
        ("train", "ok"),
        ("validation", "ok"),
        ("test", "ok"),
    ]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_everything_that_is_wrong_is_listed(
    photographs: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 2000)
    torn, empty = photographs / "train/cat/3.png", photographs / "test/dog/1.png"
    huge, twin, other = (
        photographs / "val/cat/0.png",
        photographs / "test/cat/0.png",
        photographs / "train/dog/5.png",
    )
    tear(torn)
    empty.write_bytes(b"")
    draw(huge, 1, (50, 50))
    twin.write_bytes((photographs / "train/cat/0.png").read_bytes())
    other.write_bytes((photographs / "train/cat/1.png").read_bytes())
    for number in range(3):
        (photographs / f"train/dog/{number}.png").unlink()
    rows, readable = check_task(open_task(f"folder:{photographs}"), workers)
    assert [(row["status"], row["found"][:16]) for row in rows[:3]] == [
        ("bad", "20 of 21 images "),
        ("bad", "3 of 4 images re"),
        ("bad", "3 of 4 images re"),
    ]
    results = {(row["what"], row["status"]): row["found"] for row in rows[3:]}
    assert len(results) == 6
    assert "cannot be read" in results[str(torn), "bad"]
    assert results[str(empty), "bad"].startswith(
        "the image cannot be read (cannot identify image file); "
    )
    assert "too large" in results[str(huge), "bad"]
    assert (
        results[str(twin), "info"]
        == f"in test, is the same file as {photographs}/train/cat/0.png in train"
    )
    assert (
        results[str(other), "info"]
        == f"of class dog, is the same file as {photographs}/train/cat/1.png of cat"
    )
    assert results["class dog", "info"].startswith("has 9 training images")
    assert [len(readable.split(name)) for name in ("train", "validation", "test")] == [20, 3, 3]


def test_the_doctor_exits_with_1_and_draws_what_can_be_read(
    photographs: Path, tmp_path: Path
) -> None:
    tear(photographs / "train/cat/3.png")
    sheet = tmp_path / "sheet.png"
    rows = doctor("--task", f"folder:{photographs}", "-o", sheet, code=1)
    assert [row["status"] for row in rows] == ["bad", "ok", "ok", "bad", "ok"]
    assert Image.open(sheet).size[0] > 260
    refused = CliRunner().invoke(
        main, ["doctor", "--check-images", "--task", f"folder:{photographs}", "-o", str(sheet)]
    )
    assert refused.exit_code == 1
    assert "already exists" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--check-images"], "--check-images needs the task"),
        (["-o", "sheet.png"], "-o needs --check-images, which reads the images to draw"),
        (["--workers", "2"], "--workers needs --check-images"),
        (["--self-test", "--task", "digits"], "--self-test and --task exclude each other"),
        (["--self-test", "--check-images"], "--self-test and --check-images exclude each other"),
        (["--self-test", "--hub"], "--self-test and --hub exclude each other; choose one"),
        (["--hub", "--task", "digits"], "--hub and --task exclude each other; choose one"),
        (["--check-images", "--task", "digits", "-o", "sheet.gif"], "must end in .png"),
    ],
)
def test_wrong_calls(words: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["doctor", *words])
    assert (result.exit_code, message in result.stderr) == (2, True)


def test_tables_are_read_and_streams_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = {"image": [encode(n) for n in range(20)], "label": list("ab") * 10}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "data.parquet")
    task = open_task(f"parquet:{tmp_path}/data.parquet")
    assert [row["status"] for row in check_task(task, 0)[0][:3]] == ["ok"] * 3
    monkeypatch.setattr(check, "decode_image", lambda *image: pytest.fail("it was decoded again"))
    train(task)
    rows["image"][11] = rows["image"][11][:50]
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "data.parquet")
    monkeypatch.undo()
    result = check_task(open_task(f"parquet:{tmp_path}/data.parquet"), 0)[0]
    assert [row["what"].rpartition("/")[2] for row in result if row["status"] == "bad"][1:] == [
        "data.parquet train row 11"
    ]
    with pytest.raises(WrongCall, match="is streamed; the images of folder"):
        check_task(open_task(f"wds:{shards(tmp_path / 'tars')}"), 0)


def train(task: Any, **recipe: Any) -> None:
    load_training_images(
        task, VIEW, Recipe(epochs=1, batch_size=4, augment="none", **recipe), Run()
    )


def test_a_training_names_broken_pictures_before_its_first_step(photographs: Path) -> None:
    task = open_task(f"folder:{photographs}")
    train(task)
    tear(photographs / "val/dog/1.png")
    with pytest.raises(
        BadData, match=r"^\S*/val/dog/1.png: the image cannot be read .*replace or remove it$"
    ):
        train(task)
    for number in range(5):
        tear(photographs / f"train/cat/{number}.png")
    with pytest.raises(
        BadData, match=r"^6 images of .*/train/cat/0.png: .*; and 3 more \(lgzoo doctor"
    ):
        train(task)
    load_training_images(
        task, VIEW, Recipe(epochs=0, batch_size=4), Run()
    )  # nothing is trained: nothing is read


def test_a_file_that_is_no_image_is_found_by_its_header(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photographs / "test/dog/0.png").write_bytes(b"")
    tear(photographs / "train/cat/2.png")
    with pytest.raises(BadData, match=r"^2 images of .*test/dog/0.png: .*train/cat/2.png: "):
        train(open_task(f"folder:{photographs}"))
    monkeypatch.setattr(check, "MORE_SECONDS", -1.0)
    monkeypatch.setattr(check, "decode_image", lambda *image: pytest.fail("it was decoded"))
    with pytest.raises(BadData, match=r"test/dog/0.png: the image cannot be read"):
        train(open_task(f"folder:{photographs}"))


def test_images_that_are_not_trained_on_are_left(photographs: Path) -> None:
    task = open_task(f"folder:{photographs}")
    used = np.arange(12)  # the cats
    tear(photographs / "train/dog/7.png")
    check_before_training(task, used, 0)
    tear(photographs / "train/cat/7.png")
    with pytest.raises(BadData, match=r"cat/7.png"):
        check_before_training(task, used, 0)


def test_what_was_found_whole_is_remembered_by_size_and_time(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    task, read = open_task(f"folder:{photographs}"), []
    real = check.PictureReader.__getitem__
    monkeypatch.setattr(
        check.PictureReader,
        "__getitem__",
        lambda self, places: read.extend(places) or real(self, places),
    )
    train(task)
    assert len(read) == 2 * 32  # each header, each picture
    read.clear()
    train(task)
    assert read == []
    draw(photographs / "train/dog/3.png", 77)
    train(task)
    assert read == [("train", 12 + 5)] * 2  # after 0, 1, 10, 11 and 2
    for file in cache.rglob("*.npy"):
        file.write_bytes(b"torn")
    read.clear()
    train(task)
    assert len(read) == 2 * 32


def test_it_ends_in_time_and_goes_on_in_the_next(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = open_task(f"folder:{photographs}")
    monkeypatch.setattr(check, "SECONDS", -1.0)
    tear(photographs / "train/cat/0.png")
    train(task)
    monkeypatch.setattr(check, "SECONDS", 30.0)
    with pytest.raises(BadData, match=r"cat/0.png"):
        train(task)


def test_nothing_is_read_once_the_time_is_up(photographs: Path) -> None:
    splits = {"train": open_task(f"folder:{photographs}").split("train")}
    used, known = list(range(len(splits["train"]))), np.zeros(0, dtype=np.uint64)
    now = time.monotonic()
    for deadline, count in ((now - 1, 0), (now + 60, len(used))):
        met = check._UncheckedChunks(splits, used, known, deadline)
        assert sum(len(chunk) for chunk in met) == sum(len(chunk) for chunk in met.met) == count


def test_remembered_images_are_not_read_again(photographs: Path) -> None:
    split = open_task(f"folder:{photographs}").split("train")
    used = list(range(len(split)))
    stamps = np.array([check.stamp(split, index) for index in used], dtype=np.uint64)
    for known in ([], used[::3], used):
        chunks = check._UncheckedChunks(
            {"train": split}, used, np.unique(stamps[known]), time.monotonic() + 60
        )
        left = {index for chunk in chunks for _, index in chunk}
        assert left == set(used) - set(known)
