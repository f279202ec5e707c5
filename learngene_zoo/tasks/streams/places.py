"""List tars and the files beside them, and read those at an http address.

A pattern is a path, a folder, a wildcard, or a path or address with `{000..009}` ranges.
`classes.txt` or `classes.json`, and `sizes.json` or `_info.json` with the number of images in each
tar, may be in the same folder.

An address is read sequentially; a broken connection is resumed at the same position. (fsspec needs
`aiohttp` for such addresses, which none of our dependencies installs, and does not resume.)
"""

import io
import os
import re
import time
from collections.abc import Iterable, Sequence
from glob import glob
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO
from urllib.request import Request, urlopen

from learngene_zoo.errors import BadData, Unavailable, WrongCall
from learngene_zoo.storage import parse_json
from learngene_zoo.tasks.layout import normalize_name
from learngene_zoo.tasks.listing import is_hidden, list_files
from learngene_zoo.tasks.splits.roles import find_roles

TRIES = 5
SECONDS = 60  # without a byte, after which a connection counts as broken
CHUNK = 2**20
HUB = "https://huggingface.co/"


class RemoteFile(io.RawIOBase):
    """The file at `address`, read from its beginning.

    Raises `BadData` if it does not exist, `Unavailable` if it cannot be read.
    """

    def __init__(self, address: str) -> None:
        self.address, self.position = address, 0
        self.length: int | None = None
        self._connect()

    def readable(self) -> bool:
        """Return True. Seeking is not supported: skipped bytes are downloaded too."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer, see `io.RawIOBase.readinto`.

        Raises `Unavailable` if the connection keeps breaking.
        """
        reason: Exception = HTTPException()
        for broken in range(TRIES):
            try:
                if broken:
                    time.sleep(2 ** (broken - 1))
                    self._connect()
                count: int = self._answer.readinto(buffer)
                if not count and self.length not in (None, self.position):
                    raise HTTPException(f"{self.position} of {self.length} bytes came")
            except (OSError, HTTPException, Unavailable) as error:
                self._answer.close()
                reason = error
            else:
                self.position += count
                return count
        raise _explain_refusal(self.address, reason)

    def close(self) -> None:
        """Close the connection."""
        if hasattr(self, "_answer"):
            self._answer.close()
        super().close()

    def _connect(self) -> None:
        """Request the file from the current position on."""
        request = Request(self.address)
        if self.position:
            request.add_header("Range", f"bytes={self.position}-")
        if self.address.startswith(HUB):
            from huggingface_hub import get_token

            if token := get_token():  # the user's token is not forwarded to redirects
                request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            self._answer = urlopen(request, timeout=SECONDS)
        except (OSError, HTTPException, ValueError) as error:
            raise _explain_refusal(self.address, error) from None
        begins = self.position if self._answer.status == 206 else 0
        length = self._answer.headers.get("Content-Length")
        self.length = begins + int(length) if length else None
        for skipped in range(begins, self.position, CHUNK):  # the server ignored the range
            self._answer.read(min(CHUNK, self.position - skipped))


class AccessDenied(Unavailable):
    """A file that the server refuses to give."""


def _explain_refusal(address: str, error: Exception) -> Exception:
    code = getattr(error, "code", None)  # of the response, if there was one
    if code in (401, 403):
        return AccessDenied(
            f"access to {address} is denied ({code}); ask its owner for access and log in to the "
            "Hub"
        )
    if code in (404, 410):
        return BadData(f"there is nothing at {address} ({code}); check the name and the range")
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    return Unavailable(f"{address} cannot be read ({reason}); check the connection and try again")


MAX_TARS = 100_000
MAX_BYTES = 64 * 2**20  # that are read of a file beside the tars
INNERMOST = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(\d+)\.\.(\d+)")
WILDCARD = re.compile(r"[*?\[]")
CLASSES = ("classes.txt", "classnames.txt", "classes.json")
SIZES = ("sizes.json", "_info.json")


def is_remote(location: str) -> bool:
    """Return whether a location is an http address."""
    return location.startswith(("https://", "http://"))


def open_file(location: str) -> BinaryIO:
    """Open a file at a path or address, from its beginning; a remote one cannot seek.

    Raises `BadData` or `Unavailable`.
    """
    if is_remote(location):
        return io.BufferedReader(RemoteFile(location), CHUNK)
    try:
        return open(location, "rb")
    except OSError as error:
        raise BadData(f"{location} cannot be read: {error.strerror}") from None


def list_tars(pattern: str) -> list[str]:
    """Return the tars that match a pattern, in order and without duplicates.

    A path that exists is not expanded, so that its name may contain braces. Raises `WrongCall` or
    `BadData`.
    """
    if pattern.startswith("pipe:") or ("://" in pattern and not is_remote(pattern)):
        raise WrongCall(
            f"wds:{pattern}: only paths and https:// addresses are opened, and no command is run"
        )
    is_path = os.path.exists(os.path.expanduser(pattern))
    tars = [
        tar
        for name in ([pattern] if is_path else expand_braces(pattern))
        for tar in ([name] if is_remote(name) else _list_local(name))
    ]
    others = (tar for tar in tars if not tar.partition("?")[0].lower().endswith(".tar"))
    other = next(others, None)
    if other is not None:
        raise BadData(
            f"{other} is not a .tar; name uncompressed tars (unpack a .gz: images are compressed "
            "already)"
        )
    if not tars:
        raise BadData(
            f"wds:{pattern} matches no tar; give a folder of .tar files or a name with {{000..009}}"
        )
    return list(dict.fromkeys(tars))


