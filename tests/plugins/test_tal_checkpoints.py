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
from checkpoint_toy import WRITERS, write_legacy, write_pickle, write_zip

from learngene_zoo.errors import BadFile
from lgzoo_tal.modules.checkpoints import StoredTensor, read_checkpoint


def test_views_and_half_precision_become_tensors_of_their_own_in_fp32(tmp_path: Path) -> None:
    original = torch.arange(24, dtype=torch.float16).reshape(4, 6)
    saved = {
        "t": original.t(),
        "part": original[1:3, ::2],
        "parameter": torch.nn.Parameter(original.double()),
        "none": original[:0],
    }
    for write in (write_pickle, write_zip, write_legacy):
        write(tmp_path / "views", saved)
        loaded = read_tensors(tmp_path / "views")
        assert all(torch.equal(loaded[name], saved[name].float()) for name in saved)
        assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}


def test_arrays_in_either_order(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    saved = {
        "c": np.arange(6.0).reshape(2, 3),
        "f": np.asfortranarray(np.arange(24.0, dtype="f4").reshape(2, 3, 4)),
    }
    joblib.dump(saved, tmp_path / "arrays")
    loaded = read_tensors(tmp_path / "arrays")
    assert all(np.array_equal(loaded[name].numpy(), saved[name]) for name in saved)


# Files that want more.

MARK = Path("was-run")


class Asks:
    """Pickled, it asks for a call."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.asked = call, arguments

    def __reduce__(self) -> Any:
        return self.asked


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return every tensor that a file holds by name."""
    contents = read_checkpoint(path)
    if type(contents) is not dict or any(
        type(value) is not StoredTensor for value in contents.values()
    ):
        raise BadFile(f"{path} does not hold tensors")
    return {name: stored.read() for name, stored in contents.items()}


def check_refused(path: Path, message: str) -> None:
    with pytest.raises(BadFile, match=message) as caught:
        read_tensors(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.fixture
def evil_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "evil.pt"


@pytest.mark.parametrize(
    ("payload", "message"),
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
def test_what_else_a_file_asks_for_is_refused_by_name(
    payload: Any, message: str, evil_path: Path
) -> None:
    for write in (write_pickle, write_zip, write_legacy):
        write(evil_path, {"ln.weight": torch.zeros(2), "x": payload})
        check_refused(evil_path, f"{message}.*which a checkpoint of a hypernetwork does not need")
    assert not MARK.exists()


@pytest.mark.parametrize("compress", [0, 3])
def test_a_pickle_within_an_array_of_objects_is_not_looked_at(
    compress: int, evil_path: Path
) -> None:
    joblib = pytest.importorskip("joblib")
    joblib.dump(
        {"x": np.array([Asks(os.mkdir, str(MARK))], dtype=object)}, evil_path, compress=compress
    )
    check_refused(evil_path, "numpy's type 'O8'")
    assert not MARK.exists()


def write_array(shape: Any, dtype: Any = None, **more: Any) -> bytes:
    """A file of one array that joblib would describe so, without its numbers."""
    numpy_pickle = pytest.importorskip("joblib.numpy_pickle")
    array = numpy_pickle.NumpyArrayWrapper(np.ndarray, shape, "C", dtype or np.dtype("f4"))
    array.__dict__.update(more)
    return pickle.dumps({"x": array}, protocol=4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            lambda: write_array((2**40,), numpy_array_alignment_bytes=None),
            "truncated: expected 4398046511104 more bytes",
        ),
        (lambda: write_array((2**2000,) * 8, numpy_array_alignment_bytes=None), "is damaged"),
        (lambda: write_array((-1, 4)), "an array of an impossible shape"),
        (lambda: write_array((1,) * 9), "an array of an impossible shape"),
        (lambda: write_array((2.5,)), "an array of an impossible shape"),
        (lambda: write_array([2]), "without joblib's description"),
        (lambda: write_array((2,), order="A"), "without joblib's description"),
        (lambda: write_array((2,), dtype={"f4": 1}), "without joblib's description"),
        (lambda: write_array((2,), dtype=np.dtype(">f4")), "numbers that are not little-endian"),
        (lambda: write_array((2,), dtype=np.dtype([("a", "f4")])), "numpy's type"),
        (lambda: write_array((2,), dtype=np.dtype("c8")), "numpy's type 'c8'"),
    ],
)
def test_arrays_that_cannot_be_are_refused(
    content: Callable[[], bytes], message: str, evil_path: Path
) -> None:
    evil_path.write_bytes(content())
    check_refused(evil_path, message)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        # Changing what was imported, or plain data, as BUILD could in Python's machine.
        (b"ccollections\nOrderedDict\n}X\x01\x00\x00\x00aNsb.", "changes a Name"),
        (
            b"ctorch._utils\n_rebuild_tensor_v2\n}X\x0c\x00\x00\x00__defaults__)sb.",
            "changes a Name",
        ),
        (b"]}b.", "changes a list"),
        (b"ctorch\nFloatStorage\n)R.", "calls torch.FloatStorage"),
        (b"cnumpy\nndarray\n)\x81.", "calls numpy.ndarray"),
        (b"])R.", "calls list"),
        (b"ccollections\nOrderedDict\n]R.", "calls collections.OrderedDict"),
        (b"ccollections\nOrderedDict\n)\x85R.", "an ordered dictionary is not created empty"),
        (b"cbuiltins\neval\n.", "imports 'builtins.eval'"),
        (b"X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93.", "imports 'os.system'"),
        (b"]]\x93.", "STACK_GLOBAL requires str"),
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
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", "exceeds system's maximum size"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x80\x01.", "protocol 1"),
        (b"\x80\x00.", "protocol 0"),
        (
            b"ctorch.storage\n_load_from_bytes\nB\x01\x00\x00\x00x\x85R.",
            "holds the instruction b'x'",
        ),
        (b"ctorch.storage\n_load_from_bytes\nX\x01\x00\x00\x00x\x85R.", "is damaged"),
        (
            b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))\x89Nt" + b"R.",
            "a tensor is not made from a storage",
        ),
        (b"ctorch._utils\n_rebuild_parameter\nN\x85R.", "a parameter is not made from a tensor"),
        (b"ctorch._utils\n_rebuild_parameter\n)R.", "is damaged"),
    ],
)
def test_programs_that_build_something_else(program: bytes, message: str, evil_path: Path) -> None:
    evil_path.write_bytes(b"\x80\x02" + program)
    check_refused(evil_path, message)


