"""The Visual Decathlon's annotations: JSON as COCO's, with `images`, `annotations` and `categories`, one label a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from learngene_zoo.errors import BadData

LISTS = ("images", "annotations", "categories")


class Annotated(NamedTuple):
    """What a file of annotations says: pictures, their labels int64 (N,), and the names of the classes by label."""

    files: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]


def read_annotations(path: Path) -> Annotated:
    """What this file says. Raises `BadData` that names the file and what in it is wrong."""
    images, annotations, categories = _lists(path)
    try:
        number = {category["id"]: place for place, category in enumerate(categories)}
        classes = tuple(str(category.get("name", category["id"])) for category in categories)
        labels = {annotation["image_id"]: number[annotation["category_id"]] for annotation in annotations}
        files = {image["id"]: str(image["file_name"]) for image in images}
    except KeyError as error:
        raise BadData(f"{path} has no {error}, or speaks of one it does not list; unpack the devkit anew") from None
    except (TypeError, AttributeError):
        raise BadData(f"{path} holds something else than objects in its lists; unpack the devkit anew") from None
    _check(path, (number, labels, files), (categories, annotations, images))
    return Annotated(tuple(files.values()), np.array([labels[key] for key in files], dtype=np.int64), classes)


def same_classes(one: Annotated, other: Annotated, paths: Sequence[Path]) -> None:
    """Raises `BadData` if two splits do not list the same classes in the same order, or share a picture."""
    if one.classes != other.classes:
        pairs = zip((*one.classes, None), (*other.classes, None), strict=False)
        first = next(pair for pair in pairs if pair[0] != pair[1])
        raise BadData(
            f"{paths[0]} and {paths[1]} list different classes ({first[0]!r}, {first[1]!r}); unpack them anew"
        )
    shared = set(one.files) & set(other.files)
    if shared:
        raise BadData(f"{min(shared)} is in {paths[0]} and in {paths[1]}; unpack the devkit anew")


def _lists(path: Path) -> list[list[Any]]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadData(f"there is no {path}; unpack the devkit there") from None
    except (OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read as JSON ({str(error)[:80]}); unpack the devkit anew") from None
    lists = []
    for key in LISTS:
        found = content.get(key) if isinstance(content, dict) else None
        if not isinstance(found, list) or not found:
            raise BadData(f"{path} has no list of {key}; unpack the devkit anew")
        lists.append(found)
    return lists


def _check(path: Path, found: Sequence[dict[Any, Any]], listed: Sequence[list[Any]]) -> None:
    """Raises `BadData` for a name that is there twice, and for pictures without a label."""
    _, labels, files = found
    for key, by_id, entries in zip(("category", "annotation of picture", "picture"), found, listed):
        if len(by_id) < len(entries):
            raise BadData(f"{path} lists a {key} twice; unpack the devkit anew")
    if len(set(files.values())) < len(files):
        raise BadData(f"{path} lists a file twice; unpack the devkit anew")
    outside = next((name for name in files.values() if {"..", "/"} & set(PurePosixPath(name).parts)), None)
    if outside:
        raise BadData(f"{path} lists {outside}, which is outside of its folder; unpack the devkit anew")
    bare = next((name for key, name in files.items() if key not in labels), None)
    if bare:
        raise BadData(f"{path} has no label for {bare}; unpack the devkit anew")
