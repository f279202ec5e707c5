"""The pictures below a folder, and a line about the files that are left out.

A file is a picture if Pillow decodes files of its suffix, or if it has no suffix and begins as a picture does. Links to files and
folders are followed. A folder or file that is reached twice is listed once, so a link to a folder above is no endless loop.
"""

import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from learngene_zoo.errors import BadData, explained
from learngene_zoo.text import counted

# Formats that Pillow names but does not decode by itself: it starts another program, or needs a plugin of its user's.
UNDECODED = frozenset({"EPS", "WMF", "MPEG", "HDF5", "GRIB", "BUFR"})
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ")
CONTAINERS = (
    (b"RIFF", b"WEBP"),
    (b"", b"ftypavif"),
)  # the beginning, and what stands at byte 8, or at 4 where it is empty
SHOWN_KINDS = 4  # suffixes in the line about what is left out
# What operating systems and NAS boxes put beside pictures.
SYSTEM_NAMES = frozenset(
    {"__macosx", "@eadir", "__pycache__", "lost+found", "$recycle.bin", "thumbs.db", "desktop.ini"}
    | {"system volume information"}
)


@dataclass(frozen=True)
class Listing:
    """What is below a folder, each in the order of the paths."""

    pictures: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # other files
    dangling: tuple[str, ...] = ()  # links that lead nowhere


@lru_cache(maxsize=1)
def list_suffixes() -> frozenset[str]:
    """Return the suffixes, in small letters and with their dot, of the files that Pillow decodes."""
    from PIL import Image

    Image.init()
    decoded = {*Image.OPEN, "MPO"} - UNDECODED  # an MPO is opened as the JPEG that it begins with
    return frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in decoded)


def is_picture(path: str) -> bool:
    """Return whether a file is a picture by its suffix; by its first bytes if it has none."""
    suffix = os.path.splitext(path)[1].lower()
    return suffix in list_suffixes() if suffix else _begins_as_picture(path)


def _begins_as_picture(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError:
        return False
    inner = any(start.startswith(outer) and start[8 if outer else 4 :].startswith(kind) for outer, kind in CONTAINERS)
    return inner or start.startswith(SIGNATURES)


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of that name is hidden, or put there by an operating system."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def list_pictures(folder: str | Path) -> Listing:
    """Return the pictures below a folder, without hidden ones; links are followed.

    Raises `BadData` for a folder that cannot be read.
    """
    files, links, dangling = _list_files(str(folder))
    if links:
        known = {os.path.realpath(file) for file in files}
        for link in _sorted(links):
            target = os.path.realpath(link)
            if target not in known:
                known.add(target)
                files.append(link)
    pictures: list[str] = []
    left_out: list[str] = []
    for file in _sorted(files):
        (pictures if is_picture(file) else left_out).append(file)
    return Listing(tuple(pictures), tuple(left_out), tuple(_sorted(dangling)))


def _list_files(top: str) -> tuple[list[str], list[str], list[str]]:
    """Return all files below a folder, links to files, and links that lead nowhere. What is no link is visited first."""
    files: list[str] = []
    links: list[str] = []
    dangling: list[str] = []
    real = os.path.realpath(top)
    seen = {real, *map(str, Path(real).parents)}
    folders, linked = deque([(top, real)]), deque[str]()
    while folders or linked:
        if folders:
            place, real = folders.popleft()
        else:
            place = linked.popleft()
            real = os.path.realpath(place)
            if real in seen:
                continue
        seen.add(real)
        for entry in scan_folder(place):
            if entry.is_symlink() and not os.path.exists(entry.path):
                dangling.append(entry.path)
            elif entry.is_symlink():
                (linked if is_folder(entry) else links).append(entry.path)
            elif not entry.is_dir():
                files.append(entry.path)
            elif (inner := os.path.join(real, entry.name)) not in seen:
                folders.append((entry.path, inner))
    return files, links, dangling


def scan_folder(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return what lies in a folder, without what is hidden, by name. Raises `BadData` if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not is_hidden(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        raise BadData(f"folder {folder} cannot be read: {explained(error)}") from None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one; a link that leads to itself is none."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _sorted(files: Iterable[str]) -> list[str]:
    return sorted(files, key=lambda file: file.split(os.sep))


def describe_left_out(files: Sequence[str]) -> str:
    """Return one line about the files that are left out, how many of which suffix; "" if there are none."""
    if not files:
        return ""
    kinds = Counter(os.path.splitext(file)[1].lower() or "without suffix" for file in files).most_common()
    parts = [f"{count} {kind}" for kind, count in kinds[:SHOWN_KINDS]]
    rest = sum(count for _, count in kinds[SHOWN_KINDS:])
    shown = ", ".join([*parts, *([f"{rest} others"] if rest else [])])
    return f"{counted(len(files), 'file')} left out: {shown}; first: {files[0]}"
