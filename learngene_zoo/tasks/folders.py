"""Open `folder:PATH`: images in one subfolder for each class, optionally below train/, validation/
and test/.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from learngene_zoo.errors import BadData, NoLabels
from learngene_zoo.tasks.layout import (
    Layout,
    check_shared_names,
    find_layout,
    normalize_name,
    split_reference,
)
from learngene_zoo.tasks.listing import (
    Listing,
    describe_left_out,
    is_folder,
    is_picture,
    list_pictures,
    scan_folder,
)
from learngene_zoo.tasks.splits.assembly import assemble_task, assign_roles
from learngene_zoo.tasks.splits.samples import Labelled
from learngene_zoo.tasks.stamps import FileStamp, list_facts
from learngene_zoo.tasks.task import KIND_OF, TABLES, Sample, Task
from learngene_zoo.text import count_noun, quote_word

# Called with the folder or file that is wrong, and the problem.
Report = Callable[[str, str], None]
MAX_SHOWN = 4  # names in a message


@dataclass(frozen=True)
class Files:
    """Image files, one for each row."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int, /) -> Sample:
        """Return the file; errors name its path."""
        return Sample(self.paths[row], self.paths[row])


@dataclass
class ClassFolders:
    """The class folders of one split: listings by name of the class, and files beside them."""

    classes: dict[str, list[tuple[Path, Listing]]] = field(default_factory=dict)
    loose: list[str] = field(default_factory=list)  # pictures in no class folder
    dangling: list[str] = field(default_factory=list)

    def pictures(self, name: str) -> list[str]:
        """Return the images of a class."""
        return [file for _, listing in self.classes.get(name, ()) for file in listing.pictures]

    def left_out(self) -> list[str]:
        """Return the files in class folders that are not images."""
        return [
            file
            for parts in self.classes.values()
            for _, listing in parts
            for file in listing.left_out
        ]


def open_folder(
    path: str, roles: Mapping[str, str] | None = None, report: Report | None = None, **fields: Any
) -> Task:
    """Open the task in a folder, `PATH` or `PATH:train=a+b,test=c`.

    Files that are not images are left out, and the task's notes list them.

    Args:
        path: the folder, with the folders of its splits if they are named.
        roles: for each split, the stored split that is used for it.
        report: called with every problem that leaves some data usable; without it they are raised.
        fields: fields of `Task`.

    Raises:
        BadData: names the folder or class which is wrong.
    """
    layout = find_layout(path, unused=list(roles or ()))
    top, _ = split_reference(path)
    splits = assign_roles(
        {split: _list_classes(folders) for split, folders in layout.splits.items()}, roles or {}
    )
    _check_structure(layout, splits, str(top))
    problems = list(_find_problems(splits))
    if problems and report is None:
        names_of_others = ", ".join(where for where, _ in problems[1 : 1 + MAX_SHOWN])
        more = f" and {len(problems) - 1 - MAX_SHOWN} more" if len(problems) - 1 > MAX_SHOWN else ""
        also = f"; also wrong: {names_of_others}{more}" if names_of_others else ""
        raise BadData(f"{' '.join(problems[0])}{also}")
    for where, problem in problems:
        assert report is not None
        report(where, problem)
    names = [name for name in sorted(splits["train"].classes) if splits["train"].pictures(name)]
    labelled = {split: _label(part, names) for split, part in splits.items()}
    notes = (*fields.get("notes", ()), *layout.notes, *_describe(splits.values()))
    stamp = FileStamp(
        tuple(
            (os.path.relpath(file, top), file)
            for part in labelled.values()
            for file in _list_paths(part)
        ),
        partial(list_facts, names, {split: part.labels for split, part in labelled.items()}),
    )
    return assemble_task(
        f"folder:{path}", labelled, names, **{"stamp": stamp, **fields, "notes": notes}
    )


def _list_paths(part: Labelled) -> tuple[str, ...]:
    return part.rows.paths if isinstance(part.rows, Files) else ()


def _list_classes(folders: Sequence[Path]) -> ClassFolders:
    """List the class folders of a split.

    Names that differ only in their Unicode form are one class.
    """
    content = ClassFolders()
    for folder in folders:
        for entry in scan_folder(folder):
            if is_folder(entry):
                listing = list_pictures(entry.path)
                content.classes.setdefault(normalize_name(entry.name), []).append(
                    (Path(entry.path), listing)
                )
                content.dangling.extend(listing.dangling)
            elif entry.is_symlink() and not os.path.exists(entry.path):
                content.dangling.append(entry.path)
            elif is_picture(entry.path):
                content.loose.append(entry.path)
    return content


