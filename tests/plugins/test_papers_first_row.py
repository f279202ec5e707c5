"""`lgzoo doctor --task`: one row of a task, its columns, and problems; only that row of the Hub's
data is read.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from papers_data import class_folders, decathlon, encode, parquet, picture

from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.tasks import hub_data
from learngene_zoo.tasks.first_row import read_first_row

COMMIT = "c0ffee" + "0" * 34


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Path], None]:
    """Return a function that replaces the Hub by a folder, which can only be streamed."""
    import datasets

    load = datasets.load_dataset

    def stands_in(folder: Path) -> None:
        def from_folder(
            repository: str, config: str | None = None, *, streaming: bool = False, **_: Any
        ) -> Any:
            assert streaming, "more than one row would be fetched"
            return load(str(folder), streaming=True)

        monkeypatch.setattr(datasets, "load_dataset", from_folder)

    for variable in ("HF_HUB_OFFLINE", "LGZOO_DECATHLON", "LGZOO_FOOD101", "LGZOO_VOC2012"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub_data, "_find_revision", lambda repository, revision: (COMMIT, "mit"))
    return stands_in


def test_a_row_of_the_hub_is_streamed(hub: Callable[[Path], None], tmp_path: Path) -> None:
    columns = {"image": "image", "label": "class", "id": "number"}
    hub(parquet(tmp_path / "r", {"train": 6, "validation": 4}, columns, ["pie", "soup"]))
    row = read_first_row("hf:some/food", offline=False)
    assert row["columns"] == ["image: Image", "label: ClassLabel of 2", "id: int64"]
    assert (row["image_column"], row["label_column"]) == ("image", "label")
    assert (row["first_image"], row["first_label"], row["first_class"]) == ("3x12x20", 0, "pie")
    assert [size.split()[0] for size in row["splits"]] == ["train", "validation"]
    assert (row["revision"], row["licence"], row["missing"]) == (COMMIT, "mit", [])
    assert not list(tmp_path.rglob("*.arrow"))


def test_what_is_missing_is_said_and_fails(hub: Callable[[Path], None], tmp_path: Path) -> None:
    hub(parquet(tmp_path / "r", {"test": 4}, {"image": "image", "name": "text"}, ["pie", "soup"]))
    result = CliRunner().invoke(main, ["doctor", "--task", "food101", "--json"])
    assert result.exit_code == 1
    row = json.loads(result.stdout)
    assert row["missing"][0].startswith("no train split, only test")
    assert row["missing"][1].startswith("hf:ethz/food101 has no label column, only image, name")
    assert row["columns"] == ["image: Image", "name: string"]


def test_another_number_of_classes_is_missing_too(
    hub: Callable[[Path], None], tmp_path: Path
) -> None:
    hub(
        parquet(tmp_path / "r", {"train": 4}, {"image": "image", "label": "class"}, ["pie", "soup"])
    )
    row = read_first_row("food101", offline=False)
    assert row["missing"] == ["2 classes where food101 has 101; use it as hf:ethz/food101"]


def test_masks_of_the_hub(hub: Callable[[Path], None], tmp_path: Path) -> None:
    hub(parquet(tmp_path / "r", {"train": 3, "val": 2}, {"image": "image", "mask": "mask"}, None))
    row = read_first_row("voc2012", offline=False)
    assert (row["mask_column"], row["missing"]) == ("mask", [])
    assert row["first_mask"].startswith("12x20 with values 0,1,2")
    assert any("validation split is used for testing" in note for note in row["notes"])


def test_an_empty_split_is_said(hub: Callable[[Path], None], tmp_path: Path) -> None:
    hub(
        parquet(tmp_path / "r", {"train": 0}, {"image": "image", "label": "class"}, ["pie", "soup"])
    )
    with pytest.raises(BadData, match="some/food has an empty split"):
        read_first_row("hf:some/food", offline=False)


def test_the_archive_comes_before_the_hub(
    hub: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decathlon(tmp_path, "svhn", 10, 40, 20)
    monkeypatch.setenv("LGZOO_DECATHLON", str(tmp_path))
    result = CliRunner().invoke(main, ["doctor", "--task", "decathlon-svhn"])
    assert result.exit_code == 0, result.output
    assert "Visual Decathlon archive" in result.stdout
    assert "test labels are withheld" in result.stdout
    assert "missing" not in result.stdout


def test_a_folder_s_stray_files_are_noted(tmp_path: Path) -> None:
    class_folders(tmp_path, ["red", "blue"], 10)
    (tmp_path / "red" / "notes.txt").write_text("-")
    row = read_first_row(f"folder:{tmp_path}", offline=True)
    assert row["columns"] == ["image: uint8 3x12x20", "label: one of 2"]
    assert [row["train"], row["validation"], row["test"]] == [14, 2, 4]
    assert "notes.txt" in row["notes"][0]


def test_a_stream_s_first_image(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train-000000.tar", "w") as tar:
        for number in range(20):
            for kind, data in (
                ("png", encode(picture(number))),
                ("cls", str(number % 2).encode()),
            ):
                member = tarfile.TarInfo(f"{number:05}.{kind}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    row = read_first_row(f"wds:{tmp_path}", offline=True)
    assert (row["classes"], row["first_image"], row["missing"]) == (2, "3x12x20", [])
    assert sum(row[split] for split in ("train", "validation", "test")) == 20


def test_offline_nothing_is_streamed() -> None:
    with pytest.raises(Unavailable, match="not in the cache"):
        read_first_row("hf:learngene-zoo-tests/no-such-data", offline=True)


def test_a_task_that_is_drawn_here() -> None:
    row = read_first_row("objects", offline=True)
    assert (row["classes"], row["first_image"], row["missing"]) == (60, "3x32x32", [])
