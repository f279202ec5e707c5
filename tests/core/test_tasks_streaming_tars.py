"""Tars of images: their names, files beside them, and one-line errors for every fault."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from streaming_toy import by_index, encode, loader, pairs, pixels, shards, write_tar

from learngene_zoo.atomic import _identify_machine
from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.ownership import write_draft_mark
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.streams import tars
from learngene_zoo.tasks.streams.places import expand_braces


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards(tmp_path_factory.mktemp("tars"))


# How tars are named, and what lies beside them.


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a-{000..002}.tar", ["a-000.tar", "a-001.tar", "a-002.tar"]),
        ("{train-{8..10},val}.tar", ["train-8.tar", "val.tar", "train-9.tar", "train-10.tar"]),
        ("{a,b}{0..1}", ["a0", "a1", "b0", "b1"]),
        ("plain.tar", ["plain.tar"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert sorted(expand_braces(pattern)) == sorted(names)


@pytest.mark.parametrize(
    "pattern",
    ["{top}", "{top}/*.tar", "{top}/{{train-{{000..003}},val-000,test-000}}.tar"],
)
def test_patterns_name_the_same_tars(stored: Path, pattern: str) -> None:
    task = open_task(f"wds:{pattern.format(top=stored)}")
    assert dict(task.sizes) == {"train": 100, "validation": 10, "test": 15}
    assert task.notes == ()


def test_splits_may_be_folders_with_a_list_of_classes_above(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "validation", "test")):
        write_tar(tmp_path / split / "0.tar", pairs(100 * number, 10))
    (tmp_path / "classnames.txt").write_text("ant\nbee\ncat\ndog\nelk\nfox\n")
    task = open_task(f"wds:{tmp_path}")
    assert task.class_names == ("ant", "bee", "cat", "dog", "elk", "fox")
    assert dict(task.sizes) == {"train": 10, "validation": 10, "test": 10}


def never(*given: Any) -> Any:
    raise AssertionError("nothing is to be counted")


SIZES = [
    ("sizes.json", {f"{name}.tar": 10 for name in ("train", "val", "test")}),
    (
        "_info.json",
        {
            "splits": {
                name: {"filenames": [f"{name}.tar"], "shard_lengths": [10]}
                for name in ("train", "val", "test")
            }
        },
    ),
]


@pytest.mark.parametrize(("name", "content"), SIZES)
def test_files_beside_the_tars_save_the_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: Any
) -> None:
    for number, split in enumerate(("train", "val", "test")):
        write_tar(tmp_path / f"{split}.tar", pairs(100 * number, 10))
    (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "classes.txt").write_text("a\nb\nc\nd\ne\n")
    monkeypatch.setattr(tars, "load_facts", never)
    task = open_task(f"wds:{tmp_path}")
    assert dict(task.sizes) == {"train": 10, "validation": 10, "test": 10}
    assert sorted(by_index(loader(task, batch_size=5).epoch(0))) == list(range(10))


def test_counts_are_kept_and_what_a_killed_process_left_of_them_goes(
    stored: Path, cache: Path
) -> None:
    open_task(f"wds:{stored}")
    (kept,) = cache.rglob("*.json")
    text = kept.read_text()
    dead = kept.with_name(
        f".{kept.name}.{_identify_machine()}-{2**30}-1-abcdef.draft"
    )  # no process has this number
    dead.mkdir()
    write_draft_mark(dead)
    (dead / kept.name).write_text(text[:5])
    kept.write_text(text[:5])
    open_task(f"wds:{stored}")
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    assert kept.read_text() == text


@pytest.mark.parametrize(
    "classes",
    [
        ["a", "b", "c"],
        {"a": 0, "b": 1, "c": 2},
        {"0": "a", "1": "b", "2": "c"},
        {"c": 2, "a": 0, "b": 1},
    ],
)
def test_labels_are_numbers_or_names_in_cls_or_json(tmp_path: Path, classes: Any) -> None:
    labels = [
        ("cls", b"0"),
        ("cls", b"02\n"),
        ("cls", b"b"),
        ("json", b'{"label": 1}'),
        ("json", b'{"class": "c"}'),
    ]
    files = [
        file
        for number, (kind, data) in enumerate(labels * 4)
        for file in (
            (f"{number}.JPG", encode(number, "jpeg")),
            (f"{number}.{kind}", data),
            (f"{number}.txt", b"hi"),
        )
    ]
    write_tar(tmp_path / "train.tar", files)
    write_tar(tmp_path / "val.tar", files)
    write_tar(tmp_path / "test.tar", files)
    (tmp_path / "classes.json").write_text(json.dumps(classes))
    task = open_task(f"wds:{tmp_path}")
    assert task.class_names == ("a", "b", "c")
    (batch,) = loader(task, batch_size=20, shuffle=False).epoch(0)
    assert batch.labels.tolist() == [0, 2, 1, 1, 2] * 4


def test_names_without_a_list_are_sorted(tmp_path: Path) -> None:
    files = [
        f
        for n in range(60)
        for f in ((f"{n}.png", encode(n)), (f"{n}.cls", b"10" if n % 2 else b"9"))
    ]
    assert open_task(f"wds:{write_tar(tmp_path / 'numbers.tar', files)}").class_names == ("9", "10")
    named = [(name, {b"10": b"ant", b"9": b"bee"}.get(data, data)) for name, data in files]
    task = open_task(f"wds:{write_tar(tmp_path / 'names.tar', named)}")
    assert task.class_names == ("ant", "bee")


def test_images_are_counted_once_until_a_tar_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    shards(tmp_path)
    first = open_task(f"wds:{tmp_path}")
    assert len(list(cache.rglob("*.json"))) == 1
    with monkeypatch.context() as patch:
        patch.setattr(tars, "show_progress", never)
        assert open_task(f"wds:{tmp_path}").sizes == first.sizes
    write_tar(tmp_path / "train-000.tar", pairs(0, 26))
    assert open_task(f"wds:{tmp_path}").sizes["train"] == 101
    for file in cache.rglob("*.json"):
        file.write_text("{")
    assert open_task(f"wds:{tmp_path}").sizes["train"] == 101


# What may be wrong with a tar.


@pytest.mark.parametrize("style", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_and_folders(tmp_path: Path, style: int) -> None:
    folder = "a" * (60 if style == tarfile.USTAR_FORMAT else 120)
    files = [
        (f"{folder}/{'é' * (style != tarfile.USTAR_FORMAT)}{'b' * 80}{name}", data)
        for name, data in pairs(0, 60)
    ]
    path = write_tar(
        tmp_path / "long.tar", files, format=style, pax_headers={"comment": "made by a test"}
    )
    task = open_task(f"wds:{path}")
    assert sum(task.sizes.values()) == 60
    assert len(by_index(loader(task).epoch(0))) == task.sizes["train"]


def test_nothing_is_unpacked_wherever_its_name_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    files = [
        (("../" if number // 2 % 2 else f"{tmp_path}/") + name, data)
        for number, (name, data) in enumerate(pairs(0, 60))
    ]
    task = open_task(f"wds:{write_tar(tmp_path / 'bad.tar', files)}")
    assert len(by_index(loader(task, drop_last=False).epoch(0))) == task.sizes["train"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tar", "in"]


def cut(size: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[:size]) and None


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    offset = data.index(b"0011.png\0")
    data[offset + 150] ^= 0xFF
    path.write_bytes(data)


def add_link(path: Path) -> None:
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("9999.png")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)


def with_files(*files: tuple[str, bytes]) -> Callable[[Path], None]:
    return lambda path: write_tar(path, [*pairs(0, 60), *files]) and None


PICTURE = encode(1)
TAR_FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut in a header": (cut(1024 * 20 + 100), "x.tar is damaged or cut short after 00"),
    "cut in a file": (cut(1024 * 20 + 700), "x.tar is damaged or cut short after 00"),
    "no end": (cut(512), "x.tar is damaged or cut short after"),
    "empty": (cut(0), "x.tar is damaged or cut short after its beginning"),
    "a damaged header": (damage, r"x.tar is damaged or cut short after 0010.cls \(.*header\)"),
    "no tar": (
        lambda path: path.write_bytes(b"not a tar" * 200) and None,
        "x.tar is damaged or cut short after its beginning",
    ),
    "a link": (add_link, "9999.png is a link"),
    "a pickle": (with_files(("70.png", PICTURE), ("70.pth", b"x")), "70.pth may hold a pickle"),
    "a pickled label": (
        with_files(("70.png", PICTURE), ("70.cls.pyd", b"x")),
        "70.cls.pyd may hold a pickle",
    ),
    "no label": (with_files(("70.png", PICTURE)), "x.tar: 70 has no label; add 70.cls"),
    "no image": (with_files(("70.cls", b"1")), "x.tar: 70 has 0 images"),
    "two images": (
        with_files(("70.png", PICTURE), ("70.jpg", PICTURE), ("70.cls", b"1")),
        "70 has 2 images",
    ),
    "the same twice": (
        with_files(("70.png", PICTURE), ("70.png", PICTURE)),
        "70.png twice",
    ),
    "a label below 0": (
        with_files(("70.png", PICTURE), ("70.cls", b"-1")),
        "70.cls holds -1, which is not a class",
    ),
    "a long label": (
        with_files(("70.png", PICTURE), ("70.cls", b"x" * 1001)),
        "70.cls holds a label of 1001 characters",
    ),
    "a huge label": (
        with_files(
            ("70.png", PICTURE), ("70.json", b'{"caption": "' + b"x" * 2**20 + b'", "label": 1}')
        ),
        "70.json has [0-9]+ bytes; expected a label",
    ),
    "an empty label": (with_files(("70.png", PICTURE), ("70.cls", b" ")), "70.cls holds no label"),
    "no text": (
        with_files(("70.png", PICTURE), ("70.cls", b"\xff\xfe")),
        "70.cls cannot be read as cls",
    ),
    "no json": (
        with_files(("70.png", PICTURE), ("70.json", b"{")),
        "70.json cannot be read as json",
    ),
    "json of no label": (
        with_files(("70.png", PICTURE), ("70.json", b'{"id": 3}')),
        "70.json holds no label",
    ),
    "json of a list": (
        with_files(("70.png", PICTURE), ("70.json", b"[3]")),
        "70.json holds no label",
    ),
    "one class": (lambda path: write_tar(path, pairs(0, 1)) and None, "has one class"),
    "nothing": (lambda path: write_tar(path, []) and None, "has no training images"),
}


@pytest.mark.parametrize("fault", TAR_FAULTS)
def test_faults_of_tars(tmp_path: Path, fault: str) -> None:
    spoil, words = TAR_FAULTS[fault]
    spoil(write_tar(tmp_path / "x.tar", pairs(0, 60)))
    with pytest.raises(BadData, match=words) as caught:
        open_task(f"wds:{tmp_path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [PICTURE[:70], b"no image", b""])
def test_an_unreadable_image_is_named(tmp_path: Path, content: bytes, workers: int) -> None:
    files = [(name, content if name == "0017.png" else data) for name, data in pairs(0, 60)]
    for split in ("train", "val", "test"):
        write_tar(tmp_path / f"{split}.tar", files)
    task = open_task(f"wds:{tmp_path}")
    with pytest.raises(BadData, match=r"train\.tar: 0017: the image cannot be read"):
        list(loader(task, workers=workers).epoch(0))


def test_a_label_outside_the_list_is_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", pairs(0, 60))
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    with pytest.raises(
        BadData, match=r"x\.tar: \d+ has the label [34], which is not one of the 3 classes"
    ):
        list(loader(open_task(f"wds:{tmp_path}")).epoch(0))


@pytest.mark.parametrize(
    ("told", "words"),
    [(61, "holds 60 images and 61 were counted"), (59, "holds 60 images and 59 were counted")],
)
def test_a_wrong_count_beside_a_tar_is_an_error(tmp_path: Path, told: int, words: str) -> None:
    for split in ("train", "val", "test"):
        write_tar(tmp_path / f"{split}.tar", pairs(0, 60))
    (tmp_path / "sizes.json").write_text(
        json.dumps({"train.tar": told, "val.tar": 60, "test.tar": 60})
    )
    (tmp_path / "classes.txt").write_text("a\nb\nc\nd\ne\n")
    with pytest.raises(BadData, match=words):
        list(loader(open_task(f"wds:{tmp_path}"), drop_last=False).epoch(0))


BESIDE_FAULTS = [
    ("sizes.json", "{", "is not valid JSON"),
    ("sizes.json", '{"x.tar": -1}', "does not say how many"),
    ("sizes.json", "[3]", "does not say how many"),
    ("classes.json", '{"a": 0, "b": 7}', "is not a list of distinct classes"),
    ("classes.txt", "a\na\n", "is not a list of distinct classes"),
    ("classes.txt", "a\n", "has one class"),
]


@pytest.mark.parametrize(("name", "content", "words"), BESIDE_FAULTS)
def test_faults_beside_tars(tmp_path: Path, name: str, content: str, words: str) -> None:
    write_tar(tmp_path / "x.tar", pairs(0, 60))
    (tmp_path / name).write_text(content)
    with pytest.raises(BadData, match=words):
        open_task(f"wds:{tmp_path}")


@pytest.mark.parametrize(
    ("pattern", "kind", "words"),
    [
        ("{top}/nowhere", BadData, "there is no file or folder"),
        ("{top}/train-{{000..009}}.tar", BadData, "train-004.tar"),
        ("{top}/*.zip", BadData, "matches no tar"),
        ("{top}/val-000.tar", BadData, "no training files, only validation"),
        ("{top}/note.txt", BadData, "is not a .tar"),
        ("{top}/train-{{3..0}}.tar", WrongCall, "counts down or names more"),
        ("{{0..9}}{{0..99999}}.tar", WrongCall, "more than 100000 tars"),
        ("pipe:cat x.tar", WrongCall, "no command is run"),
        ("s3://bucket/x.tar", WrongCall, "only paths and https:// addresses"),
        ("", WrongCall, "has nothing after the colon"),
    ],
)
def test_faults_of_patterns(stored: Path, pattern: str, kind: type[Exception], words: str) -> None:
    (stored / "note.txt").write_text("x")
    with pytest.raises(kind, match=words):
        open_task(f"wds:{pattern.format(top=stored)}")


def test_a_path_that_exists_is_not_expanded(tmp_path: Path) -> None:
    shards(tmp_path / "{0..1},{a,b}")
    assert open_task(f"wds:{tmp_path}/{{0..1}},{{a,b}}").sizes["train"] == 100


def test_a_tar_of_no_split_beside_others_of_one(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", pairs(0, 20))
    write_tar(tmp_path / "more.tar", pairs(20, 20))
    with pytest.raises(BadData, match=r"more\.tar belongs to no split"):
        open_task(f"wds:{tmp_path}")


def test_tars_with_the_exact_name_of_a_split_come_first(tmp_path: Path) -> None:
    shards(tmp_path, 1)
    write_tar(tmp_path / "trainval-000.tar", pairs(0, 35))
    task = open_task(f"wds:{tmp_path}")
    assert dict(task.sizes) == {"train": 25, "validation": 10, "test": 15}
    assert [note.partition("; first: ")[2] for note in task.notes] == [
        str(tmp_path / "trainval-000.tar")
    ]


@pytest.mark.parametrize("pattern", ["{top}", "{top}/[._tv]*"])
def test_hidden_tars_are_skipped_and_suffixes_may_be_capitals(tmp_path: Path, pattern: str) -> None:
    shards(tmp_path, 1)
    (tmp_path / "test-000.tar").rename(tmp_path / "test-000.TAR")
    (tmp_path / "__MACOSX").mkdir()
    for name in ("._train-000.tar", ".x.tar", "__MACOSX/train-000.tar"):
        (tmp_path / name).write_bytes(b"not a tar")
    task = open_task(f"wds:{pattern.format(top=tmp_path)}")
    assert dict(task.sizes) == {"train": 25, "validation": 10, "test": 15}


# Masks.


def make_masked_pairs(first: int, count: int, value: int = 2) -> list[tuple[str, bytes]]:
    def mask(number: int) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(np.where(pixels(number)[:, :, 0] > 127, value, 0).astype(np.uint8)).save(
            stream, "png"
        )
        return stream.getvalue()

    numbers = range(first, first + count)
    return [file for n in numbers for file in ((f"{n}.png", encode(n)), (f"{n}.seg.png", mask(n)))]


def test_masks_make_a_segmentation_task(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", make_masked_pairs(0, 60))
    with pytest.raises(BadData, match=r"put a classes\.txt beside the tars"):
        open_task(f"wds:{path}")
    (tmp_path / "classes.txt").write_text("sky\nsea\nland\n")
    task = open_task(f"wds:{path}")
    assert task.kind == "segmentation"
    batch = next(loader(task, augment="none").epoch(0))
    assert batch.labels.shape == (12, 8, 8)
    assert torch.equal(batch.labels, torch.where(batch.inputs[:, 0].round() > 127, 2, 0))
    write_tar(path, [file for file in make_masked_pairs(0, 60) if file[0] != "30.seg.png"])
    with pytest.raises(BadData, match=r"x\.tar: 30 has no mask; add 30\.seg\.png"):
        list(loader(open_task(f"wds:{path}"), drop_last=False).epoch(0))


class Pipe(io.BytesIO):
    """Bytes that can be read only once, like a download."""

    def seekable(self) -> bool:
        return False


@pytest.mark.parametrize("kind", [io.BytesIO, Pipe])
@pytest.mark.parametrize(
    ("bytes_left", "last", "reason"),
    [
        (1024 * 20 + 700, "0010.png", "it ends too early"),  # in a picture
        (1024 * 20 + 100, "0009.cls", "truncated header"),
        (1024 * 20, "0009.cls", "empty header"),
    ],
)
def test_a_cut_tar_gives_what_is_whole_and_says_where_it_ends(
    tmp_path: Path, kind: type[io.BytesIO], bytes_left: int, last: str, reason: str
) -> None:
    """A sample is two files of two blocks of 512 bytes each, and is yielded when the next one
    begins.
    """
    data = write_tar(tmp_path / "x.tar", pairs(0, 60)).read_bytes()
    results: list[str] = []

    def read_all() -> None:
        for group in tars.iterate_groups(
            kind(data[:bytes_left]), "x.tar", lambda number, kind: True
        ):
            results.append(group.key)

    with pytest.raises(BadData, match=rf"x.tar is damaged or cut short after {last} \({reason}\)"):
        read_all()
    assert results == [f"{number:04}" for number in range(10 if last == "0010.png" else 9)]


def test_labels_are_names_only_if_names_are_other_numbers() -> None:
    assert tars._number_labels(["cat", "1"]) == {"0": 0, "cat": 0, "1": 1}
    assert tars._number_labels(["1", "2", "3"]) == {"1": 0, "2": 1, "3": 2}
