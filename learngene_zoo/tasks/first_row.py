"""The first row of a task: its columns, and what is missing. Of data on the Hub only that row is downloaded."""

from typing import Any

import torch

from learngene_zoo.errors import BadData
from learngene_zoo.tasks import catalogue, hub_data
from learngene_zoo.tasks.images import decoded, decoded_indices, read
from learngene_zoo.tasks.labels import find_scalar, read_label
from learngene_zoo.tasks.splits import in_roles
from learngene_zoo.tasks.streams.order import Order, shown
from learngene_zoo.tasks.tables import check_column, columns, name_splits
from learngene_zoo.tasks.task import SPLITS, Entry, HubSource, Task
from learngene_zoo.tasks.transforms import checked

Row = dict[str, Any]


def first_row(reference: str, offline: bool) -> Row:
    """What a task's first row shows: columns and their types, sizes, and `missing`, empty if nothing is.

    Raises `ZooError`, saying what to do, if the data is not available or cannot be read.
    """
    entry = catalogue.find_entry(reference)
    source = _on_hub(reference, entry)
    if source is None or hub_data.is_offline(offline):
        return _opened(catalogue.open_task(reference, offline=offline))
    return _streamed(reference, source, entry)


def _on_hub(reference: str, entry: Entry | None) -> HubSource | None:
    """Where on the Hub a task would be read from; None if it is found on this machine."""
    kind, _, rest = reference.partition(":")
    if kind in ("hf", "hf-stream") and rest:
        return HubSource(reference=rest)
    return catalogue.suite_of(entry).hub(entry) if entry else None


def _opened(task: Task) -> Row:
    """Of data on this machine: its sizes, and the first training image with its label or mask."""
    if task.open_stream is None:
        split = task.split("train")
        got, label = split.__getitems__([0]), int(split.labels[0])
    else:
        stream = task.stream("train")
        _, sample = next(shown(stream, stream.counts, Order(seed=0, window=None), 0, lambda places: places == 0))
        got, label = read([sample]), sample.label
    samples = checked(got, task, [0])
    image = samples.images[0]
    row: Row = {"task": task.name, "source": task.source, "classes": task.classes}
    row |= {part: task.sizes[part] for part in SPLITS}
    row["columns"] = [f"image: {_type(image)}"]
    row["first_image"] = _shape(image)
    if samples.masks is not None:
        row["columns"].append(f"mask: {_type(samples.masks[0])}")
        row["first_mask"] = _mask_facts(samples.masks[0])
    else:
        row["columns"].append(f"label: one of {task.classes}")
        row |= {"first_label": label, "first_class": task.class_names[label]}
    if samples.attributes is not None:
        kinds = {part.name: f"one of {part.classes}" if part.classes else "number" for part in task.attributes}
        row["columns"] += [f"{name}: {kind}" for name, kind in kinds.items()]
    return {**row, "licence": task.licence, "revision": task.revision, "notes": list(task.notes), "missing": []}


def _streamed(reference: str, source: HubSource, entry: Entry | None) -> Row:
    """Of data on the Hub: its features, and its first row, which alone is downloaded."""
    name = f"hf:{source.reference}"
    with source.or_alternative():
        stream = hub_data.streamed(source)
    parts = in_roles(name_splits(stream.splits), source.roles)
    missing = [] if "train" in parts else [f"no train split, only {', '.join(stream.splits)}; name one of them train"]
    features, first = hub_data.first_of(next(iter(parts.values())) if missing else parts["train"], source.reference)
    row: Row = {"task": reference, "source": name, "splits": stream.sizes}
    row["columns"] = [f"{column}: {_feature(kind)}" for column, kind in features.items()]
    try:
        if entry is not None and entry.kind == "segmentation":
            row |= _masks_of(features, first, name)
        else:
            row |= _label_of(features, first, source.label, name)
    except BadData as error:
        missing.append(str(error))
    if entry is not None and row.get("classes") not in (None, entry.classes, *source.also_classes):
        missing.append(f"{row['classes']} classes where {entry.name} has {entry.classes}; use it as {name}")
    licence = stream.licence if stream.licence != "unknown" or entry is None else entry.licence
    notes = list(entry.notes) if entry else []
    return {**row, "licence": licence, "revision": stream.commit, "notes": notes, "missing": missing}


def _label_of(features: Any, first: Row, label_column: str | None, name: str) -> Row:
    image, label = columns(features, name, label_column)
    names = getattr(find_scalar(features[label]), "names", None)
    try:
        value = read_label(first[label])
    except ValueError as error:
        raise BadData(f"{name} row 0: column {label!r} {error}") from None
    return {
        "image_column": image,
        "label_column": label,
        "classes": len(names) if names else None,
        "first_image": _shape(decoded(first[image], f"{name} row 0")),
        "first_label": value,
        "first_class": names[value] if names and isinstance(value, int) and 0 <= value < len(names) else str(value),
    }


def _masks_of(features: Any, first: Row, name: str) -> Row:
    for column in ("image", "mask"):
        check_column(features, column, name)
    shape = _shape(decoded(first["image"], f"{name} row 0"))
    mask = torch.from_numpy(decoded_indices(first["mask"], f"{name} row 0"))
    return {"image_column": "image", "mask_column": "mask", "first_image": shape, "first_mask": _mask_facts(mask)}


def _shape(image: torch.Tensor) -> str:
    return "x".join(map(str, image.shape))


def _type(image: torch.Tensor) -> str:
    return f"{str(image.dtype).removeprefix('torch.')} {_shape(image)}"


def _mask_facts(mask_HW: torch.Tensor) -> str:
    values = mask_HW.unique().tolist() if mask_HW.ndim == 2 else ["colours"]
    shown = ",".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")
    return f"{_shape(mask_HW)} with values {shown}"


def _feature(kind: Any) -> str:
    """A column's type in few words: `Image`, `ClassLabel of 10`, `int64`."""
    names = getattr(kind, "names", None)
    if names:
        return f"{type(kind).__name__} of {len(names)}"
    dtype = getattr(kind, "dtype", None)
    return str(dtype) if type(kind).__name__ == "Value" and dtype else type(kind).__name__
