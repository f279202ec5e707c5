"""Open a data set of the papers from the user's folder, the Decathlon's archive, or the Hub."""

from pathlib import Path
from typing import Any

from learngene_zoo.plugin import (
    BadData,
    Entry,
    HubSource,
    Task,
    Unavailable,
    assemble_from_tables,
    assemble_task,
    label_images,
    list_left_out,
    list_subfolders,
    load_hub_tables,
    make_rows,
    open_folder,
    open_hub,
    select_known_splits,
)
from lgzoo_papers.decathlon import open_archive
from lgzoo_papers.fashion_mnist import open_fashion_mnist
from lgzoo_papers.masks import (
    VOC_CLASSES,
    Pairs,
    Reading,
    assemble_from_masks,
    open_ade20k,
    open_voc,
)
from lgzoo_papers.places import NO_TEST, Place


def open_from(place: Place, entry: Entry, offline: bool) -> Task:
    """Open the task of a catalogue entry whose data is at `place`.

    Raises:
        Unavailable: if the data is not found; the message says where to get it.
        BadData: if the data is not as expected.
    """
    if place.layout is None:
        return open_hub(entry.source, offline, entry)
    folder, archive, source = place.folder(), place.archive(), place.hub_source()
    if place.layout == "idx":
        return open_fashion_mnist(entry, folder, offline)
    if folder is not None:
        task, where = _open_from_folder(entry, place, folder), str(folder)
    elif archive is not None:
        fields = _list_fields(entry, source=entry.source, notes=(NO_TEST,))
        task, where = open_archive(entry, place.archived, archive, **fields), str(archive)
    elif source is not None:
        task, where = _open_from_hub(entry, source, offline), f"the Hub's {source.reference}"
    else:
        raise Unavailable(f"{entry.name} cannot be downloaded: {place.advice}")
    if task.classes not in (entry.classes, *place.also_classes):
        raise BadData(
            f"{where} has {task.classes} classes, but {entry.name} has {entry.classes}; "
            "correct it, or use it under its own name (folder:PATH, hf:org/name)"
        )
    return task


def _list_fields(entry: Entry, **more: Any) -> dict[str, Any]:
    """Return the fields of the task that the catalogue states, and `more`."""
    return {
        "name": entry.name,
        "title": entry.title,
        "flip": entry.flip,
        "image_size": entry.image_size,
        "licence": entry.licence,
        **more,
    }


def _open_from_folder(entry: Entry, place: Place, folder: Path) -> Task:
    fields = _list_fields(
        entry, source=f"folder:{folder}", notes=entry.notes if "test" in place.roles else ()
    )
    if place.layout == "ade20k":
        return open_ade20k(entry, place, folder, **fields)
    if place.layout == "voc":
        return open_voc(entry, place, folder, **fields)
    if place.layout == "inaturalist":
        return _open_inaturalist(entry, folder, **fields)
    return open_folder(str(folder), place.roles, **fields)


def _open_inaturalist(entry: Entry, top: Path, **fields: Any) -> Task:
    """Open 2019/<group>/<class>/*.jpg, as torchvision unpacks it.

    The classes are numbered over all groups.
    """
    base = top / "2019" if (top / "2019").is_dir() else top
    classes = [folder for group in list_subfolders(base) for folder in list_subfolders(group)]
    odd = next((folder for folder in classes if not folder.name.isdecimal()), None)
    if odd or not classes:
        raise BadData(
            f"{odd or base} is not 2019/<group>/<class number>; give the folder that contains"
            " train_val2019"
        )
    classes.sort(key=lambda folder: int(folder.name))
    found, strays = label_images(classes)
    names = [f"{folder.parent.name}/{folder.name}" for folder in classes]
    return assemble_task(
        entry.name,
        {"train": found},
        names,
        **{**fields, "notes": (*entry.notes, *list_left_out(strays))},
    )


def _open_from_hub(entry: Entry, source: HubSource, offline: bool) -> Task:
    with source.or_alternative():
        tables, known = load_hub_tables(source, offline)
    name = f"hf:{source.reference}"
    licence = known["licence"] if entry.licence == "unknown" else entry.licence
    fields = _list_fields(entry, source=name, revision=known["revision"], notes=entry.notes) | {
        "licence": licence
    }
    if entry.kind == "segmentation":
        pairs = {}
        for split, table in select_known_splits(name, tables, source.roles).items():
            where = f"{name} {split}"
            pairs[split] = Pairs(make_rows(table, "image", where), make_rows(table, "mask", where))
        return assemble_from_masks(name, pairs, VOC_CLASSES, Reading(entry.classes), **fields)
    return assemble_from_tables(name, tables, roles=source.roles, label=source.label, **fields)
