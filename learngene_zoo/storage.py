"""Read and write tensors (safetensors) and JSON strictly; nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.atomic import new_folder
from learngene_zoo.errors import BadFile
from learngene_zoo.settings import Json

if TYPE_CHECKING:
    import torch

StateDict = Mapping[str, "torch.Tensor"]  # tensors by name; functions never mutate an argument
MAX_JSON_BYTES = 16 * 2**20
MAX_JSON_DEPTH = 64
MAX_TENSOR_NAME = 500  # characters of a tensor's name
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
CONFIG = "config.json"
EXPORTED = (".onnx", ".pt2")  # suffixes of files of `lgzoo export`
# The files of a tokenizer, beside those of a text model.
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TOKENIZER_FILES = (
    TOKENIZER,
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
# The files of sentence-transformers, beside those of a sentence encoder.
MODULES, POOLING = "modules.json", "1_Pooling/config.json"
SENTENCE_CONFIG = "sentence_bert_config.json"
SENTENCE_FILES = (MODULES, POOLING, SENTENCE_CONFIG)
MAX_SHARDS = 1_000
MAX_HEADER_BYTES = 100_000_000  # as the safetensors package
_SHARD = re.compile(r"[A-Za-z0-9][\w.-]*\.safetensors")


def write_json(path: Path, data: Json) -> None:
    """Write indented JSON in the order of the data, with a newline at the end."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    # Names of files may contain bytes that are not UTF-8; all other strings were checked before.
    path.write_bytes(text.encode("utf-8", "replace") + b"\n")


def normalise_json(data: Json) -> Json:
    """Return data as they are once written and read: tuples are lists, and all keys are strings."""
    return json.loads(json.dumps(data))


