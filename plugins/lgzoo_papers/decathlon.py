"""Open data sets of the Visual Decathlon's archive (Rebuffi, Bilen and Vedaldi 2017): annotations/
of its devkit and data/NAME/ with the images.

Test labels are withheld, so the archive's validation split is used as the test split, and
validation is cut from train. The annotations are JSON like COCO's, with `images`, `annotations` and
`categories`, one label for each image. Images may stay packed in data/NAME.tar: the offsets in it
are read once, then each image is read at its offset. Files are checked against the lists of
checksums beside them, if there are any.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from learngene_zoo.plugin import (
    BadData,
    Entry,
    Files,
    Labelled,
    Sample,
    Task,
    assemble_task,
    parse_json,
)
from lgzoo_papers.places import (
    ARCHIVE,
    DECATHLON_DATA,
    DECATHLON_DEVKIT,
    find_base,
    find_images,
)

ROLES = {"train": "train", "val": "test"}  # the archive's name of a split -> ours


def open_archive(entry: Entry, name: str, top: Path, /, **fields: Any) -> Task:
    """Open the task that the archive calls `name`.

    Raises `BadData` that names the file which is missing or wrong.
    """
    base = find_base(top)
    if not (base / "annotations").is_dir():
        raise BadData(
            f"{ARCHIVE} is {top}, which has no annotations/; unpack {DECATHLON_DEVKIT} there"
        )
    paths = [base / "annotations" / f"{name}_{split}.json" for split in ROLES]
    for path in paths:
        if path.is_file():
            verify(path, (base, path.parent))
    parts = [read_annotations(path) for path in paths]
    check_same_classes(parts[0], parts[1], paths)
    data = find_images(top, name) or base / "data"
    found = {
        role: Labelled(_read_rows(data, name, part.files), part.labels)
        for role, part in zip(ROLES.values(), parts, strict=True)
    }
    return assemble_task(entry.name, found, parts[0].classes, **fields)


def _read_rows(data: Path, name: str, files: tuple[str, ...]) -> Files | Packed:
    """Return the images of one split, unpacked or in their tar file.

    Raises `BadData` for a missing one.
    """
    inner = [file.removeprefix("data/") for file in files]  # "data/aircraft/train/0001/0000001.jpg"
    if (data / name).is_dir():
        paths = tuple(str(data / file) for file in inner)
        _are_present(paths)
        return Files(paths)
    tar = data / f"{name}.tar"
    if not tar.is_file():
        raise BadData(
            f"there is neither {data / name} nor {tar.name}; unpack {DECATHLON_DATA} in {data}"
        )
    verify(tar, (data.parent, data))
    there = list_spans(tar, tar.stat().st_mtime_ns)
    lost = next((file for file in inner if file not in there), None)
    if lost:
        raise BadData(f"{tar} holds no {lost}; download it again")
    return Packed(str(tar), tuple(inner), tuple(there[file] for file in inner))


def _are_present(paths: tuple[str, ...]) -> None:
    """Check that all files exist. Raises `BadData` for the first missing one.

    Each folder is listed only once, as there are a million files.
    """
    listed: dict[str, set[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in listed:
            listed[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if name not in listed[folder]:
            raise BadData(
                f"there is no {path}, which the annotations list; unpack its tar file again"
            )


LISTS = ("images", "annotations", "categories")  # the lists in a file of annotations


class Annotated(NamedTuple):
    """The content of a file of annotations.

    Attributes:
        files: path of each image.
        labels: class of each image, int64 (N,).
        classes: name of each class.
    """

    files: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]


def read_annotations(path: Path) -> Annotated:
    """Read a file of annotations. Raises `BadData` that names the file and the problem."""
    images, annotations, categories = _read_lists(path)
    try:
        number = {category["id"]: place for place, category in enumerate(categories)}
        classes = tuple(str(category.get("name", category["id"])) for category in categories)
        labels = {
            annotation["image_id"]: number[annotation["category_id"]] for annotation in annotations
        }
        files = {image["id"]: str(image["file_name"]) for image in images}
    except KeyError as error:
        raise BadData(
            f"{path} has no {error}, or refers to one that it does not list; unpack the devkit"
            " again"
        ) from None
    except (TypeError, AttributeError):
        raise BadData(
            f"the lists in {path} contain something other than objects; unpack the devkit again"
        ) from None
    _check(path, (number, labels, files), (categories, annotations, images))
    return Annotated(
        tuple(files.values()), np.array([labels[key] for key in files], dtype=np.int64), classes
    )


def check_same_classes(one: Annotated, other: Annotated, paths: Sequence[Path]) -> None:
    """Check that two splits have the same classes in the same order, and share no image.

    Raises `BadData` otherwise.
    """
    if one.classes != other.classes:
        pairs = zip((*one.classes, None), (*other.classes, None), strict=False)
        first = next(pair for pair in pairs if pair[0] != pair[1])
        raise BadData(
            f"{paths[0]} and {paths[1]} list different classes ({first[0]!r}, {first[1]!r}); unpack"
            " them again"
        )
    shared = set(one.files) & set(other.files)
    if shared:
        raise BadData(f"{min(shared)} is in {paths[0]} and in {paths[1]}; unpack the devkit again")


def _read_lists(path: Path) -> list[list[Any]]:
    try:
        content = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise BadData(f"there is no {path}; unpack the devkit there") from None
    except (OSError, ValueError) as error:
        raise BadData(
            f"{path} cannot be read as JSON ({str(error)[:80]}); unpack the devkit again"
        ) from None
    lists = []
    for key in LISTS:
        found = content.get(key) if isinstance(content, dict) else None
        if not isinstance(found, list) or not found:
            raise BadData(f"{path} has no list of {key}; unpack the devkit again")
        lists.append(found)
    return lists


def _check(path: Path, found: Sequence[dict[Any, Any]], listed: Sequence[list[Any]]) -> None:
    """Check that no name is listed twice and that every image has a label.

    Raises `BadData` otherwise.
    """
    _, labels, files = found
    for key, by_id, entries in zip(("category", "annotation of picture", "picture"), found, listed):
        if len(by_id) < len(entries):
            raise BadData(f"{path} lists a {key} twice; unpack the devkit again")
    if len(set(files.values())) < len(files):
        raise BadData(f"{path} lists a file twice; unpack the devkit again")
    outside = next(
        (name for name in files.values() if {"..", "/"} & set(PurePosixPath(name).parts)), None
    )
    if outside:
        raise BadData(
            f"{path} lists {outside}, which is outside the data folder; unpack the devkit again"
        )
    bare = next((name for key, name in files.items() if key not in labels), None)
    if bare:
        raise BadData(f"{path} has no label for {bare}; unpack the devkit again")


CHECKSUM_LISTS = {"MD5SUMS": "md5", "SHA256SUMS": "sha256"}  # the name of a list -> its algorithm
LINE = re.compile(r"([0-9a-fA-F]+) [ *](.+)")


def verify(path: Path, folders: Iterable[Path]) -> None:
    """Check a file against the lists of checksums in these folders.

    Raises `BadData` if one of them gives another checksum.
    """
    for folder in folders:
        for name, kind in CHECKSUM_LISTS.items():
            wanted = (
                _read_checksums(folder / name, kind).get(path.resolve())
                if (folder / name).is_file()
                else None
            )
            if wanted is not None and wanted != _digest(path, kind, path.stat().st_mtime_ns):
                raise BadData(
                    f"{path} does not have the checksum that {folder / name} gives; download it"
                    " again"
                )


def _read_checksums(file: Path, kind: str) -> dict[Path, str]:
    """Return the checksum of every file in a list, by its path.

    Raises `BadData` that names a line which cannot be read.
    """
    digits = hashlib.new(kind).digest_size * 2
    found = {}
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        match = LINE.fullmatch(line.strip())
        if line.strip() and (match is None or len(match[1]) != digits):
            raise BadData(
                f"{file} line {number} is not a checksum and a name as {kind}sum writes them;"
                " correct or remove it"
            )
        if match:
            found[(file.parent / match[2]).resolve()] = match[1].lower()
    return found


@cache
def _digest(path: Path, kind: str, changed: int) -> str:
    """Compute the checksum of a file, once per process.

    `changed` is the time of its last change (ns).
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


@dataclass(frozen=True)
class Packed:
    """Members of a tar file, one for each row: names, and (offset, number) of their bytes."""

    tar: str
    names: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: int, /) -> Sample:
        """Return the bytes of a member; errors name the tar file and the member."""
        start, size = self.spans[row]
        with open(self.tar, "rb") as file:
            file.seek(start)
            return Sample(file.read(size), f"{self.tar}:{self.names[row]}")


@lru_cache(maxsize=1)  # two splits share a tar, and a million headers take minutes to read
def list_spans(tar: Path, changed: int) -> dict[str, tuple[int, int]]:
    """Return offset and number of bytes of every plain file in an uncompressed tar.

    `changed` is the time of the tar's last change (ns). Raises `BadData` for a damaged tar.
    """
    found = {}
    try:
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                if member.isreg():
                    found[member.name.removeprefix("./")] = (member.offset_data, member.size)
    except (tarfile.TarError, OSError, EOFError) as error:
        reason = " ".join(str(error).split())[:120]
        raise BadData(f"{tar} cannot be read as a tar file ({reason}); download it again") from None
    return found
