"""`lgzoo show TASK --sheet`, the sheet, and `lgzoo show SUITE`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadData, Refused, WrongCall
from learngene_zoo.tasks.catalogue import find_suite, open_task
from learngene_zoo.tasks.sheet import COLUMNS, ROWS, collect_rows, select_classes, write_sheet
from learngene_zoo.tasks.splits.samples import PixelSplit
from learngene_zoo.tasks.task import IGNORED, Samples, Task


def call(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def a_task(split: object, classes: int, **changes: object) -> Task:
    task = Task(
        name="toy",
        title="A toy",
        classes=classes,
        class_names=tuple(f"class {number}" for number in range(classes)),
        image_size=8,
        sizes={"train": len(split), "validation": 0, "test": 0},  # type: ignore[arg-type]
        open_split=lambda name: split,  # type: ignore[arg-type,return-value]
    )
    return replace(task, **changes)  # type: ignore[arg-type]


class Masked:
    """Black images whose left part, as wide as their index, is class 1; the right edge is ignored."""

    labels = np.zeros(6, dtype=np.int64)

    def __len__(self) -> int:
        return 6

    def __getitems__(self, indices: list[int]) -> Samples:
        masks = torch.zeros(len(indices), 8, 8, dtype=torch.uint8)
        for place, index in enumerate(indices):
            masks[place, :, :index] = 1
        masks[:, :, -1] = IGNORED
        return Samples(torch.zeros(len(indices), 3, 8, 8, dtype=torch.uint8), masks=masks)


def test_at_most_twenty_classes_evenly_chosen_are_shown() -> None:
    assert select_classes(3) == [0, 1, 2]
    chosen = select_classes(300)
    assert len(set(chosen)) == ROWS
    assert (chosen[0], chosen[-1]) == (0, 299)
    assert set(np.diff(chosen)) <= {15, 16}


def test_a_row_shows_pictures_of_its_class() -> None:
    labels = np.arange(40) % 4
    images = (
        torch.from_numpy(labels * 10)
        .to(torch.uint8)[:, None, None, None]
        .expand(-1, 1, 8, 8)
        .clone()
    )
    rows = collect_rows(a_task(PixelSplit(images, labels), 5), "train")
    assert list(rows) == [0, 1, 2, 3]  # nothing is shown of a class that has no picture
    for label, pictures in rows.items():
        assert pictures.shape == (COLUMNS, 8, 8, 3)
        assert (pictures == label * 10).all()


def test_of_masks_each_class_has_the_pictures_that_show_most_of_it() -> None:
    task = a_task(Masked(), 3, kind="segmentation")
    rows = collect_rows(task, "train")
    assert list(rows) == [0, 1]  # no picture shows class 2
    assert rows[1].shape == (5, 8, 16, 3)
    coloured = rows[1][:, 0, 8:]  # the first line of each mask: class 1, then class 0, then ignored
    first = coloured[0, 0]
    shares = (coloured == first).all(axis=-1).sum(axis=1)
    assert shares.tolist() == [5, 4, 3, 2, 1]
    assert (coloured[:, -1] == 128).all()


def test_a_sheet_is_a_picture_that_is_the_same_every_time(tmp_path: Path) -> None:
    paths = [
        write_sheet(open_task("digits"), tmp_path / f"{name}.png", split="test") for name in "ab"
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with Image.open(paths[0]) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    pictures = collect_rows(open_task("digits"), "test")[9]
    last = pixels[-68:-4, -COLUMNS * 64 :].reshape(64, COLUMNS, 64, 3)
    assert (last[::2, :, ::2].transpose(1, 0, 2, 3) == pictures).all()


@pytest.mark.parametrize("name", ["sheet.jpg", "sheet"])
def test_a_sheet_is_a_png(tmp_path: Path, name: str) -> None:
    with pytest.raises(WrongCall, match=r"must end in \.png"):
        write_sheet(open_task("digits"), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_nothing_is_replaced_unless_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    path.write_text("mine")
    with pytest.raises(Refused, match="force=True"):
        write_sheet(open_task("digits"), path)
    assert path.read_text() == "mine"
    assert write_sheet(open_task("digits"), path, force=True).stat().st_size > 1_000


def test_a_split_without_images_is_an_error_that_says_so(tmp_path: Path) -> None:
    empty = a_task(
        PixelSplit(torch.zeros(0, 1, 8, 8, dtype=torch.uint8), np.zeros(0, dtype=np.int64)), 2
    )
    with pytest.raises(BadData, match="toy has no train images"):
        write_sheet(empty, tmp_path / "sheet.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("error:Glyph")
def test_show_draws_a_sheet_of_ones_own_folder(tmp_path: Path) -> None:
    for name in ("猫", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (30 + number, 20), (10 * number, 0, 0)).save(
                tmp_path / "photos" / name / f"{number}.png"
            )
    result = call("show", f"folder:{tmp_path / 'photos'}", "-o", tmp_path / "sheet.png", "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""  # no word of a letter that the font lacks
    row = json.loads(result.stdout)
    assert (row["classes"], row["kind"], row["image_size"]) == (2, "classification", 224)
    assert list(row)[-1] == "path"
    assert Path(row["path"]).stat().st_size > 1_000


def test_show_tells_of_a_task_without_opening_it() -> None:
    row = json.loads(call("show", "cifar100", "--json").stdout)
    assert (row["task"], row["classes"], row["train"], row["licence"]) == (
        "cifar100",
        100,
        45_000,
        "unknown",
    )
    assert "path" not in row


def test_show_lists_the_tasks_of_a_suite() -> None:
    rows = json.loads(call("show", "mini", "--json").stdout)
    assert [row["name"] for row in rows] == list(find_suite("mini").tasks)
    assert all(
        row["train"] >= 1_000 and row["licence"] and row["suites"] == ["mini"] for row in rows
    )
    assert all(name in call("show", "mini").stdout for name in find_suite("mini").tasks)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["show", "mini", "-o", "x.png"], 2, "--sheet (-o) needs a task"),
        (["show", "lsamd", "--sheet", "x.png"], 2, "--sheet (-o) needs a task"),
        (["show", "digits", "-o", "x.gif"], 2, "must end in .png"),
        (["show", "digits", "--split", "validatoin"], 2, "validatoin"),
        (["show", "digits", "--split", "train"], 2, "--split needs -o"),
        (["show", "digits", "--convention", "thop"], 2, "--convention needs a method, a learngene"),
        (["show", "mini", "--convention", "exact"], 2, "and mini is none of them"),
        (["show", "minii"], 2, "did you mean mini"),
        (["show", "folder:nowhere"], 1, "nowhere"),
    ],
)
def test_what_cannot_be_shown_is_said(
    words: list[str], code: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*words)
    assert result.exit_code == code
    assert text in result.stderr
    assert not list(tmp_path.iterdir())
