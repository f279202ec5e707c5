"""Rows of a table cannot choose files of this machine: they hold bytes, or name files below the
given folder.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Features, Image
from PIL import Image as Pillow
from pyarrow import Table, parquet

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.check import check_before_training
from learngene_zoo.tasks.findings import check_task
from learngene_zoo.tasks.images import StoredImage, decode_image, make_stored_image
from learngene_zoo.tasks.streams import hub

RED, BLUE = (255, 0, 0), (0, 0, 255)


def png(colour: tuple[int, int, int] = RED) -> bytes:
    stream = io.BytesIO()
    Pillow.new("RGB", (8, 8), colour).save(stream, "png")
    return stream.getvalue()


def write_table(path: Path, images: list[Any]) -> None:
    """Write a Parquet file with these images, of two classes in turn."""
    labels = [number % 2 for number in range(len(images))]
    features = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog"])})
    cells = [
        {"bytes": None, "path": image} if isinstance(image, str) else {"bytes": image, "path": None}
        for image in images
    ]
    columns = {"image": cells, "label": labels}  # by pyarrow: `datasets` would read the files
    parquet.write_table(Table.from_pydict(columns, schema=features.arrow_schema), path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Create a folder with an image, beside another folder with an image."""
    (tmp_path / "data" / "cats").mkdir(parents=True)
    (tmp_path / "data" / "cats" / "inside.png").write_bytes(png())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "0.png").write_bytes(png(BLUE))
    return tmp_path / "data"


def outside(data: Path) -> list[str]:
    """Return every way to name the image in the other folder."""
    target = data.parent / "elsewhere" / "0.png"
    (data / "link.png").symlink_to(target)
    (data / "linked").symlink_to(target.parent)
    (data / "relative").symlink_to("../elsewhere")
    return [
        str(target),
        f"file://{target}",
        f"local://{target}",
        f"zip://0.png::{target}",
        f"simplecache::{target}",
        "../elsewhere/0.png",
        "cats/../../elsewhere/0.png",
        f"{data}/../elsewhere/0.png",
        f"//{target}",
        "link.png",
        "linked/0.png",
        "relative/0.png",
        f"{data}/link.png",
        f"hf://datasets/org/name/{target}",
        "~/0.png/..",
        "http://localhost/0.png",
        "0.png\0.jpg",
    ]


def test_no_row_opens_a_file_elsewhere(data: Path) -> None:
    for path in outside(data):
        with pytest.raises(
            BadData, match=r"^row 7: its image is the file .* below .*; store the bytes$"
        ):
            decode_image(StoredImage(None, path, (data,)), "row 7")


def test_paths_below_the_folder_are_read(data: Path) -> None:
    (data / "also.png").symlink_to(data / "cats" / "inside.png")
    for path in (
        "cats/inside.png",
        str(data / "cats" / "inside.png"),
        "./cats/inside.png",
        "also.png",
    ):
        assert decode_image(StoredImage(None, path, (data,)), "it")[:, 0, 0].tolist() == list(RED)


def test_bytes_count_before_a_path_and_are_bytes(data: Path) -> None:
    cell = make_stored_image(
        {"bytes": png(BLUE), "path": str(data / "cats" / "inside.png")}, (data,)
    )
    assert decode_image(cell, "it")[:, 0, 0].tolist() == list(BLUE)
    for value in (str(data / "cats" / "inside.png"), 7, [1, 2]):
        with pytest.raises(
            BadData, match=r"^it: its bytes are of type (str|int|list); store bytes"
        ):
            decode_image(make_stored_image({"bytes": value}), "it")


def test_a_row_with_neither_has_no_image() -> None:
    with pytest.raises(BadData, match=r"^it: there is no image"):
        decode_image(make_stored_image({"bytes": None, "path": None}), "it")


def test_a_dictionary_from_a_plugin_opens_no_path(data: Path) -> None:
    with pytest.raises(BadData, match="rows may only name images whose bytes are in the row"):
        decode_image({"bytes": None, "path": str(data / "cats" / "inside.png")}, "it")


def test_parquet_of_a_stranger_is_refused_by_row_and_file(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LGZOO_CACHE", str(data.parent / "cache"))
    write_table(
        data / "rows.parquet",
        [png()] * 20 + [str(data.parent / "elsewhere" / "0.png")] + [png()] * 19,
    )
    for named in (data, data / "rows.parquet"):
        task = open_task(f"parquet:{named}")
        place = [
            (split, list(task.split(split).members)) for split in ("train", "validation", "test")
        ]  # type: ignore[attr-defined]
        split, members = next((split, members) for split, members in place if 20 in members)
        index = members.index(20)
        with pytest.raises(
            BadData, match=r"^parquet:.* train row 20: its image is the file .*elsewhere/0\.png"
        ):
            task.split(split).__getitems__([index])
        with pytest.raises(
            BadData, match=r"train row 20: its image is the file .*elsewhere/0\.png"
        ):
            check_before_training(task, range(len(task.split("train"))), workers=0)
        rows, _ = check_task(task, workers=0)
        assert [
            "its image is the file" in row["found"] for row in rows if "row 20" in row["what"]
        ] == [True]


def test_parquet_beside_its_pictures_is_read(data: Path) -> None:
    write_table(data / "rows.parquet", [png()] * 20 + ["cats/inside.png"] * 20)
    task = open_task(f"parquet:{data}")
    pictures = task.split("train").__getitems__(range(task.sizes["train"]))
    assert torch.stack(pictures).flatten(2)[:, :, 0].unique(dim=0).tolist() == [list(RED)]


@pytest.mark.parametrize(
    "address",
    [
        "/etc/0.png",
        "file:///etc/0.png",
        "https://example.com/0.png",
        "hf://datasets/org/other@main/0.png",
        "hf://datasets/org/name-2/0.png",
        "hf://datasets/org/name@main/../../other/0.png",
        "hf://org/name/0.png",
        "zip://0.png::/etc/a.zip",
        "zip://0.png::file:///a.zip::hf://datasets/org/name/a.zip",
        "filecache::hf://datasets/org/name/0.png",
        7,
    ],
)
def test_rows_of_a_stream_name_files_of_their_own_data_set_only(
    address: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsspec.open", lambda *_: pytest.fail("it was opened"))
    cell = hub._fetch_image({"bytes": None, "path": address}, "row 3", "org/name")
    with pytest.raises(BadData, match=r"^row 3: its image is the file"):
        decode_image(cell, "row 3")


@pytest.mark.parametrize("chain", ["", "zip://cats/0.png::"])
@pytest.mark.parametrize("revision", ["", "@0123abc"])
def test_rows_of_a_stream_may_name_files_of_their_own_data_set(
    chain: str, revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsspec.open", lambda *_: io.BytesIO(png()))
    address = f"{chain}hf://datasets/org/name{revision}/train/0.png"
    fetched = hub._fetch_image({"bytes": None, "path": address}, "row 3", "org/name")
    assert np.array_equal(decode_image(fetched, "row 3"), decode_image(png(), "it"))
