"""Read the files that hypernetworks are released in, without running their contents.

GHN-3's files are written by joblib (a pickle of a flat dictionary, in which torch tensors are blobs
and numpy arrays raw bytes between the instructions), self-trained ones by `torch.save` (a zip of a
pickle and of raw numbers; before torch 1.6 a sequence of pickles). The tables below list the names
that a file may import; all others are refused. No tensor is read before `StoredTensor.read()`, so
the state of an optimiser costs nothing.
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
from lgzoo_tal.unpickler import Calls, Cursor, Name, StandIn, unpickle

MAX_BYTES = 16 * 2**30  # of a checkpoint; GHN-3-XL's with its optimiser has 7.9
MAX_INFLATED_BYTES = 4 * 2**30  # of a compressed one, which is unpacked in memory
MAX_INFLATION = 16  # how much larger an unpacked file may be; numbers hardly compress
MAX_AXES = 8
_PIECE = 2**20
_MAX_PICKLE_BYTES = 64 * 2**20  # of the pickle in a zip, without the numbers beside it
# The beginning of torch's files before they were zips.
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
# The bytes of a number.
WIDTHS = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
}
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
class StorageSpan:
    """Raw little-endian numbers: a storage in torch's words."""

    kind: str  # a key of WIDTHS
    count: int
    # Returns all of its bytes; raises `BadFile` if some are missing.
    read: Callable[[StorageSpan], memoryview]
    key: str = ""  # its name in the file

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return self.count * WIDTHS[self.kind]


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in a span. Raises `ValueError` if it reaches beyond it."""

    span: StorageSpan
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.offset, *self.shape, *self.strides)
        if len(self.shape) > MAX_AXES or any(type(n) is not int for n in numbers):
            raise ValueError(
                f"a tensor has more than {MAX_AXES} axes, or sizes that are not integers"
            )
        if len(self.shape) != len(self.strides) or min(numbers) < 0:
            raise ValueError(
                f"a tensor has impossible strides: {self.strides} for the shape {self.shape} at "
                f"{self.offset}"
            )
        last = self.offset + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides))
        # A tensor larger than its span would repeat numbers: a few bytes that fill the memory.
        if self.count and (last >= self.span.count or self.count > self.span.count):
            raise ValueError(
                f"a tensor of shape {self.shape} does not lie within the {self.span.count} numbers "
                "of its storage"
            )

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    def read(self) -> torch.Tensor:
        """Return a float32 copy of the tensor. Raises as the span's `read` does."""
        if not self.count:
            return torch.empty(self.shape)
        data = self.span.read(self.span)
        assert len(data) == self.span.size
        numbers = torch.frombuffer(data, dtype=getattr(torch, self.span.kind))
        return (
            numbers.as_strided(self.shape, self.strides, self.offset)
            .to(torch.float32, copy=True)
            .contiguous()
        )


def rebuild_tensor(span: Any, offset: Any, shape: Any, strides: Any, *_rest: Any) -> StoredTensor:
    """Return the result of torch's `_rebuild_tensor_v2`, without gradients and hooks.

    Args:
        span: the storage.
        offset: the first element.
        shape: the sizes of the axes.
        strides: the distances between neighbours along each axis, in elements.
        _rest: ignored.

    Raises:
        ValueError: if the arguments have other types, or the tensor reaches beyond the span.
    """
    if type(span) is not StorageSpan or type(shape) is not tuple or type(strides) is not tuple:
        raise ValueError("a tensor is not made from a storage")
    return StoredTensor(span, offset, shape, strides)


def rebuild_parameter(data: Any, *_rest: Any) -> StoredTensor:
    """Return the result of torch's `_rebuild_parameter`. Raises `ValueError`."""
    if type(data) is not StoredTensor:
        raise ValueError("a parameter is not made from a tensor")
    return data


class _Ignored(StandIn):
    """Contents other than tensors: command line options, numpy scalars."""

    def set_state(self, state: Any, cursor: Cursor) -> _Ignored:
        return self


@dataclass
class _NumberType(StandIn):
    """numpy's dtype. Its state contains the byte order."""

    kind: str

    def set_state(self, state: Any, cursor: Cursor) -> _NumberType:
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", "=", "|"):
            raise BadFile(f"{cursor.source} holds numbers that are not little-endian")
        return self


class _Array(StandIn):
    """joblib's wrapper of an array, whose state describes it and whose bytes follow in the file."""

    def set_state(self, state: Any, cursor: Cursor) -> StoredTensor:
        described = (
            type(state) is dict
            and type(state.get("dtype")) is _NumberType
            and type(state.get("shape")) is tuple
        )
        if not described or state.get("order") not in ("C", "F"):
            raise BadFile(f"{cursor.source} holds an array without joblib's description")
        shape = state["shape"]
        if len(shape) > MAX_AXES or any(type(n) is not int or n < 0 for n in shape):
            raise BadFile(f"{cursor.source} holds an array of an impossible shape")
        if state.get("numpy_array_alignment_bytes") is not None:
            cursor.take(cursor.read_number("<B"))
        kind, count, columns_first = state["dtype"].kind, math.prod(shape), state["order"] == "F"
        data = cursor.take(count * WIDTHS[kind])
        strides = (
            math.prod(shape[:axis] if columns_first else shape[axis + 1 :])
            for axis in range(len(shape))
        )
        return StoredTensor(StorageSpan(kind, count, lambda _: data), 0, shape, tuple(strides))


