"""Small copies of the papers' data sets, each in the layout of its source."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZE = (20, 12)  # width and height


def picture(number: int, mode: str = "RGB", size: tuple[int, int] = SIZE) -> Image.Image:
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    return Image.fromarray(
        np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8), mode
    )


def encode(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "png")
    return stream.getvalue()


def class_folders(top: Path, classes: Sequence[str], count: int, suffix: str = ".jpg") -> Path:
    for name in classes:
        (top / name).mkdir(parents=True)
        for number in range(count):
            picture(number).save(top / name / f"{number:04}{suffix}")
    return top


def decathlon(top: Path, name: str, classes: int, train: int, val: int) -> Path:
    """Write annotations/ and data/ as in the unpacked archives; every class is in both splits."""
    base = top / "decathlon-1.0"
    (base / "annotations").mkdir(parents=True, exist_ok=True)
    for offset, (split, count) in enumerate((("train", train), ("val", val))):
        # Names of the archive: the class folder begins at 0001, and ids have eight digits.
        files = [
            f"data/{name}/{split}/{number % classes + 1:04}/{number:06}.jpg"
            for number in range(count)
        ]
        for number, file in enumerate(files):
            (base / file).parent.mkdir(parents=True, exist_ok=True)
            picture(number + 100 * offset).save(base / file)
        first = 10_000_000 * (offset + 1)
        write_annotations(
            base, name, split, files, [number % classes for number in range(count)], classes, first
        )
    (base / "annotations" / f"{name}_test_stripped.json").write_text(json.dumps({"images": []}))
    return base


def write_annotations(
    base: Path,
    name: str,
    split: str,
    files: Sequence[str],
    labels: Sequence[int],
    classes: int,
    first: int = 1,
) -> Path:
    content = {
        "info": {"description": name},
        "images": [
            {"id": first + number, "file_name": file, "width": 20, "height": 12}
            for number, file in enumerate(files)
        ],
        "annotations": [
            {"id": first + number, "image_id": first + number, "category_id": 10_001 + label}
            for number, label in enumerate(labels)
        ],
        "categories": [{"id": 10_001 + label, "name": f"kind {label}"} for label in range(classes)],
    }
    path = base / "annotations" / f"{name}_{split}.json"
    path.write_text(json.dumps(content))
    return path


def parquet(
    folder: Path, splits: Mapping[str, int], columns: Mapping[str, Any], names: Sequence[str] | None
) -> Path:
    """Write a data set of the Hub: data/SPLIT-00000-of-00001.parquet with an `image` and `columns`.

    A column is "class" (a `ClassLabel` of `names`), "text" (one of `names`), "number" or "mask".
    """
    from datasets import ClassLabel, Dataset, Features, Value, disable_progress_bars
    from datasets import Image as ImageFeature

    disable_progress_bars()
    (folder / "data").mkdir(parents=True, exist_ok=True)
    kinds = {
        "class": ClassLabel(names=list(names or ["-"])),
        "text": Value("string"),
        "number": Value("int64"),
    }
    kinds |= {"mask": ImageFeature(), "image": ImageFeature()}
    for split, count in splits.items():
        rows: dict[str, list[Any]] = {}
        for column, kind in columns.items():
            rows[column] = [_cell(kind, number, names or ["-"]) for number in range(count)]
        features = Features({column: kinds[kind] for column, kind in columns.items()})
        Dataset.from_dict(rows, features=features).to_parquet(
            folder / "data" / f"{split}-00000-of-00001.parquet"
        )
    return folder


def _cell(kind: str, number: int, names: Sequence[str]) -> Any:
    if kind == "image":
        return {"bytes": encode(picture(number)), "path": None}
    if kind == "mask":
        return {"bytes": encode(palette_mask(mask_values(number, 21))), "path": None}
    return names[number % len(names)] if kind == "text" else number % len(names)


def mask_values(number: int, classes: int) -> np.ndarray:
    """Return the values of a mask, uint8 (12, 20): some classes, and a border of 255."""
    values = np.random.default_rng(number).integers(0, classes, (SIZE[1], SIZE[0]), dtype=np.uint8)
    values[0] = 255
    return values


def palette_mask(values: np.ndarray) -> Image.Image:
    from lgzoo_papers.masks import list_voc_colours

    image = Image.fromarray(values, "P")
    image.putpalette(list_voc_colours().flatten().tolist())
    return image
