"""Checkpoints in every layout, and files that want more than to hold tensors."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_toy import WRITERS, legacy, pickled, zipped

from learngene_zoo.errors import BadFile
from lgzoo_tal.checkpoints import Stored, read_checkpoint


def test_views_and_half_precision_become_tensors_of_their_own_in_fp32(tmp_path: Path) -> None:
    whole = torch.arange(24, dtype=torch.float16).reshape(4, 6)
    held = {"t": whole.t(), "part": whole[1:3, ::2], "parameter": torch.nn.Parameter(whole.double()), "none": whole[:0]}
    for write in (pickled, zipped, legacy):
        write(tmp_path / "views", held)
        found = tensors(tmp_path / "views")
        assert all(torch.equal(found[name], held[name].float()) for name in held)
        assert {tensor.dtype for tensor in found.values()} == {torch.float32}


def test_arrays_in_either_order(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    held = {"c": np.arange(6.0).reshape(2, 3), "f": np.asfortranarray(np.arange(24.0, dtype="f4").reshape(2, 3, 4))}
    joblib.dump(held, tmp_path / "arrays")
    found = tensors(tmp_path / "arrays")
    assert all(np.array_equal(found[name].numpy(), held[name]) for name in held)


# Files that want more.

MARK = Path("was-run")


class Asks:
    """Pickled, it asks for a call."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.asked = call, arguments

    def __reduce__(self) -> Any:
        return self.asked


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor that a file holds by name."""
    found = read_checkpoint(path)
    if type(found) is not dict or any(type(value) is not Stored for value in found.values()):
        raise BadFile(f"{path} does not hold tensors")
    return {name: stored.tensor() for name, stored in found.items()}


def refused(path: Path, told: str) -> None:
    with pytest.raises(BadFile, match=told) as caught:
        tensors(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "evil.pt"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Asks(os.system, f"touch {MARK}"), r"imports '(posix|nt)\.system'"),
        (Asks(eval, f"open({str(MARK)!r}, 'w')"), r"imports '(builtins|__builtin__)\.eval'"),
        (Asks(getattr, OrderedDict, "fromkeys"), r"imports '(builtins|__builtin__)\.getattr'"),
        (Asks(pickle.loads, pickle.dumps(Asks(os.mkdir, str(MARK)))), r"imports '_?pickle\.loads'"),
        (Asks(torch.load, str(MARK)), r"imports 'torch\.serialization\.load'"),
        (Asks(os.path.join, "a", "b"), r"imports '(posixpath|ntpath)\.join'"),
        (Path("a"), r"imports 'pathlib"),
        (torch.nn.Linear(1, 1), r"imports 'torch\.nn\.modules\.linear\.Linear'"),
        (np.arange(3), "imports"),
    ],
)
def test_what_else_a_file_asks_for_is_refused_by_name(asked: Any, told: str, here: Path) -> None:
    for write in (pickled, zipped, legacy):
        write(here, {"ln.weight": torch.zeros(2), "x": asked})
        refused(here, f"{told}.*which a checkpoint of a hypernetwork does not need")
    assert not MARK.exists()


@pytest.mark.parametrize("compress", [0, 3])
def test_a_pickle_within_an_array_of_objects_is_not_looked_at(compress: int, here: Path) -> None:
    joblib = pytest.importorskip("joblib")
    joblib.dump({"x": np.array([Asks(os.mkdir, str(MARK))], dtype=object)}, here, compress=compress)
    refused(here, "numpy's type 'O8'")
    assert not MARK.exists()


def wrapper(shape: Any, dtype: Any = None, **more: Any) -> bytes:
    """A file of one array that joblib would describe so, without its numbers."""
    numpy_pickle = pytest.importorskip("joblib.numpy_pickle")
    array = numpy_pickle.NumpyArrayWrapper(np.ndarray, shape, "C", dtype or np.dtype("f4"))
    array.__dict__.update(more)
    return pickle.dumps({"x": array}, protocol=4)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            lambda: wrapper((2**40,), numpy_array_alignment_bytes=None),
            "truncated: expected 4398046511104 more bytes",
        ),
        (lambda: wrapper((2**2000,) * 8, numpy_array_alignment_bytes=None), "is damaged"),
        (lambda: wrapper((-1, 4)), "an array of an impossible shape"),
        (lambda: wrapper((1,) * 9), "an array of an impossible shape"),
        (lambda: wrapper((2.5,)), "an array of an impossible shape"),
        (lambda: wrapper([2]), "without joblib's description"),
        (lambda: wrapper((2,), order="A"), "without joblib's description"),
        (lambda: wrapper((2,), dtype={"f4": 1}), "without joblib's description"),
        (lambda: wrapper((2,), dtype=np.dtype(">f4")), "numbers that are not little-endian"),
        (lambda: wrapper((2,), dtype=np.dtype([("a", "f4")])), "numpy's type"),
        (lambda: wrapper((2,), dtype=np.dtype("c8")), "numpy's type 'c8'"),
    ],
)
def test_arrays_that_cannot_be_are_refused(content: Callable[[], bytes], told: str, here: Path) -> None:
    here.write_bytes(content())
    refused(here, told)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        # Changing what was imported, or plain data, as BUILD could in Python's machine.
        (b"ccollections\nOrderedDict\n}X\x01\x00\x00\x00aNsb.", "changes a Name"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n}X\x0c\x00\x00\x00__defaults__)sb.", "changes a Name"),
        (b"]}b.", "changes a list"),
        (b"ctorch\nFloatStorage\n)R.", "calls torch.FloatStorage"),
        (b"cnumpy\nndarray\n)\x81.", "calls numpy.ndarray"),
        (b"])R.", "calls list"),
        (b"ccollections\nOrderedDict\n]R.", "calls collections.OrderedDict"),
        (b"ccollections\nOrderedDict\n)\x85R.", "an ordered dictionary is not created empty"),
        (b"cbuiltins\neval\n.", "imports 'builtins.eval'"),
        (b"X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93.", "imports 'os.system'"),
        (b"]]\x93.", "imports something without a name"),
        (b"c" + b"a" * 300 + b"\n\n.", "more than 256 characters"),
        # References to data outside of the pickle.
        (b"X\x01\x00\x00\x00aQ.", "refers to data outside the pickle"),
        (b"Pa\n.", r"holds the instruction b'P'"),
        # Instructions that no checkpoint needs.
        (b"(ios\nsystem\n.", r"holds the instruction b'i'"),
        (b"(cos\nsystem\no.", "imports 'os.system'"),
        (b"\x82\x01.", r"holds the instruction b'\\x82'"),
        (b"I1\n.", r"holds the instruction b'I'"),
        (b"\x8a\xff\x00.", "is truncated"),
        # Nonsense.
        (b".", "is damaged"),
        (b"0.", "holds the instruction b'0'"),
        (b"t.", "is damaged"),
        (b"h\x05.", "is damaged"),
        (b"]Na.]", "continues for 1 bytes after its end"),
        (b"N]Ns.", "sets an item with a key that is neither"),
        (b"}))s.", "sets an item with a key that is neither text nor a number"),
        (b"}NNs.", "sets an item with a key that is neither text nor a number"),
        (b"NNa.", "appends to something that is not a list"),
        (b"X\x02\x00\x00\x00\xff\xff.", "can't decode"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", "is truncated"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x80\x01.", "protocol 1"),
        (b"\x80\x00.", "protocol 0"),
        (b"ctorch.storage\n_load_from_bytes\nB\x01\x00\x00\x00x\x85R.", "holds the instruction b'x'"),
        (b"ctorch.storage\n_load_from_bytes\nX\x01\x00\x00\x00x\x85R.", "is damaged"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))\x89Nt" + b"R.", "a tensor is not made from a storage"),
        (b"ctorch._utils\n_rebuild_parameter\nN\x85R.", "a parameter is not made from a tensor"),
        (b"ctorch._utils\n_rebuild_parameter\n)R.", "is damaged"),
    ],
)
def test_programs_that_build_something_else(program: bytes, told: str, here: Path) -> None:
    here.write_bytes(b"\x80\x02" + program)
    refused(here, told)


def test_a_huge_place_in_the_memo_takes_no_memory(here: Path) -> None:
    here.write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
    assert read_checkpoint(here) == {}


def test_a_program_without_an_end_is_given_up(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgzoo_tal.pickle_machine.MOST_STEPS", 1000)
    here.write_bytes(b"\x80\x02" + b"]" * 2000 + b".")
    refused(here, "takes more than 1000 instructions")


def test_nests_so_deep_that_python_could_not_print_them(here: Path) -> None:
    for depth, before, after in (
        (100_000, b"}", b"Ns."),
        (100_000, b"cnumpy\ndtype\n", b"\x85R."),
        (5_000, b"", b"N\x93."),
        (5_000, b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00", b")\x89NtR."),
        (5_000, b"", b"."),
    ):
        here.write_bytes(b"\x80\x02" + before + b")" + b"\x85" * depth + after)
        refused(here, "evil.pt")


def test_one_blob_read_again_and_again_is_refused(here: Path) -> None:
    blob = io.BytesIO()
    torch.save(torch.zeros(1)._typed_storage(), blob, _use_new_zipfile_serialization=False)
    body = blob.getvalue()
    once = b"h\x00h\x01\x85R"
    start = b"\x80\x02ctorch.storage\n_load_from_bytes\nq\x00B" + len(body).to_bytes(4, "little") + body + b"q\x01"
    here.write_bytes(start + once * 10 + b".")
    refused(here, "holds the same tensor repeatedly")


def tensor_of(numbers: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    storage = torch.zeros(numbers)._typed_storage()
    return Asks(torch._utils._rebuild_tensor_v2, storage, offset, shape, strides, False, OrderedDict())


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (tensor_of(4, 0, (5,), (1,)), "does not lie within the 4 numbers"),
        (tensor_of(4, 3, (2,), (1,)), "does not lie within the 4 numbers"),
        (tensor_of(4, 0, (2**40,), (0,)), "does not lie within the 4 numbers"),
        (tensor_of(4, 0, (2**300, 2), (0, 1)), "does not lie within the 4 numbers"),
        (tensor_of(4, -1, (2,), (1,)), "impossible strides"),
        (tensor_of(4, 0, (2,), (-1,)), "impossible strides"),
        (tensor_of(4, 0, (2, 2), (2,)), "impossible strides"),
        (tensor_of(4, 0, (True,), (1,)), "sizes that are not integers"),
        (tensor_of(4, 0, (1,) * 9, (1,) * 9), "more than 8 axes"),
    ],
)
def test_tensors_beyond_their_numbers_are_refused(asked: Any, told: str, here: Path) -> None:
    pickled(here, {"x": asked})
    refused(here, told)


# Zip files.


def rezipped(path: Path, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """The same zip with other contents."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, change(name, content))


