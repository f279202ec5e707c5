"""Read the first row of a task: its columns and problems.

For data on the Hub only that row is downloaded.
"""

from typing import Any

import torch

from learngene_zoo.errors import BadData
from learngene_zoo.tasks import catalogue, hub_data
from learngene_zoo.tasks.images import decode_image, decode_indices, decode_samples
from learngene_zoo.tasks.labels import find_scalar, read_label
from learngene_zoo.tasks.splits.assembly import assign_roles
from learngene_zoo.tasks.streams.order import EpochOrder, iterate_shown
from learngene_zoo.tasks.tables import check_column, find_columns, name_splits
from learngene_zoo.tasks.task import SPLITS, Entry, HubSource, Task
from learngene_zoo.tasks.texts.tables import (
    check_text_columns,
    find_label_column,
    find_text_columns,
    is_text_table,
)
from learngene_zoo.tasks.transforms import check_samples
from learngene_zoo.tasks.unlabelled.opening import open_with_or_without_labels

Row = dict[str, Any]
MAX_LETTERS = 80  # of a text


def read_first_row(reference: str, offline: bool) -> Row:
    """Return facts about a task's first row: columns, types, sizes, and a list `missing`.

    `missing` is empty if the task can be used. Raises `ZooError` that names the remedy if the data
    is not available or cannot be read.
    """
    entry = catalogue.find_entry(reference)
    source = _find_hub_source(reference, entry)
    if source is None or hub_data.is_offline(offline):
        task, reason = open_with_or_without_labels(reference, offline=offline)
        row = _read_local(task)
        return {**row, "notes": [*row["notes"], f"no labels: {reason}"]} if reason else row
    return _read_streamed(reference, source, entry)


def _find_hub_source(reference: str, entry: Entry | None) -> HubSource | None:
    """Return the source on the Hub that a task would be read from; None for local data."""
    kind, _, rest = reference.partition(":")
    if kind in ("hf", "hf-stream") and rest:
        return HubSource(reference=rest)
    return catalogue.find_suite_of(entry).hub(entry) if entry else None


def _read_local(task: Task) -> Row:
    """Return the sizes of data on this machine, and its first training image with label or mask."""
    if task.is_text:
        return _describe_texts(task)
    if task.open_stream is None:
        split = task.split("train")
        got, label = split.__getitems__([0]), int(split.labels[0])
    else:
        stream = task.stream("train")
        _, sample = next(
            iterate_shown(
                stream,
                stream.counts,
                EpochOrder(seed=0, window=None),
                0,
                lambda places: places == 0,
            )
        )
        got, label = decode_samples([sample]), sample.label
    samples = check_samples(got, task, [0])
    image = samples.images[0]
    row: Row = {"task": task.name, "source": task.source, "classes": _count_classes(task)}
    row |= {part: task.sizes[part] for part in SPLITS}
    row["columns"] = [f"image: {_describe_type(image)}"]
    row["first_image"] = _describe_shape(image)
    if samples.masks is not None:
        row["columns"].append(f"mask: {_describe_type(samples.masks[0])}")
        row["first_mask"] = _describe_mask(samples.masks[0])
    elif task.is_labelled:
        row["columns"].append(f"label: one of {task.classes}")
        row |= {"first_label": label, "first_class": task.class_names[label]}
    if samples.attributes is not None:
        kinds = {
            part.name: f"one of {part.classes}" if part.classes else "number"
            for part in task.attributes
        }
        row["columns"] += [f"{name}: {kind}" for name, kind in kinds.items()]
    return {
        **row,
        "licence": task.licence,
        "revision": task.revision,
        "notes": list(task.notes),
        "missing": [],
    }


def _count_classes(task: Task) -> int:
    return task.classes if task.is_labelled else 0


def _describe_texts(task: Task) -> Row:
    """Return the sizes of a text task, and its first training text with label."""
    split = task.split("train")
    text, label = split.__getitems__([0])[0], int(split.labels[0])
    parts = [text] if isinstance(text, str) else list(text)
    columns = ["text"] if isinstance(text, str) else ["first text", "second text"]
    labels = {"first_label": label, "first_class": task.class_names[label]}
    return {
        "task": task.name,
        "source": task.source,
        "classes": _count_classes(task),
        **{part: task.sizes[part] for part in SPLITS},
        "columns": [
            *(f"{column}: text" for column in columns),
            *([f"label: one of {task.classes}"] if task.is_labelled else []),
        ],
        "first_text": " / ".join(part[:MAX_LETTERS] for part in parts),
        **(labels if task.is_labelled else {}),
        "licence": task.licence,
        "revision": task.revision,
        "notes": list(task.notes),
        "missing": [],
    }


