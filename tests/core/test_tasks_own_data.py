"""The user's data: recognised in each layout, missing splits made, and one-line errors for every
problem.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from learngene_zoo.errors import BadData, Unavailable, WrongCall
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.runs.progress import print_activities
from learngene_zoo.tasks import hub_data
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.task import HubSource

VIEW = InputFormat(image_size=16, mean=(0.5,) * 3, std=(0.5,) * 3)
MODES = {"RGB": 3, "L": 1, "RGBA": 4}


def picture(number: int, mode: str = "RGB", size: tuple[int, int] = (20, 12)) -> Image.Image:
    shape = (size[1], size[0], MODES[mode])
    pixels = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels.squeeze(), mode)


def encode(number: int) -> bytes:
    stream = io.BytesIO()
    picture(number).save(stream, "png")
    return stream.getvalue()


def class_folders(top: Path, counts: dict[str, int]) -> Path:
    for name, count in counts.items():
        (top / name).mkdir(parents=True)
        for number in range(count):
            picture(number, tuple(MODES)[number % 3], (14 + number, 20)).save(
                top / name / f"{number}.png"
            )
    return top


def test_a_folder_of_classes_becomes_three_splits(tmp_path: Path) -> None:
    task = open_task(f"folder:{class_folders(tmp_path, {'cat': 20, 'dog': 10})}")
    assert task.class_names == ("cat", "dog")
    assert dict(task.sizes) == {"train": 22, "validation": 2, "test": 6}
    assert np.bincount(task.split("test").labels).tolist() == [4, 2]
    parts = [set(task.split(name).members.tolist()) for name in task.sizes]  # type: ignore[attr-defined]
    assert set.union(*parts) == set(range(30))
    again = open_task(f"folder:{tmp_path}")
    assert all((task.split(name).labels == again.split(name).labels).all() for name in task.sizes)


@pytest.mark.parametrize("augment", ["none", "light", "rand"])
def test_images_of_any_size_and_mode_fit_the_view(tmp_path: Path, augment: Any) -> None:
    task = open_task(f"folder:{class_folders(tmp_path, {'cat': 9, 'dog': 9})}")
    alone, helped = (
        next(Loader(task, "train", VIEW, batch_size=12, augment=augment, workers=workers).epoch(0))
        for workers in (0, 1)
    )
    assert alone.inputs.shape == (12, 3, 16, 16)
    assert torch.equal(alone.inputs, helped.inputs)


def test_named_splits_are_used(tmp_path: Path) -> None:
    for name, count in (("train", 6), ("val", 2), ("test", 3)):
        class_folders(tmp_path / name, {"a": count, "b": count})
    assert dict(open_task(f"folder:{tmp_path}").sizes) == {"train": 12, "validation": 4, "test": 6}


def test_files_that_are_no_images_are_left_out_and_named(tmp_path: Path) -> None:
    class_folders(tmp_path, {"cat": 10, "dog": 10})
    clean = open_task(f"folder:{tmp_path}")
    (tmp_path / "cat" / "notes.txt").write_text("my cats")
    (tmp_path / "dog" / "labels.csv").write_text("1,2")
    (tmp_path / "README.md").write_text("beside the classes")
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"hidden")
    (tmp_path / "cat" / "._1.png").write_bytes(b"what macOS leaves on other disks")
    task = open_task(f"folder:{tmp_path}")
    assert task.notes == (
        f"2 files left out: 1 .txt, 1 .csv; first: {tmp_path / 'cat' / 'notes.txt'}",
    )
    assert clean.notes == ()
    assert (task.class_names, task.sizes) == (clean.class_names, clean.sizes)


def test_hidden_folders_are_no_classes_and_suffixes_may_be_capitals(tmp_path: Path) -> None:
    class_folders(tmp_path, {"cat": 10, "dog": 10, ".cache": 3})
    before = open_task(f"folder:{tmp_path}")
    for number, path in enumerate(sorted(tmp_path.rglob("*.png"))):
        if number % 3 == 0:
            path.rename(path.with_suffix(".PNG"))
    task = open_task(f"folder:{tmp_path}")
    assert task.class_names == before.class_names == ("cat", "dog")
    assert (task.sizes, task.notes) == (before.sizes, ())


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


FOLDER_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "one class": (lambda top: class_folders(top, {"cat": 3}), "one class"),
    "an empty class": (lambda top: class_folders(top, {"cat": 3, "dog": 0}), "dog has 0 images"),
    "empty classes": (
        lambda top: class_folders(top, {"cat": 3, "dog": 0, "emu": 0, "fox": 0}),
        (
            "dog has 0 images; add some or remove it; also wrong: class folder .*/emu, class folder"
            " .*/fox$"
        ),
    ),
    "a class of text": (
        lambda top: (
            class_folders(top, {"cat": 3, "dog": 0}),
            (top / "dog" / "a.txt").write_text("no"),
        ),
        r"dog has 0 images, only .*a\.txt",
    ),
    "nothing": (lambda top: None, "contains no files; give a folder of images"),
    "pictures in place of classes": (
        lambda top: picture(1).save(top / "1.png"),
        "but no class folders; sort them",
    ),
    "only a test split": (
        lambda top: class_folders(top / "test", {"a": 2, "b": 2}),
        "has no training folder, only test/; name the training folder: task=.folder:.*:train=test.$",
    ),
    "too few": (
        lambda top: class_folders(top, {"a": 1, "b": 0}) and (top / "b").rmdir(),
        "one class",
    ),
    "splits that differ": (
        lambda top: (
            class_folders(top / "train", {"a": 2, "b": 2}),
            class_folders(top / "test", {"a": 2, "c": 2}),
        ),
        (
            "class folder .*/test/c is in test but not in train; add training images of 'c' or"
            " remove it"
        ),
    ),
}


@pytest.mark.parametrize("fault", FOLDER_FAULTS)
def test_faults_of_folders(tmp_path: Path, fault: str) -> None:
    make, words = FOLDER_FAULTS[fault]
    make(tmp_path)
    with pytest.raises(BadData, match=words) as caught:
        open_task(f"folder:{tmp_path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [encode(0)[:200], b"no image", b""])
def test_an_unreadable_image_is_named(tmp_path: Path, content: bytes, workers: int) -> None:
    class_folders(tmp_path, {"cat": 9, "dog": 9})
    for file in (tmp_path / "dog").iterdir():
        file.write_bytes(content)
    task = open_task(f"folder:{tmp_path}")
    with pytest.raises(BadData, match=r"dog/\d\.png: the image cannot be read"):
        list(Loader(task, "train", VIEW, batch_size=4, workers=workers).epoch(0))


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_a_missing_path_is_named(tmp_path: Path, kind: str) -> None:
    with pytest.raises(BadData, match="nowhere"):
        open_task(f"{kind}:{tmp_path / 'nowhere'}")


@pytest.fixture(scope="module", autouse=True)
def _no_progress_bars() -> None:
    import datasets

    datasets.disable_progress_bars()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def table(
    count: int,
    *,
    names: list[str] | None = None,
    label: str = "label",
    image: str = "image",
    **more: Any,
) -> Any:
    from datasets import ClassLabel, Dataset, Features, Value
    from datasets import Image as ImageFeature

    labels = [number % 3 if names else "xyz"[number % 3] for number in range(count)]
    rows = {
        image: [{"bytes": encode(number), "path": None} for number in range(count)],
        label: labels,
        **more,
    }
    features = {image: ImageFeature(), label: ClassLabel(names=names) if names else Value("string")}
    return Dataset.from_dict(
        rows, features=Features({**features, **{key: Value("int64") for key in more}})
    )


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"names": ["p", "q", "r"]}, ("p", "q", "r")),
        ({"names": ["p", "q", "r"], "label": "fine_label", "image": "img"}, ("p", "q", "r")),
        ({}, ("x", "y", "z")),
        ({"label": "category", "number": list(range(30))}, ("x", "y", "z")),
    ],
)
def test_columns_are_read_from_the_features(
    tmp_path: Path, settings: dict[str, Any], names: tuple[str, ...]
) -> None:
    (tmp_path / "data").mkdir()
    table(30, **settings).to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    for reference in (
        f"parquet:{tmp_path / 'data'}",
        f"parquet:{tmp_path / 'data' / 'train-00000-of-00001.parquet'}",
    ):
        task = open_task(reference)
        assert task.class_names == names
        assert sum(task.sizes.values()) == 30
        batch = next(Loader(task, "train", VIEW, batch_size=8, workers=1).epoch(0))
        assert batch.inputs.shape == (8, 3, 16, 16)
    expected = np.array(picture(5))
    everything = task.split("train")
    row = everything.members.tolist().index(5) if 5 in everything.members else None  # type: ignore[attr-defined]
    if row is not None:
        assert (everything.__getitems__([row])[0].permute(1, 2, 0).numpy() == expected).all()
        assert everything.labels[row] == 5 % 3


@pytest.mark.usefixtures("cache")
def test_faults_of_parquet(tmp_path: Path) -> None:
    from datasets import Dataset

    file = tmp_path / "train.parquet"
    Dataset.from_dict({"size": [3, 4], "label": [0, 1]}).to_parquet(file)
    with pytest.raises(BadData, match="no image column, only size, label"):
        open_task(f"parquet:{file}")
    table(9).remove_columns("label").to_parquet(file)
    with pytest.raises(BadData, match="no label column, only image"):
        open_task(f"parquet:{file}")
    table(9, names=["a", "b", "c", "d"]).to_parquet(file)
    with pytest.raises(BadData, match="one class has no training images: d; add"):
        open_task(f"parquet:{file}")
    file.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(BadData, match=r"train\.parquet cannot be read"):
        open_task(f"parquet:{file}")
    table(9).to_parquet(file)
    table(9).map(lambda row: {"label": "w"}).to_parquet(tmp_path / "test.parquet")
    with pytest.raises(BadData, match=r"class 'w' of test \(row 0\) is not in train"):
        open_task(f"parquet:{tmp_path}")
    (tmp_path / "test.parquet").rename(tmp_path / "other.parquet")
    with pytest.raises(BadData, match="belongs to no split"):
        open_task(f"parquet:{tmp_path}")


@pytest.mark.usefixtures("cache")
def test_a_torn_image_in_a_table_is_named_by_its_row(tmp_path: Path) -> None:
    rows = table(12).to_dict()
    rows["image"][7] = {"bytes": rows["image"][7]["bytes"][:90], "path": None}
    torn = table(12).from_dict(rows, features=table(12).features)
    torn.to_parquet(tmp_path / "train.parquet")
    table(6).to_parquet(tmp_path / "validation.parquet")
    table(6).to_parquet(tmp_path / "test.parquet")
    task = open_task(f"parquet:{tmp_path}")
    with pytest.raises(BadData, match="row 7: the image cannot be read"):
        list(Loader(task, "train", VIEW, batch_size=4).epoch(0))


def test_the_hub_s_layout_is_read_and_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import DatasetDict

    calls = []
    tables = DatasetDict(
        train=table(30, names=["p", "q", "r"]), valid=table(6, names=["p", "q", "r"])
    )
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub_data, "_find_revision", lambda name, revision: ("0" * 40, "mit"))
    monkeypatch.setattr(hub_data, "_load", lambda *call: calls.append(call) or tables)
    task = open_task("hf:some/data:small")
    assert calls == [("some/data", "small", "0" * 40, False)]
    assert (task.revision, task.licence) == ("0" * 40, "mit")
    assert dict(task.sizes) == {"train": 24, "validation": 6, "test": 6}


@pytest.mark.usefixtures("cache")
def test_offline_the_cached_commit_is_compared_with_the_named_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import DatasetDict, load_from_disk

    cached, other = "a1" * 20, "b2" * 20
    folder = tmp_path / cached
    DatasetDict(train=table(30, names=["p", "q", "r"])).save_to_disk(folder)
    monkeypatch.setattr(hub_data, "_load", lambda *call: load_from_disk(folder))
    assert open_task("hf:some/data", offline=True).revision == cached
    assert open_task(f"hf:some/data@{cached}", offline=True).revision == cached
    words = f"is cached at commit {cached}, not at "
    with pytest.raises(Unavailable, match=f"{words}{other}; open it once online"):
        open_task(f"hf:some/data@{other}", offline=True)
    with pytest.raises(Unavailable, match=f"{words}b2b2b2b;"):
        hub_data.load_hub_tables(HubSource(reference="some/data", pin="b2b2b2b"), True)
    hub_data.load_hub_tables(HubSource(reference="some/data@v1.0", pin="a1a1a1a"), True)
    monkeypatch.setattr(
        hub_data, "_load", lambda *call: DatasetDict(train=table(30, names=["p", "q", "r"]))
    )
    assert open_task(f"hf:some/data@{other}", offline=True).revision is None


def test_what_the_hub_says_is_put_in_our_words(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def failing(error: Exception) -> None:
        def load(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(datasets, "load_dataset", load)

    failing(RuntimeError("Dataset scripts are no longer supported, but found data.py"))
    with pytest.raises(BadData, match=r"script.*refs/convert/parquet"):
        open_task("hf:some/data", offline=True)
    failing(ConnectionError("Couldn't reach 'me/aggregated-manuscripts' on the Hub"))
    for name in ("me/aggregated-manuscripts", "me/gated", "me/script"):
        with pytest.raises(Unavailable, match="not in the cache"):
            open_task(f"hf:{name}", offline=True)
    failing(ConnectionError("Dataset 'some/data' is a gated dataset on the Hub"))
    with pytest.raises(Unavailable, match="accept its terms"):
        open_task("hf:some/data", offline=True)
    failing(ValueError("Config name is missing. Please pick one among ['a', 'b']"))
    with pytest.raises(WrongCall, match="hf:some/data:CONFIG"):
        open_task("hf:some/data", offline=True)
    failing(ConnectionError("Couldn't reach 'some/data' on the Hub"))
    with pytest.raises(Unavailable, match="not in the cache"):
        open_task("hf:some/data", offline=True)


def test_what_is_not_cached_is_unavailable_offline() -> None:
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    for reference in ("hf:learngene-zoo-tests/no-such-data", "cifar10"):
        with pytest.raises(Unavailable, match="offline"):
            open_task(reference, offline=True)
    assert before == constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("reference", ["digit", "folder:", "hf:alone", "hf:a/b/c", "tar:x"])
def test_references_that_cannot_be_meant(reference: str) -> None:
    with pytest.raises(WrongCall):
        open_task(reference)


def test_deep_grey_is_noted_once_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = open_task(f"folder:{class_folders(tmp_path, {'cat': 12, 'dog': 12})}")
    with print_activities():
        Loader(task, "train", task.input_format, batch_size=4)
    (line,) = capsys.readouterr().err.splitlines()
    assert "of 16 images looked at" in line
    assert "transparent parts, which become white" in line
    for number, path in enumerate(sorted(tmp_path.rglob("*.png"))):
        Image.fromarray(np.full((9, 9), 1_000 + number, dtype=np.uint16)).save(path)
    with print_activities():
        for split in ("train", "validation"):
            Loader(task, split, task.input_format, batch_size=4)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"note: {tmp_path}")
    assert line.endswith(
        ".png is grey of more than 8 bits; such images are scaled by the bits in use, else by"
        " percentiles (docs/tasks.md)"
    )
