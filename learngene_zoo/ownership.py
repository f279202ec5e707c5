"""Mark folders that lgzoo wrote with a hidden file, `.lgzoo`, and check these marks.

Only marked folders are ever replaced or removed. There are two kinds of marker. In the folder of an
artifact, a checkpoint or a part (`write_marker`) it lists every file with its size and sha256, so
that files which a user added or changed are detected. In the working folder of a run or a bench
(`mark_workspace`) it names the kind. The first line is a format, the last a checksum of all lines
before it; a file of that name with any other content is not a marker.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MARKER = ".lgzoo"
DRAFT = ".lgzoo-draft"
_FOLDER = "learngene_zoo: this folder was written by lgzoo; format 1"
_WORKSPACE = "learngene_zoo: the folder of a {}; format 1"
_LINE = re.compile(r"([0-9a-f]{64}) (\d+) (.+)")
_MAX_MARKER_BYTES = 4 * 2**20


class _File(NamedTuple):
    """The entry of a file in a marker."""

    sha256: str
    size: int


def write_marker(folder: Path) -> None:
    """Write the marker of a finished folder, which lists every file with its size and sha256."""
    (folder / MARKER).unlink(missing_ok=True)
    lines = [_FOLDER]
    for name, path in sorted(_iterate_files(folder)):
        if name == DRAFT:
            continue
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        lines.append(f"{digest} {path.stat().st_size} {name}")
    _write(folder / MARKER, lines)


def mark_workspace(folder: Path, kind: str) -> None:
    """Mark a new or empty folder as that of a `run` or a `bench`."""
    _write(folder / MARKER, [_WORKSPACE.format(kind)])


def is_workspace(folder: Path, kind: str) -> bool:
    """Return whether `mark_workspace` marked this folder."""
    return _read(folder / MARKER) == [_WORKSPACE.format(kind)]


def find_foreign(folder: Path, *, content: bool = True) -> str:
    """Describe content of a folder that lgzoo did not write; return "" if there is none.

    A folder without a valid marker is foreign if it contains anything. With `content`, a changed
    file counts too; without it, only names count, because a damaged checkpoint is still a
    checkpoint.
    """
    marked = _read_marker(folder)
    if marked is None:
        name = next((entry.name for entry in _scan(folder) if entry.name != MARKER), "")
        return f"{name}, and no valid {MARKER} file that says that lgzoo wrote it" if name else ""
    parents = {parent.as_posix() for name in marked for parent in Path(name).parents}
    for name, path in sorted(_iterate_entries(folder)):
        is_link = path.is_symlink()
        if is_link or name not in (parents if path.is_dir() else {*marked, MARKER}):
            return f"{name}, which lgzoo did not write"
        if content and name in marked and not _is_unchanged(path, marked[name]):
            return f"{name}, which was changed since lgzoo wrote it"
    return ""


def is_whole(folder: Path) -> bool:
    """Return whether a marked folder contains exactly the files in its marker, unchanged."""
    marked = _read_marker(folder)
    return (
        marked is not None
        and all((folder / name).is_file() for name in marked)
        and not find_foreign(folder)
    )


def remove_marked(folder: Path) -> None:
    """Remove our files from a marked folder, the marker last, and the folder if it is then empty.

    A folder with content and without a valid marker is left alone, as is everything behind a
    symbolic link. If the process is killed, the next call completes the removal.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    marked = [name for name in _read_marker(folder) or {} if not _is_behind_link(folder, name)]
    for name in marked:
        _unlink(folder / name)
    parents = {parent.as_posix() for name in marked for parent in Path(name).parents} - {"."}
    for parent in sorted(parents, key=len, reverse=True):
        _rmdir(folder / parent)
    if _read_marker(folder) is not None and [entry.name for entry in _scan(folder)] == [MARKER]:
        _unlink(folder / MARKER)
    _rmdir(folder)


def find_foreign_below(folder: Path, is_ours: Callable[[str], bool]) -> str:
    """Return a file below the folder of a workspace that lgzoo did not write, or "".

    `is_ours` recognises our files by their names. Folders with a marker are judged by the marker.
    """
    for entry in _scan(folder) if folder.is_dir() else ():
        path = Path(entry.path)
        inner = ""
        if not entry.is_dir(follow_symlinks=False):
            if entry.is_symlink() or not (is_ours(entry.name) or entry.name == MARKER):
                return entry.name
        elif _read_marker(path) is not None:
            inner = find_foreign(path, content=False).partition(",")[0]
        elif not (entry.name.startswith(".") and is_marked_draft(path)):
            inner = find_foreign_below(path, is_ours)
        if inner:
            return f"{entry.name}/{inner}"
    return ""


