"""Write files and folders atomically, and replace them in one exchange.

A draft lies beside its target, in a folder that is marked as a draft and whose name identifies the
process that writes it. It is flushed to disk and then replaces the target: by `renameat2` with
RENAME_EXCHANGE where the system has it, so that a complete artifact exists at every moment;
elsewhere by two renames, which the next call completes if they were interrupted. Without `force`,
the final rename refuses a target that another process has created in the meantime. Drafts that a
killed process left behind are removed by the next call that writes to the same target. Only folders
with our mark (see `ownership`) are ever replaced or removed; the name alone is not sufficient.
"""

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

from learngene_zoo.errors import Exists, Refused, Unavailable, explain_os_error
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
_DIGESTED = sorted({*_ARTIFACT, *_PART})  # hashed by `digest_of`, in every version
_SUFFIX = ".draft"  # of the names of drafts
_OLD = ".old"  # added to a draft's name for the folder that it replaces
# RENAME_NOREPLACE and RENAME_EXCHANGE of linux/fs.h.
_NOREPLACE, _EXCHANGE = 1, 2
_AT_FDCWD = -100


def claim(path: Path, force: bool) -> Path:
    """Check before a computation that `path` can be written, and return it with links resolved.

    `path` must not exist, or with `force` may be a folder that we wrote; its parent must be
    writable. An interrupted replacement is completed, and drafts of processes that have ended are
    removed.

    Raises:
        Refused: if `path` may not be replaced.
        Unavailable: if it cannot be written.
    """
    target = resolve_path(path)
    recover(target)
    if target.exists() and not force:
        raise Exists(path)
    check_folder(path)
    if target == Path.cwd() or target in Path.cwd().parents:
        raise Refused(f"{path} contains the current folder; choose another path with -o")
    foreign = find_foreign(target) if target.exists() else ""
    if foreign:
        raise Refused(
            f"{path} holds {foreign}; nothing was changed: move it, or choose another path with -o"
        )
    return target


def check_apart(out: str | Path, *sources: Path | None) -> None:
    """Raise `Refused` if `out` is one of the inputs, which `force` would overwrite."""
    for source in sources:
        if source is not None and resolve_path(Path(out)) == resolve_path(source):
            raise Refused(
                f"{out} is also an input of this command; choose another output with out=PATH"
            )


