"""ADE20K's SceneParse150 and PASCAL VOC 2012 as their archives unpack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.folders import Files
from learngene_zoo.tasks.own_data import in_roles
from learngene_zoo.tasks.papers.masks import Pairs, Reading, task_of_masks
from learngene_zoo.tasks.papers.places import Place
from learngene_zoo.tasks.task import Task

if TYPE_CHECKING:
    from learngene_zoo.tasks.entry import Entry

ADE_SPLITS = {"training": "train", "validation": "validation"}
VOC_CLASSES = (
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)


def open_ade20k(entry: Entry, place: Place, top: Path, **fields: Any) -> Task:
    """images/{training,validation}/*.jpg with annotations/{training,validation}/*.png, whose value 0 is left out."""
    base = top / "ADEChallengeData2016" if (top / "ADEChallengeData2016").is_dir() else top
    found = {}
    for word, split in ADE_SPLITS.items():
        folder = base / "images" / word
        if not folder.is_dir():
            raise BadData(f"there is no {folder}; give the folder that holds images/ and annotations/")
        names = sorted(file.stem for file in folder.glob("*.jpg"))
        found[split] = _pairs(names, folder, base / "annotations" / word)
    reading = Reading(entry.classes, first=1)
    names_file = base / "objectInfo150.txt"
    class_names = _ade_names(names_file, entry.classes) if names_file.is_file() else _numbers(entry.classes)
    return task_of_masks(entry.name, in_roles(found, place.roles), class_names, reading, **fields)


def open_voc(entry: Entry, place: Place, top: Path, **fields: Any) -> Task:
    """JPEGImages/, SegmentationClass/ and ImageSets/Segmentation/{train,val}.txt; 255 is the border around things.

    The 10,582 pictures of the usual larger training set are taken if both trainaug.txt and SegmentationClassAug/ are there.
    """
    inner = [path for path in (top / "VOCdevkit" / "VOC2012", top / "VOC2012") if path.is_dir()]
    base = inner[0] if inner else top
    sets = base / "ImageSets" / "Segmentation"
    more = (sets / "trainaug.txt").is_file() and (base / "SegmentationClassAug").is_dir()
    masks = base / ("SegmentationClassAug" if more else "SegmentationClass")
    lists = {"train": sets / f"train{'aug' if more else ''}.txt", "validation": sets / "val.txt"}
    found = {split: _pairs(_listed(file), base / "JPEGImages", masks) for split, file in lists.items()}
    return task_of_masks(entry.name, in_roles(found, place.roles), VOC_CLASSES, Reading(entry.classes), **fields)


def _listed(file: Path) -> list[str]:
    """The names in a list of pictures."""
    if not file.is_file():
        raise BadData(f"there is no {file}; give the folder that holds JPEGImages/, SegmentationClass/ and ImageSets/")
    return [Path(line.split()[0]).stem for line in file.read_text().splitlines() if line.strip()]


def _pairs(names: Sequence[str], pictures: Path, masks: Path) -> Pairs:
    """The pictures of these names and their masks. Raises `BadData` for one that lacks the other."""
    if not names:
        raise BadData(f"{pictures} has no pictures for this split; unpack the archive anew")
    for folder, suffix in ((pictures, ".jpg"), (masks, ".png")):
        there = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        lost = next((name for name in names if name + suffix not in there), None)
        if lost:
            raise BadData(f"there is no {folder / (lost + suffix)}; unpack the archive anew")
    return Pairs(_files(names, pictures, ".jpg"), _files(names, masks, ".png"))


def _files(names: Sequence[str], folder: Path, suffix: str) -> Files:
    return Files(tuple(str(folder / (name + suffix)) for name in names))


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def _ade_names(file: Path, count: int) -> list[str]:
    """The last column of objectInfo150.txt (number, shares, stuff or thing, names), the first of each row's names."""
    rows = [line.split("\t") for line in file.read_text().splitlines()[1:] if line.strip()]
    if len(rows) != count:
        raise BadData(f"{file} names {len(rows)} classes; there are {count}; unpack the archive anew")
    return [row[-1].split(",")[0].strip() for row in rows]
