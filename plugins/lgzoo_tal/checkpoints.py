"""The files that hypernetworks are released in, without running what they hold. Cold at its top.

GHN-3's files are written by joblib (a pickle of a flat dictionary; torch tensors are blobs within it, numpy arrays raw bytes
between its instructions), self-trained ones by `torch.save` (a zip of a pickle and of raw numbers; before torch 1.6 one
pickle after another). What a file may name is in the tables below; whatever else it asks for is refused.
"""

from __future__ import annotations

import math
import mmap
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learngene_zoo.plugin import BadFile
from lgzoo_tal.pickle_machine import Calls, Cursor, Name, StandIn, unpickled
from lgzoo_tal.stored import MOST_AXES, WIDTHS, Span, Stored, contiguous, rebuilt, rebuilt_parameter

MOST_BYTES = 16 * 2**30  # of a checkpoint; GHN-3-XL's with its optimiser has 7.9
MOST_INFLATED = 4 * 2**30  # of one that was compressed; it is unpacked in memory
MOST_TIMES = 16  # that a compressed file may grow; numbers barely shrink
_PIECE = 2**20
_MOST_PICKLE = 64 * 2**20  # of the pickle in a zip, whose numbers lie beside it
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # how torch's files began before they were zips

_KINDS = {
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.FloatStorage": "float32",
    "torch.DoubleStorage": "float64",
    "torch.IntStorage": "int32",
    "torch.LongStorage": "int64",
}
_NUMPY_KINDS = {"f2": "float16", "f4": "float32", "f8": "float64", "i4": "int32", "i8": "int64"}


class _Ignored(StandIn):
    """What a checkpoint holds beside tensors: the command line's options, numbers of numpy's."""

    def built(self, state: Any, cursor: Cursor) -> _Ignored:
        return self


@dataclass
class _NumberType(StandIn):
    """numpy's dtype. Its state says the order of bytes."""

    kind: str

    def built(self, state: Any, cursor: Cursor) -> _NumberType:
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", "=", "|"):
            raise BadFile(f"{cursor.where} holds numbers whose bytes are not in the order of little ends")
        return self


class _Array(StandIn):
    """joblib's wrapper of an array. Its state describes the array, whose bytes then follow in the file."""

    def built(self, state: Any, cursor: Cursor) -> Stored:
        described = (
            type(state) is dict and type(state.get("dtype")) is _NumberType and type(state.get("shape")) is tuple
        )
        if not described or state.get("order") not in ("C", "F"):
            raise BadFile(f"{cursor.where} holds an array that is not described as joblib describes one")
        shape = state["shape"]
        if len(shape) > MOST_AXES or any(type(n) is not int or n < 0 for n in shape):
            raise BadFile(f"{cursor.where} holds an array of an impossible shape")
        if state.get("numpy_array_alignment_bytes") is not None:
            cursor.take(cursor.number("<B"))
        kind, count = state["dtype"].kind, math.prod(shape)
        data = cursor.take(count * WIDTHS[kind])
        return contiguous(Span(kind, count, lambda _: data), shape, columns_first=state["order"] == "F")


def _number_type(name: Any, *_rest: Any) -> _NumberType:
    if type(name) is not str or name not in _NUMPY_KINDS:
        told = repr(name)[:20] if type(name) is str else type(name).__name__
        raise ValueError(f"arrays of numpy's type {told} are in no checkpoint of a hypernetwork")
    return _NumberType(_NUMPY_KINDS[name])


def _ordered(*items: Any) -> dict[Any, Any]:
    if items:
        raise ValueError("an ordered dictionary is made of something")
    return {}


def _ignored(*_arguments: Any) -> _Ignored:
    return _Ignored()


_TENSORS: Calls = {
    **dict.fromkeys(_KINDS),
    "torch._utils._rebuild_tensor_v2": rebuilt,
    "torch._utils._rebuild_parameter": rebuilt_parameter,
    "collections.OrderedDict": _ordered,
}
# The learning rate of an epoch of warm-up is a number of numpy's.
_BESIDE: Calls = {
    "argparse.Namespace": _ignored,
    "numpy.core.multiarray.scalar": _ignored,
    "numpy._core.multiarray.scalar": _ignored,
    "numpy.dtype": _number_type,
    "_codecs.encode": _ignored,
}


def read_checkpoint(path: Path) -> Any:
    """What a checkpoint holds: dictionaries, lists, numbers and text, with `Stored` for every tensor. Raises `BadFile`."""
    data = _mapped(path)
    where, start = str(path), bytes(data[:6])
    if start.startswith(b"PK\x03\x04"):
        return _zipped(path)
    if start.startswith(b"\x78"):
        return _joblib(Cursor(_inflated(data, where), where))
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x5d\x00", b"\x04\x22\x4d\x18")):
        raise BadFile(f"{path} is compressed by something other than zlib; unpack it, or write it again uncompressed")
    if not start.startswith(b"\x80"):
        raise BadFile(
            f"{path} is neither a file of torch.save nor one of joblib; a hypernetwork's checkpoint is wanted"
        )
    return _legacy(Cursor(data, where)) if start[2:4] == b"\x8a\x0a" else _joblib(Cursor(data, where))