def _parse_number_type(name: Any, *_rest: Any) -> _NumberType:
    if type(name) is not str or name not in _NUMPY_KINDS:
        label = repr(name)[:20] if type(name) is str else type(name).__name__
        raise ValueError(
            f"it holds an array of numpy's type {label}; expected one of {', '.join(_NUMPY_KINDS)}"
        )
    return _NumberType(_NUMPY_KINDS[name])


def _build_ordered_dict(*items: Any) -> dict[Any, Any]:
    if items:
        raise ValueError("an ordered dictionary is not created empty")
    return {}


def _ignore(*_arguments: Any) -> _Ignored:
    return _Ignored()


_TENSORS: Calls = {
    **dict.fromkeys(_KINDS),
    "torch._utils._rebuild_tensor_v2": rebuild_tensor,
    "torch._utils._rebuild_parameter": rebuild_parameter,
    "collections.OrderedDict": _build_ordered_dict,
}
# The learning rate in an epoch of warm-up is a numpy scalar.
_BESIDE: Calls = {
    "argparse.Namespace": _ignore,
    "numpy.core.multiarray.scalar": _ignore,
    "numpy._core.multiarray.scalar": _ignore,
    "numpy.dtype": _parse_number_type,
    "_codecs.encode": _ignore,
}


def read_checkpoint(path: Path) -> Any:
    """Read a checkpoint: dictionaries, lists, numbers, text, and a `StoredTensor` for every tensor.

    Raises `BadFile`.
    """
    data = _map_file(path)
    source, start = str(path), bytes(data[:6])
    if start.startswith(b"PK\x03\x04"):
        return _read_zip(path)
    if start.startswith(b"\x78"):
        return _read_joblib(Cursor(_inflate(data, source), source))
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x5d\x00", b"\x04\x22\x4d\x18")):
        raise BadFile(f"{path} is compressed, but not by zlib; unpack it, or save it uncompressed")
    if not start.startswith(b"\x80"):
        raise BadFile(
            f"{path} is neither a file of torch.save nor one of joblib; expected a hypernetwork's "
            "checkpoint"
        )
    is_legacy = start[2:4] == b"\x8a\x0a"
    return _read_legacy(Cursor(data, source)) if is_legacy else _read_joblib(Cursor(data, source))


def _map_file(path: Path) -> memoryview:
    """Return the file's bytes, read on access. Raises `BadFile`."""
    if not path.is_file():
        raise BadFile(f"there is no file {path}; expected a hypernetwork's checkpoint")
    with path.open("rb") as file:
        if not 2 < path.stat().st_size <= MAX_BYTES:
            raise BadFile(
                f"{path} has {path.stat().st_size} bytes; it is not a hypernetwork's checkpoint"
            )
        # Copy on write, since torch expects writable memory.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def _inflate(data: memoryview, source: str) -> memoryview:
    limit = min(MAX_INFLATED_BYTES, MAX_INFLATION * len(data) + _PIECE)
    inflated, inflater = bytearray(), zlib.decompressobj()
    try:
        for start in range(0, len(data), _PIECE):
            piece: bytes | memoryview = data[start : start + _PIECE]
            while piece and len(inflated) <= limit:
                inflated += inflater.decompress(piece, _PIECE)
                piece = inflater.unconsumed_tail
        inflated += inflater.flush()
    except zlib.error as error:
        raise BadFile(f"{source} is damaged: {error}; fetch it again") from error
    if len(inflated) > limit:
        raise BadFile(
            f"{source} unpacks to more than {limit} bytes; it is not a hypernetwork's checkpoint"
        )
    if not inflater.eof or inflater.unused_data:
        raise BadFile(f"{source} is truncated, or continues after its end; fetch it again")
    return memoryview(inflated)


def _read_joblib(cursor: Cursor) -> Any:
    unread = cursor.num_remaining  # so that no blob is read repeatedly

    def load_blob(data: memoryview) -> Any:
        """Return the result of torch's `_load_from_bytes`.

        It is one storage, in the layout of torch's old files.
        """
        nonlocal unread
        unread -= len(data)
        if unread < 0:
            raise BadFile(f"{cursor.source} holds the same tensor repeatedly")
        return _read_legacy(Cursor(data, cursor.source))

    calls: Calls = {
        **_TENSORS,
        **_BESIDE,
        "torch.storage._load_from_bytes": load_blob,
        "joblib.numpy_pickle.NumpyArrayWrapper": _Array,
        "numpy.ndarray": None,
    }
    return _check_end(cursor, unpickle(cursor, calls))


