"""List the images or other files below a folder, and describe the files that are left out.

A file is an image if Pillow decodes files with its suffix, or if it has no suffix and begins with
an image's signature. Links to files and folders are followed. A folder or file that is reached
twice is listed once, so a link to a parent folder does not cause an endless loop.
"""

import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from learngene_zoo.errors import BadData, explain_os_error
from learngene_zoo.text import count_noun

# Formats that Pillow lists but does not decode itself: it starts another program, or needs a
# plugin.
UNDECODED = frozenset({"EPS", "WMF", "MPEG", "HDF5", "GRIB", "BUFR"})
SIGNATURES = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\0",
    b"MM\0*",
    b"\0\0\0\x0cjP  ",
)
# The bytes at offset 0, and those at offset 8, or at 4 if the first are empty.
CONTAINERS = (
    (b"RIFF", b"WEBP"),
    (b"", b"ftypavif"),
)
MAX_SHOWN_KINDS = 4  # suffixes in the line about files that are left out
# Names that operating systems and NAS boxes create beside images.
SYSTEM_NAMES = frozenset(
    {"__macosx", "@eadir", "__pycache__", "lost+found", "$recycle.bin", "thumbs.db", "desktop.ini"}
    | {"system volume information"}
)


@dataclass(frozen=True)
class Listing:
    """The files below a folder, each in the order of the paths."""

    pictures: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # other files
    dangling: tuple[str, ...] = ()  # broken links


@lru_cache(maxsize=1)
def list_suffixes() -> frozenset[str]:
    """Return the suffixes, in lower case and with their dot, of the files that Pillow decodes."""
    from PIL import Image

    Image.init()
    decoded = {*Image.OPEN, "MPO"} - UNDECODED  # an MPO is opened as the JPEG that it begins with
    return frozenset(
        suffix for suffix, name in Image.registered_extensions().items() if name in decoded
    )


def is_picture(path: str) -> bool:
    """Return whether a file is an image by its suffix, or by its first bytes if it has none."""
    suffix = os.path.splitext(path)[1].lower()
    return suffix in list_suffixes() if suffix else _begins_as_picture(path)


def _begins_as_picture(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError:
        return False
    inner = any(
        start.startswith(outer) and start[8 if outer else 4 :].startswith(kind)
        for outer, kind in CONTAINERS
    )
    return inner or start.startswith(SIGNATURES)


def is_hidden(name: str) -> bool:
    """Return whether a file with this name is hidden or created by an operating system."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def list_files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files below a folder with one of these suffixes, in lower or upper case, sorted.

    Hidden files, and all files below a hidden folder, are left out; links to folders are not
    followed.
    """
    return sorted(
        path
        for path in folder.rglob("*")
        if path.name.lower().endswith(suffixes)
        and not any(map(is_hidden, path.relative_to(folder).parts))
        and not path.is_dir()
    )


def list_pictures(folder: str | Path) -> Listing:
    """List the images below a folder, without hidden ones; links are followed.

    Raises `BadData` for a folder that cannot be read.
    """
    files, links, dangling = _list_files(str(folder))
    if links:
        listed = {os.path.realpath(file) for file in files}
        for link in _sort_files(links):
            target = os.path.realpath(link)
            if target not in listed:
                listed.add(target)
                files.append(link)
    pictures: list[str] = []
    left_out: list[str] = []
    for file in _sort_files(files):
        (pictures if is_picture(file) else left_out).append(file)
    return Listing(tuple(pictures), tuple(left_out), tuple(_sort_files(dangling)))


def _list_files(top: str) -> tuple[list[str], list[str], list[str]]:
    """Return all files below a folder, links to files, and broken links.

    Links to folders are visited last.
    """
    files: list[str] = []
    links: list[str] = []
    dangling: list[str] = []
    real = os.path.realpath(top)
    visited = {real, *map(str, Path(real).parents)}
    folders, linked = deque([(top, real)]), deque[str]()
    while folders or linked:
        if folders:
            path, real = folders.popleft()
        else:
            path = linked.popleft()
            real = os.path.realpath(path)
            if real in visited:
                continue
        visited.add(real)
        for entry in scan_folder(path):
            if entry.is_symlink() and not os.path.exists(entry.path):
                dangling.append(entry.path)
            elif entry.is_symlink():
                (linked if is_folder(entry) else links).append(entry.path)
            elif not entry.is_dir():
                files.append(entry.path)
            elif (inner := os.path.join(real, entry.name)) not in visited:
                folders.append((entry.path, inner))
    return files, links, dangling


def scan_folder(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder by name, without hidden ones.

    Raises `BadData` if it cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (entry for entry in entries if not is_hidden(entry.name)),
                key=lambda entry: entry.name,
            )
    except OSError as error:
        raise BadData(f"folder {folder} cannot be read: {explain_os_error(error)}") from None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _sort_files(files: Iterable[str]) -> list[str]:
    return sorted(files, key=lambda file: file.split(os.sep))


def describe_left_out(files: Sequence[str]) -> str:
    """Return one line about the files that are left out, counted by suffix, or ""."""
    if not files:
        return ""
    kinds = Counter(
        os.path.splitext(file)[1].lower() or "without suffix" for file in files
    ).most_common()
    parts = [f"{count} {kind}" for kind, count in kinds[:MAX_SHOWN_KINDS]]
    rest = sum(count for _, count in kinds[MAX_SHOWN_KINDS:])
    text = ", ".join([*parts, *([f"{rest} others"] if rest else [])])
    return f"{count_noun(len(files), 'file')} left out: {text}; first: {files[0]}"
