"""The suite `pictures`, on small copies in the packages' layouts."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.testing import check_suite
from lgzoo_pictures import opening
from lgzoo_pictures.opening import CLIPART_CLASSES, STAMP_CLASSES, VARIABLE
from lgzoo_pictures.suite import CLIPART, EMOJI, EMOJI_TRANSFER, FLAGS, PICTURES, STAMPS


def draw(path: Path, colour: int, size: tuple[int, int] = (12, 9)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGBA", size, (colour, 30, 60, 255)).save(path)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the folders of all packages, each with a few images."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for top, classes in (("tuxpaint/stamps", STAMP_CLASSES), ("openclipart/png", CLIPART_CLASSES)):
        for number, (name, folders) in enumerate(classes.items()):
            for folder in folders:
                for picture in range(8):
                    draw(
                        tmp_path / top / folder / "inner" / f"{name}-{picture}.png",
                        10 * number + picture,
                    )
    draw(tmp_path / "tuxpaint/stamps/animals/cat_mirror.png", 1)
    draw(tmp_path / "tuxpaint/stamps/cartoon/tux.png", 1)
    poster = tmp_path / "openclipart/png/food/poster.png"
    draw(poster, 1)
    header = struct.pack(">II", 12_000, 14_000)
    poster.write_bytes(poster.read_bytes()[:16] + header + poster.read_bytes()[24:])
    rows = [
        {
            "subcategory": subgroup,
            "image": f"{subgroup}-{number}.png",
            "short_name": f"{subgroup.removeprefix('country-')}-{number}",
            "has_img_google": True,
            "has_img_twitter": number < 9,
        }
        for subgroup, count in (("food", 10), ("tool", 8), ("rare", 7), ("country-flag", 5))
        for number in range(count)
    ]
    for vendor, shade in (("google", 40), ("twitter", 90)):
        package = tmp_path / "node_modules" / f"emoji-datasource-{vendor}"
        for row in rows:
            if row[f"has_img_{vendor}"]:
                draw(package / "img" / vendor / "64" / str(row["image"]), shade, (64, 64))
        (package / "emoji.json").write_text(json.dumps(rows))
    return tmp_path


def test_each_task_has_the_classes_of_its_package_and_fixed_splits(place: Path) -> None:
    stamps = PICTURES.open(STAMPS, False)
    assert stamps.class_names == tuple(sorted(STAMP_CLASSES))
    assert (
        sum(stamps.sizes.values()) == 8 * 15
    )  # symbols has four folders; copies and cartoons are left out
    assert stamps.name == "stamps"
    clipart = PICTURES.open(CLIPART, False)
    assert sum(clipart.sizes.values()) == 8 * 10
    again = PICTURES.open(STAMPS, False)
    for split in ("train", "validation", "test"):
        assert np.array_equal(stamps.split(split).labels, again.split(split).labels)
    assert stamps.split("test").__getitems__([0])[0].shape == (3, 9, 12)


def test_emoji_that_both_vendors_draw_in_subgroups_of_eight_or_more(place: Path) -> None:
    emoji = PICTURES.open(EMOJI, False)
    assert emoji.class_names == ("food", "tool")
    assert sum(emoji.sizes.values()) == 9 + 8
    transfer = PICTURES.open(EMOJI_TRANSFER, False)
    assert (transfer.sizes["train"] + transfer.sizes["validation"], transfer.sizes["test"]) == (
        17,
        17,
    )
    shades = {
        split: {int(image[0, 0, 0]) for image in transfer.split(split).__getitems__([0, 1])}
        for split in transfer.sizes
    }
    assert shades == {"train": {40}, "validation": {40}, "test": {90}}


def test_flags_are_learnt_from_one_drawing_of_each_and_tested_on_the_other(place: Path) -> None:
    flags = PICTURES.open(FLAGS, False)
    assert flags.class_names == ("0", "1", "2", "3", "4")
    assert flags.sizes == {"train": 5, "validation": 1, "test": 4}
    labels = {split: flags.split(split).labels.tolist() for split in flags.sizes}
    assert labels["train"] == [0, 1, 2, 3, 4]
    assert sorted(labels["validation"] + labels["test"]) == [0, 1, 2, 3, 4]
    shades = {split: int(flags.split(split).__getitems__([0])[0][0, 0, 0]) for split in flags.sizes}
    assert shades == {"train": 40, "validation": 90, "test": 90}
    assert not flags.flip


@pytest.mark.parametrize(
    ("entry", "removed", "says"),
    [
        (STAMPS, "tuxpaint", "stamps are not installed: apt-get install tuxpaint-stamps-default"),
        (CLIPART, "openclipart", "clipart are not installed: apt-get install openclipart-png"),
        (
            EMOJI,
            "node_modules",
            "emoji are not installed: npm install --ignore-scripts emoji-datasource-google@16",
        ),
        (
            EMOJI_TRANSFER,
            "node_modules/emoji-datasource-twitter",
            "emoji-transfer are not installed: npm install",
        ),
        (FLAGS, "node_modules/emoji-datasource-twitter", "flags are not installed: npm install"),
    ],
)
def test_what_is_not_installed_is_one_command_away(
    entry: object, removed: str, says: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(place / removed)
    monkeypatch.setattr(
        opening, "Path", lambda *parts: Path(str(Path(*parts)).replace("/usr", str(place / "no")))
    )
    with pytest.raises(Unavailable, match=says):
        PICTURES.open(entry, False)  # type: ignore[arg-type]


def test_damaged_packages_are_named(place: Path) -> None:
    package = place / "node_modules" / "emoji-datasource-google"
    (package / "img/google/64/tool-3.png").unlink()
    with pytest.raises(
        BadData, match=r"there is no picture .*tool-3.png; install emoji-datasource-google again"
    ):
        PICTURES.open(EMOJI, False)
    (package / "emoji.json").write_text("[{}]")
    with pytest.raises(BadData, match=r"emoji.json cannot be read \('has_img_google'\)"):
        PICTURES.open(EMOJI, False)
    (place / "tuxpaint/stamps/food/broken.png").write_bytes(b"<html>")
    with pytest.raises(BadData, match=r"broken.png is not a PNG file; install the package again"):
        PICTURES.open(STAMPS, False)
    shutil.rmtree(place / "tuxpaint/stamps/food")
    with pytest.raises(BadData, match="food holds no pictures; install the package again"):
        PICTURES.open(STAMPS, False)


@pytest.mark.slow
def test_the_suite_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    check_suite(PICTURES)
