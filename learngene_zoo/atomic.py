"""Files and folders that are written whole or not at all, and replaced in one atomic exchange.

A draft lies beside its place, in a folder whose name says which process writes it and which is marked as a draft. It is flushed to
disk and then takes its place: by `renameat2` with RENAME_EXCHANGE where the system has it, so that there is no moment without a
whole artifact; elsewhere by two renames, which the next call finishes. Drafts that a killed process left are removed by the next
call that writes to the same place. What is replaced or removed carries a mark that only we write (`ownership`), never only a name.
"""

import ctypes
import errno
import hashlib
import os
import secrets
import socket
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from learngene_zoo.errors import Exists, Refused, Unavailable, explained
from learngene_zoo.ownership import (
    DRAFT,
    find_foreign,
    is_marked_draft,
    is_whole,
    remove_draft,
    remove_marked,
    write_draft_mark,
    write_marker,
)

_ARTIFACT = ("config.json", "model.safetensors", "README.md", "manifest.json", "report.html")
_PART = ("record.json", "checkpoint.json", "state.safetensors")
_DIGESTED = sorted({*_ARTIFACT, *_PART})  # what `digest_of` hashes, in every version
_ENDING = ".draft"
_OLD = ".old"  # follows a draft's name in that of what it replaces
_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_AT_FDCWD = -100


def claim(path: Path, force: bool) -> Path:
    """Fail now rather than after an hour: `path` must be free, or with `force` hold something of ours, and be writable.

    Finishes what an interrupted replacement left, and removes the drafts of processes that have ended. Returns the place with
    links resolved. Raises `Refused` or `Unavailable`.
    """
    place = resolved(path)
    recover(place)
    if place.exists() and not force:
        raise Exists(path)
    check_folder(path)
    if place == Path.cwd() or place in Path.cwd().parents:
        raise Refused(f"{path} contains the current folder; choose another place with -o")
    foreign = find_foreign(place) if place.exists() else ""
    if foreign:
        raise Refused(f"{path} holds {foreign}; nothing was changed: move it, or choose another place with -o")
    return place


