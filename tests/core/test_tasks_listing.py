"""The images below a folder: every suffix that Pillow decodes, links and their loops, and the note
about left-out files.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.listing import describe_left_out, is_picture, list_pictures, list_suffixes


def draw(path: Path, number: int = 0, kind: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, kind)
    return path


def names(top: Path) -> list[str]:
    return [os.path.relpath(file, top) for file in list_pictures(top).pictures]


def test_every_suffix_that_pillow_decodes_is_a_picture(tmp_path: Path) -> None:
    files = [
        draw(tmp_path / f"a{suffix}", kind="JPEG") for suffix in (".jpg", ".jfif", ".JPE", ".mpo")
    ]
    files += [
        draw(tmp_path / f"b{suffix}")
        for suffix in (".png", ".jp2", ".tga", ".ico", ".qoi", ".PNM", ".apng")
    ]
    assert names(tmp_path) == sorted(file.name for file in files)
    assert not list_suffixes() & {
        ".pdf",
        ".eps",
        ".ps",
        ".svg",
        ".mpg",
        ".mp4",
        ".h5",
        ".txt",
        ".json",
        ".wmf",
    }


def test_a_file_without_a_suffix_is_read_by_its_first_bytes(tmp_path: Path) -> None:
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "JPEG2000"):
        assert is_picture(str(draw(tmp_path / kind.lower(), kind=kind))), kind
    for name, content in (
        ("README", b"BM is no bitmap"),
        ("empty", b""),
        ("LICENSE", b"P1 of 2"),
        ("riff", b"RIFF1234WAVE"),
    ):
        (tmp_path / name).write_bytes(content)
        assert not is_picture(str(tmp_path / name)), name


def test_links_are_followed_and_what_is_reached_twice_is_listed_once(tmp_path: Path) -> None:
    top, pool = tmp_path / "data" / "cat", tmp_path / "pool"
    draw(top / "1.png")
    draw(tmp_path / "data" / "dog" / "9.png")
    for number in range(3):
        draw(pool / "more" / f"{number}.png", number)
    (top / "batch2").symlink_to("../../pool/more", target_is_directory=True)
    (top / "again").symlink_to(pool, target_is_directory=True)
    (top / "own").symlink_to(".", target_is_directory=True)
    (top / "above").symlink_to("..", target_is_directory=True)
    (pool / "more" / "back").symlink_to(top, target_is_directory=True)
    (top / "one.png").symlink_to("1.png")
    (top / "other.png").symlink_to(draw(tmp_path / "far.png"))
    (top / "circle").symlink_to("circle")
    (top / "gone.png").symlink_to("nowhere.png")
    listing = list_pictures(top)
    result = sorted(os.path.basename(file) for file in listing.pictures)
    assert result == ["0.png", "1.png", "1.png", "2.png", "other.png"]
    assert [os.path.basename(file) for file in listing.dangling] == ["circle", "gone.png"]


def test_what_systems_put_there_is_hidden(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    for name in (
        ".DS_Store",
        "Thumbs.db",
        "desktop.ini",
        "__MACOSX/._a.png",
        "@eaDir/a.png",
        ".cache/a.png",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    listing = list_pictures(tmp_path)
    assert (len(listing.pictures), listing.left_out) == (1, ())


def test_what_is_left_out_is_one_line(tmp_path: Path) -> None:
    assert describe_left_out([]) == ""
    assert describe_left_out(["a/b.svg"]) == "1 file left out: 1 .svg; first: a/b.svg"
    files = ["x.txt", *[f"{n}.svg" for n in range(10)], "Y.TXT", "noise", "a.pdf", "b.mp4", "c.csv"]
    line = "16 files left out: 10 .svg, 2 .txt, 1 without suffix, 1 .pdf, 2 others; first: x.txt"
    assert describe_left_out(files) == line


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    draw(tmp_path / "locked" / "a.png")
    (tmp_path / "locked").chmod(0)
    with pytest.raises(BadData, match="locked cannot be read: permission denied"):
        list_pictures(tmp_path)
    (tmp_path / "locked").chmod(0o700)