def _read_streamed(reference: str, source: HubSource, entry: Entry | None) -> Row:
    """Return the features of data on the Hub, and its first row, without downloading the rest."""
    name = f"hf:{source.reference}"
    with source.or_alternative():
        stream = hub_data.stream_splits(source)
    parts = assign_roles(name_splits(stream.splits), source.roles)
    missing = (
        []
        if "train" in parts
        else [f"no train split, only {', '.join(stream.splits)}; name one of them train"]
    )
    features, first = hub_data.read_first_row(
        next(iter(parts.values())) if missing else parts["train"], source.reference
    )
    row: Row = {"task": reference, "source": name, "splits": stream.sizes}
    row["columns"] = [f"{column}: {_describe_feature(kind)}" for column, kind in features.items()]
    try:
        if entry is not None and entry.kind == "segmentation":
            row |= _describe_masks(features, first, name)
        else:
            row |= _describe_label(features, first, source.label, name)
    except BadData as error:
        missing.append(str(error))
    if entry is not None and row.get("classes") not in (None, entry.classes, *source.also_classes):
        missing.append(
            f"{row['classes']} classes where {entry.name} has {entry.classes}; use it as {name}"
        )
    licence = stream.licence if stream.licence != "unknown" or entry is None else entry.licence
    notes = list(entry.notes) if entry else []
    return {
        **row,
        "licence": licence,
        "revision": stream.commit,
        "notes": notes,
        "missing": missing,
    }


def _describe_label(features: Any, first: Row, label_column: str | None, name: str) -> Row:
    if is_text_table(features):
        label = label_column or find_label_column(features, name)
        columns = find_text_columns(features, label, name)
        check_text_columns(features, columns, name)
        inputs: Row = {"text_columns": list(columns)}
        texts = " / ".join(str(first[column])[:MAX_LETTERS] for column in columns)
        sample = {"first_text": texts}
    else:
        image, label = find_columns(features, name, label_column)
        inputs = {"image_column": image}
        shape = _describe_shape(decode_image(first[image], f"{name} row 0"))
        sample = {"first_image": shape}
    names = getattr(find_scalar(features[label]), "names", None)
    try:
        value = read_label(first[label])
    except ValueError as error:
        raise BadData(f"{name} row 0: column {label!r} {error}") from None
    return {
        **inputs,
        "label_column": label,
        "classes": len(names) if names else None,
        **sample,
        "first_label": value,
        "first_class": names[value]
        if names and isinstance(value, int) and 0 <= value < len(names)
        else str(value),
    }


def _describe_masks(features: Any, first: Row, name: str) -> Row:
    for column in ("image", "mask"):
        check_column(features, column, name)
    shape = _describe_shape(decode_image(first["image"], f"{name} row 0"))
    mask = torch.from_numpy(decode_indices(first["mask"], f"{name} row 0"))
    return {
        "image_column": "image",
        "mask_column": "mask",
        "first_image": shape,
        "first_mask": _describe_mask(mask),
    }


def _describe_shape(image: torch.Tensor) -> str:
    return "x".join(map(str, image.shape))


def _describe_type(image: torch.Tensor) -> str:
    return f"{str(image.dtype).removeprefix('torch.')} {_describe_shape(image)}"


def _describe_mask(mask_HW: torch.Tensor) -> str:
    values = mask_HW.unique().tolist() if mask_HW.ndim == 2 else ["colours"]
    text = ",".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")
    return f"{_describe_shape(mask_HW)} with values {text}"


def _describe_feature(kind: Any) -> str:
    """Return a column's type in short form: `Image`, `ClassLabel of 10`, `int64`."""
    names = getattr(kind, "names", None)
    if names:
        return f"{type(kind).__name__} of {len(names)}"
    dtype = getattr(kind, "dtype", None)
    return str(dtype) if type(kind).__name__ == "Value" and dtype else type(kind).__name__
