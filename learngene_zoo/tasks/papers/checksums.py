"""Files against the lists of checksums that lie beside them, as `md5sum` and `sha256sum` write them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from learngene_zoo.errors import BadData

LISTS = {"MD5SUMS": "md5", "SHA256SUMS": "sha256"}  # a list's name, and what its checksums are made with
LINE = re.compile(r"([0-9a-fA-F]+) [ *](.+)")


def verify(path: Path, folders: Iterable[Path]) -> None:
    """Nothing if no list in these folders names `path`. Raises `BadData` if one does and gives another checksum."""
    for folder in folders:
        for name, kind in LISTS.items():
            wanted = _listed(folder / name, kind).get(path.resolve()) if (folder / name).is_file() else None
            if wanted is not None and wanted != _digest(path, kind, path.stat().st_mtime_ns):
                raise BadData(f"{path} does not have the checksum that {folder / name} gives; fetch it anew")


def _listed(file: Path, kind: str) -> dict[Path, str]:
    """The checksum of every file in a list, by its path. Raises `BadData` that names the line which cannot be read."""
    digits = hashlib.new(kind).digest_size * 2
    found = {}
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        match = LINE.fullmatch(line.strip())
        if line.strip() and (match is None or len(match[1]) != digits):
            raise BadData(
                f"{file} line {number} is no checksum and name as {kind}sum writes them; correct or remove it"
            )
        if match:
            found[(file.parent / match[2]).resolve()] = match[1].lower()
    return found


@cache
def _digest(path: Path, kind: str, changed: int) -> str:
    """The checksum of a file that was last `changed` then: it is read once a process."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