def read_json(path: Path, before: str = "", where: object = None) -> dict[str, Any]:
    """Return the object in a JSON file.

    Args:
        path: the file.
        before: as in `parse_json`.
        where: how messages name the file; by default its path.

    Raises:
        BadFile: if the file cannot be read or does not contain a JSON object.
    """
    where = where or path
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # reading a pipe would block
            raise BadFile(f"{where} is not a file; create or download it again")
        if about.st_size > MAX_JSON_BYTES:
            raise BadFile(
                f"{where} is larger than {MAX_JSON_BYTES >> 20} MiB; expected a configuration"
            )
        data = parse_json(path.read_bytes(), before)
    except FileNotFoundError:
        raise BadFile(f"{where} does not exist; give the folder that contains it") from None
    except OSError as error:
        raise BadFile(f"{where} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadFile(f"{where} is not valid JSON: {error}; create or download it again") from error
    if not isinstance(data, dict):
        raise BadFile(f"{where} is not a JSON object; create or download it again")
    return data


def parse_json(data: bytes, before: str = "") -> Json:
    """Parse JSON in UTF-8 that can be written again and printed.

    With `before`, parsing is six times as fast, for callers that use few values and check these:
    values after that key of the outermost object may be missing, and single values are not checked.

    Raises:
        ValueError: for data that are not JSON, and for values that Python's parser would accept in
            addition: NaN and infinity, numbers beyond 64 bits, lone surrogates, a key that occurs
            twice in an object, and more than `MAX_JSON_DEPTH` nested lists and objects.
    """
    if before:
        with suppress(ValueError):  # if `write_json` did not write the file, parse all of it below
            return _parse_json(_cut_before(data, before))
        return _parse_json(data)
    value = _parse_json(data)
    if _NEEDS_CHECK.search(data) or data.count(b"[") + data.count(b"{") > MAX_JSON_DEPTH:
        _check_values(value)
    return value


# Lone surrogates, integers of 64 bits and more, large exponents. They are rare, so that only few
# files need a check of each value.
_NEEDS_CHECK = re.compile(rb"\\u[dD][89a-fA-F]|\d{19}|\d[eE]\+?\d{3}")


def _cut_before(data: bytes, key: str) -> bytes:
    """Return the JSON object without that key and the keys after it.

    Only the outermost keys are on lines indented by two spaces.
    """
    head, separator, tail = data.partition(f',\n  "{key}": '.encode())
    return head + b"}" if separator and tail.endswith(b"\n}\n") else data


def _parse_json(data: bytes) -> Json:
    try:
        text = data.decode("utf-8-sig")
        value: Json = json.loads(
            text, parse_constant=_raise_for_number, object_pairs_hook=_build_object
        )
        return value
    except RecursionError:
        raise ValueError(f"lists and objects are nested more than {MAX_JSON_DEPTH} deep") from None


def _build_object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Return a JSON object.

    Raises `ValueError` for a repeated key, of which two readers could take different values.
    """
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r:.80} occurs twice in one object")
    return result


def _raise_for_number(word: str) -> None:
    raise ValueError(f"{word} is not a number in JSON")


def _check_values(data: Json) -> None:
    waiting = [(data, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            value.encode()  # raises UnicodeEncodeError, a ValueError
        elif isinstance(value, (int, float)) and not abs(value) < 2.0**64:
            if isinstance(value, int) or not math.isfinite(value):
                raise ValueError("a number of more than 64 bits")
        elif isinstance(value, (list, dict)):
            if depth > MAX_JSON_DEPTH:
                raise ValueError(f"lists and objects are nested more than {MAX_JSON_DEPTH} deep")
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            waiting.extend((item, depth + 1) for item in inner)


def write_tensors(path: Path, state: StateDict) -> None:
    """Write tensors to a safetensors file.

    Tensors that share memory are written separately.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    addresses: set[int] = set()
    owned = {}
    for name, tensor in state.items():
        tensor = tensor.detach().to("cpu").contiguous()
        address = tensor.untyped_storage().data_ptr()
        owned[name] = tensor.clone() if address in addresses else tensor
        addresses.add(address)
    try:
        save_file(owned, path, metadata={"format": "pt"})
    except SafetensorError as error:  # wraps errors of the operating system: "... (os error 28)"
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    os.umask(mask := os.umask(0o022))
    # safetensors lets only the owner read the file, unlike every other file of the folder.
    path.chmod(0o666 & ~mask)


class Tensors(Mapping[str, "torch.Tensor"]):
    """The tensors of a safetensors file, read from a memory map when they are accessed.

    Opening checks the file's header; reading a tensor checks that every number is finite. Both
    raise `BadFile`.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        if not path.is_file():
            raise BadFile(f"{path} does not exist; create or download it again")
        try:
            file = safe_open(path, framework="pt")
            names = file.keys()  # `file` is not a mapping and cannot be iterated
            self._places = {name: (file, name) for name in names}
            _check_header(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise _refuse_unreadable(path, error) from error

    def __getitem__(self, name: str) -> torch.Tensor:
        file, stored_name = self._places[name]
        tensor = file.get_tensor(stored_name)
        if tensor.is_floating_point() and not is_finite(tensor):
            raise BadFile(
                f"{self.path}: the tensor {name} has values that are not finite; create it again"
            )
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def select(self, names: Mapping[str, str]) -> Tensors:
        """Return a view of some tensors under new names, without reading any.

        `names` maps each new name to the stored one.
        """
        chosen = copy(self)
        chosen._places = {new: self._places[stored] for new, stored in names.items()}
        return chosen

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor, read from the header alone."""
        return {
            name: tuple(file.get_slice(stored).get_shape())
            for name, (file, stored) in self._places.items()
        }

    def is_floating(self, name: str) -> bool:
        """Return whether a tensor holds floating-point numbers, read from the header alone."""
        file, stored_name = self._places[name]
        return file.get_slice(stored_name).get_dtype() in ("F16", "BF16", "F32", "F64")


def _check_header(path: Path) -> None:
    """Check that each tensor occurs once, with a name of at most `MAX_TENSOR_NAME` characters.

    If two tensors of one name lie at the same bytes, safetensors itself takes the last one. Raises
    `ValueError`.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_JSON_BYTES:
            raise ValueError(f"its header is larger than {MAX_JSON_BYTES >> 20} MiB")
        header = _parse_json(file.read(length))
    longest = max(map(len, header), default=0) if isinstance(header, dict) else 0
    if longest > MAX_TENSOR_NAME:
        raise ValueError(
            f"the name of a tensor has {longest:,} characters; expected at most {MAX_TENSOR_NAME}"
        )


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every number is finite.

    A sum is as fast as reading the memory. If it is not finite, which may be an overflow, every
    number is checked.
    """
    import torch

    return math.isfinite(tensor.sum(dtype=torch.float32)) or bool(torch.isfinite(tensor).all())


def digest_of_state(state: StateDict) -> bytes:
    """Return the sha256 (32 bytes) of all names, types, shapes and numbers."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.digest()


def fingerprint_of_state(state: StateDict) -> str:
    """Return the first 16 hexadecimal digits of `digest_of_state`."""
    return digest_of_state(state).hex()[:16]


def save_result(path: Path, state: StateDict, record: Json) -> None:
    """Write the tensors and the JSON record of a finished part to the folder `path`."""
    with new_folder(path, force=True) as draft:
        write_tensors(draft / WEIGHTS, state)
        write_json(draft / "record.json", {"record": record})


def load_result(path: Path) -> tuple[StateDict, Json]:
    """Read the tensors and the record that `save_result` wrote. Raises `BadFile`."""
    return Tensors(path / WEIGHTS), read_json(path / "record.json").get("record")


def refuse_pickle(path: Path) -> None:
    """Raise `BadFile` for a weights file that could run code when it is opened."""
    if path.suffix.lower() in (".bin", ".ckpt", ".npz", ".pickle", ".pkl", ".pt", ".pth", ".tar"):
        raise BadFile(
            f"{path} is not a safetensors file and may run code when opened; "
            "convert it: model.save_pretrained(folder) of transformers, or "
            "timm.models.save_for_hf(model, folder, safe_serialization=True)"
        )


# Weights in several safetensors files with an index, as transformers saves large models. The index
# names the shard of every tensor. It cannot choose a path: a shard is a file beside it, and each
# tensor is stored once, in the shard that the index names.


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
    return {
        name: shape for path in _list_files(weights) for name, shape in _read_shapes(path).items()
    }


def check_length(weights: Path) -> None:
    """Check that a safetensors file, or each shard of an index, is as long as its header states.

    torch is not imported, and no tensor is read. Raises `BadFile`.
    """
    for path in _list_files(weights):
        _read_shapes(path)
        if _count_missing_bytes(path):
            raise _refuse_unreadable(path)


def _list_files(weights: Path) -> list[Path]:
    """Return the file of weights itself, or the shards of an index."""
    if not is_index(weights):
        return [weights]
    return [weights.parent / shard for shard in sorted(set(read_weight_map(weights).values()))]


def _read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the header of a safetensors file states."""
    try:
        return {name: tuple(map(int, entry["shape"])) for name, entry in _read_header(path).items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _refuse_unreadable(path, error) from error


def _read_header(path: Path) -> dict[str, Any]:
    """Return the entries of all tensors in the header of a safetensors file.

    Raises `OSError` or `ValueError`.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _count_missing_bytes(path: Path) -> int:
    """Return how many of the bytes that its header states a file lacks; 0 if that is unknown."""
    try:
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
        ends = [int(entry["data_offsets"][1]) for entry in _read_header(path).values()]
        return max(0, start + max(ends, default=0) - path.stat().st_size)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return 0


def _refuse_unreadable(path: Path, reason: object = "") -> BadFile:
    missing = _count_missing_bytes(path)
    if missing:
        reason = f"{missing:,} bytes are missing at its end"
    return BadFile(
        f"{path} is not a readable safetensors file: {reason}; create or download it again"
    )


def hash_weights(weights: Path) -> str:
    """Return the SHA-256 of a weights file; for an index, of its shards' names and checksums."""
    if not is_index(weights):
        return compute_sha256(weights)
    lines = [f"{compute_sha256(path)}  {path.name}\n" for path in _list_files(weights)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def compute_sha256(path: Path) -> str:
    """Return the checksum of a file, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