def _check_structure(layout: Layout, splits: Mapping[str, ClassFolders], top: str) -> None:
    """Check that a split with images has class folders, and that these do not look like splits.

    Raises `BadData` otherwise.
    """
    for part in splits.values():
        if not part.classes and part.loose:
            loose = Path(part.loose[0])
            raise NoLabels(
                f"{loose.parent} contains images ({loose.name}) but no class folders; sort them "
                "into one folder for each class"
            )
        if not layout.is_named:
            subfolders = {
                str(path): _find_subfolder_names(path, listing)
                for parts in part.classes.values()
                for path, listing in parts
            }
            check_shared_names(
                {path: names for path, names in subfolders.items() if names is not None},
                layout,
                top,
            )
    if not splits["train"].classes:
        folder = next(iter(layout.splits.values()))[0]
        text = next((path.name for path in sorted(folder.glob("*.txt"))), None)
        if text is not None:
            raise NoLabels(
                f"{folder} contains texts ({text}) but no class folders; sort them into one folder "
                "for each class"
            )
        raise BadData(
            f"{folder} has no class folders with images; "
            f"{_suggest_tables(folder) or 'give it a subfolder for each class'}"
        )


def _suggest_tables(folder: Path) -> str:
    """Return a hint to write csv:FOLDER if there are tables in a folder, else ""."""
    kinds = {KIND_OF.get(path.suffix.lower()) for path in folder.iterdir() if path.is_file()}
    kind = next((kind for kind in TABLES if kind in kinds), None)
    return f"did you mean {kind}:{quote_word(str(folder))}?" if kind else ""


def _find_subfolder_names(path: Path, listing: Listing) -> set[str] | None:
    """Return the names of the subfolders with images; None if there are no images at all."""
    if not listing.pictures:
        return None
    parts = [file[len(str(path)) + 1 :].split(os.sep) for file in listing.pictures]
    return {first for first, *rest in parts if rest}


def _find_problems(splits: Mapping[str, ClassFolders]) -> Iterable[tuple[str, str]]:
    """Yield each folder or file that is wrong, with the problem and the remedy."""
    train = splits["train"].classes
    for name in sorted(train):
        if not splits["train"].pictures(name):
            path, listing = train[name][0]
            only = f", only {listing.left_out[0]}" if listing.left_out else ""
            yield f"class folder {path}", f"has 0 images{only}; add some or remove it"
    for split, part in splits.items():
        for name in sorted(set(part.classes) - set(train)):
            if part.pictures(name):
                path = part.classes[name][0][0]
                yield (
                    f"class folder {path}",
                    f"is in {split} but not in train; add training images of {name!r} or remove it",
                )
        for link in part.dangling:
            yield (
                f"link {link}",
                f"is broken (it leads to {os.readlink(link)}); correct or remove it",
            )


def _describe(splits: Iterable[ClassFolders]) -> list[str]:
    """Return one line about left-out files, and one about images in no class folder."""
    parts = list(splits)
    lines = [describe_left_out([file for part in parts for file in part.left_out()])]
    loose = [file for part in parts for file in part.loose]
    if loose:
        lines.append(
            f"{count_noun(len(loose), 'image')} outside of class folders left out; first: "
            f"{loose[0]}"
        )
    return list(filter(None, lines))


def _label(part: ClassFolders, names: Sequence[str]) -> Labelled:
    """Return the images of these classes, labelled by the index of their class."""
    pictures = [part.pictures(name) for name in names]
    labels = np.repeat(np.arange(len(names), dtype=np.int64), [len(files) for files in pictures])
    return Labelled(Files(tuple(file for files in pictures for file in files)), labels)


def list_left_out(left_out: Sequence[str]) -> tuple[str, ...]:
    """Return a note about files that are not images, if there are any."""
    return tuple(filter(None, [describe_left_out(left_out)]))


def list_subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones."""
    return [Path(entry.path) for entry in scan_folder(folder) if is_folder(entry)]


def label_images(class_folders: Sequence[Path]) -> tuple[Labelled, list[str]]:
    """Return the images of each class folder, labelled by its index, and the other files in them.

    Raises `BadData` for folders without images.
    """
    listings = [list_pictures(folder) for folder in class_folders]
    empty = [
        folder
        for folder, listing in zip(class_folders, listings, strict=True)
        if not listing.pictures
    ]
    if empty:
        more = (
            f"; also empty: {', '.join(folder.name for folder in empty[1:])}" if empty[1:] else ""
        )
        raise BadData(f"class folder {empty[0]} contains no images{more}; add some or remove it")
    dangling = [link for listing in listings for link in listing.dangling]
    if dangling:
        raise BadData(f"link {dangling[0]} is broken; correct or remove it")
    labels = np.repeat(
        np.arange(len(listings), dtype=np.int64), [len(listing.pictures) for listing in listings]
    )
    files = Files(tuple(file for listing in listings for file in listing.pictures))
    return Labelled(files, labels), [file for listing in listings for file in listing.left_out]