def only(part: str, new: Callable[[bytes], bytes]) -> Callable[[str, bytes], bytes]:
    return lambda name, content: new(content) if part in name else content


@pytest.mark.parametrize(
    ("part", "new", "told"),
    [
        ("data/0", lambda old: old[:-4], "expected .* bytes in storage .* got"),
        ("data/0", lambda old: old + b"1234", "is compressed, or has .* bytes where at most .* are expected"),
        ("byteorder", lambda old: b"big", "holds big-endian numbers"),
        ("data.pkl", lambda old: old.replace(b"FloatStorage", b"QInt8Storage"), r"imports 'torch\.QInt8Storage'"),
        ("data.pkl", lambda old: old.replace(b"FloatStorage", b"BloatStorage"), r"imports 'torch\.BloatStorage'"),
        ("data.pkl", lambda old: old.replace(b"storage", b"garbage"), "refers to something that is not a storage"),
        ("data.pkl", lambda old: b"\x80\x02" + b"X\x01\x00\x00\x00aQ.", "refers to something that is not a storage"),
    ],
)
def test_zips_that_do_not_hold_what_they_announce(
    part: str, new: Callable[[bytes], bytes], told: str, here: Path
) -> None:
    zipped(here, {"a": torch.zeros(5)})
    rezipped(here, only(part, new))
    refused(here, told)