@contextmanager
def new_folder(path: Path, force: bool = False, before: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """A temporary folder to fill; on leaving it is flushed to disk and takes its place, on an error it is removed.

    What was at `path` stays until the new one is whole. `before` is called with the flushed draft, just before it takes its
    place. Raises `Refused` if something is there that may not be replaced, `Unavailable` if the disk is full or not writable.
    """
    place = claim(path, force)
    draft = _draft(place)
    try:
        _make_draft(draft)
        yield draft
        write_marker(draft)
        for file in sorted(draft.rglob("*")):
            _flush(file)
        if before is not None:
            before(draft)
        (draft / DRAFT).unlink()
        _flush(draft)
        replace(draft, place)
    except OSError as error:
        raise Unavailable(f"{path} could not be written: {explained(error)}; nothing was changed") from error
    finally:
        _discard(draft)


@contextmanager
def new_file(path: Path, force: bool = False) -> Iterator[Path]:
    """A temporary file of the same name to fill; on leaving it is flushed to disk and renamed to `path`, on an error removed.

    Raises `Refused` if `path` exists and `force` is not set, or is a folder; `Unavailable` if it cannot be written.
    """
    place = resolved(path)
    remove_drafts(place)
    if place.exists() and not force:
        raise Exists(path)
    if place.is_dir():
        raise Refused(f"{path} is a folder, not a file; choose another place with -o")
    folder = _draft(place)
    draft = folder / place.name
    try:
        nearest_parent(place)
        _make_draft(folder)
        yield draft
        _flush(draft)
        os.replace(draft, place)
        _flush(place.parent)
    except OSError as error:
        raise Unavailable(f"{path} could not be written: {explained(error)}; nothing was changed") from error
    finally:
        _discard(folder)


def _make_draft(draft: Path) -> None:
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.mkdir()
    write_draft_mark(draft)


def _discard(draft: Path) -> None:
    """Remove what lies under the name of a draft: the draft, or what it replaced."""
    with suppress(OSError):
        remove_draft(draft)
        remove_marked(draft)


def replace(draft: Path, place: Path) -> None:
    """`draft` takes the place of what is at `place`, if anything is; that is then removed. There is always a whole one."""
    if not place.exists():
        os.replace(draft, place)
        _flush(place.parent)
        return
    if _exchange(draft, place):
        _flush(place.parent)
        remove_marked(draft)
        return
    old = draft.with_name(draft.name + _OLD)
    os.replace(place, old)
    os.replace(draft, place)
    _flush(place.parent)
    remove_marked(old)


def recover(place: Path) -> None:
    """Finish a replacement that was interrupted between its two renames, and remove what dead processes left beside `place`."""
    left = _left(place)
    moved = next((entry for entry in left if entry.name.endswith(_ENDING + _OLD) and is_whole(entry)), None)
    if moved is not None and not place.exists():
        draft = moved.with_name(moved.name.removesuffix(_OLD))
        is_ready = draft in left and not (draft / DRAFT).exists() and is_whole(draft)
        os.replace(draft if is_ready else moved, place)
    remove_drafts(place)


def remove_drafts(place: Path) -> None:
    """Remove drafts of `place` whose writers have ended."""
    for entry in _left(place):
        _discard(entry)


def remove_drafts_in(folder: Path) -> None:
    """Remove the drafts of everything in a folder whose writers have ended."""
    with suppress(OSError):
        names = [entry.name for entry in folder.iterdir() if is_draft(entry.name)]
        for place in {name.partition(_ENDING)[0].rpartition(".")[0].removeprefix(".") for name in names}:
            remove_drafts(folder / place)


def _left(place: Path) -> list[Path]:
    """Drafts of `place` whose writers have ended, and what such a writer moved away: folders that carry a mark of ours."""
    prefix = f".{place.name}."
    with suppress(OSError):
        beside = [entry for entry in place.parent.iterdir() if entry.name.startswith(prefix) and _ENDING in entry.name]
        ended = [entry for entry in beside if _dead(entry.name.removeprefix(prefix).partition(_ENDING)[0])]
        return [entry for entry in sorted(ended) if _is_ours(entry)]
    return []


def _is_ours(entry: Path) -> bool:
    """Whether a folder with the name of a draft is one, or something of ours that a draft replaced."""
    with suppress(OSError):
        return not entry.is_symlink() and entry.is_dir() and (is_marked_draft(entry) or not find_foreign(entry))
    return False


def is_draft(name: str) -> bool:
    """Whether a file or folder of this name is one that is being written, or that a killed process left."""
    return name.startswith(".") and _ENDING in name


def _draft(place: Path) -> Path:
    return place.with_name(f".{place.name}.{_writer()}-{secrets.token_hex(3)}{_ENDING}")


def _writer() -> str:
    """Which process this is: its machine, number and start, so that a number that was given again is not mistaken for it."""
    return f"{_machine()}-{os.getpid()}-{_started(os.getpid())}"


def _dead(writer: str) -> bool:
    """Whether the process that a draft's name says has ended; of another machine's it is not known."""
    machine, _, rest = writer.partition("-")
    number, _, rest = rest.partition("-")
    started = rest.partition("-")[0]
    if machine != _machine() or not number.isdecimal() or not started:
        return False
    return _started(int(number)) != started


@cache
def _machine() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _started(process: int) -> str:
    """When a process began, in the system's ticks; "0" where that is not known and it runs, "" if it does not run."""
    stat = Path(f"/proc/{process}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return ""
    except OSError:
        return "0"
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return ""
    except OSError:
        pass
    return "0"


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically; False where the system or the file system cannot."""
    function = _renameat2()
    if function is None:
        return False
    sys.audit("os.rename", str(one), str(other), -1, -1)  # as Python's own renames announce themselves
    if function(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))


@cache
def _renameat2() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    try:
        function: Callable[..., int] = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    return function


def _flush(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # folders cannot be opened on some systems; then there is nothing to flush
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Where may be written.


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


def check_file(path: Path, force: bool) -> None:
    """Raise as `new_file` does if a file cannot be written at `path`, before it is computed."""
    place = resolved(path)
    if place.exists() and not force:
        raise Exists(path)
    if place.is_dir():
        raise Refused(f"{path} is a folder, not a file; choose another place with -o")
    parent = nearest_parent(place)
    if not os.access(parent, os.W_OK):
        raise Unavailable(f"no permission to write into {parent}; choose another place with -o")


def digest_of(folder: Path) -> str:
    """A hash of the names and contents of what we wrote into a folder."""
    digest = hashlib.sha256()
    for name in _DIGESTED:
        if (folder / name).is_file():
            with open(folder / name, "rb") as file:
                digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
