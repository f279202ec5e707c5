"""Open `folder:PATH` with texts: .txt files in one subfolder for each class, optionally below
train/, validation/ and test/.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from learngene_zoo.errors import BadData, NoLabels, explain_os_error
from learngene_zoo.tasks.layout import FolderNode, normalize_name, split_reference
from learngene_zoo.tasks.listing import describe_left_out
from learngene_zoo.tasks.splits.assembly import assemble_task
from learngene_zoo.tasks.splits.samples import Labelled
from learngene_zoo.tasks.stamps import FileStamp, list_facts
from learngene_zoo.tasks.task import SPLITS, Task
from learngene_zoo.tasks.texts.rows import TextRows, check_texts, decode_text

SUFFIX = ".txt"
MAX_SHOWN = 4  # names in a message


def is_text_folder(reference: str) -> bool:
    """Return whether there are texts in subfolders, and no images, in a folder.

    The reference is `PATH` or `PATH:train=a+b,test=c`.
    """
    top = FolderNode(split_reference(reference)[0])
    if not top.path.is_dir() or not any(_holds_texts(folder) for folder in top.folders):
        return False
    return not top.holds_pictures()


def open_text_folder(reference: str) -> Task:
    """Open the task in a folder. Other files than .txt are left out, and a note counts them.

    Raises `BadData` that names the folder or file which is wrong.
    """
    top, roles = split_reference(reference)
    folders = (
        {split: tuple(top / name for name in names) for split, names in roles.items()}
        if roles
        else _find_splits(top)
    )
    files = {split: _list_classes(paths) for split, paths in folders.items()}
    names = sorted(name for name, paths in files["train"].items() if paths)
    _check(files, names, folders)
    labelled = {split: _read(files[split], names) for split in files}
    stamp = FileStamp(
        [
            (os.path.relpath(path, top), path)
            for by_class in files.values()
            for name in names
            for path in by_class.get(name, ())
        ],
        partial(list_facts, names, {split: part.labels for split, part in labelled.items()}),
    )
    others = [path for folder in folders.values() for path in _list_others(folder)]
    notes = tuple(filter(None, [describe_left_out(others)]))
    return assemble_task(
        f"folder:{reference}", labelled, names, kind="text", stamp=stamp, notes=notes
    )


def _holds_texts(top: FolderNode) -> bool:
    return any(_is_text(entry.name) for folder in top.walk() for entry in folder.entries)


def _is_text(name: str) -> bool:
    return name.lower().endswith(SUFFIX)


def _find_splits(top: Path) -> dict[str, tuple[Path, ...]]:
    """Return the folders named like a split that contain folders of texts; else `top` as train.

    Raises `BadData` if two are named like the same split, or none like train.
    """
    splits: dict[str, tuple[Path, ...]] = {}
    for child in FolderNode(top).folders:
        if len(child.roles) != 1 or not any(_holds_texts(inner) for inner in child.folders):
            continue
        split = child.roles[0]
        if split in splits:
            raise BadData(
                f"{splits[split][0]} and {child.path} are both named as {split}; name the splits: "
                f"folder:{top}:train=FOLDER,test=FOLDER"
            )
        splits[split] = (child.path,)
    if splits and "train" not in splits:
        raise BadData(f"{top} has no training folder, only {', '.join(sorted(splits))}; add train/")
    return {split: splits[split] for split in SPLITS if split in splits} or {"train": (top,)}


def _list_classes(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Return the texts of each class of a split. Raises `BadData` for a folder that is missing."""
    classes: dict[str, list[str]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise BadData(f"there is no folder {folder}; name folders of texts")
        for child in FolderNode(folder).folders:
            paths = list_texts(child.path)
            classes.setdefault(normalize_name(child.path.name), []).extend(paths)
    return classes


def list_texts(folder: Path) -> list[str]:
    """Return the paths of all texts in a folder and below it, sorted."""
    entries = (entry for inner in FolderNode(folder).walk() for entry in inner.entries)
    return sorted(entry.path for entry in entries if _is_text(entry.name))


def _list_others(folders: Sequence[Path]) -> list[str]:
    """Return the files in class folders that are not texts."""
    return sorted(
        entry.path
        for folder in folders
        for child in FolderNode(folder).folders
        for inner in child.walk()
        for entry in inner.entries
        if entry.is_file() and not _is_text(entry.name)
    )


def _check(
    files: Mapping[str, Mapping[str, Sequence[str]]],
    names: Sequence[str],
    folders: Mapping[str, Sequence[Path]],
) -> None:
    """Check that there are class folders with texts, the same in all splits. Raises `BadData`."""
    first = folders["train"][0]
    if not names:
        raise NoLabels(
            f"{first} has no class folders with {SUFFIX} files; sort the texts into one folder for "
            "each class"
        )
    empty = sorted(set(files["train"]) - set(names))
    if empty:
        raise BadData(f"class folder {first / empty[0]} has 0 texts; add some or remove it")
    for split, by_class in files.items():
        strange = sorted(name for name, paths in by_class.items() if paths and name not in names)
        if strange:
            raise BadData(
                f"class folder {folders[split][0] / strange[0]} is in {split} but not in train; "
                f"add training texts of {strange[0]!r} or remove it"
            )


def _read(by_class: Mapping[str, Sequence[str]], names: Sequence[str]) -> Labelled:
    """Return the texts of these classes, labelled by the index of their class.

    Raises `BadData` for a file that cannot be read, is not in UTF-8, or is empty.
    """
    paths = [path for name in names for path in by_class.get(name, ())]
    counts = [len(by_class.get(name, ())) for name in names]
    return Labelled(read_texts(paths), np.repeat(np.arange(len(names), dtype=np.int64), counts))


def read_texts(paths: Sequence[str]) -> TextRows:
    """Return the texts of files.

    Raises `BadData` for a file that cannot be read, is not in UTF-8, or is empty.
    """
    return check_texts(TextRows([_read_text(path) for path in paths], "", paths))


def _read_text(path: str) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadData(f"{path} cannot be read: {explain_os_error(error)}") from None
    return decode_text(data, path)
