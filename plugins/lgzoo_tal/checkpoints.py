"""Reads the files that hypernetworks are released in, without running what they contain.

GHN-3's files are written by joblib (a pickle of a flat dictionary, in which torch tensors are blobs and numpy arrays raw bytes
between the instructions), self-trained ones by `torch.save` (a zip of a pickle and of raw numbers; before torch 1.6 a sequence
of pickles). The tables below list the names that a file may import; all others are refused. No tensor is read before
`Stored.tensor()`, so the state of an optimiser costs nothing.
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

import torch

from learngene_zoo.plugin import BadFile
from lgzoo_tal.pickle_machine import Calls, Cursor, Name, StandIn, unpickled

MOST_BYTES = 16 * 2**30  # of a checkpoint; GHN-3-XL's with its optimiser has 7.9
MOST_INFLATED = 4 * 2**30  # of a compressed one, which is unpacked in memory
MOST_TIMES = 16  # how much larger an unpacked file may be; numbers hardly compress
MOST_AXES = 8
_PIECE = 2**20
_MOST_PICKLE = 64 * 2**20  # of the pickle in a zip, without the numbers beside it
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # the beginning of torch's files before they were zips
WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}  # bytes of a number
_KINDS = {
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.FloatStorage": "float32",
    "torch.DoubleStorage": "float64",
    "torch.IntStorage": "int32",
    "torch.LongStorage": "int64",
}
_NUMPY_KINDS = {"f2": "float16", "f4": "float32", "f8": "float64", "i4": "int32", "i8": "int64"}


@dataclass(eq=False)
class Span:
    """Raw little-endian numbers: what torch calls a storage."""

    kind: str  # a key of WIDTHS
    count: int
    read: Callable[[Span], memoryview]  # all of its bytes; raises `BadFile` if some are missing
    key: str = ""  # its name in the file

    @property
    def size(self) -> int:
        """In bytes."""
        return self.count * WIDTHS[self.kind]


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in a span. Raises `ValueError` if it reaches beyond it."""

    span: Span
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.offset, *self.shape, *self.strides)
        if len(self.shape) > MOST_AXES or any(type(n) is not int for n in numbers):
            raise ValueError(f"a tensor has more than {MOST_AXES} axes, or sizes that are not integers")
        if len(self.shape) != len(self.strides) or min(numbers) < 0:
            raise ValueError(
                f"a tensor has impossible strides: {self.strides} for the shape {self.shape} at {self.offset}"
            )
        last = self.offset + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides))
        # A tensor larger than its span would repeat numbers: a few bytes that fill the memory.
        if self.count and (last >= self.span.count or self.count > self.span.count):
            raise ValueError(
                f"a tensor of shape {self.shape} does not lie within the {self.span.count} numbers of its storage"
            )

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def tensor(self) -> torch.Tensor:
        """The tensor, float32, in memory of its own. Raises as the span's `read` does."""
        if not self.count:
            return torch.empty(self.shape)
        data = self.span.read(self.span)
        assert len(data) == self.span.size
        numbers = torch.frombuffer(data, dtype=getattr(torch, self.span.kind))
        return numbers.as_strided(self.shape, self.strides, self.offset).to(torch.float32, copy=True).contiguous()


def rebuilt(span: Any, offset: Any, shape: Any, strides: Any, *_rest: Any) -> Stored:
    """The result of torch's `_rebuild_tensor_v2`, without gradients and hooks. Raises `ValueError`."""
    if type(span) is not Span or type(shape) is not tuple or type(strides) is not tuple:
        raise ValueError("a tensor is not made from a storage")
    return Stored(span, offset, shape, strides)


def rebuilt_parameter(data: Any, *_rest: Any) -> Stored:
    """The result of torch's `_rebuild_parameter`. Raises `ValueError`."""
    if type(data) is not Stored:
        raise ValueError("a parameter is not made from a tensor")
    return data


class _Ignored(StandIn):
    """Contents other than tensors: command line options, numpy scalars."""

    def built(self, state: Any, cursor: Cursor) -> _Ignored:
        return self