def test_a_compressed_zip_one_without_a_pickle_and_a_broken_one_are_refused(here: Path) -> None:
    zipped(here, {"a": torch.zeros(5)})
    rezipped(here, lambda _, content: content, zipfile.ZIP_DEFLATED)
    refused(here, "is compressed")
    with zipfile.ZipFile(here, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    refused(here, "is a zip file, but not one of torch.save")
    here.write_bytes(b"PK\x03\x04 and no more")
    refused(here, "is a damaged zip file")


# Any bytes at all.


def small(write: Callable[[Path, Any], None], path: Path) -> bytes:
    write(path, {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)})
    return path.read_bytes()


@pytest.mark.parametrize("layout", WRITERS)
def test_a_truncated_file_is_refused_wherever_it_ends(layout: str, tmp_path: Path) -> None:
    whole = small(WRITERS[layout], tmp_path / "whole")
    for length in range(0, len(whole), 7):
        (tmp_path / "part").write_bytes(whole[:length])
        with pytest.raises(BadFile):
            read_checkpoint(tmp_path / "part")


@pytest.mark.parametrize("layout", WRITERS)
def test_a_damaged_file_is_read_or_refused(layout: str, tmp_path: Path) -> None:
    """Whatever the bytes: no other error, and nothing but plain data and tensors within the file."""
    whole, draw, read_ones = small(WRITERS[layout], tmp_path / "whole"), random.Random(5), 0
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            assert all(tensor.numel() <= len(whole) for tensor in tensors(tmp_path / "damaged").values())
            read_ones += 1
        except BadFile:
            continue
    assert read_ones < 200


def test_a_bomb_is_not_unpacked(here: Path) -> None:
    here.write_bytes(zlib.compress(b"\x80\x02" + bytes(2**24), 1))
    refused(here, "unpacks to more than")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has 0 bytes"),
        (b"hello, world", "is neither a file of torch.save nor one of joblib"),
        (b"\x1f\x8b" + bytes(20), "compressed, but not by zlib"),
        (zlib.compress(b"\x80\x02}.")[:-3], "is truncated"),
        (zlib.compress(b"\x80\x02}.") + b"more", "continues after its end"),
        (b"\x78\x9c" + b"\xff" * 20, "is damaged"),
    ],
)
def test_other_files_are_refused(content: bytes, told: str, here: Path) -> None:
    here.write_bytes(content)
    refused(here, told)
