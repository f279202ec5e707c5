"""Images without labels: folders of any depth, tables, tars, and tasks whose labels are not used."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from learngene_zoo.errors import BadData, WrongCall, ZooError
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.task import Task, stamp_task
from learngene_zoo.tasks.unlabelled.opening import open_images, remove_labels
from learngene_zoo.testing import make_tiny_task

FORM = InputFormat(image_size=16, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)


def encode_picture(number: int) -> bytes:
    """Return a PNG of one colour, which is different for every number below 250."""
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_pictures(folder: Path, count: int, first: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        (folder / f"{number}.png").write_bytes(encode_picture(number))


def write_flat(folder: Path) -> str:
    write_pictures(folder / "flat", 30)
    return f"folder:{folder / 'flat'}"


def write_nested(folder: Path) -> str:
    write_pictures(folder / "nested" / "2023" / "may", 10)
    write_pictures(folder / "nested" / "2023", 10, first=10)
    write_pictures(folder / "nested", 10, first=20)
    (folder / "nested" / "2023" / "notes.txt").write_text("no image")
    return f"folder:{folder / 'nested'}"


def write_shared(folder: Path) -> str:
    """Write two years with the same months, which `--task` refuses."""
    for number, part in enumerate(("2023/may", "2023/june", "2024/may")):
        write_pictures(folder / "shared" / part, 10, first=10 * number)
    return f"folder:{folder / 'shared'}"


def write_loose(folder: Path) -> str:
    """Write more images beside the subfolders than into them."""
    write_pictures(folder / "loose", 16)
    write_pictures(folder / "loose" / "old", 7, first=16)
    write_pictures(folder / "loose" / "new", 7, first=23)
    return f"folder:{folder / 'loose'}"


def write_single(folder: Path) -> str:
    """Write a subfolder of images beside an empty one."""
    write_pictures(folder / "single" / "all", 30)
    (folder / "single" / "empty").mkdir()
    return f"folder:{folder / 'single'}"


def write_parquet(folder: Path) -> str:
    from datasets import Dataset, Features
    from datasets import Image as ImageFeature

    rows = [{"bytes": encode_picture(number), "path": None} for number in range(30)]
    table = Dataset.from_dict({"image": rows}, features=Features({"image": ImageFeature()}))
    table.to_parquet(str(folder / "t.parquet"))
    return f"parquet:{folder / 't.parquet'}"


def write_tar(folder: Path) -> str:
    with tarfile.open(folder / "t.tar", "w") as archive:
        for number in range(30):
            content = encode_picture(number)
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return f"wds:{folder / 't.tar'}"


def read_colours(task: Task, split: str) -> list[int]:
    """Return the colour of every image of a split."""
    batches = Loader(task, split, FORM, batch_size=7, drop_last=False).epoch(0)
    images = [image for batch in batches for image in batch.inputs]
    return sorted(round(float(image.mean()) * 127.5 + 127.5) for image in images)


WRITERS = [
    write_flat,
    write_nested,
    write_shared,
    write_loose,
    write_single,
    write_parquet,
    write_tar,
]


@pytest.mark.parametrize("write", WRITERS)
def test_pictures_without_labels_are_all_used_and_a_tenth_is_held_out(
    write: Callable[[Path], str], tmp_path: Path
) -> None:
    reference = write(tmp_path)
    task = open_images(reference)
    train, held_out = read_colours(task, "train"), read_colours(task, "validation")
    assert sorted(train + held_out) == list(range(30)), "each is used once"
    assert 1 <= len(held_out) <= 6
    assert task.sizes == {"train": len(train), "validation": len(held_out), "test": 0}
    again = open_images(reference)
    assert read_colours(again, "validation") == held_out
    assert stamp_task(again) == stamp_task(task) != ""


def test_a_file_that_is_no_picture_is_named_in_one_note(tmp_path: Path) -> None:
    notes = open_images(write_nested(tmp_path)).notes
    assert [note for note in notes if "notes.txt" in note] == [notes[0]]


def test_class_folders_are_used_as_their_task_without_test_images_and_labels(
    tmp_path: Path,
) -> None:
    for number, name in enumerate(("a", "b")):
        write_pictures(tmp_path / name, 30, first=30 * number)
    task = open_images(f"folder:{tmp_path}")
    assert task.sizes == {"train": 43, "validation": 5, "test": 0}
    write_pictures(tmp_path, 59, first=60)
    assert open_images(f"folder:{tmp_path}").sizes == task.sizes, "fewer than those of the classes"
    assert "12 test images of it left out" in task.notes[-1]
    assert len(task.split("test")) == 0
    assert not task.split("train").labels.any()
    assert not set(read_colours(task, "train")) & set(read_colours(task, "validation"))


@pytest.mark.parametrize("write", WRITERS)
def test_a_task_has_no_labels_if_its_data_have_none(
    write: Callable[[Path], str], tmp_path: Path
) -> None:
    reference = write(tmp_path)
    assert not open_task(reference, require_labels=False).is_labelled
    if write is not write_loose:
        with pytest.raises(BadData):
            open_task(reference)


def test_a_task_keeps_its_labels_if_they_are_not_required() -> None:
    assert open_task("digits", require_labels=False).classes == 10


def test_a_task_loses_its_labels() -> None:
    task = remove_labels(make_tiny_task())
    assert (task.classes, task.attributes, task.kind) == (1, (), "classification")
    assert not task.split("train").labels.any()
    labelled = make_tiny_task().split("train").__getitems__([3, 5])
    assert (task.split("train").__getitems__([3, 5]) == labelled).all()


@pytest.mark.parametrize(
    ("reference", "error", "words"),
    [
        ("folder:two", BadData, "folder:two has 2 images outside its test split; give at least 20"),
        ("folder:nowhere", BadData, "there is no folder nowhere; give a folder of images"),
        ("folder:empty", BadData, "empty contains no files"),
        ("parquet:nowhere", BadData, "there is no file or folder nowhere"),
        ("folder:", WrongCall, "nothing after the colon"),
        ("two", WrongCall, "to use the folder of that name, write folder:two"),
        ("wds:two/*.tar", ZooError, "two"),
    ],
)
def test_data_that_cannot_be_used(
    reference: str,
    error: type[ZooError],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "two", 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=words.replace("*", r"\*")) as caught:
        open_images(reference)
    assert "\n" not in str(caught.value)


def test_broken_links_are_named(tmp_path: Path) -> None:
    write_pictures(tmp_path, 30)
    (tmp_path / "gone.png").symlink_to("nowhere.png")
    with pytest.raises(BadData, match=r"gone.png is broken; correct"):
        open_images(f"folder:{tmp_path}")
    (tmp_path / "lost.png").symlink_to("nowhere.png")
    with pytest.raises(BadData, match=r"gone.png is broken \(and 1 more\); correct"):
        open_images(f"folder:{tmp_path}")