def test_a_huge_place_in_the_memo_takes_no_memory(evil_path: Path) -> None:
    evil_path.write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
    assert read_checkpoint(evil_path) == {}


def test_a_program_without_an_end_is_given_up(
    evil_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lgzoo_tal.unpickler.MAX_STEPS", 1000)
    evil_path.write_bytes(b"\x80\x02" + b"]" * 2000 + b".")
    check_refused(evil_path, "takes more than 1000 instructions")


@pytest.mark.slow
def test_nests_so_deep_that_python_could_not_print_them(evil_path: Path) -> None:
    for depth, before, after in (
        (100_000, b"}", b"Ns."),
        (100_000, b"cnumpy\ndtype\n", b"\x85R."),
        (5_000, b"", b"N\x93."),
        (5_000, b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00", b")\x89NtR."),
        (5_000, b"", b"."),
    ):
        evil_path.write_bytes(b"\x80\x02" + before + b")" + b"\x85" * depth + after)
        check_refused(evil_path, "evil.pt")


def test_one_blob_read_again_and_again_is_refused(evil_path: Path) -> None:
    blob = io.BytesIO()
    torch.save(torch.zeros(1)._typed_storage(), blob, _use_new_zipfile_serialization=False)
    body = blob.getvalue()
    once = b"h\x00h\x01\x85R"
    start = (
        b"\x80\x02ctorch.storage\n_load_from_bytes\nq\x00B"
        + len(body).to_bytes(4, "little")
        + body
        + b"q\x01"
    )
    evil_path.write_bytes(start + once * 10 + b".")
    check_refused(evil_path, "holds the same tensor repeatedly")


def build_tensor(
    numbers: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    storage = torch.zeros(numbers)._typed_storage()
    return Asks(
        torch._utils._rebuild_tensor_v2, storage, offset, shape, strides, False, OrderedDict()
    )


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (build_tensor(4, 0, (5,), (1,)), "does not lie within the 4 numbers"),
        (build_tensor(4, 3, (2,), (1,)), "does not lie within the 4 numbers"),
        (build_tensor(4, 0, (2**40,), (0,)), "does not lie within the 4 numbers"),
        (build_tensor(4, 0, (2**300, 2), (0, 1)), "does not lie within the 4 numbers"),
        (build_tensor(4, -1, (2,), (1,)), "impossible strides"),
        (build_tensor(4, 0, (2,), (-1,)), "impossible strides"),
        (build_tensor(4, 0, (2, 2), (2,)), "impossible strides"),
        (build_tensor(4, 0, (True,), (1,)), "sizes that are not integers"),
        (build_tensor(4, 0, (1,) * 9, (1,) * 9), "more than 8 axes"),
    ],
)
def test_tensors_beyond_their_numbers_are_refused(
    payload: Any, message: str, evil_path: Path
) -> None:
    write_pickle(evil_path, {"x": payload})
    check_refused(evil_path, message)


