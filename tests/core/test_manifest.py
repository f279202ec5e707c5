"""A manifest is read only if it is complete and names nothing outside its folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from learngene_zoo.errors import BadFile, Unavailable, ZooError
from learngene_zoo.hub.manifest import FileRecord, make_manifest, read_manifest

TEXT = b"some bytes"
RECORD = FileRecord(sha256=hashlib.sha256(TEXT).hexdigest(), bytes=len(TEXT))
FILES = {"config.json": RECORD, "layers-7/config.json": RECORD}


def write_manifest(place: Path, files: dict[str, FileRecord], **changes: Any) -> Path:
    data = {**make_manifest(files).json(), **changes}
    (place / "manifest.json").write_text(
        json.dumps({name: value for name, value in data.items() if value is not None})
    )
    return place / "manifest.json"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    manifest = read_manifest(write_manifest(tmp_path, FILES), "here")
    assert (manifest.files, manifest.members) == (FILES, ["layers-7"])


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"format": None}, Unavailable, "here: format is None; this version reads format 1"),
        ({"format": 2}, Unavailable, "here: format is 2"),
        ({"digest": "0" * 64}, BadFile, "here is damaged"),
        ({"digest": None}, BadFile, "'digest' is missing"),
    ],
)
def test_a_manifest_that_is_not_whole(
    changes: dict[str, Any], error: type[ZooError], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        read_manifest(write_manifest(tmp_path, FILES, **changes), "here")


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a/../x",
        "a/b/c",
        "..",
        ".git",
        "a//b",
        "a/",
        "",
        "x\n",
        "café",
        "manifest.json",
        "conftest.py",
        "CONFIG.json",
        "config.JSON",
        "Readme.md",
        "model.bin",
        "a/setup.py",
        ".png",
        "x.PNG",
        "x.png.py",
        "a/b/config.json",
        "../config.json",
        "./config.json",
        "/config.json",
        "a\\config.json",
        "C:config.json",
        "x.png.",
        "x.png ",
        " x.png",
        "-x.png",
        "a./config.json",
        "con.png",
        "NUL.onnx",
        "aux/config.json",
        "com1.x.png",
        "x.png:stream",
        "x\u202egnp.png",
        "ｘ.png",
        "x.png\0",
        "~/x.png",
        ".lgzoo",
        ".hidden.png",
        f"{'a' * 97}.png",
        f"{'a' * 101}/config.json",
        "/1_Pooling/config.json",
        "../1_Pooling/config.json",
        "a/b/1_Pooling/config.json",
        "1_Pooling/1_Pooling/x.png",
        "a/1_Pooling/model.safetensors",
        "a/2_Pooling/config.json",
        "a/modules.py",
    ],
)
def test_a_path_outside_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"here names .* which is not a file of an artifact"):
        read_manifest(write_manifest(tmp_path, {**FILES, name: RECORD}), "here")


@pytest.mark.parametrize(
    ("text", "holds"), [(TEXT, True), (TEXT[:-1] + b"z", False), (TEXT + b"z", False), (b"", False)]
)
def test_a_record_holds_its_own_bytes_alone(text: bytes, holds: bool, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(text)
    assert RECORD.holds(tmp_path / "x") is holds
    assert not RECORD.holds(tmp_path / "none")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a.png", "A.png"),
        ("a/x.png", "A/y.png"),
        ("config.json", "config.json/x.png"),
        ("x.png", "X.png/y.png"),
        ("a.png", "Manifest.json/x.png"),
    ],
)
def test_two_names_that_may_be_one_file_are_refused(one: str, other: str, tmp_path: Path) -> None:
    with pytest.raises(
        BadFile, match=r"are one file on some systems|which is not a file of an artifact"
    ):
        read_manifest(write_manifest(tmp_path, {**FILES, one: RECORD, other: RECORD}), "here")


def test_what_publish_writes_is_read(tmp_path: Path) -> None:
    names = [
        "config.json",
        "model.safetensors",
        "README.md",
        "model.onnx",
        "model-fp16.pt2",
        "a_b.1.png",
        "x.svg",
        "modules.json",
        "1_Pooling/config.json",
    ]
    files = {
        path: RECORD for name in names for path in (name, f"three/{name}", f"Layers-9_x/{name}")
    }
    manifest = read_manifest(write_manifest(tmp_path, files), "here")
    assert (manifest.files, manifest.members) == (files, ["Layers-9_x", "three"])


def test_a_manifest_is_named_by_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    for data, text in (
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b" " * (2**24 + 1), "larger than 16 MiB"),
    ):
        path.write_bytes(data)
        with pytest.raises(BadFile, match=rf"^manifest of me/x is {text}"):
            read_manifest(path, "manifest of me/x")
