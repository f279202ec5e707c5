"""Open the tasks of VTAB-1k: from a folder with lists of images, or from copies on the Hub.

In a folder, each line of `train800.txt`, `val200.txt` and `test.txt` names an image, relative to
the folder, and the number of its class: these are the images of the publications. The copies on the
Hub do not keep the order by which VTAB takes its first images. There 1,000 training images are
drawn with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from learngene_zoo.plugin import (
    BadData,
    Files,
    Labelled,
    Task,
    assemble_from_tables,
    assemble_task,
    derive_seed,
    draw_uniform,
    load_hub_tables,
)
from lgzoo_vtab.places import TRAIN, VALIDATION, Row, find_folder, find_source

if TYPE_CHECKING:
    from learngene_zoo.plugin import HubSource

LISTS = {"train": "train800.txt", "validation": "val200.txt", "test": "test.txt"}
DRAWN = (
    "1,000 training images of the Hub's copy, drawn with a fixed seed; not those of VTAB's lists"
)
LABEL = "cls"  # the label column of the Hub's copies
MAX_LINES = 1_000_000


def open_row(row: Row, offline: bool) -> Task:
    """Open a task.

    Raises:
        BadData: if the data is not as expected.
        Unavailable: if the data is neither in a folder nor on the Hub.
    """
    folder = find_folder(row)
    task = _open_folder(row, folder) if folder else _open_hub(row, find_source(row), offline)
    if task.classes != row.entry.classes:
        raise BadData(
            f"{task.source} has {task.classes} classes, but {row.entry.name} has "
            f"{row.entry.classes}"
        )
    return task


def _list_fields(row: Row, source: str, **more: Any) -> dict[str, Any]:
    entry = row.entry
    return {
        "name": entry.name,
        "title": entry.title,
        "flip": entry.flip,
        "image_size": entry.image_size,
        "licence": entry.licence,
        "source": source,
        **more,
    }


def _open_folder(row: Row, folder: Path) -> Task:
    stored = {split: read_list(folder, name) for split, name in LISTS.items()}
    highest = max(int(labelled.labels.max()) for labelled in stored.values())
    names = [str(number) for number in range(max(highest + 1, row.entry.classes))]
    fields = _list_fields(row, f"folder:{folder}")
    return assemble_task(row.entry.name, stored, names, may_lack_classes=True, **fields)


def read_list(folder: Path, name: str) -> Labelled:
    """Return the images of a list, and their classes.

    Args:
        folder: the task's folder.
        name: of the list in it.

    Raises:
        BadData: for a list that is missing or malformed, and for an image outside of the folder.
    """
    path = folder / name
    if not path.is_file():
        raise BadData(f"{folder} has no {name}; expected {', '.join(LISTS.values())} in it")
    top, paths, labels = folder.resolve(), [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        image, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not image or not label.isdecimal() or number > MAX_LINES:
            raise BadData(f"{path}, line {number}: expected an image and the number of its class")
        file = (top / image).resolve()
        if not file.is_relative_to(top):
            raise BadData(f"{path}, line {number}: the image lies outside of {folder}")
        paths.append(str(file))
        labels.append(int(label))
    if not paths:
        raise BadData(f"{path} names no image")
    return Labelled(Files(tuple(paths)), np.array(labels, dtype=np.int64))


def _open_hub(row: Row, source: HubSource, offline: bool) -> Task:
    with source.or_alternative():
        tables, known = load_hub_tables(source, offline)
    name = f"hf:{source.reference}"
    fields = _list_fields(row, name, revision=known["revision"], notes=(DRAWN,))
    if fields["licence"] == "unknown":
        fields["licence"] = known["licence"]
    splits = list_classes(draw_tables(row.entry.name, tables), row.entry.classes)
    return assemble_from_tables(name, splits, label=source.label, may_lack_classes=True, **fields)


def list_classes(splits: Mapping[str, Any], classes: int) -> dict[str, Any]:
    """Return tables whose feature of the labels lists all classes, also those without an image.

    Labels other than the numbers of the classes are left as they are.
    """
    from datasets import ClassLabel

    def has_numbers(table: Any) -> bool:
        column = table.features.get(LABEL)
        is_integer = str(getattr(column, "dtype", "")).startswith(("int", "uint"))
        return is_integer and not isinstance(column, ClassLabel) and max(table[LABEL]) < classes

    if not all(has_numbers(table) for table in splits.values()):
        return dict(splits)
    feature = ClassLabel(names=[str(number) for number in range(classes)])
    return {split: table.cast_column(LABEL, feature) for split, table in splits.items()}


def draw_tables(name: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return training, validation and test table: 800 and 200 images drawn with a fixed seed.

    Args:
        name: of the task, of which the draw is a function.
        tables: the stored splits.

    Raises:
        BadData: for stored splits other than train and test, and for too few training images.
    """
    missing = [split for split in ("train", "test") if split not in tables]
    if missing:
        raise BadData(f"{name} has no {missing[0]} split, only {', '.join(sorted(tables))}")
    train = tables["train"]
    if len(train) < TRAIN + VALIDATION:
        raise BadData(f"{name} has {len(train)} training images; expected at least 1,000")
    draws = draw_uniform(derive_seed(0, "vtab", name), range(len(train)), 1)[:, 0]
    order = np.argsort(draws, kind="stable")
    return {
        "train": train.select(np.sort(order[:TRAIN])),
        "validation": train.select(np.sort(order[TRAIN : TRAIN + VALIDATION])),
        "test": tables["test"],
    }
