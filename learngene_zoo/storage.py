"""Tensors and JSON on disk: read strictly, never unpickled."""

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

StateDict = Mapping[str, "torch.Tensor"]  # tensors by name; never mutated by whoever receives one
MOST_JSON_BYTES = 16 * 2**20
MOST_DEPTH = 64
MOST_NAME = 500  # characters of a tensor's name
WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def write_json(path: Path, data: Json) -> None:
    """Write indented JSON in the order of the data; it ends with a newline."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    # A file's name may be no text; elsewhere texts are checked.
    path.write_bytes(text.encode("utf-8", "replace") + b"\n")


def read_json(path: Path, before: str = "", where: object = None) -> dict[str, Any]:
    """Return the object in a JSON file; `before` as in `parse_json`.

    Raises `BadFile`, which names the file or `where`.
    """
    where = where or path
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # a pipe would be waited for
            raise BadFile(f"{where} is not a file; create or download it again")
        if about.st_size > MOST_JSON_BYTES:
            raise BadFile(
                f"{where} is larger than {MOST_JSON_BYTES >> 20} MiB; expected a configuration"
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

    Raises `ValueError` for data that are not JSON, and for values that Python would accept beyond
    it: NaN and infinity, numbers beyond 64 bits, halves of characters, a key that an object has
    twice, and more than `MOST_DEPTH` nested lists and objects.

    With `before` it is six times as fast, for callers that use few values and check these: values
    after that key of the outermost object may be missing, and single values are not checked.
    """
    if before:
        with suppress(ValueError):  # a file that `write_json` did not write: whole, below
            return _parse_json(_until(data, before))
        return _parse_json(data)
    value = _parse_json(data)
    if _DOUBTFUL.search(data) or data.count(b"[") + data.count(b"{") > MOST_DEPTH:
        _check_values(value)
    return value


# Halves of characters, 64-bit integers and more, large exponents: rare, so that few files are
# looked at value by value.
_DOUBTFUL = re.compile(rb"\\u[dD][89a-fA-F]|\d{19}|\d[eE]\+?\d{3}")


def _until(data: bytes, key: str) -> bytes:
    """Return the object without that key and those after it.

    Only the outermost keys have lines indented by two spaces.
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
        raise ValueError(f"more than {MOST_DEPTH} lists and objects within each other") from None


def _build_object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Return a JSON object.

    Raises `ValueError` for a key that it has twice: two readers would take different values.
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
            if depth > MOST_DEPTH:
                raise ValueError(f"more than {MOST_DEPTH} lists and objects within each other")
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            waiting.extend((item, depth + 1) for item in inner)


def write_tensors(path: Path, state: StateDict) -> None:
    """Write tensors to a safetensors file; tensors that share memory are written once each."""
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
    except SafetensorError as error:  # it wraps the operating system's errors; "... (os error 28)"
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    os.umask(mask := os.umask(0o022))
    # Safetensors makes it its owner's alone, unlike every other file of the folder.
    path.chmod(0o666 & ~mask)


class Tensors(Mapping[str, "torch.Tensor"]):
    """The tensors of a safetensors file, each read when it is used, from a memory map.

    Opening checks the file's header; reading a tensor checks that every number is finite. Raises
    `BadFile`.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        if not path.is_file():
            raise BadFile(f"{path} does not exist; create or download it again")
        try:
            file = safe_open(path, framework="pt")
            names = file.keys()  # it is not a mapping
            self._places = {name: (file, name) for name in names}
            _check_header(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise BadFile(
                f"{path} is not a readable safetensors file: {error}; create or download it again"
            ) from error

    def __getitem__(self, name: str) -> torch.Tensor:
        file, stored_name = self._places[name]
        tensor = file.get_tensor(stored_name)
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise BadFile(
                f"{self.path}: the tensor {name} has values that are not finite; create it again"
            )
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def select(self, names: Mapping[str, str]) -> Tensors:
        """Return the tensors of these stored names, under the new names that are their keys.

        None is read.
        """
        chosen = copy(self)
        chosen._places = {new: self._places[stored] for new, stored in names.items()}
        return chosen

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor, from the header alone."""
        return {
            name: tuple(file.get_slice(stored).get_shape())
            for name, (file, stored) in self._places.items()
        }

    def is_floating(self, name: str) -> bool:
        """Return whether a tensor holds floating-point numbers, from the header alone."""
        file, stored_name = self._places[name]
        return file.get_slice(stored_name).get_dtype() in ("F16", "BF16", "F32", "F64")


def _check_header(path: Path) -> None:
    """Check that the header names each tensor once, by at most `MOST_NAME` characters.

    safetensors itself takes the last of two tensors of one name, if both lie at the same bytes.
    Raises `ValueError`.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MOST_JSON_BYTES:
            raise ValueError(f"its header is larger than {MOST_JSON_BYTES >> 20} MiB")
        header = _parse_json(file.read(length))
    longest = max(map(len, header), default=0) if isinstance(header, dict) else 0
    if longest > MOST_NAME:
        raise ValueError(
            f"the name of a tensor has {longest:,} characters; expected at most {MOST_NAME}"
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every number is finite.

    The sum is as fast as memory; if it is not finite (it may overflow), every number is checked.
    """
    import torch

    return math.isfinite(tensor.sum(dtype=torch.float32)) or bool(torch.isfinite(tensor).all())


def digest_of_state(state: StateDict) -> bytes:
    """Return the sha256 of every number, type and name, 32 bytes."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.digest()


def fingerprint_of_state(state: StateDict) -> str:
    """Return a hash of every number, type and name."""
    return digest_of_state(state).hex()[:16]


def save_result(path: Path, state: StateDict, record: Json) -> None:
    """Write the tensors and JSON of a finished part."""
    with new_folder(path, force=True) as draft:
        write_tensors(draft / WEIGHTS, state)
        write_json(draft / "record.json", {"record": record})


def load_result(path: Path) -> tuple[StateDict, Json]:
    """Read the tensors and JSON that `save_result` wrote. Raises `BadFile`."""
    return Tensors(path / WEIGHTS), read_json(path / "record.json").get("record")


def refuse_pickle(path: Path) -> None:
    """Raise `BadFile` for a weights file that could run code when it is opened."""
    if path.suffix.lower() in (".bin", ".ckpt", ".npz", ".pickle", ".pkl", ".pt", ".pth", ".tar"):
        raise BadFile(
            f"{path} is not a safetensors file and may run code when opened; "
            "convert it: timm.models.save_for_hf(model, folder, safe_serialization=True)"
        )
