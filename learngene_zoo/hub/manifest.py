"""`manifest.json`: the checksum of every file that was published together, in the repository.

It makes a fetched artifact checkable without the network. Its digest, a hash of all its entries,
shows whether the manifest itself is undamaged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from learngene_zoo.errors import BadFile, Unavailable, WrongCall
from learngene_zoo.settings import Bounds, Json, check_bounds, from_json, to_json
from learngene_zoo.storage import (
    CONFIG,
    POOLING,
    SENTENCE_FILES,
    TOKENIZER_FILES,
    WEIGHTS,
    read_json,
)

MANIFEST = "manifest.json"
FORMAT = 1
MAX_FILES = 10_000
README = "README.md"
# Beside config, weights and card: exported files and pictures.
EXTRAS = (".onnx", ".pt2", ".png", ".svg")
MAX_LETTERS = 100  # of the name of a file or a folder
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
# Names that no file of Windows can have.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """The checksum and the size of a published file."""

    sha256: str
    bytes: Annotated[int, Bounds(least=0, most=2**50)]

    def __post_init__(self) -> None:
        check_bounds(self)
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise WrongCall(f"sha256 is {self.sha256!r:.80}; expected 64 hexadecimal digits")

    def holds(self, path: Path) -> bool:
        """Return whether a file has this size and checksum."""
        try:
            if path.stat().st_size != self.bytes:
                return False
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Every file but the manifest, by its path in the repository.

    A path lies at the top, or in the folder of a family's member (`find_folder`).
    """

    files: Mapping[str, FileRecord]
    digest: str
    format: int = FORMAT

    @property
    def members(self) -> list[str]:
        """Return the folders of a family's members."""
        return sorted({find_folder(path) for path in self.files} - {""})

    def json(self) -> Json:
        """Return the content of the file."""
        return {
            "format": self.format,
            "digest": self.digest,
            "files": to_json(dict(sorted(self.files.items()))),
        }


def find_folder(path: str) -> str:
    """Return the folder of the member that a file belongs to; "" at the top.

    The file `POOLING` lies in a folder of its own within it.
    """
    if path == POOLING:
        return ""
    return (
        path.removesuffix(f"/{POOLING}")
        if path.endswith(f"/{POOLING}")
        else path.rpartition("/")[0]
    )


def make_manifest(files: Mapping[str, FileRecord]) -> Manifest:
    """Return the manifest of files that are about to be published."""
    return Manifest(files=files, digest=_digest(files))


def read_manifest(path: Path, where: str) -> Manifest:
    """Read and check a manifest.

    Raises `BadFile` if it is damaged or names a path outside of its folder, `Unavailable` for a
    later format.
    """
    data = read_json(path, where=where)
    if data.get("format") != FORMAT:
        raise Unavailable(
            f"{where}: format is {data.get('format')!r:.40}; "
            f"this version reads format {FORMAT}; upgrade learngene-zoo"
        )
    manifest = from_json(Manifest, data, where)
    if len(manifest.files) > MAX_FILES:
        raise BadFile(f"{where} names {len(manifest.files)} files; at most {MAX_FILES} are allowed")
    for name in manifest.files:
        reason = describe_fault(name)
        if reason:
            raise BadFile(
                f"{where} names {name!r:.80}, which is not a file of an artifact: {reason}"
            )
    same = find_same_path(manifest.files)
    if same is not None:
        raise BadFile(
            f"{where} names {same[0]!r:.80} and {same[1]!r:.80}, which are one file on some systems"
        )
    if _digest(manifest.files) != manifest.digest:
        raise BadFile(f"{where} is damaged: its digest is not that of what it says")
    return manifest


def describe_fault(path: str) -> str:
    """Return why `publish` would not write a file of this path; empty if it would.

    It writes config, weights, card, tokenizer, the files of sentence-transformers and `EXTRAS`, at
    the top or in the folder of a member, by names that every system accepts.
    """
    folder = find_folder(path)
    name = path[len(folder) + 1 :] if folder else path
    for part in ([folder] if folder else []) + name.split("/"):
        if len(part) > MAX_LETTERS:
            return f"the name has {len(part):,} characters; at most {MAX_LETTERS} are allowed"
        if not _NAME.fullmatch(part) or part.endswith(".") or _DEVICES.fullmatch(part):
            return "expected a name of letters, digits, '.', '_' and '-', in one folder at most"
    if name not in (CONFIG, WEIGHTS, README, *SENTENCE_FILES, *TOKENIZER_FILES) and not (
        name.endswith(EXTRAS) and name not in EXTRAS
    ):
        return f"expected {CONFIG}, {WEIGHTS}, {README} or a file that ends in {', '.join(EXTRAS)}"
    return ""


def find_same_path(paths: Collection[str]) -> tuple[str, str] | None:
    """Return two paths that collide where a file system ignores upper and lower case."""
    folders = {path.rpartition("/")[0] for path in paths} - {""}
    entries = [(path, "file") for path in [MANIFEST, *paths]] + [
        (folder, "folder") for folder in folders
    ]
    first_spellings: dict[str, str] = {}
    for name, _ in sorted(entries):
        before = first_spellings.setdefault(name.lower(), name)
        if before is not name:
            return before, name
    return None


def _digest(files: Mapping[str, FileRecord]) -> str:
    lines = (f"{file.sha256} {file.bytes} {path}\n" for path, file in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
