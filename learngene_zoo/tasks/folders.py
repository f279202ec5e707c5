"""`folder:PATH`: a folder of images whose subfolders are the classes, perhaps below train/, validation/ and test/."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.decoding import SUFFIXES
from learngene_zoo.tasks.own_data import Labelled, split_name, task_of
from learngene_zoo.tasks.task import SPLITS, Task


@dataclass(frozen=True)
class Files:
    """Image files, one a row."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def image(self, row: int) -> str:
        """The file's path."""
        return self.paths[row]

    def where(self, row: int) -> str:
        """The file's path."""
        return self.paths[row]


def open_folder(path: str) -> Task:
    """The task in this folder. Raises `BadData` that names the folder or class which is wrong."""
    top = Path(path).expanduser()
    if not top.is_dir():
        raise BadData(f"there is no folder {top}; give one with a subfolder of images for each class")
    splits = _splits(top)
    classes = {name: [child.name for child in _subfolders(folder)] for name, folder in splits.items()}
    wanted = classes["train"]
    for name, got in classes.items():
        different = sorted(set(got) ^ set(wanted))
        if different:
            raise BadData(f"{splits[name]} and {splits['train']} differ in class {different[0]!r}; give both the same")
    found = {name: _labelled(folder, wanted) for name, folder in splits.items()}
    return task_of(f"folder:{path}", found, wanted)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _splits(top: Path) -> dict[str, Path]:
    """Each split's folder; the folder itself is `train` if it holds classes."""
    named = {split_name(child.name): child for child in _subfolders(top)}
    if "train" not in named:
        return {"train": top}
    other = sorted(set(named) - set(SPLITS))
    if other:
        raise BadData(
            f"{top} has a folder {named[other[0]].name!r} beside train/; only validation/ and test/ belong there"
        )
    return named


def _labelled(folder: Path, classes: Sequence[str]) -> Labelled:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        files = [str(file) for file in sorted((folder / name).rglob("*")) if file.suffix.lower() in SUFFIXES]
        if not files:
            raise BadData(f"class folder {folder / name} holds no image; add some or remove it")
        paths.extend(files)
        labels.extend([label] * len(files))
    if not paths:
        raise BadData(f"{folder} has no class folders with images; give it a subfolder for each class")
    return Labelled(Files(tuple(paths)), np.array(labels, dtype=np.int64))