@dataclass
class _NumberType(StandIn):
    """numpy's dtype. Its state contains the byte order."""

    kind: str

    def built(self, state: Any, cursor: Cursor) -> _NumberType:
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", "=", "|"):
            raise BadFile(f"{cursor.where} holds numbers that are not little-endian")
        return self


class _Array(StandIn):
    """joblib's wrapper of an array. Its state describes the array, whose bytes follow in the file."""

    def built(self, state: Any, cursor: Cursor) -> Stored:
        described = (
            type(state) is dict and type(state.get("dtype")) is _NumberType and type(state.get("shape")) is tuple
        )
        if not described or state.get("order") not in ("C", "F"):
            raise BadFile(f"{cursor.where} holds an array without joblib's description")
        shape = state["shape"]
        if len(shape) > MOST_AXES or any(type(n) is not int or n < 0 for n in shape):
            raise BadFile(f"{cursor.where} holds an array of an impossible shape")
        if state.get("numpy_array_alignment_bytes") is not None:
            cursor.take(cursor.number("<B"))
        kind, count, columns_first = state["dtype"].kind, math.prod(shape), state["order"] == "F"
        data = cursor.take(count * WIDTHS[kind])
        strides = (math.prod(shape[:axis] if columns_first else shape[axis + 1 :]) for axis in range(len(shape)))
        return Stored(Span(kind, count, lambda _: data), 0, shape, tuple(strides))


def _number_type(name: Any, *_rest: Any) -> _NumberType:
    if type(name) is not str or name not in _NUMPY_KINDS:
        shown = repr(name)[:20] if type(name) is str else type(name).__name__
        raise ValueError(f"it holds an array of numpy's type {shown}; expected one of {', '.join(_NUMPY_KINDS)}")
    return _NumberType(_NUMPY_KINDS[name])


def _ordered(*items: Any) -> dict[Any, Any]:
    if items:
        raise ValueError("an ordered dictionary is not created empty")
    return {}


def _ignored(*_arguments: Any) -> _Ignored:
    return _Ignored()


_TENSORS: Calls = {
    **dict.fromkeys(_KINDS),
    "torch._utils._rebuild_tensor_v2": rebuilt,
    "torch._utils._rebuild_parameter": rebuilt_parameter,
    "collections.OrderedDict": _ordered,
}
# The learning rate in an epoch of warm-up is a numpy scalar.
_BESIDE: Calls = {
    "argparse.Namespace": _ignored,
    "numpy.core.multiarray.scalar": _ignored,
    "numpy._core.multiarray.scalar": _ignored,
    "numpy.dtype": _number_type,
    "_codecs.encode": _ignored,
}


def read_checkpoint(path: Path) -> Any:
    """The contents of a checkpoint: dictionaries, lists, numbers and text, with `Stored` for every tensor. Raises `BadFile`."""
    data = _mapped(path)
    where, start = str(path), bytes(data[:6])
    if start.startswith(b"PK\x03\x04"):
        return _zipped(path)
    if start.startswith(b"\x78"):
        return _joblib(Cursor(_inflated(data, where), where))
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x5d\x00", b"\x04\x22\x4d\x18")):
        raise BadFile(f"{path} is compressed, but not by zlib; unpack it, or save it uncompressed")
    if not start.startswith(b"\x80"):
        raise BadFile(f"{path} is neither a file of torch.save nor one of joblib; expected a hypernetwork's checkpoint")
    return _legacy(Cursor(data, where)) if start[2:4] == b"\x8a\x0a" else _joblib(Cursor(data, where))


def _mapped(path: Path) -> memoryview:
    """The file's bytes, read on access. Raises `BadFile`."""
    if not path.is_file():
        raise BadFile(f"there is no file {path}; expected a hypernetwork's checkpoint")
    with path.open("rb") as file:
        if not 2 < path.stat().st_size <= MOST_BYTES:
            raise BadFile(f"{path} has {path.stat().st_size} bytes; it is not a hypernetwork's checkpoint")
        # Copy on write, since torch expects writable memory.
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
        raise BadFile(f"{where} unpacks to more than {most} bytes; it is not a hypernetwork's checkpoint")
    if not inflater.eof or inflater.unused_data:
        raise BadFile(f"{where} is truncated, or continues after its end; fetch it again")
    return memoryview(inflated)