def expand_braces(pattern: str) -> list[str]:
    """Expand the braces of a pattern as a shell does: `{000..009}` counts, `{train,val}` lists.

    The innermost brace is expanded first, so other names of an enclosing list are repeated;
    duplicates are removed. Raises `WrongCall`.
    """
    match = INNERMOST.search(pattern)
    if match is None:
        return [pattern]
    names: dict[str, None] = {}
    for choice in _expand_choices(match[1]):
        names |= dict.fromkeys(
            expand_braces(pattern[: match.start()] + choice + pattern[match.end() :])
        )
        if len(names) > MAX_TARS:
            raise WrongCall(f"{pattern} names more than {MAX_TARS} tars; correct the range")
    return list(names)


def _expand_choices(inner: str) -> Sequence[str]:
    counted = RANGE.fullmatch(inner)
    if counted is None:
        return inner.split(",")
    first, last = int(counted[1]), int(counted[2])
    if not first <= last < first + MAX_TARS:
        raise WrongCall(
            f"{{{inner}}} counts down or names more than {MAX_TARS} tars; write the smaller "
            "number first"
        )
    return [str(number).zfill(len(counted[1])) for number in range(first, last + 1)]


def _list_local(name: str) -> list[str]:
    """Return the tars that a path, folder or wildcard names, without hidden ones.

    Raises `BadData` if there is no such path.
    """
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return sorted(map(str, list_files(path, (".tar",))))
    if path.is_file():
        return [str(path)]
    if WILDCARD.search(name):
        return sorted(file for file in glob(str(path)) if not _is_hidden_match(Path(file), path))
    raise BadData(
        f"there is no file or folder {path}; name tars, a folder of them, or a pattern with "
        f"{{000..009}}"
    )


def _is_hidden_match(file: Path, pattern: Path) -> bool:
    """Return whether a wildcard, and not a name that the user wrote, matches a hidden name."""
    parts = zip(file.parts, pattern.parts, strict=True)
    return any(is_hidden(part) and not is_hidden(written) for part, written in parts)


# The files beside the tars.


def read_class_names(location: str) -> tuple[str, ...] | None:
    """Return the classes in a file beside the tar at `location`, in order.

    None if there is no such file. Raises `BadData`.
    """
    where, content = _read_beside(location, CLASSES)
    if not where:
        return None
    listed = _list_names(content)
    names = None if listed is None else tuple(map(normalize_name, listed))
    if names is None or len(set(names)) != len(names):
        raise BadData(
            f"{where} is not a list of distinct classes; write one per line, in the order of their "
            "numbers"
        )
    return names


def read_sizes(location: str) -> dict[str, int]:
    """Return the number of images of each tar by its name, from a file beside `location`.

    {} if there is no such file. Raises `BadData`.
    """
    where, sizes = _read_beside(location, SIZES)
    if not where:
        return {}
    if isinstance(sizes, dict) and isinstance(sizes.get("splits"), dict):  # as timm writes it
        parts = [part for part in sizes["splits"].values() if isinstance(part, dict)]
        sizes = {
            k: n
            for part in parts
            for k, n in zip(part.get("filenames", ()), part.get("shard_lengths", ()))
        }
    if not isinstance(sizes, dict) or not all(
        isinstance(count, int) and count >= 0 for count in sizes.values()
    ):
        raise BadData(
            f'{where} does not say how many images each tar holds; expected {{"train-000.tar": '
            f"1000, …}}"
        )
    return sizes


def _read_beside(location: str, names: Sequence[str]) -> tuple[str, Any]:
    """Return the path and the content, JSON or lines, of the first existing file of `names`.

    It is searched beside a tar, and above the folder of its split. The path is "" if none exists.
    """
    path, mark, query = location.partition("?") if is_remote(location) else (location, "", "")
    folder = path.replace("\\", "/").rpartition("/")[0] or "."
    above, _, last = folder.rpartition("/")
    for name in names:
        for top in [folder, above or "."] if find_roles(last) else [folder]:
            where = f"{top}/{name}{mark}{query}"
            try:
                with open_file(where) as file:
                    data = file.read(MAX_BYTES)
            except (BadData, AccessDenied):
                continue  # there is no such file; some stores refuse the names of missing files
            return where, _parse_json(where, data) if name.endswith(".json") else _split_lines(data)
    return "", None


def _split_lines(data: bytes) -> list[str]:
    return [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]


def _parse_json(where: str, data: bytes) -> Any:
    try:
        return parse_json(data)
    except ValueError as error:
        raise BadData(f"{where} is not valid JSON: {error}; write it again") from None


def _list_names(content: Any) -> tuple[str, ...] | None:
    """Return the names of a list, {name: number} or {number: name}, in the order of the numbers.

    None for other JSON.
    """
    if isinstance(content, dict):
        counted = _are_numbers(map(str, content.values()))
        numbered = {str(number): name for name, number in content.items()} if counted else content
        content = (
            [numbered[key] for key in sorted(numbered, key=int)] if _are_numbers(numbered) else None
        )
    return tuple(map(str, content)) if isinstance(content, list) else None


def _are_numbers(keys: Iterable[str]) -> bool:
    """Return whether keys are 0, 1, 2, … in any order."""
    texts = list(keys)
    return all(map(str.isdecimal, texts)) and sorted(map(int, texts)) == list(range(len(texts)))
