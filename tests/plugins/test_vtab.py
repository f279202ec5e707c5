"""The suite `vtab`, on small copies in the layouts of its sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from papers_data import parquet, picture

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.tasks import hub_data
from learngene_zoo.tasks.catalogue import find_entry, open_task
from learngene_zoo.testing import check_suite
from lgzoo_vtab import opening
from lgzoo_vtab.opening import draw_tables, read_list
from lgzoo_vtab.places import VARIABLE
from lgzoo_vtab.suite import ROWS, TASKS, VTAB, find_on_hub
from lgzoo_vtab.suite import open_task as open_entry

COMMIT = "a" * 40
COUNTS = {"train800.txt": 24, "val200.txt": 6, "test.txt": 12}
COLUMNS = {"webp": "image", "cls": "number", "__key__": "text", "__url__": "text"}


def write_lists(top: Path, folder: str, classes: int) -> Path:
    """Write a task's folder: images in several formats, and the three lists."""
    base = top / folder
    (base / "images").mkdir(parents=True)
    for offset, (name, count) in enumerate(COUNTS.items()):
        lines = []
        for number in range(max(count, classes)):
            image = f"images/{name.removesuffix('.txt')} {number:05}.jpg"
            picture(number + 1000 * offset).save(base / image)
            lines.append(f"{image} {number % classes}")
        (base / name).write_text("\n".join(lines) + "\n")
    return base


@pytest.fixture
def vtab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write all 19 tasks in the layout of the publications."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for row in TASKS:
        write_lists(tmp_path, row.folder, min(row.entry.classes, 6))
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Path], None]:
    """Return a function that replaces the Hub by a folder."""
    import datasets

    load = datasets.load_dataset

    def stands_in(folder: Path) -> None:
        monkeypatch.setattr(
            datasets, "load_dataset", lambda name, config=None, **how: read(folder, how)
        )

    def read(folder: Path, how: dict[str, Any]) -> Any:
        how.pop("revision")
        return load(str(folder), **how)

    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(hub_data, "_find_revision", lambda repository, revision: (COMMIT, "mit"))
    return stands_in


def small(name: str, classes: int) -> Any:
    return replace(ROWS[name].entry, classes=classes)


def test_the_suite_has_the_tasks_of_vtab_1k() -> None:
    assert len(TASKS) == len({row.folder for row in TASKS}) == len({row.hub for row in TASKS}) == 19
    assert all(find_entry(name) is row.entry for name, row in ROWS.items())
    for entry in VTAB.entries:
        assert (entry.sizes["train"], entry.sizes["validation"]) == (800, 200)


def test_the_suite_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    check_suite(VTAB)


@pytest.mark.parametrize("name", ROWS)
def test_every_task_opens_from_its_lists(name: str, vtab: Path) -> None:
    classes = min(ROWS[name].entry.classes, 6)
    task = open_entry(small(name, classes), offline=True)
    assert dict(task.sizes) == {"train": 24, "validation": 6, "test": 12}
    assert task.class_names == tuple(map(str, range(classes)))
    assert task.source == f"folder:{vtab / ROWS[name].folder}"
    assert task.split("test").__getitems__([1])[0].shape == (3, 12, 20)
    assert task.split("test").labels.tolist() == [number % classes for number in range(12)]
    assert not task.notes
    assert find_on_hub(ROWS[name].entry) is None


def test_a_draw_of_the_hub_s_copy(hub: Callable[[Path], None], tmp_path: Path) -> None:
    hub(parquet(tmp_path / "copy", {"train": 1100, "test": 12}, COLUMNS, ["0", "1", "2", "3"]))
    task = open_entry(small("vtab-kitti", 4), offline=False)
    assert dict(task.sizes) == {"train": 800, "validation": 200, "test": 12}
    assert (task.revision, task.licence) == (COMMIT, "CC-BY-NC-SA-3.0")
    assert any("drawn with a fixed seed" in note for note in task.notes)
    again = open_entry(small("vtab-kitti", 4), offline=False)
    assert again.split("train").labels.tolist() == task.split("train").labels.tolist()
    source = find_on_hub(ROWS["vtab-kitti"].entry)
    assert source is not None
    assert source.reference.endswith("kitti_closest_vehicle_distance@refs/convert/parquet")


@pytest.mark.slow
def test_classes_without_training_images_are_named(
    hub: Callable[[Path], None], vtab: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SUN397 has 397 classes and 800 training images."""
    folder = vtab / ROWS["vtab-dmlab"].folder
    lines = (folder / "train800.txt").read_text().splitlines()
    (folder / "train800.txt").write_text("\n".join(x for x in lines if x.split()[-1] != "2"))
    task = open_entry(small("vtab-dmlab", 6), offline=True)
    assert task.notes == ("one class has no training images: 2",)
    monkeypatch.delenv(VARIABLE)
    hub(parquet(tmp_path / "copy", {"train": 1100, "test": 12}, COLUMNS, ["0", "1", "2", "3"]))
    task = open_entry(small("vtab-kitti", 6), offline=False)
    assert task.class_names == tuple("012345")
    assert "2 of 6 classes have no training images: 4, 5" in task.notes


class Rows(list):  # type: ignore[type-arg]
    def select(self, chosen: Any) -> Any:
        return [self[index] for index in chosen]


def test_draws_are_apart_and_differ_between_tasks() -> None:
    drawn = {
        name: draw_tables(name, {"train": Rows(range(5000)), "test": Rows()})
        for name in ("vtab-a", "vtab-b")
    }
    first, second = drawn.values()
    assert len(first["train"]) == 800
    assert len(first["validation"]) == 200
    assert not set(first["train"]) & set(first["validation"])
    assert first["train"] == sorted(first["train"])
    assert 100 < len(set(first["train"]) & set(second["train"])) < 160
    assert abs(np.mean(first["train"]) - 2500) < 200


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"test": Rows()}, "vtab-a has no train split, only test"),
        ({"train": Rows(range(2000))}, "vtab-a has no test split, only train"),
        ({"train": Rows(range(999)), "test": Rows()}, "has 999 training images; expected at least"),
    ],
)
def test_copies_without_enough_images_are_refused(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(BadData, match=said):
        draw_tables("vtab-a", tables)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "has no train800.txt; expected train800.txt, val200.txt, test.txt"),
        ("", "names no image"),
        ("images/a.jpg\n", "line 1: expected an image and the number of its class"),
        ("images/a.jpg 0\nimages/b.jpg one\n", "line 2: expected an image"),
        ("images/a.jpg -1\n", "line 1: expected an image"),
        ("../a.jpg 0\n", "line 1: the image lies outside"),
        ("/etc/passwd 0\n", "line 1: the image lies outside"),
    ],
)
def test_lists_that_cannot_be_are_refused(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "train800.txt").write_text(text)
    with pytest.raises(BadData, match=said):
        read_list(tmp_path, "train800.txt")


def test_too_long_a_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_LINES", 2)
    (tmp_path / "test.txt").write_text("a 0\n" * 3)
    with pytest.raises(BadData, match="line 3"):
        read_list(tmp_path, "test.txt")


def test_other_classes_are_refused(vtab: Path) -> None:
    with pytest.raises(BadData, match="has 6 classes, but vtab-dmlab has 5"):
        open_entry(small("vtab-dmlab", 5), offline=True)


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(BadData, match=r"LGZOO_VTAB is .*, which has no folder cifar; correct it"):
        open_task("vtab-cifar100", offline=True)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(
        Unavailable, match=r"not in the cache.*set LGZOO_VTAB to a folder with cifar/train800.txt"
    ):
        open_task("vtab-cifar100", offline=True)
