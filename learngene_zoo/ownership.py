"""Where may be written: links resolved, folders that can be made, and whether what is there already is ours.

Only what we wrote is ever replaced or removed: a folder is ours by what it holds.
"""

import errno
import hashlib
import json
import os
from pathlib import Path

from learngene_zoo.errors import Refused, Unavailable

DRAFT = ".lgzoo-draft"  # the marker in a folder that is being written: its first file, and the first that goes
# What a folder that we write holds beside its marker: of artifacts, finished parts and checkpoints.
OURS = frozenset(
    {
        "config.json",
        "model.safetensors",
        "README.md",
        "manifest.json",
        "record.json",
        "checkpoint.json",
        "state.safetensors",
        DRAFT,
    }
)
_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space, or choose another place with -o",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another place with -o",
    errno.EFBIG: "the file would be larger than this process may write (see `ulimit -f`)",
    errno.EMFILE: "too many files are open; raise the limit with `ulimit -n`, or use fewer workers",
    errno.ENFILE: "the system has too many open files; close some programs, or use fewer workers",
    errno.ENAMETOOLONG: "the name is too long for this file system; choose a shorter one with -o",
    errno.EROFS: "the file system is read-only; choose another place with -o",
    errno.EACCES: "permission denied; choose another place with -o",
    errno.EPERM: "permission denied; choose another place with -o",
}


def explained(error: OSError) -> str:
    """An operating system's error in words, with what to do about it where that is known."""
    return _REMEDIES.get(error.errno or 0, error.strerror or str(error))


def shown(path: Path) -> str:
    """A path as a message has it: from the current folder, where it lies inside."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def resolved(path: Path) -> Path:
    """The absolute path without links. Raises `Refused` for links that lead in a circle, `Unavailable` for a bad name."""
    try:
        return Path(os.path.realpath(path, strict=False)) if not _circular(path) else _refuse(path)
    except OSError as error:
        raise Unavailable(f"{path}: {explained(error)}") from error


def _circular(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return True
        if error.errno == errno.ENAMETOOLONG:
            raise
    return False


def _refuse(path: Path) -> Path:
    raise Refused(f"{path} is a link that leads to itself; choose another place with -o")


def nearest_parent(path: Path) -> Path:
    """The nearest folder above `path` that exists. Raises `Refused` if a file is in the way."""
    parent = path.absolute().parent
    while not parent.is_dir():
        if parent.exists():
            raise Refused(f"{parent} is a file, so {path} cannot be made; choose another place with -o")
        parent = parent.parent
    return parent


def check_folder(path: Path) -> None:
    """Raises `Refused` if `path` is a file, `Unavailable` without the permission to make or change it."""
    place = resolved(path)
    if place.exists() and not place.is_dir():
        raise Refused(f"{path} is a file, not a folder; choose another place with -o")
    parent = nearest_parent(place)
    if not os.access(parent, os.W_OK):
        raise Unavailable(f"no permission to write into {parent}; choose another place with -o")


def foreign_in(folder: Path) -> str:
    """The name of something in a folder that lgzoo does not write there; empty if all of it is ours, or nothing is there."""
    entries = list(folder.iterdir())
    names = {entry.name for entry in entries}
    members = _members(folder)
    strange = sorted(
        entry.name
        for entry in entries
        if not (entry.name in members and _is_model(entry) if entry.is_dir() else entry.name in OURS)
    )
    if strange:
        return strange[0]
    if "config.json" in names and DRAFT not in names:
        return "" if _is_artifact(folder / "config.json") else "a config.json of something else"
    return "" if not names or names & {"record.json", "checkpoint.json", DRAFT} else min(names)


def _members(folder: Path) -> set[str]:
    """The folders of the descendants that were fetched with this learngene, as the manifest beside them names them."""
    try:
        files = json.loads((folder / "manifest.json").read_bytes())["files"]
        return {path.partition("/")[0] for path in files if "/" in path}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return set()


def _is_model(folder: Path) -> bool:
    """Whether a folder holds a descendant and nothing else."""
    plain = all(entry.name in OURS and not entry.is_dir() for entry in folder.iterdir())
    return plain and not folder.is_symlink() and _is_artifact(folder / "config.json")


def _is_artifact(config: Path) -> bool:
    """Whether a config.json is a learngene's or a descendant's; one that cannot be read is not known to be."""
    try:
        data = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and ("learngene" in data or {"method", "spec", "format"} <= set(data))


def digest_of(folder: Path) -> str:
    """A hash of the names and contents of what we wrote into a folder."""
    digest = hashlib.sha256()
    for name in sorted(OURS - {DRAFT}):
        if (folder / name).is_file():
            with open(folder / name, "rb") as file:
                digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
