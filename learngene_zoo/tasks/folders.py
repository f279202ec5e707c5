"""`folder:PATH`: a folder of images whose subfolders are the classes, optionally below train/, validation/ and test/."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.images import SUFFIXES
from learngene_zoo.tasks.splits import Labelled, in_roles, split_name, task_of
from learngene_zoo.tasks.task import SPLITS, Sample, Task


@dataclass(frozen=True)
class Files:
    """Image files, one a row."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int, /) -> Sample:
        """The file by its path."""
        return Sample(self.paths[row], self.paths[row])


def open_folder(path: str, roles: Mapping[str, str] | None = None, **fields: Any) -> Task:
    """The task in this folder, its splits in their `roles`. Raises `BadData` that names the folder or class which is wrong.

    Files in a class folder that are not images are skipped, and the task's notes say so.
    """
    top = Path(os.path.expanduser(path))
    if not top.is_dir():
        raise BadData(f"there is no folder {top}; give one with a subfolder of images for each class")
    splits = in_roles(_splits(top), roles or {})
    classes = {name: [child.name for child in _class_folders(folder)] for name, folder in splits.items()}
    names = classes["train"]
    for name, got in classes.items():
        different = sorted(set(got) ^ set(names))
        if different:
            raise BadData(f"{splits[name]} and {splits['train']} differ in class {different[0]!r}; give both the same")
    strays: list[str] = []
    found = {}
    for name, folder in splits.items():
        found[name], left_out = labelled([folder / label for label in names])
        strays += left_out
    if not len(found["train"].labels):
        raise BadData(f"{splits['train']} has no class folders with images; give it a subfolder for each class")
    return task_of(f"folder:{path}", found, names, **{**fields, "notes": (*fields.get("notes", ()), *noted(strays))})


def noted(strays: Sequence[str]) -> tuple[str, ...]:
    """A note about files that are not images."""
    if not strays:
        return ()
    others = f" and {len(strays) - 1} more" if len(strays) > 1 else ""
    return (f"{strays[0]}{others} skipped: not an image file extension",)


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted, without hidden ones."""
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def labelled(class_folders: Sequence[Path]) -> tuple[Labelled, list[str]]:
    """The images of each class folder, labelled by its place; and the other files in them. Raises `BadData` for empty ones."""
    paths: list[str] = []
    labels: list[int] = []
    strays: list[str] = []
    empty: list[tuple[Path, list[str]]] = []
    for label, folder in enumerate(class_folders):
        files = _files(folder)
        images = [file for file in files if os.path.splitext(file)[1].lower() in SUFFIXES]
        if not images:
            empty.append((folder, files))
        if len(images) < len(files):
            strays += sorted(set(files) - set(images))
        paths.extend(images)
        labels.extend([label] * len(images))
    if empty:
        (first, files), others = empty[0], ", ".join(folder.name for folder, _ in empty[1:])
        only = f", only {files[0]}" if files else ""
        more = f"; the same is true of {others}" if others else ""
        raise BadData(f"class folder {first} holds no image{only}{more}; add some or remove it")
    return Labelled(Files(tuple(paths)), np.array(labels, dtype=np.int64)), strays


def _files(folder: Path) -> list[str]:
    """Every file below a folder but hidden ones, in the order of their paths."""
    found: list[str] = []
    for place, _, names in os.walk(folder):
        found += [os.path.join(place, name) for name in names if not name.startswith(".")]
    return sorted(found, key=lambda file: file.split(os.sep))


def _splits(top: Path) -> dict[str, Path]:
    """Each split's folder; the folder itself is `train` if it holds classes."""
    named = {split_name(child.name): child for child in subfolders(top)}
    if "train" not in named:
        return {"train": top}
    other = sorted(set(named) - set(SPLITS))
    if other:
        raise BadData(
            f"{top} has a folder {named[other[0]].name!r} beside train/; only validation/ and test/ belong there"
        )
    return named


def _class_folders(folder: Path) -> list[Path]:
    """The class folders of a split. Raises `BadData` if there are pictures in their place."""
    found = subfolders(folder)
    loose = None if found else next((file for file in _files(folder) if Path(file).suffix.lower() in SUFFIXES), None)
    if loose:
        raise BadData(f"{folder} holds pictures ({Path(loose).name}) but no class folders; sort them into one a class")
    return found