def _joblib(cursor: Cursor) -> Any:
    unread = cursor.left  # so that no blob is read repeatedly

    def blob(data: memoryview) -> Any:
        """The result of torch's `_load_from_bytes`: one storage, in the layout of torch's old files."""
        nonlocal unread
        unread -= len(data)
        if unread < 0:
            raise BadFile(f"{cursor.where} holds the same tensor repeatedly")
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
        raise BadFile(f"{cursor.where} continues for {cursor.left} bytes after its end; it is not a checkpoint")
    return value


Read = Callable[[Span], memoryview]


def _storages(where: str, spans: dict[str, Span], read: Read) -> Callable[[Any], Span]:
    """Resolves the references in torch's pickles to storages, which are kept in `spans` by their keys."""

    def storage(reference: Any) -> Span:
        """From ("storage", type, key, device, number of elements; in old files whether it is a view)."""
        if type(reference) is not tuple or len(reference) not in (5, 6) or reference[0] != "storage":
            raise BadFile(f"{where} refers to something that is not a storage")
        _, kind, key, _, count, *view = reference
        known = type(kind) is Name and kind.text in _KINDS
        if not known or type(key) is not str or type(count) is not int or any(view):
            raise BadFile(f"{where} refers to a storage of another type, or to a part of one")
        span = spans.setdefault(key, Span(_KINDS[kind.text], count, read, key))
        if (span.kind, span.count) != (_KINDS[kind.text], count) or count < 0:
            raise BadFile(f"{where} contradicts itself about the storage {key!r:.40} of {count} numbers")
        return span

    return storage


def _legacy(cursor: Cursor) -> Any:
    """torch's old layout: pickles of a magic number, the protocol, the platform, the value and the keys; then the numbers."""
    head = [unpickled(cursor, {}) for _ in range(3)]
    if head[:2] != [_MAGIC, _PROTOCOL] or type(head[2]) is not dict or head[2].get("little_endian") is not True:
        raise BadFile(f"{cursor.where} holds tensors in a layout other than torch's, or big-endian ones")
    spans: dict[str, Span] = {}
    data: dict[str, memoryview] = {}
    value = unpickled(cursor, {**_TENSORS, **_BESIDE}, _storages(cursor.where, spans, lambda span: data[span.key]))
    keys = unpickled(cursor, {})
    if type(keys) is not list or any(type(key) is not str for key in keys) or sorted(keys) != sorted(spans):
        raise BadFile(f"{cursor.where} lists other storages than those of its tensors")
    for key in keys:
        if cursor.number("<q") != spans[key].count:
            raise BadFile(f"{cursor.where} holds another number of elements in storage {key!r:.40} than it announces")
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
        raise BadFile(f"{path} is a zip file, but not one of torch.save; expected a hypernetwork's checkpoint")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in archive.namelist() and bytes(_member(archive, path, f"{root}byteorder", 16)) != b"little":
        raise BadFile(f"{path} holds big-endian numbers")

    def read(span: Span) -> memoryview:
        data = _member(archive, path, f"{root}data/{span.key}", span.size)
        if len(data) != span.size:
            raise BadFile(f"{path}: expected {span.size} bytes in storage {span.key!r:.40}, got {len(data)}")
        return data

    cursor = Cursor(_member(archive, path, pickles[0], _MOST_PICKLE), str(path))
    return _whole(cursor, unpickled(cursor, {**_TENSORS, **_BESIDE}, _storages(cursor.where, {}, read)))


def _member(archive: zipfile.ZipFile, path: Path, name: str, most: int) -> memoryview:
    try:
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > most:  # torch compresses nothing
            raise BadFile(
                f"{path}: {name} is compressed, or has {info.file_size} bytes where at most {most} are expected"
            )
        return memoryview(bytearray(archive.read(info)))
    except (KeyError, ValueError, zipfile.BadZipFile, EOFError, RuntimeError, OSError, struct.error) as error:
        raise BadFile(f"{path}: {name} cannot be read: {error}; fetch or write it again") from error