@contextmanager
def new_folder(
    path: Path, force: bool = False, before: Callable[[Path], None] | None = None
) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` on success and is removed on an error.

    The folder is flushed to disk first. The old content of `path` stays until the new folder is
    complete.

    Args:
        path: the folder to write.
        force: replace an existing folder that we wrote.
        before: is called with the flushed draft, just before it replaces `path`.

    Raises:
        Refused: if the content of `path` may not be replaced, or if something was created there
            while the draft was written.
        Unavailable: if the disk is full or not writable.
    """
    target = claim(path, force)
    draft = _draft(target)
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
        replace(draft, target) if force else _rename_new(draft, target, path)
    except OSError as error:
        raise Unavailable(
            f"{path} could not be written: {explain_os_error(error)}; nothing was changed"
        ) from error
    finally:
        _discard(draft)


@contextmanager
def new_file(path: Path, force: bool = False) -> Iterator[Path]:
    """Yield a temporary file that is renamed to `path` on success and removed on an error.

    The file is flushed to disk first.

    Raises:
        Refused: if `path` exists and `force` is not set, also if it was created while the draft was
            written, or if it is a folder.
        Unavailable: if it cannot be written.
    """
    target = resolve_path(path)
    remove_drafts(target)
    if target.exists() and not force:
        raise Exists(path)
    if target.is_dir():
        raise Refused(f"{path} is a folder, not a file; choose another path with -o")
    folder = _draft(target)
    draft = folder / target.name
    try:
        find_nearest_parent(target)
        _make_draft(folder)
        yield draft
        _flush(draft)
        if force:
            os.replace(draft, target)
            _flush(target.parent)
        else:
            _rename_new(draft, target, path)
    except OSError as error:
        raise Unavailable(
            f"{path} could not be written: {explain_os_error(error)}; nothing was changed"
        ) from error
    finally:
        _discard(folder)


def _make_draft(draft: Path) -> None:
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.mkdir()
    write_draft_mark(draft)


def _discard(draft: Path) -> None:
    """Remove the folder at a draft's path: the draft, or the old folder after an exchange."""
    with suppress(OSError):
        remove_draft(draft)
        remove_marked(draft)


def replace(draft: Path, target: Path) -> None:
    """Replace `target` by `draft`, and remove the old content if there is any.

    A complete folder exists at every moment.
    """
    if not target.exists():
        os.replace(draft, target)
        _flush(target.parent)
        return
    if _rename_with(draft, target, _EXCHANGE):
        _flush(target.parent)
        remove_marked(draft)
        return
    old = draft.with_name(draft.name + _OLD)
    os.replace(target, old)
    os.replace(draft, target)
    _flush(target.parent)
    remove_marked(old)


def _rename_new(draft: Path, target: Path, path: Path) -> None:
    """Rename `draft` to `target`. Raises `Exists` with the user's `path` if there is something.

    Where the system has no rename that refuses an existing target, a file is linked there first; a
    folder cannot be linked, so the check comes just before the rename.
    """
    try:
        if not _rename_with(draft, target, _NOREPLACE) and not _link(draft, target):
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            os.replace(draft, target)
    except FileExistsError:
        raise Exists(path) from None
    _flush(target.parent)


def _link(draft: Path, target: Path) -> bool:
    """Link a file to a new name and remove the old name; return False where this is impossible.

    Folders and files of some file systems cannot be linked. Raises `FileExistsError` if `target`
    exists.
    """
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):
        return False
    draft.unlink()
    return True


def recover(target: Path) -> None:
    """Complete a replacement that was interrupted between two renames; remove abandoned drafts."""
    left = _list_abandoned(target)
    moved = next(
        (entry for entry in left if entry.name.endswith(_SUFFIX + _OLD) and is_whole(entry)), None
    )
    if moved is not None and not target.exists():
        draft = moved.with_name(moved.name.removesuffix(_OLD))
        is_ready = draft in left and not (draft / DRAFT).exists() and is_whole(draft)
        os.replace(draft if is_ready else moved, target)
    remove_drafts(target)


def remove_drafts(target: Path) -> None:
    """Remove drafts of `target` whose processes have ended."""
    for entry in _list_abandoned(target):
        _discard(entry)


def remove_drafts_in(folder: Path) -> None:
    """Remove the drafts of all targets in a folder whose processes have ended."""
    with suppress(OSError):
        names = [entry.name for entry in folder.iterdir() if is_draft(entry.name)]
        for target in {
            name.partition(_SUFFIX)[0].rpartition(".")[0].removeprefix(".") for name in names
        }:
            remove_drafts(folder / target)


def _list_abandoned(target: Path) -> list[Path]:
    """List the drafts of `target`, and the old folders moved aside, of processes that have ended.

    Only folders with our mark are listed.
    """
    prefix = f".{target.name}."
    with suppress(OSError):
        beside = [
            entry
            for entry in target.parent.iterdir()
            if entry.name.startswith(prefix) and _SUFFIX in entry.name
        ]
        ended = [
            entry
            for entry in beside
            if _has_ended(entry.name.removeprefix(prefix).partition(_SUFFIX)[0])
        ]
        return [entry for entry in sorted(ended) if _is_ours(entry)]
    return []


def _is_ours(entry: Path) -> bool:
    """Return whether a folder with the name of a draft is a draft, or was replaced by one."""
    with suppress(OSError):
        return (
            not entry.is_symlink()
            and entry.is_dir()
            and (is_marked_draft(entry) or not find_foreign(entry))
        )
    return False


def is_draft(name: str) -> bool:
    """Return whether this is the name of a draft, of a running or a killed process."""
    return name.startswith(".") and _SUFFIX in name


def _draft(target: Path) -> Path:
    return target.with_name(f".{target.name}.{_identify_writer()}-{secrets.token_hex(3)}{_SUFFIX}")


def _identify_writer() -> str:
    """Return the identity of this process: its machine, process number and start time.

    The start time distinguishes processes that had the same number.
    """
    return f"{_identify_machine()}-{os.getpid()}-{_read_start_time(os.getpid())}"


def _has_ended(writer: str) -> bool:
    """Return whether the process in a draft's name has ended; False for other machines."""
    machine, _, rest = writer.partition("-")
    number, _, rest = rest.partition("-")
    started = rest.partition("-")[0]
    if machine != _identify_machine() or not number.isdecimal() or not started:
        return False
    return _read_start_time(int(number)) != started


@cache
def _identify_machine() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _read_start_time(process: int) -> str:
    """Return the start time of a process in ticks of the system.

    "0" if it runs and its start time is unknown, "" if it does not run.
    """
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


def _rename_with(first: Path, second: Path, flag: int) -> bool:
    """Rename a path atomically with a flag of `renameat2`.

    Returns False if the system or the file system cannot.
    """
    import ctypes

    function = _load_renameat2()
    if function is None:
        return False
    # Python's own renames raise the same audit event.
    sys.audit("os.rename", str(first), str(second), -1, -1)
    if function(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))


@cache
def _load_renameat2() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        function: Callable[..., int] = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    return function


def _flush(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # some systems cannot open folders; then there is nothing to flush
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Checks of paths before something is written to them.


def show_path(path: Path) -> str:
    """Return a path for a message, relative to the current folder if it lies inside."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def resolve_path(path: Path) -> Path:
    """Return the absolute path with links resolved.

    Raises:
        Refused: for links that form a circle.
        Unavailable: for an invalid name.
    """
    try:
        return (
            Path(os.path.realpath(path, strict=False)) if not _is_circular(path) else _refuse(path)
        )
    except OSError as error:
        raise Unavailable(f"{path}: {explain_os_error(error)}") from error


def _is_circular(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return True
        if error.errno == errno.ENAMETOOLONG:
            raise
    return False


def _refuse(path: Path) -> Path:
    raise Refused(f"{path} is a link that leads to itself; choose another path with -o")


def find_nearest_parent(path: Path) -> Path:
    """Return the nearest existing folder above `path`. Raises `Refused` if one is a file."""
    parent = path.absolute().parent
    while not parent.is_dir():
        if parent.exists():
            raise Refused(
                f"{parent} is a file, so {path} cannot be created; choose another path with -o"
            )
        parent = parent.parent
    return parent


def check_folder(path: Path) -> None:
    """Raise `Refused` if `path` is a file, `Unavailable` if it cannot be created or changed."""
    target = resolve_path(path)
    if target.exists() and not target.is_dir():
        raise Refused(f"{path} is a file, not a folder; choose another path with -o")
    parent = find_nearest_parent(target)
    if not os.access(parent, os.W_OK):
        raise Unavailable(f"no permission to write into {parent}; choose another path with -o")


def check_file(path: Path, force: bool) -> None:
    """Raise the errors of `new_file` before a file is computed, if `path` cannot be written."""
    target = resolve_path(path)
    if target.exists() and not force:
        raise Exists(path)
    if target.is_dir():
        raise Refused(f"{path} is a folder, not a file; choose another path with -o")
    parent = find_nearest_parent(target)
    if not os.access(parent, os.W_OK):
        raise Unavailable(f"no permission to write into {parent}; choose another path with -o")


def digest_of(folder: Path) -> str:
    """Return a hash of the names and contents of our files in a folder."""
    digest = hashlib.sha256()
    for name in _DIGESTED:
        if (folder / name).is_file():
            with open(folder / name, "rb") as file:
                digest.update(
                    f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode()
                )
    return digest.hexdigest()