def _check_end(cursor: Cursor, value: Any) -> Any:
    if cursor.num_remaining:
        raise BadFile(
            f"{cursor.source} continues for {cursor.num_remaining} bytes after its end; it is "
            "not a checkpoint"
        )
    return value


ReadStorage = Callable[[StorageSpan], memoryview]


def _build_resolver(
    source: str, spans: dict[str, StorageSpan], read: ReadStorage
) -> Callable[[Any], StorageSpan]:
    """Build the function that resolves the references in torch's pickles to storages.

    Args:
        source: the file, for messages.
        spans: the storages by key, which the function fills.
        read: reads a storage.
    """

    def resolve(reference: Any) -> StorageSpan:
        """Resolve a reference: ("storage", type, key, device, number of elements).

        In old files a sixth entry tells whether it is a view.
        """
        if (
            type(reference) is not tuple
            or len(reference) not in (5, 6)
            or reference[0] != "storage"
        ):
            raise BadFile(f"{source} refers to something that is not a storage")
        _, kind, key, _, count, *view = reference
        is_known = type(kind) is Name and kind.text in _KINDS
        if not is_known or type(key) is not str or type(count) is not int or any(view):
            raise BadFile(f"{source} refers to a storage of another type, or to a part of one")
        span = spans.setdefault(key, StorageSpan(_KINDS[kind.text], count, read, key))
        if (span.kind, span.count) != (_KINDS[kind.text], count) or count < 0:
            raise BadFile(
                f"{source} contradicts itself about the storage {key!r:.40} of {count} numbers"
            )
        return span

    return resolve


def _read_legacy(cursor: Cursor) -> Any:
    """Read torch's old layout.

    Pickles of a magic number, the protocol, the platform, the value and the keys; then the numbers.
    """
    head = [unpickle(cursor, {}) for _ in range(3)]
    if (
        head[:2] != [_MAGIC, _PROTOCOL]
        or type(head[2]) is not dict
        or head[2].get("little_endian") is not True
    ):
        raise BadFile(
            f"{cursor.source} holds tensors in a layout other than torch's, or big-endian ones"
        )
    spans: dict[str, StorageSpan] = {}
    data: dict[str, memoryview] = {}
    value = unpickle(
        cursor,
        {**_TENSORS, **_BESIDE},
        _build_resolver(cursor.source, spans, lambda span: data[span.key]),
    )
    keys = unpickle(cursor, {})
    if (
        type(keys) is not list
        or any(type(key) is not str for key in keys)
        or sorted(keys) != sorted(spans)
    ):
        raise BadFile(f"{cursor.source} lists other storages than those of its tensors")
    for key in keys:
        if cursor.read_number("<q") != spans[key].count:
            raise BadFile(
                f"{cursor.source} holds another number of elements in storage {key!r:.40} than it "
                "announces"
            )
        data[key] = cursor.take(spans[key].size)
    return _check_end(cursor, value)


def _read_zip(path: Path) -> Any:
    """Read torch's layout: NAME/data.pkl, and NAME/data/KEY for each storage."""
    try:
        archive = zipfile.ZipFile(path)
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error) as error:
        raise BadFile(f"{path} is a damaged zip file: {error}; fetch or write it again") from error
    if len(pickles) != 1:
        raise BadFile(
            f"{path} is a zip file, but not one of torch.save; expected a hypernetwork's checkpoint"
        )
    root = pickles[0].removesuffix("data.pkl")
    if (
        f"{root}byteorder" in archive.namelist()
        and bytes(_read_member(archive, path, f"{root}byteorder", 16)) != b"little"
    ):
        raise BadFile(f"{path} holds big-endian numbers")

    def read_storage(span: StorageSpan) -> memoryview:
        data = _read_member(archive, path, f"{root}data/{span.key}", span.size)
        if len(data) != span.size:
            raise BadFile(
                f"{path}: expected {span.size} bytes in storage {span.key!r:.40}, got {len(data)}"
            )
        return data

    cursor = Cursor(_read_member(archive, path, pickles[0], _MAX_PICKLE_BYTES), str(path))
    return _check_end(
        cursor,
        unpickle(cursor, {**_TENSORS, **_BESIDE}, _build_resolver(cursor.source, {}, read_storage)),
    )


def _read_member(archive: zipfile.ZipFile, path: Path, name: str, limit: int) -> memoryview:
    try:
        info = archive.getinfo(name)
        # torch compresses nothing
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
            raise BadFile(
                f"{path}: {name} is compressed, or has {info.file_size} bytes where at most "
                f"{limit} are expected"
            )
        return memoryview(bytearray(archive.read(info)))
    except (
        KeyError,
        ValueError,
        zipfile.BadZipFile,
        EOFError,
        RuntimeError,
        OSError,
        struct.error,
    ) as error:
        raise BadFile(f"{path}: {name} cannot be read: {error}; fetch or write it again") from error
