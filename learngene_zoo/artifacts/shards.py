"""Weights in several safetensors files with an index, as transformers saves large models.

The index names the shard of every tensor. It cannot choose a path: a shard is a file beside it, and
each tensor is stored once, in the shard that the index names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from learngene_zoo.errors import BadFile
from learngene_zoo.storage import WEIGHTS, Tensors, parse_json, read_json

INDEX = f"{WEIGHTS}.index.json"
MAX_SHARDS = 1_000
MAX_HEADER_BYTES = 100_000_000  # as the safetensors package
_SHARD = re.compile(r"[A-Za-z0-9][\w.-]*\.safetensors")


class ShardedTensors(Tensors):
    """The tensors of all shards of an index, each read when it is used.

    Raises `BadFile` as `Tensors` does.
    """

    def __init__(self, index: Path) -> None:
        self.path = index
        weight_map = read_weight_map(index)
        self._places = {}
        for shard in sorted(set(weight_map.values())):
            if not (index.parent / shard).is_file():
                raise BadFile(
                    f"{index.parent / shard} does not exist, but {index.name} names it; "
                    "download it again"
                )
            stored = Tensors(index.parent / shard)._places
            _check_shard(shard, set(stored), weight_map, index)
            self._places |= stored


def _check_shard(shard: str, stored: set[str], weight_map: Mapping[str, str], index: Path) -> None:
    """Check that a shard holds the tensors that the index places in it, and no others."""
    for name, listed_shard in weight_map.items():
        if listed_shard == shard and name not in stored:
            raise BadFile(
                f"{index.parent / shard} lacks the tensor {name}, which {index.name} places there"
            )
    for name in sorted(stored):
        listed_shard = weight_map.get(name, "no shard")
        if listed_shard != shard:
            raise BadFile(
                f"{index.parent / shard} holds the tensor {name}, "
                f"which {index.name} places in {listed_shard}"
            )


def is_index(path: Path) -> bool:
    """Return whether a path is named as an index of shards."""
    return path.name.endswith(".safetensors.index.json")


def open_tensors(weights: Path) -> Tensors:
    """Open a safetensors file, or the index of several."""
    return ShardedTensors(weights) if is_index(weights) else Tensors(weights)


def read_weight_map(index: Path) -> dict[str, str]:
    """Return the shard of every tensor.

    Raises `BadFile` for a shard that is not the plain name of a safetensors file.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFile(
            f"{index}: weight_map is missing or empty; expected the shard of every tensor"
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard) or len(shard) > 255:
            raise BadFile(
                f"{index}: the shard of {name:.80} is {str(shard)!r:.80}; "
                "expected a .safetensors file beside the index"
            )
    if len(set(weight_map.values())) > MAX_SHARDS:
        raise BadFile(f"{index} names more than {MAX_SHARDS} shards; download it again")
    return weight_map


def read_shapes(weights: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a safetensors file, or of all shards of an index.

    torch is not imported. Raises `BadFile`.
    """
    if not is_index(weights):
        return _shapes_in_header(weights)
    shards = sorted(set(read_weight_map(weights).values()))
    return {
        name: shape
        for shard in shards
        for name, shape in _shapes_in_header(weights.parent / shard).items()
    }


def _shapes_in_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the header of a safetensors file states."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            header = parse_json(file.read(length))
        assert isinstance(header, dict)
        return {
            name: tuple(map(int, header[name]["shape"]))
            for name in header
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise BadFile(
            f"{path} is not a readable safetensors file: {error}; create or download it again"
        ) from error


def hash_weights(weights: Path) -> str:
    """Return the SHA-256 of a weights file; for an index, of its shards' names and checksums."""
    if not is_index(weights):
        return sha256(weights)
    shards = sorted(set(read_weight_map(weights).values()))
    lines = [f"{sha256(weights.parent / shard)}  {shard}\n" for shard in shards]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def sha256(path: Path) -> str:
    """Return the checksum of a file, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