def remove_below(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Remove the files that `find_foreign_below` accepts, and every folder that is then empty.

    Symbolic links are not followed; a folder that is one is left alone.
    """
    if folder.is_symlink():
        return
    for entry in _scan(folder) if folder.is_dir() else ():
        path = Path(entry.path)
        if not entry.is_dir(follow_symlinks=False):
            if not entry.is_symlink() and (is_ours(entry.name) or entry.name == MARKER):
                _unlink(path)
        elif _read_marker(path) is not None:
            remove_marked(path)
        elif entry.name.startswith(".") and is_marked_draft(path):
            remove_draft(path)
        else:
            remove_below(path, is_ours)
    _rmdir(folder)


def _read_marker(folder: Path) -> dict[str, _File] | None:
    """Return the files that a marker lists, or None without a valid marker."""
    lines = _read(folder / MARKER)
    if not lines or lines[0] != _FOLDER:
        return None
    matches = [_LINE.fullmatch(line) for line in lines[1:]]
    if not all(matches):
        return None
    return {
        match[3]: _File(match[1], int(match[2]))
        for match in matches
        if match and _is_inside(match[3])
    }


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in Path(name).parts


def _is_behind_link(folder: Path, name: str) -> bool:
    """Return whether a folder between `folder` and the file `name` is a symbolic link."""
    return any((folder / parent).is_symlink() for parent in Path(name).parents[:-1])


def _write(path: Path, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    path.write_bytes(text + hashlib.sha256(text).hexdigest().encode() + b"\n")


def _read(path: Path) -> list[str]:
    """Return the lines of a marker without the checksum.

    The result is empty if the checksum is wrong, or if the marker is not a regular file.
    """
    with suppress(OSError, ValueError):
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_MARKER_BYTES:
            return []
        data = path.read_bytes()
        text, checksum = data[:-65], data[-65:]
        if text.endswith(b"\n") and checksum == hashlib.sha256(text).hexdigest().encode() + b"\n":
            return text.decode("utf-8", "surrogateescape").split("\n")[:-1]
    return []


def _is_unchanged(path: Path, file: _File) -> bool:
    if path.stat().st_size != file.size:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256


def _iterate_files(folder: Path) -> Iterator[tuple[str, Path]]:
    yield from ((name, path) for name, path in _iterate_entries(folder) if not path.is_dir())


def _iterate_entries(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield everything below a folder with its relative name; links are not followed."""
    waiting = [folder]
    while waiting:
        for entry in _scan(waiting.pop()):
            path = Path(entry.path)
            yield path.relative_to(folder).as_posix(), path
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)


def _scan(folder: Path) -> list["os.DirEntry[str]"]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _rmdir(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


# Drafts: folders that are being written. The mark is the first file written to a draft and the last
# file removed.


def write_draft_mark(draft: Path) -> None:
    """Mark a new folder as a draft; the mark contains a hash of its name."""
    (draft / DRAFT).write_bytes(_draft_mark(draft.name))


def is_marked_draft(draft: Path) -> bool:
    """Return whether lgzoo created a draft: it is empty, or has its mark or the start of it."""
    if draft.is_symlink() or not draft.is_dir():
        return False
    names = [entry.name for entry in _scan(draft)]
    if not names:
        return True
    with suppress(OSError):
        mark = (
            (draft / DRAFT).read_bytes() if stat.S_ISREG((draft / DRAFT).lstat().st_mode) else b"-"
        )
        expected = _draft_mark(draft.name)
        return mark == expected or (names == [DRAFT] and expected.startswith(mark))
    return False


def remove_draft(draft: Path) -> None:
    """Remove a draft of ours with all of its content, its mark last."""
    if not is_marked_draft(draft):
        return
    for name, path in sorted(_iterate_entries(draft), reverse=True):
        if name == DRAFT:
            continue
        if path.is_dir() and not path.is_symlink():
            _rmdir(path)
        else:
            _unlink(path)
    if [entry.name for entry in _scan(draft)] == [DRAFT]:
        _unlink(draft / DRAFT)
    _rmdir(draft)


def _draft_mark(name: str) -> bytes:
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f"learngene_zoo: a draft that lgzoo is writing; format 1\n{digest}\n".encode()
