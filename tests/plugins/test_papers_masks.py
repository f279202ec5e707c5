"""Segmentation data: the layouts of ADE20K and VOC, the meaning of mask values, and errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from papers_data import SIZE, mask_values, palette_mask, parquet, picture
from PIL import Image

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.tasks import hub_data
from learngene_zoo.tasks.catalogue import open_task
from lgzoo_papers.masks import Reading, list_voc_colours, read_mask
from lgzoo_papers.suite import ROWS
from lgzoo_papers.suite import open_task as open_entry

ADE = ROWS["ade20k"].entry


def ade20k(top: Path, train: int = 20, validation: int = 5, classes: int = 150) -> Path:
    for word, count in (("training", train), ("validation", validation)):
        for kind in ("images", "annotations"):
            (top / kind / word).mkdir(parents=True)
        for number in range(count):
            name = f"ADE_{word[:5]}_{number:08}"
            picture(number).save(top / "images" / word / f"{name}.jpg")
            values = np.random.default_rng(number).integers(
                0, classes + 1, SIZE[::-1], dtype=np.uint8
            )
            Image.fromarray(values, "L").save(top / "annotations" / word / f"{name}.png")
    return top


def voc(top: Path, train: int = 20, val: int = 5) -> Path:
    base = top / "VOCdevkit" / "VOC2012"
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (base / folder).mkdir(parents=True)
    for word, start, count in (("train", 0, train), ("val", 1000, val)):
        names = [f"2007_{number:06}" for number in range(start, start + count)]
        (base / "ImageSets" / "Segmentation" / f"{word}.txt").write_text("\n".join(names) + "\n")
        for number, name in enumerate(names, start):
            picture(number).save(base / "JPEGImages" / f"{name}.jpg")
            palette_mask(mask_values(number, 21)).save(base / "SegmentationClass" / f"{name}.png")
    return base


def test_ade20k_leaves_zero_out_and_counts_from_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LGZOO_ADE20K", str(ade20k(tmp_path)))
    task = open_task("ade20k")
    assert (task.kind, task.classes, task.class_names[0]) == ("segmentation", 150, "1")
    assert dict(task.sizes) == {"train": 18, "validation": 2, "test": 5}
    test = pickle.loads(pickle.dumps(task.split("test")))
    assert test.labels.tolist() == [0] * 5
    samples = test.__getitems__([3, 1])
    stored = np.array(Image.open(tmp_path / "annotations/validation/ADE_valid_00000003.png"))
    assert samples.images[0].shape == (3, *stored.shape)
    assert samples.masks[0].dtype == torch.uint8
    assert (samples.masks[0].numpy() == np.where(stored == 0, 255, stored.astype(int) - 1)).all()
    assert (stored == 0).any()
    assert any("validation split is used for testing" in note for note in task.notes)


def test_ade20k_reads_its_class_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGZOO_ADE20K", str(ade20k(tmp_path, classes=2)))
    lines = [
        "Idx\tRatio\tTrain\tVal\tStuff\tName",
        "1\t0.1\t9\t9\t1\twall",
        "2\t0.1\t9\t9\t1\tbuilding, edifice",
    ]
    (tmp_path / "objectInfo150.txt").write_text("\n".join(lines))
    task = open_entry(replace(ADE, classes=2), offline=True)
    assert task.class_names == ("wall", "building")
    with pytest.raises(BadData, match=r"objectInfo150\.txt names 2 classes, expected 150"):
        open_task("ade20k")


def test_voc_keeps_its_border_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGZOO_VOC2012", str(tmp_path))
    voc(tmp_path)
    task = open_task("voc2012")
    assert (task.kind, task.classes, task.class_names[20]) == ("segmentation", 21, "tvmonitor")
    assert dict(task.sizes) == {"train": 18, "validation": 2, "test": 5}
    samples = task.split("test").__getitems__([2])
    assert (samples.masks[0].numpy() == mask_values(1002, 21)).all()
    assert (samples.masks[0][0] == 255).all()
    cut = {split: set(task.split(split).members.tolist()) for split in ("train", "validation")}  # type: ignore[attr-defined]
    assert cut["train"] | cut["validation"] == set(range(20))


def test_voc_s_larger_training_set_is_used_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LGZOO_VOC2012", str(tmp_path))
    base = voc(tmp_path)
    (base / "SegmentationClass").rename(base / "SegmentationClassAug")
    (base / "SegmentationClass").mkdir()
    with pytest.raises(BadData, match=r"SegmentationClass/2007_000000\.png"):
        open_task("voc2012")
    names = (base / "ImageSets/Segmentation/train.txt").read_text().split()[:10]
    # Lists of the larger set come with paths as well as with names.
    lines = [f"/JPEGImages/{name}.jpg /SegmentationClassAug/{name}.png" for name in names]
    (base / "ImageSets/Segmentation/trainaug.txt").write_text("\n".join(lines))
    assert dict(open_task("voc2012").sizes) == {"train": 9, "validation": 1, "test": 5}


def test_voc_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.delenv("LGZOO_VOC2012", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    columns = {"image": "image", "mask": "mask"}
    folder = parquet(tmp_path / "repository", {"train": 20, "val": 5}, columns, None)
    load = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: load(str(folder)))
    monkeypatch.setattr(hub_data, "_find_revision", lambda *_: ("a" * 40, "unknown"))
    task = open_task("voc2012")
    assert dict(task.sizes) == {"train": 18, "validation": 2, "test": 5}
    assert task.revision == "a" * 40
    samples = task.split("test").__getitems__([4])
    assert (samples.masks[0].numpy() == mask_values(4, 21)).all()


def test_masks_in_colours_are_the_same_as_in_a_palette() -> None:
    values = mask_values(1, 21)
    coloured = palette_mask(values).convert("RGB")
    assert list_voc_colours()[[1, 20, 255]].tolist() == [[128, 0, 0], [0, 64, 128], [224, 224, 192]]
    assert (read_mask(as_bytes(coloured), "here", Reading(21)).numpy() == values).all()


def as_bytes(image: Image.Image) -> bytes:
    from papers_data import encode

    return encode(image)


def grey(*values: int) -> Image.Image:
    return Image.fromarray(np.array([values], dtype=np.uint8), "L")


def of_colour(red: int, green: int, blue: int) -> Image.Image:
    return Image.new("RGB", (2, 2), (red, green, blue))


@pytest.mark.parametrize(
    ("image", "reading", "words"),
    [
        (
            grey(0, 5, 21),
            Reading(21),
            r"mask\.png: the mask has the value 21; expected 0 to 20, or 255",
        ),
        (grey(151), Reading(150, first=1), "value 151; expected 1 to 150"),
        (Image.fromarray(np.array([[40_000]], dtype=np.uint16)), Reading(21), "value 40000"),
        (of_colour(1, 2, 3), Reading(21), "colour #010203, which is not a class of VOC"),
        (of_colour(0, 64, 128), Reading(6), "value 20; expected 0 to 5"),
    ],
)
def test_values_that_are_no_class_are_named(
    image: Image.Image, reading: Reading, words: str
) -> None:
    with pytest.raises(BadData, match=words):
        read_mask(as_bytes(image), "mask.png", reading)


def test_values_at_the_edge_are_classes() -> None:
    assert read_mask(as_bytes(grey(0, 20, 255)), "m", Reading(21)).tolist() == [[0, 20, 255]]
    assert read_mask(as_bytes(grey(0, 1, 150, 255)), "m", Reading(150, first=1)).tolist() == [
        [255, 0, 149, 255]
    ]


def smaller_mask(base: Path) -> None:
    grey(1, 2).save(base / "SegmentationClass" / "2007_001002.png")


def turned_mask(base: Path) -> None:
    Image.fromarray(np.zeros((20, 12), dtype=np.uint8), "L").save(
        base / "SegmentationClass" / "2007_001002.png"
    )


def torn_mask(base: Path) -> None:
    file = base / "SegmentationClass" / "2007_001002.png"
    file.write_bytes(file.read_bytes()[:60])


DISK_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a mask lost": (
        lambda b: (b / "SegmentationClass/2007_000003.png").unlink(),
        r"no .*2007_000003\.png; unpack",
    ),
    "a picture lost": (
        lambda b: (b / "JPEGImages/2007_000003.jpg").unlink(),
        r"no .*2007_000003\.jpg; unpack",
    ),
    "a list lost": (
        lambda b: (b / "ImageSets/Segmentation/val.txt").unlink(),
        r"no .*val\.txt; give the folder",
    ),
    "an empty list": (
        lambda b: (b / "ImageSets/Segmentation/val.txt").write_text("\n"),
        "no images for this split",
    ),
    "turned": (turned_mask, r"2007_001002\.png: the mask is 20x12 and the image 12x20 pixels"),
    "another size": (
        smaller_mask,
        r"2007_001002\.png: the mask is 1x2 and the image 12x20 pixels",
    ),
    "a torn mask": (torn_mask, r"2007_001002\.png: the image cannot be read"),
}


@pytest.mark.parametrize("fault", DISK_FAULTS)
def test_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    make, words = DISK_FAULTS[fault]
    monkeypatch.setenv("LGZOO_VOC2012", str(tmp_path))
    make(voc(tmp_path))
    with pytest.raises(BadData, match=words) as caught:
        open_task("voc2012").split("test").__getitems__([2])
    assert "\n" not in str(caught.value)


def test_ade20k_says_where_it_is_and_what_its_folder_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LGZOO_ADE20K", raising=False)
    with pytest.raises(Unavailable, match=r"ADEChallengeData2016\.zip.*LGZOO_ADE20K"):
        open_task("ade20k")
    monkeypatch.setenv("LGZOO_ADE20K", str(tmp_path))
    with pytest.raises(
        BadData, match="images/training; give the folder that holds images/ and annotations/"
    ):
        open_task("ade20k")
