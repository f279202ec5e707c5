"""A data set of the papers, from wherever it is had: the user's own folder, the Decathlon's archive, or the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.plugin import (
    BadData,
    Task,
    Unavailable,
    known_splits,
    labelled,
    noted,
    open_folder,
    rows_of,
    subfolders,
    task_of,
    task_of_tables,
)
from learngene_zoo.tasks import hub_data
from lgzoo_papers.decathlon import PREFIX, open_archive
from lgzoo_papers.masks import VOC_CLASSES, Pairs, Reading, open_ade20k, open_voc, task_of_masks
from lgzoo_papers.places import NO_TEST, Place, archive, place_of

if TYPE_CHECKING:
    from learngene_zoo.plugin import Entry


def open_named(entry: Entry, offline: bool) -> Task:
    """The task of this catalogue entry.

    Raises `Unavailable`, saying where to get it, if it is nowhere; `BadData` if what is there is not what it should be.
    """
    place = place_of(entry.name)
    assert place is not None, f"{entry.name} is in the catalogue and in no place"
    folder, archived = place.folder(), archive() if entry.name.startswith(PREFIX) else None
    if folder is not None:
        task, where = _from_folder(entry, place, folder), str(folder)
    elif archived is not None:
        fields = _fields(entry, source=entry.source, notes=(NO_TEST,))
        task, where = open_archive(entry, archived, **fields), str(archived)
    elif place.hub is not None:
        task, where = _from_hub(entry, place, offline), f"the Hub's {place.hub}"
    else:
        raise Unavailable(f"{entry.name} cannot be downloaded: {place.advice}")
    if task.classes not in (entry.classes, *place.also_classes):
        raise BadData(
            f"{where} has {task.classes} classes and {entry.name} has {entry.classes}; "
            "correct it, or use it under its own name (folder:PATH, hf:org/name)"
        )
    return task


def _fields(entry: Entry, **more: Any) -> dict[str, Any]:
    """What the catalogue says of the task."""
    return {
        "name": entry.name,
        "title": entry.title,
        "flip": entry.flip,
        "image_size": entry.image_size,
        "licence": entry.licence,
        **more,
    }


def _from_folder(entry: Entry, place: Place, folder: Path) -> Task:
    notes = (place.note,) if place.note and "test" in place.roles else ()
    fields = _fields(entry, source=f"folder:{folder}", notes=notes)
    if place.layout == "ade20k":
        return open_ade20k(entry, place, folder, **fields)
    if place.layout == "voc":
        return open_voc(entry, place, folder, **fields)
    if place.layout == "inaturalist":
        return _open_inaturalist(entry, place, folder, **fields)
    return open_folder(str(folder), place.roles, **fields)


def _open_inaturalist(entry: Entry, place: Place, top: Path, **fields: Any) -> Task:
    """2019/<group>/<class>/*.jpg, as torchvision unpacks it; the classes are numbered over all groups."""
    base = top / "2019" if (top / "2019").is_dir() else top
    classes = [folder for group in subfolders(base) for folder in subfolders(group)]
    odd = next((folder for folder in classes if not folder.name.isdecimal()), None)
    if odd or not classes:
        raise BadData(f"{odd or base} is no 2019/<group>/<class number>; give the folder that train_val2019 is in")
    classes.sort(key=lambda folder: int(folder.name))
    found, strays = labelled(classes)
    names = [f"{folder.parent.name}/{folder.name}" for folder in classes]
    return task_of(entry.name, {"train": found}, names, **{**fields, "notes": (place.note, *noted(strays))})


def _from_hub(entry: Entry, place: Place, offline: bool) -> Task:
    assert place.hub is not None
    with place.or_a_folder():
        tables, known = hub_data.stored(place.hub, offline, place.pin)
    name = f"hf:{place.hub}"
    licence = known["licence"] if entry.licence == "unknown" else entry.licence
    notes = (place.note,) if place.note else ()
    fields = _fields(entry, source=name, revision=known["revision"], notes=notes) | {"licence": licence}
    if entry.kind == "segmentation":
        splits = known_splits(name, tables, place.roles)
        pairs = {split: _pairs(table, f"{name} {split}") for split, table in splits.items()}
        return task_of_masks(name, pairs, VOC_CLASSES, Reading(entry.classes), **fields)
    return task_of_tables(name, tables, roles=place.roles, label=place.label, **fields)


def _pairs(table: Any, name: str) -> Pairs:
    return Pairs(rows_of(table, "image", name), rows_of(table, "mask", name))
