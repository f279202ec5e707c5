"""Folders are written completely or not at all; data is checked before it is used."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from learngene_zoo import storage as folder
from learngene_zoo.errors import BadFile
from learngene_zoo.storage import (
    Tensors,
    check_length,
    load_result,
    read_json,
    save_result,
    write_json,
    write_tensors,
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "is not a JSON object"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b" " * (folder.MAX_JSON_BYTES + 1), "larger than 16 MiB"),
    ],
    ids=["cut", "list", "bytes", "deep", "large"],
)
def test_json_that_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadFile, match=message) as error:
        read_json(tmp_path / "config.json")
    assert "\n" not in str(error.value)
    with pytest.raises(BadFile, match="does not exist"):
        read_json(tmp_path / "other.json")


def test_json_is_written_without_what_json_has_not(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"é": [1, None, 0.5]})
    assert read_json(tmp_path / "a.json") == {"é": [1, None, 0.5]}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "b.json", {"nan": float("nan")})


def test_tensors_that_share_memory_are_written_each(tmp_path: Path) -> None:
    full = torch.arange(12.0).view(3, 4)
    state = {
        "whole": full,
        "again": full,
        "row": full[1],
        "turned": full.T,
        "count": torch.tensor([3]),
    }
    write_tensors(tmp_path / "t.safetensors", state)
    read = Tensors(tmp_path / "t.safetensors")
    assert set(read) == set(state)
    assert all(torch.equal(read[name], state[name]) for name in state)
    assert read.shapes()["turned"] == (4, 3)
    assert read.is_floating("row")
    assert not read.is_floating("count")
    assert load_file(tmp_path / "t.safetensors").keys() == state.keys()
    with pytest.raises(KeyError):
        read["none"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_tensors_may_be_read_by_whoever_may_read_the_rest(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_tensors(tmp_path / "t.safetensors", {"x": torch.zeros(1)})
        write_json(tmp_path / "t.json", {})
        after = os.umask(mask)
    finally:
        os.umask(before)
    assert after == mask, "the process keeps its own"
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("t.safetensors", "t.json")]
    assert modes == [0o666 & ~mask] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused_when_it_is_read(
    tmp_path: Path, dtype: torch.dtype, value: float
) -> None:
    bad = torch.zeros(1000, dtype=dtype)
    bad[777] = value
    save_file({"good": torch.ones(3, dtype=dtype), "bad": bad}, tmp_path / "t.safetensors")
    read = Tensors(tmp_path / "t.safetensors")
    assert torch.equal(read["good"], torch.ones(3, dtype=dtype))
    with pytest.raises(BadFile, match="tensor bad has values that are not finite"):
        read["bad"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_numbers_whose_sum_overflows_are_fine(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file(
        {"large": torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)},
        tmp_path / "t.safetensors",
    )
    assert Tensors(tmp_path / "t.safetensors")["large"].max() == torch.finfo(dtype).max


def _header(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04pickle",
        _header(json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}))
        + b"\0" * 15,
        _header(json.dumps({"a": {"dtype": "F32", "shape": [10**15], "data_offsets": [0, 16]}}))
        + b"\0" * 16,
        _header(json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}}))
        + b"\0" * 16,
        _header("{"),
        struct.pack("<Q", 2**60),
    ],
    ids=["empty", "pickle", "truncated", "absurd", "negative", "no json", "endless header"],
)
def test_files_that_are_no_safetensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    with pytest.raises(BadFile, match="not a readable safetensors file") as error:
        Tensors(tmp_path / "t.safetensors")
    assert "\n" not in str(error.value)
    with pytest.raises(BadFile, match="does not exist"):
        Tensors(tmp_path / "other.safetensors")


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": torch.ones(100)})
    check_length(path)
    path.write_bytes(path.read_bytes()[:-40])
    for read in (check_length, Tensors):
        with pytest.raises(BadFile, match="40 bytes are missing at its end"):
            read(path)


def test_results_of_parts(tmp_path: Path) -> None:
    save_result(tmp_path / "done", {"a": torch.ones(2)}, [1, "two"])
    state, record = load_result(tmp_path / "done")
    assert torch.equal(state["a"], torch.ones(2))
    assert record == [1, "two"]


def write_raw(path: Path, header: bytes, data: bytes) -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


ONE = b'{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
HALVES = b'{"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}'


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b'{"a": ' + ONE + b', "a": ' + HALVES + b"}", "the key 'a' occurs twice"),
        (
            b'{"__metadata__": {"format": "pt", "format": "tf"}, "a": ' + ONE + b"}",
            "the key 'format' occurs twice",
        ),
        (
            b'{"' + b"a" * 501 + b'": ' + ONE + b"}",
            "the name of a tensor has 501 characters; expected at most 500",
        ),
    ],
)
def test_a_header_that_two_readers_read_differently_is_refused(
    header: bytes, said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadFile, match=said):
        Tensors(write_raw(tmp_path / "t.safetensors", header, bytes(4)))
    assert list(
        Tensors(write_raw(tmp_path / "t.safetensors", b'{"a": ' + ONE + b"}", bytes(4)))
    ) == ["a"]