# Zip files.


def rewrite_zip(
    path: Path, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED
) -> None:
    """The same zip with other contents."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, change(name, content))


def change_part(part: str, new: Callable[[bytes], bytes]) -> Callable[[str, bytes], bytes]:
    return lambda name, content: new(content) if part in name else content


@pytest.mark.parametrize(
    ("part", "new", "message"),
    [
        ("data/0", lambda old: old[:-4], "expected .* bytes in storage .* got"),
        (
            "data/0",
            lambda old: old + b"1234",
            "is compressed, or has .* bytes where at most .* are expected",
        ),
        ("byteorder", lambda old: b"big", "holds big-endian numbers"),
        (
            "data.pkl",
            lambda old: old.replace(b"FloatStorage", b"QInt8Storage"),
            r"imports 'torch\.QInt8Storage'",
        ),
        (
            "data.pkl",
            lambda old: old.replace(b"FloatStorage", b"BloatStorage"),
            r"imports 'torch\.BloatStorage'",
        ),
        (
            "data.pkl",
            lambda old: old.replace(b"storage", b"garbage"),
            "refers to something that is not a storage",
        ),
        (
            "data.pkl",
            lambda old: b"\x80\x02" + b"X\x01\x00\x00\x00aQ.",
            "refers to something that is not a storage",
        ),
    ],
)
def test_zips_that_do_not_hold_what_they_announce(
    part: str, new: Callable[[bytes], bytes], message: str, evil_path: Path
) -> None:
    write_zip(evil_path, {"a": torch.zeros(5)})
    rewrite_zip(evil_path, change_part(part, new))
    check_refused(evil_path, message)


def test_a_compressed_zip_one_without_a_pickle_and_a_broken_one_are_refused(
    evil_path: Path,
) -> None:
    write_zip(evil_path, {"a": torch.zeros(5)})
    rewrite_zip(evil_path, lambda _, content: content, zipfile.ZIP_DEFLATED)
    check_refused(evil_path, "is compressed")
    with zipfile.ZipFile(evil_path, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    check_refused(evil_path, "is a zip file, but not one of torch.save")
    evil_path.write_bytes(b"PK\x03\x04 and no more")
    check_refused(evil_path, "is a damaged zip file")


# Any bytes at all.


def write_small(write: Callable[[Path, Any], None], path: Path) -> bytes:
    write(path, {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)})
    return path.read_bytes()


@pytest.mark.parametrize("layout", WRITERS)
def test_a_truncated_file_is_refused_wherever_it_ends(layout: str, tmp_path: Path) -> None:
    original = write_small(WRITERS[layout], tmp_path / "whole")
    for length in range(0, len(original), 7):
        (tmp_path / "part").write_bytes(original[:length])
        with pytest.raises(BadFile):
            read_checkpoint(tmp_path / "part")


@pytest.mark.parametrize("layout", WRITERS)
def test_a_damaged_file_is_read_or_refused(layout: str, tmp_path: Path) -> None:
    """For all bytes: no other error, and nothing but plain data and tensors within the file."""
    original, draw, read_ones = (
        write_small(WRITERS[layout], tmp_path / "whole"),
        random.Random(5),
        0,
    )
    for _ in range(200):
        damaged = bytearray(original)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            assert all(
                tensor.numel() <= len(original)
                for tensor in read_tensors(tmp_path / "damaged").values()
            )
            read_ones += 1
        except BadFile:
            continue
    assert read_ones < 200


def test_a_bomb_is_not_unpacked(evil_path: Path) -> None:
    evil_path.write_bytes(zlib.compress(b"\x80\x02" + bytes(2**24), 1))
    check_refused(evil_path, "unpacks to more than")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes"),
        (b"hello, world", "is neither a file of torch.save nor one of joblib"),
        (b"\x1f\x8b" + bytes(20), "compressed, but not by zlib"),
        (zlib.compress(b"\x80\x02}.")[:-3], "is truncated"),
        (zlib.compress(b"\x80\x02}.") + b"more", "continues after its end"),
        (b"\x78\x9c" + b"\xff" * 20, "is damaged"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, evil_path: Path) -> None:
    evil_path.write_bytes(content)
    check_refused(evil_path, message)