def _mapped(path: Path) -> memoryview:
    """The file's bytes, read when they are looked at. Raises `BadFile`."""
    if not path.is_file():
        raise BadFile(f"there is no file {path}; give a hypernetwork's checkpoint")
    with path.open("rb") as file:
        if not 2 < path.stat().st_size <= MOST_BYTES:
            raise BadFile(f"{path} has {path.stat().st_size} bytes; that is no hypernetwork's checkpoint")
        # A private copy on writing: torch wants memory that it could write to.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def _inflated(data: memoryview, where: str) -> memoryview:
    most, inflated, inflater = min(MOST_INFLATED, MOST_TIMES * len(data) + _PIECE), bytearray(), zlib.decompressobj()
    try:
        for start in range(0, len(data), _PIECE):
            piece: bytes | memoryview = data[start : start + _PIECE]
            while piece and len(inflated) <= most:
                inflated += inflater.decompress(piece, _PIECE)
                piece = inflater.unconsumed_tail
        inflated += inflater.flush()
    except zlib.error as error:
        raise BadFile(f"{where} is damaged: {error}; fetch it again") from error
    if len(inflated) > most:
        raise BadFile(f"{where} unpacks to more than {most} bytes, as no hypernetwork's checkpoint does")
    if not inflater.eof or inflater.unused_data:
        raise BadFile(f"{where} is truncated, or goes on after its end; fetch it again")
    return memoryview(inflated)


def _joblib(cursor: Cursor) -> Any:
    unread = cursor.left  # so that no blob is read over and over

    def blob(data: memoryview) -> Any:
        """What torch's `_load_from_bytes` makes: one storage, as torch's old files hold it."""
        nonlocal unread
        unread -= len(data)
        if unread < 0:
            raise BadFile(f"{cursor.where} holds the same tensor again and again")
        return _legacy(Cursor(data, cursor.where))

    calls: Calls = {
        **_TENSORS,
        **_BESIDE,
        "torch.storage._load_from_bytes": blob,
        "joblib.numpy_pickle.NumpyArrayWrapper": _Array,
        "numpy.ndarray": None,
    }
    return _whole(cursor, unpickled(cursor, calls))


def _whole(cursor: Cursor, value: Any) -> Any:
    if cursor.left:
        raise BadFile(f"{cursor.where} goes on for {cursor.left} bytes after its end; it is not what it says it is")
    return value


Read = Callable[[Span], memoryview]


def _storages(where: str, spans: dict[str, Span], read: Read) -> Callable[[Any], Span]:
    """What the references in a pickle of torch's stand for: storages, kept in `spans` by their keys."""

    def storage(reference: Any) -> Span:
        """("storage", its type, its key, the device it was on, how many numbers; in old files whether it is a view)."""
        if type(reference) is not tuple or len(reference) not in (5, 6) or reference[0] != "storage":
            raise BadFile(f"{where} refers to something that is no storage of numbers")
        _, kind, key, _, count, *view = reference
        known = type(kind) is Name and kind.text in _KINDS
        if not known or type(key) is not str or type(count) is not int or any(view):
            raise BadFile(f"{where} refers to a storage that holds no numbers, or that is a part of another")
        span = spans.setdefault(key, Span(_KINDS[kind.text], count, read, key))
        if (span.kind, span.count) != (_KINDS[kind.text], count) or count < 0:
            raise BadFile(f"{where} says two things of the storage {key!r:.40}, or that it has {count} numbers")
        return span

    return storage


def _legacy(cursor: Cursor) -> Any:
    """torch's old layout: pickles of a magic number, the protocol, the machine, the value, the keys; then the numbers."""
    head = [unpickled(cursor, {}) for _ in range(3)]
    if head[:2] != [_MAGIC, _PROTOCOL] or type(head[2]) is not dict or head[2].get("little_endian") is not True:
        raise BadFile(f"{cursor.where} holds tensors in a layout other than torch's, or from a machine of big ends")
    spans: dict[str, Span] = {}
    data: dict[str, memoryview] = {}
    value = unpickled(cursor, {**_TENSORS, **_BESIDE}, _storages(cursor.where, spans, lambda span: data[span.key]))
    keys = unpickled(cursor, {})
    if type(keys) is not list or any(type(key) is not str for key in keys) or sorted(keys) != sorted(spans):
        raise BadFile(f"{cursor.where} lists other storages than its tensors are in")
    for key in keys:
        if cursor.number("<q") != spans[key].count:
            raise BadFile(f"{cursor.where} holds another count of numbers in storage {key!r:.40} than it announces")
        data[key] = cursor.take(spans[key].size)
    return _whole(cursor, value)


def _zipped(path: Path) -> Any:
    """torch's layout: NAME/data.pkl, and NAME/data/KEY for each storage."""
    try:
        archive = zipfile.ZipFile(path)
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error) as error:
        raise BadFile(f"{path} is a damaged zip file: {error}; fetch or write it again") from error
    if len(pickles) != 1:
        raise BadFile(f"{path} is a zip file, but not of torch.save; a hypernetwork's checkpoint is wanted")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in archive.namelist() and bytes(_member(archive, path, f"{root}byteorder", 16)) != b"little":
        raise BadFile(f"{path} was written on a machine of big ends")

    def read(span: Span) -> memoryview:
        data = _member(archive, path, f"{root}data/{span.key}", span.size)
        if len(data) != span.size:
            raise BadFile(
                f"{path} announces {span.size} bytes of numbers for storage {span.key!r:.40}, {len(data)} are there"
            )
        return data

    cursor = Cursor(_member(archive, path, pickles[0], _MOST_PICKLE), str(path))
    return _whole(cursor, unpickled(cursor, {**_TENSORS, **_BESIDE}, _storages(cursor.where, {}, read)))


def _member(archive: zipfile.ZipFile, path: Path, name: str, most: int) -> memoryview:
    try:
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > most:  # torch compresses nothing
            raise BadFile(f"{path}: {name} is compressed, or has {info.file_size} bytes where {most} are announced")
        return memoryview(bytearray(archive.read(info)))
    except (KeyError, ValueError, zipfile.BadZipFile, EOFError, RuntimeError, OSError, struct.error) as error:
        raise BadFile(f"{path}: {name} cannot be read: {error}; fetch or write it again") from error
