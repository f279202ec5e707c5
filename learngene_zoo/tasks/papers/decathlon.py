"""The Visual Decathlon's archive (Rebuffi, Bilen and Vedaldi 2017): annotations/ of its devkit and data/NAME/ of its pictures.

Test labels are withheld, so the archive's validation split is the test here, and validation is cut from train. Pictures may
stay in data/NAME.tar.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.folders import Files
from learngene_zoo.tasks.own_data import Labelled, task_of
from learngene_zoo.tasks.papers.annotations import read_annotations, same_classes
from learngene_zoo.tasks.papers.checksums import verify
from learngene_zoo.tasks.papers.packed import Packed, spans
from learngene_zoo.tasks.papers.places import ARCHIVE, DECATHLON_DATA, DECATHLON_DEVKIT
from learngene_zoo.tasks.task import Task

if TYPE_CHECKING:
    from learngene_zoo.tasks.entry import Entry

PREFIX = "decathlon-"
ROLES = {"train": "train", "val": "test"}  # the archive's word for a split, and ours


def open_archive(entry: Entry, top: Path, **fields: Any) -> Task:
    """The task of one of the ten. Raises `BadData` that names the file which is missing or wrong."""
    name = entry.name.removeprefix(PREFIX)
    base = top / "decathlon-1.0" if (top / "decathlon-1.0").is_dir() else top
    if not (base / "annotations").is_dir():
        raise BadData(f"{ARCHIVE} is {top}, which has no annotations/; unpack {DECATHLON_DEVKIT} there")
    paths = [base / "annotations" / f"{name}_{split}.json" for split in ROLES]
    for path in paths:
        if path.is_file():
            verify(path, (base, path.parent))
    parts = [read_annotations(path) for path in paths]
    same_classes(parts[0], parts[1], paths)
    data = next((place for place in (base / "data", base, top) if _holds(place, name)), base / "data")
    found = {
        role: Labelled(_rows(data, name, part.files), part.labels)
        for role, part in zip(ROLES.values(), parts, strict=True)
    }
    return task_of(entry.name, found, parts[0].classes, **fields)


def _holds(folder: Path, name: str) -> bool:
    return (folder / name).is_dir() or (folder / f"{name}.tar").is_file()


def _rows(data: Path, name: str, files: tuple[str, ...]) -> Files | Packed:
    """The pictures of one split, unpacked or in their tar file. Raises `BadData` for one that is not there."""
    inner = [file.removeprefix("data/") for file in files]  # "data/aircraft/train/0001/0000001.jpg"
    if (data / name).is_dir():
        paths = tuple(str(data / file) for file in inner)
        _exist(paths)
        return Files(paths)
    tar = data / f"{name}.tar"
    if not tar.is_file():
        raise BadData(f"there is neither {data / name} nor {tar.name}; unpack {DECATHLON_DATA} in {data}")
    verify(tar, (data.parent, data))
    there = spans(tar)
    lost = next((file for file in inner if file not in there), None)
    if lost:
        raise BadData(f"{tar} holds no {lost}; fetch it anew")
    return Packed(str(tar), tuple(inner), tuple(there[file] for file in inner))


def _exist(paths: tuple[str, ...]) -> None:
    """Raises `BadData` for the first file that is not there; each folder is listed once, as there are a million files."""
    listed: dict[str, set[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in listed:
            listed[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if name not in listed[folder]:
            raise BadData(f"there is no {path}, which the annotations list; unpack its tar file anew")
